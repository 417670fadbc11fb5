//! `/v1/ai/agents`: agents to launch.

use axum::extract::{Path, State};
use axum::response::Response;
use mainspring_api::threads::{
    AgentRecord, AnalysisScope, CreateAgentRequest, DeletedAgent, LaunchAgentRequest,
    StartAgentThreadRequest, ThreadAgentListQuery, ThreadPage, ThreadVisibility, Timestamp,
    UpdateAgentRequest,
};
use mainspring_core::Time;
use mainspring_core::launch::resolve;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{Repeatable, launchers};
use serde_json::Value;

use super::write::{Started, settle, start_thread, started_response};
use super::{ThreadBody, ThreadCaller, ThreadQuery};
use crate::{Http, Problem};

/// Agents in a page.
const PAGE_AGENTS: usize = 50;

/// `POST /v1/ai/agents`
pub(super) async fn launcher_create(
    State(http): State<Http>,
    caller: ThreadCaller,
    ThreadBody(new, body): ThreadBody<CreateAgentRequest>,
) -> Result<Response, Problem> {
    let request = http.kernel.repeat_begin(&caller.caller, "thread_agent_create", None, &body).await?;
    let made = check_template(&Value::Object(new.request_template.clone()));
    let made = match made {
        Ok(()) => {
            let id = &request.name[..32];
            http.kernel.launcher_create(&caller.caller, id, new).await.map_err(Problem::from)
        }
        Err(problem) => Err(problem),
    };
    Ok(caller.answer(&settle(&http, &request, made).await?))
}

/// Refuses a template that is not a request to start a thread. Placeholders are texts, so the template can be parsed as a
/// request.
fn check_template(template: &Value) -> Result<(), Problem> {
    match serde_json::from_value::<StartAgentThreadRequest>(template.clone()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::invalid(format!("request_template: {error}"))),
    }
}

/// `GET /v1/ai/agents`
pub(super) async fn launcher_list(
    State(http): State<Http>,
    caller: ThreadCaller,
    ThreadQuery(query): ThreadQuery<ThreadAgentListQuery>,
) -> Result<Response, Problem> {
    let token = query.page_token.as_deref().filter(|token| !token.is_empty());
    let after = token.map(page_start).transpose()?;
    let (items, has_more) = http.kernel.launcher_list(&caller.caller, after, PAGE_AGENTS).await?;
    let position = |last: &AgentRecord| format!("{}.{}", last.created.0.0, last.agent_id);
    let next_token = items.last().filter(|_| has_more).map(position);
    Ok(caller.answer(&ThreadPage { items, next_token }))
}

/// Reads the token of a page: the time of creation and the id of the last agent before it.
fn page_start(token: &str) -> Result<(Timestamp, &str), Problem> {
    let parts = token.split_once('.').and_then(|(at, id)| Some((Timestamp(Time(at.parse().ok()?)), id)));
    parts.ok_or_else(|| Problem::invalid("page_token is not the next_token of an earlier page"))
}

/// `GET /v1/ai/agents/{agent}`
pub(super) async fn launcher_get(
    State(http): State<Http>,
    caller: ThreadCaller,
    Path(agent): Path<String>,
) -> Result<Response, Problem> {
    Ok(caller.answer(&http.kernel.launcher_get(&caller.caller, &agent).await?))
}

/// `GET /v1/ai/agents/name/{name}`
pub(super) async fn launcher_find(
    State(http): State<Http>,
    caller: ThreadCaller,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Ok(caller.answer(&http.kernel.launcher_find(&caller.caller, &name).await?))
}

/// `PUT /v1/ai/agents/{agent}`
pub(super) async fn launcher_update(
    State(http): State<Http>,
    caller: ThreadCaller,
    Path(agent): Path<String>,
    ThreadBody(change, _): ThreadBody<UpdateAgentRequest>,
) -> Result<Response, Problem> {
    if let Some(template) = &change.request_template {
        check_template(&Value::Object(template.clone()))?;
    }
    Ok(caller.answer(&http.kernel.launcher_update(&caller.caller, &agent, change).await?))
}

/// `DELETE /v1/ai/agents/{agent}`
pub(super) async fn launcher_delete(
    State(http): State<Http>,
    caller: ThreadCaller,
    Path(agent): Path<String>,
) -> Result<Response, Problem> {
    let operation = "thread_agent_delete";
    let request = http.kernel.repeat_begin(&caller.caller, operation, None, agent.as_bytes()).await?;
    let deleted = match http.kernel.launcher_delete(&caller.caller, &agent).await {
        Err(Error::NotFound { .. }) if request.is_repeated => Ok(()),
        deleted => deleted.map_err(Problem::from),
    };
    settle(&http, &request, deleted).await?;
    Ok(caller.answer(&DeletedAgent { agent_id: agent }))
}

/// `POST /v1/ai/agents/{agent}/launch`
pub(super) async fn launcher_launch(
    State(http): State<Http>,
    caller: ThreadCaller,
    Path(agent): Path<String>,
    ThreadBody(launch, body): ThreadBody<LaunchAgentRequest>,
) -> Result<Response, Problem> {
    let operation = format!("thread_agent_launch {agent}");
    let request = http.kernel.repeat_begin(&caller.caller, &operation, None, &body).await?;
    let launched = start_from(&http, &caller, &request, &agent, launch).await;
    let launched = settle(&http, &request, launched).await?;
    started_response(&http, &caller, &request, launched).await
}

async fn start_from(
    http: &Http,
    caller: &ThreadCaller,
    request: &Repeatable,
    agent: &str,
    launch: LaunchAgentRequest,
) -> Result<Started, Problem> {
    let record = http.kernel.launcher_get(&caller.caller, agent).await?;
    let template = Value::Object(record.request_template);
    let filled = resolve(&template, &launchers::variables(&record.variables), &launch.values);
    let filled = filled.map_err(|bad| launchers::invalid(&bad))?;
    let start = serde_json::from_value(filled);
    let mut start: StartAgentThreadRequest =
        start.map_err(|error| Problem::invalid(format!("request_template: {error}")))?;
    // A launch shares the thread with the org by default, which a caller without an org cannot do.
    start.visibility = Some(match caller.caller.org {
        Some(_) => launch.visibility,
        None => ThreadVisibility::Private,
    });
    if let Some(scope) = &launch.analysis_scope {
        start.analysis_scope.get_or_insert_with(AnalysisScope::default).merge(scope);
    }
    start_thread(http, caller, request, start, Some(&record.agent_id)).await
}
