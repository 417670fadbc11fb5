//! `/v1/runs`, and prompts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{AcceptedRun, CancelOutcome, Page, Prompt, PromptContent, RunListQuery, WaitAnswer};
use mainspring_core::{Attempt, Grant, RequestName, Run, Step};
use mainspring_kernel::kernel::{Accepted, Caller, RunQuery, RunRequest};
use utoipa::IntoParams;

use crate::access::Known;
use crate::body::{Asked, Input, Named, NamedRun, Once, idempotency_key};
use crate::sessions::{page_of, place, target_of};
use crate::{Http, Problem, events};

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
            headers(("Location" = String)), content((AcceptedRun = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run, which goes on", body = AcceptedRun, headers(("Location" = String))),
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
            headers(("Location" = String)), content((AcceptedRun = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run, which goes on", body = AcceptedRun, headers(("Location" = String))),
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
        session: target_of(prompt.session),
        prompt: prompt.prompt.map(PromptContent::into_blocks).unwrap_or_default(),
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

fn answer(accepted: &Accepted, run: Run) -> Response {
    let status = match (accepted.replayed, run.state.status().is_ended()) {
        (true, _) | (false, true) => StatusCode::OK,
        (false, false) => StatusCode::ACCEPTED,
    };
    let place = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let (policy, position, replayed) = (accepted.policy, accepted.position, accepted.replayed);
    let mut response = (status, Json(AcceptedRun { run, policy, position, replayed })).into_response();
    response.headers_mut().extend(place.into_iter().map(|place| (header::LOCATION, place)));
    response
}

/// Runs, the newest first
#[utoipa::path(
    get, path = "/v1/runs", params(RunListQuery),
    responses((status = 200, description = "A page", body = Page<Run>)),
)]
pub(super) async fn run_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<RunListQuery>,
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
    Ok(Json(page_of(&http, items, limit, |run| format!("{}.{}", run.created_at.0, run.id))))
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
    Ok(Json(Page::whole(items)))
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
    Ok(Json(Page::whole(items)))
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
    Ok(Json(Page::whole(items)))
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

/// Answers a waiting run
#[utoipa::path(
    post, path = "/v1/runs/{run}/answer", params(NamedRun), request_body = WaitAnswer,
    responses((status = 200, description = "The run as it stands now", body = Run)),
    extensions(("x-problems" = json!([
        "forbidden", "not_waiting", "already_answered", "wrong_answer", "unknown_tool_use", "tool_result_conflict"
    ]))),
)]
pub(super) async fn run_answer(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    Input(answering): Input<WaitAnswer>,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_answer(&caller, run, answering.wait_id, answering.answer).await?))
}
