//! `/v1/runs`, and prompts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::{
    Answer, Attempt, Block, Grant, Mode, Place, Policy, Position, RequestName, Run, RunOptions, RunStatus,
    Step, WaitId,
};
use mainspring_kernel::kernel::{Accepted, Caller, CancelOutcome, RunQuery, RunRequest};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::{Asked, Input, Named, NamedRun, Once, idempotency_key};
use crate::sessions::{Page, Target, place};
use crate::{Http, Problem, events};

/// A prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Prompt {
    /// What is said; absent only to answer an earlier message again.
    #[serde(default)]
    prompt: Option<Said>,
    /// For which session; a new one if it names none.
    #[serde(default)]
    session: Target,
    /// The adapter; the session's if not given.
    #[serde(default)]
    adapter: Option<String>,
    /// Whether the agent may act.
    #[serde(default)]
    mode: Mode,
    /// All else it needs.
    #[serde(default)]
    options: RunOptions,
    /// Where in the session's tree.
    #[serde(default)]
    place: Place,
    /// What it does to a busy session.
    #[serde(default)]
    policy: Policy,
    /// Who asks; needed with a `requestId`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    client_id: Option<String>,
    /// The client's own name for this request: the same name again gives the same run.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    request_id: Option<String>,
}

/// What a prompt says: a text, or blocks of text and attachments.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum Said {
    Text(String),
    Blocks(Vec<Block>),
}

/// Why a prompt is not accepted, or accepted and not streamed.
const UNACCEPTED: &[&str] = &[
    "adapter_not_registered",
    "adapter_incompatible",
    "not_user_message",
    "not_assistant_message",
    "abandoned_message",
    "forbidden",
    "request_conflict",
    "session_busy",
    "no_org",
    "wrong_state",
    "overloaded",
    "too_many_streams",
];

/// A prompt for the session that the body names, made if there is none
#[utoipa::path(
    post, path = "/v1/runs", request_body = Prompt, params(Once, HowToAnswer),
    responses(
        (status = 200, description = "The run, which has ended or was made before; or its events, as a stream",
            headers(("Location" = String)), content((Created = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run, which goes on", body = Created, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(UNACCEPTED))),
)]
pub(super) async fn run_create(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Input(prompt): Input<Prompt>,
) -> Result<Response, Problem> {
    create(&http, &caller, &headers, prompt).await
}

/// A prompt for a session that exists
#[utoipa::path(
    post, path = "/v1/sessions/{session}/runs", request_body = Prompt, params(Named, Once, HowToAnswer),
    responses(
        (status = 200, description = "The run, which has ended or was made before; or its events, as a stream",
            headers(("Location" = String)), content((Created = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run, which goes on", body = Created, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(UNACCEPTED))),
)]
pub(super) async fn run_create_in(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Input(mut prompt): Input<Prompt>,
) -> Result<Response, Problem> {
    if prompt.session.session_id.is_some() || prompt.session.key.is_some() {
        return Err(Problem::invalid("the address names the session; leave it out of the body"));
    }
    prompt.session.session_id = Some(http.kernel.session_get(&caller, &by).await?.id);
    create(&http, &caller, &headers, prompt).await
}

/// How a prompt is answered.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it documents a header; `create` reads it")]
pub(super) struct HowToAnswer {
    /// `wait=N`: answer once the run has ended or asks something, at most N seconds (60) later.
    #[param(rename = "Prefer", pattern = "^wait=[0-9]+$")]
    prefer: Option<String>,
}

async fn create(
    http: &Http,
    caller: &Caller,
    headers: &HeaderMap,
    prompt: Prompt,
) -> Result<Response, Problem> {
    let key = idempotency_key(headers)?.map(str::to_owned);
    if prompt.request_id.is_some() && prompt.client_id.is_none() {
        return Err(Problem::invalid(
            "a requestId is the client's own: send a clientId too, or an Idempotency-Key",
        ));
    }
    if prompt.session.starts() {
        return Err(Problem::invalid("a prompt does not start a session: `POST /v1/sessions` does"));
    }
    let request = RunRequest {
        session: prompt.session.into(),
        prompt: match prompt.prompt {
            None => vec![],
            Some(Said::Text(text)) => vec![Block::text(text)],
            Some(Said::Blocks(blocks)) => blocks,
        },
        adapter: prompt.adapter,
        mode: prompt.mode,
        options: prompt.options,
        place: prompt.place,
        policy: prompt.policy,
        name: RequestName {
            client_id: prompt.client_id,
            request_id: prompt.request_id,
            idempotency_key: key,
        },
    };
    let accepted = http.kernel.run_create(caller, request).await?;
    if events::wants_stream(headers) {
        return events::run_stream(http, caller, &accepted).await;
    }
    let run = match preferred_wait(headers) {
        Some(timeout) => http.kernel.run_wait(caller, accepted.run.id, timeout).await?,
        None => accepted.run.clone(),
    };
    Ok(answer(&accepted, run))
}

/// How long the caller would wait: `wait=N` seconds, at most a minute.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let prefer = headers.get("prefer")?.to_str().ok()?;
    let wait = prefer.split([',', ';']).find_map(|part| part.trim().strip_prefix("wait="))?;
    Some(Duration::from_secs(wait.parse::<u64>().ok()?.min(60)))
}

/// A run that was accepted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AcceptedRun)]
struct Created {
    #[serde(flatten)]
    run: Run,
    /// The policy that took effect.
    policy: Policy,
    /// Subscribe from here to see all of the run.
    position: Position,
    /// The same request was sent before; this is the run it made.
    replayed: bool,
}

fn answer(accepted: &Accepted, run: Run) -> Response {
    let status = match (accepted.replayed, run.state.status().is_ended()) {
        (true, _) | (false, true) => StatusCode::OK,
        (false, false) => StatusCode::ACCEPTED,
    };
    let place = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let (policy, position, replayed) = (accepted.policy, accepted.position, accepted.replayed);
    let mut response = (status, Json(Created { run, policy, position, replayed })).into_response();
    response.headers_mut().extend(place.into_iter().map(|place| (header::LOCATION, place)));
    response
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only this session's, by id or key.
    #[param(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$")]
    session: Option<String>,
    /// Only these.
    status: Option<RunStatus>,
    /// How many; 50 if not given.
    limit: Option<usize>,
    /// The `next` of the page before.
    #[param(pattern = r"^[0-9]{1,18}\.run_[0-9a-f]{32}$")]
    before: Option<String>,
}

/// Runs, the newest first
#[utoipa::path(
    get, path = "/v1/runs", params(ListQuery),
    responses((status = 200, description = "A page", body = Page<Run>)),
)]
pub(super) async fn run_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<Run>>, Problem> {
    let session = match query.session {
        None => None,
        Some(name) => {
            let by = mainspring_kernel::kernel::session_ref(&name)?;
            Some(http.kernel.session_get(&caller, &by).await?.id)
        }
    };
    let (limit, before) = (query.limit, place(query.before)?);
    let query = RunQuery { session, status: query.status, before, limit };
    let items = http.kernel.run_list(&caller, query).await?;
    Ok(Json(Page::of(&http, items, limit, |run| format!("{}.{}", run.created_at.0, run.id))))
}

/// One run
#[utoipa::path(
    get, path = "/v1/runs/{run}", params(NamedRun),
    responses((status = 200, description = "It", body = Run)),
)]
pub(super) async fn run_get(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_get(&caller, run).await?))
}

/// The executions of a run, the first first
#[utoipa::path(
    get, path = "/v1/runs/{run}/attempts", params(NamedRun),
    responses((status = 200, description = "All of them", body = Page<Attempt>)),
)]
pub(super) async fn run_attempts(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Page<Attempt>>, Problem> {
    let items = http.kernel.run_attempts(&caller, run).await?;
    Ok(Json(Page { items, next: None }))
}

/// What a run may do as far as it was decided beforehand, the oldest decision first
#[utoipa::path(
    get, path = "/v1/runs/{run}/grants", params(NamedRun),
    responses((status = 200, description = "All of them", body = Page<Grant>)),
)]
pub(super) async fn run_grants(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Page<Grant>>, Problem> {
    let items = http.kernel.run_grants(&caller, run).await?;
    Ok(Json(Page { items, next: None }))
}

/// The model calls of a run, the first first
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps", params(NamedRun),
    responses((status = 200, description = "All of them", body = Page<Step>)),
)]
pub(super) async fn run_steps(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Page<Step>>, Problem> {
    let items = http.kernel.run_steps(&caller, run).await?;
    Ok(Json(Page { items, next: None }))
}

/// Stops a run; answers what was done, not what is hoped
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", params(NamedRun),
    responses((status = 200, description = "What was done", body = CancelOutcome)),
    extensions(("x-problems" = json!(["forbidden", "run_ended", "run_merged"]))),
)]
pub(super) async fn run_cancel(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<CancelOutcome>, Problem> {
    Ok(Json(http.kernel.run_cancel(&caller, run).await?))
}

/// Tries a failed, timed-out or orphaned run again
#[utoipa::path(
    post, path = "/v1/runs/{run}/retry", params(NamedRun),
    responses((status = 202, description = "The run, which is queued again", body = Run)),
    extensions(("x-problems" = json!(["forbidden", "session_busy", "not_latest_run", "run_merged", "wrong_state"]))),
)]
pub(super) async fn run_retry(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<(StatusCode, Json<Run>), Problem> {
    Ok((StatusCode::ACCEPTED, Json(http.kernel.run_retry(&caller, run).await?)))
}

/// An answer to what a run waits for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = WaitAnswer)]
pub(super) struct Answering {
    /// What is answered.
    wait_id: WaitId,
    /// The answer.
    answer: Answer,
}

/// Answers a waiting run
#[utoipa::path(
    post, path = "/v1/runs/{run}/answer", params(NamedRun), request_body = Answering,
    responses((status = 200, description = "The run as it stands now", body = Run)),
    extensions(("x-problems" = json!([
        "forbidden", "not_waiting", "already_answered", "wrong_answer", "unknown_tool_use", "tool_result_conflict"
    ]))),
)]
pub(super) async fn run_answer(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    Input(answering): Input<Answering>,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_answer(&caller, run, answering.wait_id, answering.answer).await?))
}
