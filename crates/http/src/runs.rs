//! `/v1/runs`: prompts and runs.

use std::time::Duration;

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{
    AcceptedRun, AttemptStderr, CancelOutcome, Page, Prompt, RetryOptions, RunListQuery, RunRoute,
    StepResult, WaitAnswer,
};
use mainspring_core::{Attempt, BadId, Grant, LeftProcess, Position, Run, RunId, Step};
use mainspring_kernel::kernel::{Accepted, Caller, RunQuery, RunRequest};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{
    AttemptPath, IdempotencyHeader, Json, JsonObject, OptionalJsonObject, QueryParams, RunPath, SessionPath,
    idempotency_key, in_path,
};
use crate::host_calls::{HostHeader, host_name};
use crate::sessions::{page_of, page_start};
use crate::watch::RequestSlot;
use crate::{Http, Problem, events};

/// The problems of a prompt that is not accepted, or is accepted and cannot be streamed.
const PROMPT_PROBLEMS: &[&str] = &[
    "adapter_not_registered",
    "adapter_incompatible",
    "option_not_used",
    "limit_not_enforceable",
    "not_user_message",
    "not_assistant_message",
    "abandoned_message",
    "folder_not_allowed",
    "not_allowed_by_key",
    "spend_limit_reached",
    "forbidden",
    "request_conflict",
    "session_busy",
    "session_closed",
    "no_org",
    "wrong_state",
    "overloaded",
    "too_many_streams",
];

/// Sends a prompt to the session named in the body, creating the session if needed
#[utoipa::path(
    post, path = "/v1/runs", request_body = Prompt, params(IdempotencyHeader, PreferHeader, HostHeader),
    responses(
        (status = 200, description = "The run, which has ended or was created before by the same request; or the stream of its events",
            headers(("Location" = String)), content((AcceptedRun = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The accepted run, which has not ended", body = AcceptedRun, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(PROMPT_PROBLEMS))),
)]
pub(super) async fn run_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    slot: RequestSlot,
    headers: HeaderMap,
    JsonObject(prompt): JsonObject<Prompt>,
) -> Result<Response, Problem> {
    create(&http, &caller, &slot, &headers, Box::new(prompt)).await
}

/// Sends a prompt to an existing session
#[utoipa::path(
    post, path = "/v1/sessions/{session}/runs", request_body = Prompt, params(SessionPath, IdempotencyHeader, PreferHeader, HostHeader),
    responses(
        (status = 200, description = "The run, which has ended or was created before by the same request; or the stream of its events",
            headers(("Location" = String)), content((AcceptedRun = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The accepted run, which has not ended", body = AcceptedRun, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(PROMPT_PROBLEMS))),
)]
pub(super) async fn run_create_in(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    slot: RequestSlot,
    headers: HeaderMap,
    JsonObject(mut prompt): JsonObject<Prompt>,
) -> Result<Response, Problem> {
    if prompt.session.session_id.is_some() || prompt.session.key.is_some() {
        return Err(Problem::invalid("the path names the session; leave it out of the body"));
    }
    prompt.session.session_id = Some(http.kernel.session_get(&caller, &by).await?.id);
    create(&http, &caller, &slot, &headers, Box::new(prompt)).await
}

/// Documents the header that makes the response wait for the run.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "documents a header; `create` reads it")]
pub(super) struct PreferHeader {
    /// `wait=N`: respond when the run has ended or waits for input, at the latest after N seconds (at most 60).
    #[param(rename = "Prefer", pattern = "^wait=[0-9]+$")]
    prefer: Option<String>,
}

async fn create(
    http: &Http,
    caller: &Caller,
    slot: &RequestSlot,
    headers: &HeaderMap,
    mut prompt: Box<Prompt>,
) -> Result<Response, Problem> {
    let wait = preferred_wait(headers)?;
    prompt.idempotency_key = idempotency_key(headers)?.map(str::to_owned);
    let host = host_name(headers)?.map(str::to_owned);
    let request = RunRequest { host, ..RunRequest::try_from(*prompt)? };
    let accepted = http.kernel.run_create(caller, request).await?;
    if events::wants_stream(headers) {
        let stream = events::run_stream(http, caller, &accepted).await?;
        return Ok(about(&accepted.run).with(stream));
    }
    let from = (!accepted.replayed).then_some(accepted.position);
    let run = waited(http, caller, slot, wait, (&accepted.run, from)).await?;
    Ok(accepted_response(&accepted, run))
}

/// Waits for a run for the time that the client prefers. A waiting request counts as a stream: if no more streams are
/// allowed, the request is answered at once. `from` is the position before the run, if the run was just accepted.
pub(super) async fn waited(
    http: &Http,
    caller: &Caller,
    slot: &RequestSlot,
    wait: Option<Duration>,
    (run, from): (&Run, Option<Position>),
) -> Result<Run, Problem> {
    let Some(timeout) = wait else { return Ok(run.clone()) };
    let Ok(_permit) = http.streams.acquire(&http.kernel, &caller.owner, None) else {
        return Ok(run.clone());
    };
    slot.release();
    Ok(match from {
        Some(from) => http.kernel.run_wait_from(caller, run, from, timeout).await?,
        None => http.kernel.run_wait(caller, run.id, timeout).await?,
    })
}

/// Reads how long the client wants to wait: `wait=N` seconds, at most a minute. Other preferences are ignored, as RFC 7240
/// demands. A wait without a number of seconds is refused: the client would mistake an immediate answer for the end of
/// its wait.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let texts = headers.get_all("prefer").into_iter().filter_map(|value| value.to_str().ok());
    for part in texts.flat_map(|text| text.split([',', ';'])) {
        let (name, seconds) = part.split_once('=').unwrap_or((part, ""));
        if !name.trim().eq_ignore_ascii_case("wait") {
            continue;
        }
        let seconds = seconds.trim().trim_matches('"');
        if seconds.is_empty() || !seconds.bytes().all(|digit| digit.is_ascii_digit()) {
            let given: String = part.trim().chars().take(64).collect();
            return Err(Problem::invalid(format!(
                "the header Prefer: {given:?} is not wait=N with a number of seconds, such as wait=30"
            )));
        }
        // A number that is too large for `u64` is more than a minute, too.
        return Ok(Some(Duration::from_secs(seconds.parse::<u64>().unwrap_or(u64::MAX).min(60))));
    }
    Ok(None)
}

fn about(run: &Run) -> About {
    About::ids([&run.session, &run.id])
}

fn accepted_response(accepted: &Accepted, run: Run) -> Response {
    let status = match (accepted.replayed, run.state.status().is_ended()) {
        (true, _) | (false, true) => StatusCode::OK,
        (false, false) => StatusCode::ACCEPTED,
    };
    let location = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let (policy, position, replayed) = (accepted.policy, accepted.position, accepted.replayed);
    let mut response = (status, Json(AcceptedRun { run, policy, position, replayed })).into_response();
    response.headers_mut().extend(location.into_iter().map(|location| (header::LOCATION, location)));
    about(&accepted.run).with(response)
}

/// Lists runs, newest first
#[utoipa::path(
    get, path = "/v1/runs", params(RunListQuery),
    responses((status = 200, description = "A page of runs", body = Page<Run>)),
)]
pub(super) async fn run_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<RunListQuery>,
) -> Result<Json<Page<Run>>, Problem> {
    let session = match query.session {
        None => None,
        Some(name) => {
            let by = mainspring_kernel::kernel::session_ref(&name)?;
            Some(http.kernel.session_get(&caller, &by).await?.id)
        }
    };
    let (limit, before) = (query.limit, page_start(query.before)?);
    let query = RunQuery { session, status: query.status, before, limit };
    let items = http.kernel.run_list(&caller, query).await?;
    Ok(Json(page_of(&http, items, limit, |run| format!("{}.{}", run.created_at.0, run.id))))
}

/// Returns a run
#[utoipa::path(
    get, path = "/v1/runs/{run}", params(RunPath),
    responses((status = 200, description = "The run", body = Run)),
)]
pub(super) async fn run_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_get(&caller, run).await?))
}

/// Lists the attempts of a run, oldest first
#[utoipa::path(
    get, path = "/v1/runs/{run}/attempts", params(RunPath),
    responses((status = 200, description = "All attempts of the run", body = Page<Attempt>)),
)]
pub(super) async fn run_attempts(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Page<Attempt>>, Problem> {
    Ok(Json(http.kernel.run_attempts(&caller, run).await?.into()))
}

/// Returns an attempt, which names its run
#[utoipa::path(
    get, path = "/v1/attempts/{attempt}", params(AttemptPath),
    responses((status = 200, description = "The attempt", body = Attempt)),
)]
pub(super) async fn attempt_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    AttemptPath(attempt): AttemptPath,
) -> Result<Json<Attempt>, Problem> {
    Ok(Json(http.kernel.attempt_get(&caller, attempt).await?))
}

/// Returns what the process of an attempt's agent wrote to its standard error
#[utoipa::path(
    get, path = "/v1/attempts/{attempt}/stderr", params(AttemptPath),
    responses((status = 200, description = "The text, as far as it is kept", body = AttemptStderr)),
)]
pub(super) async fn attempt_stderr(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    AttemptPath(attempt): AttemptPath,
) -> Result<Json<AttemptStderr>, Problem> {
    Ok(Json(http.kernel.attempt_stderr(&caller, attempt).await?))
}

/// Lists the grants of a run and of its session, oldest first
#[utoipa::path(
    get, path = "/v1/runs/{run}/grants", params(RunPath),
    responses((status = 200, description = "All grants of the run", body = Page<Grant>)),
)]
pub(super) async fn run_grants(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Page<Grant>>, Problem> {
    let items = http.kernel.run_grants(&caller, run).await?;
    Ok(Json(Page::single(items)))
}

/// Lists the model calls of a run, oldest first
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps", params(RunPath),
    responses((status = 200, description = "All model calls of the run", body = Page<Step>)),
)]
pub(super) async fn run_steps(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Page<Step>>, Problem> {
    Ok(Json(http.kernel.run_steps(&caller, run).await?.into()))
}

/// Reads the route of a run through its network of agents
#[utoipa::path(
    get, path = "/v1/runs/{run}/route", params(RunPath),
    responses((status = 200, description = "The decisions of the router, and the calls of the members", body = RunRoute)),
)]
pub(super) async fn run_route(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<RunRoute>, Problem> {
    Ok(Json(http.kernel.run_route(&caller, run).await?))
}

/// Extracts a run and the number of one of its model calls from the path.
pub(super) struct StepPath(RunId, u32);

impl<S: Send + Sync> FromRequestParts<S> for StepPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((run, no)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let run = run.parse().map_err(|bad: BadId| Problem::invalid(bad.to_string()))?;
        let no = no.parse().map_err(|_| Problem::invalid(format!("{no:?} is not the number of a step")))?;
        Ok(Self(run, no))
    }
}

impl IntoParams for StepPath {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = RunPath::into_params(within);
        params.push(in_path("step", "The number of the model call, from 1.", "^[0-9]{1,9}$"));
        params
    }
}

/// Returns a model call: its input, its answer, the results of its tools, and their checksum
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}", params(StepPath),
    responses((status = 200, description = "The model call", body = StepResult)),
)]
pub(super) async fn run_step(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    StepPath(run, no): StepPath,
) -> Result<Json<StepResult>, Problem> {
    Ok(Json(http.kernel.run_step(&caller, run, no).await?))
}

/// Lists the processes that the turns of a run left running and that still run
#[utoipa::path(
    get, path = "/v1/runs/{run}/processes", params(RunPath),
    responses((status = 200, description = "The processes that still run", body = Page<LeftProcess>)),
)]
pub(super) async fn run_processes(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Page<LeftProcess>>, Problem> {
    let items = http.kernel.run_processes(&caller, run).await?;
    Ok(Json(Page::single(items)))
}

/// Ends the processes that the turns of a run left running
#[utoipa::path(
    post, path = "/v1/runs/{run}/processes/end", params(RunPath),
    responses((status = 200, description = "The processes that could not be ended", body = Page<LeftProcess>)),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden"]))),
)]
pub(super) async fn run_processes_end(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<Page<LeftProcess>>, Problem> {
    let items = http.kernel.run_processes_end(&caller, run).await?;
    Ok(Json(Page::single(items)))
}

/// Cancels a run and reports which steps of the cancellation were done
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", params(RunPath),
    responses((status = 200, description = "The outcome of the cancellation", body = CancelOutcome)),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "run_ended", "run_merged"]))),
)]
pub(super) async fn run_cancel(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<CancelOutcome>, Problem> {
    Ok(Json(http.kernel.run_cancel(&caller, run).await?))
}

/// Retries a failed, timed-out or orphaned run, with other limits, another model or another adapter if the body says so
#[utoipa::path(
    post, path = "/v1/runs/{run}/retry", params(RunPath), request_body = Option<RetryOptions>,
    responses((status = 202, description = "The run, queued again", body = Run)),
    extensions(("x-problems" = json!([
        "adapter_not_registered", "adapter_incompatible", "option_not_used", "limit_not_enforceable", "folder_not_allowed", "not_allowed_by_key", "spend_limit_reached", "forbidden", "session_busy", "session_closed", "not_latest_run",
        "run_merged", "wrong_state"
    ]))),
)]
pub(super) async fn run_retry(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
    OptionalJsonObject(options): OptionalJsonObject<RetryOptions>,
) -> Result<(StatusCode, Json<Run>), Problem> {
    Ok((StatusCode::ACCEPTED, Json(http.kernel.run_retry(&caller, run, options.into()).await?)))
}

/// Answers the question or approval request of a waiting run
#[utoipa::path(
    post, path = "/v1/runs/{run}/answer", params(RunPath), request_body = WaitAnswer,
    responses((status = 200, description = "The run after the answer", body = Run)),
    extensions(("x-problems" = json!([
        "folder_not_allowed", "not_allowed_by_key", "forbidden", "not_waiting", "already_answered", "wrong_answer",
        "answer_not_offered", "unknown_tool_use", "tool_result_conflict"
    ]))),
)]
pub(super) async fn run_answer(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
    JsonObject(body): JsonObject<WaitAnswer>,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_answer(&caller, run, body.wait_id, body.answer).await?))
}
