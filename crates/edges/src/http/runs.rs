//! `/v1/runs`, and prompts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::{
    Answer, Attempt, Block, Mode, Place, Policy, Position, RequestName, Run, RunOptions, RunStatus, Step,
    WaitId,
};
use mainspring_kernel::kernel::{Accepted, Caller, CancelOutcome, RunQuery, RunRequest};
use mainspring_kernel::store::SessionRef;
use serde::{Deserialize, Serialize};

use super::access::Known;
use super::body::{Asked, Input, Named, NamedRun};
use super::sessions::{Page, Target, place};
use super::{Http, Problem, events};

/// A prompt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Prompt {
    #[serde(default)]
    prompt: Option<Said>,
    #[serde(default)]
    session: Target,
    #[serde(default)]
    adapter: Option<String>,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    options: RunOptions,
    #[serde(default)]
    place: Place,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    client_id: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Said {
    Text(String),
    Blocks(Vec<Block>),
}

/// `POST /v1/runs`: a prompt for the session that the body names.
pub(super) async fn run_create(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Input(prompt): Input<Prompt>,
) -> Result<Response, Problem> {
    create(&http, &caller, &headers, prompt).await
}

/// `POST /v1/sessions/{session}/runs`: a prompt for a session that exists.
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

async fn create(
    http: &Http,
    caller: &Caller,
    headers: &HeaderMap,
    prompt: Prompt,
) -> Result<Response, Problem> {
    let key = match headers.get("idempotency-key").map(HeaderValue::to_str) {
        None => None,
        Some(Ok(key)) => Some(key.to_owned()),
        Some(Err(_)) => return Err(Problem::invalid("the Idempotency-Key must be plain text")),
    };
    if prompt.request_id.is_some() && prompt.client_id.is_none() {
        return Err(Problem::invalid(
            "a requestId is the client's own: send a clientId too, or an Idempotency-Key",
        ));
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
    let wait = headers.get("prefer").and_then(|value| value.to_str().ok()).and_then(preferred_wait);
    let run = match wait {
        Some(wait) => settled(http, caller, &accepted, wait).await?,
        None => accepted.run.clone(),
    };
    Ok(answer(&accepted, run))
}

/// How long the caller would wait: `wait=N` seconds, at most a minute.
fn preferred_wait(prefer: &str) -> Option<Duration> {
    let wait = prefer.split([',', ';']).find_map(|part| part.trim().strip_prefix("wait="))?;
    Some(Duration::from_secs(wait.parse::<u64>().ok()?.min(60)))
}

/// The run once it has ended or waits for a person, or as it is when the time is up.
async fn settled(http: &Http, caller: &Caller, accepted: &Accepted, wait: Duration) -> Result<Run, Problem> {
    let by = SessionRef::Id(accepted.session.id);
    let (_, mut items) = http.kernel.session_subscribe(caller, &by, Some(accepted.position)).await?;
    let rest = |status: RunStatus| {
        status.is_ended() || matches!(status, RunStatus::WaitingInput | RunStatus::WaitingApproval)
    };
    let settles = async {
        loop {
            let run = http.kernel.run_get(caller, accepted.run.id).await?;
            if rest(run.state.status()) {
                return Ok::<Run, Problem>(run);
            }
            if items.next().await.transpose()?.is_none() {
                return Ok(run);
            }
        }
    };
    tokio::select! {
        run = settles => run,
        () = http.kernel.pause(wait) => Ok(http.kernel.run_get(caller, accepted.run.id).await?),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListQuery {
    session: Option<String>,
    status: Option<RunStatus>,
    limit: Option<usize>,
    before: Option<String>,
}

/// `GET /v1/runs`
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
    Ok(Json(Page::of(items, limit, |run| format!("{}.{}", run.created_at.0, run.id))))
}

/// `GET /v1/runs/{run}`
pub(super) async fn run_get(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_get(&caller, run).await?))
}

/// `GET /v1/runs/{run}/attempts`
pub(super) async fn run_attempts(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Page<Attempt>>, Problem> {
    let items = http.kernel.run_attempts(&caller, run).await?;
    Ok(Json(Page { items, next: None }))
}

/// `GET /v1/runs/{run}/steps`
pub(super) async fn run_steps(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Page<Step>>, Problem> {
    let items = http.kernel.run_steps(&caller, run).await?;
    Ok(Json(Page { items, next: None }))
}

/// `POST /v1/runs/{run}/cancel`
pub(super) async fn run_cancel(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<CancelOutcome>, Problem> {
    Ok(Json(http.kernel.run_cancel(&caller, run).await?))
}

/// `POST /v1/runs/{run}/retry`
pub(super) async fn run_retry(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<(StatusCode, Json<Run>), Problem> {
    Ok((StatusCode::ACCEPTED, Json(http.kernel.run_retry(&caller, run).await?)))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Answering {
    wait_id: WaitId,
    answer: Answer,
}

/// `POST /v1/runs/{run}/answer`
pub(super) async fn run_answer(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    Input(answering): Input<Answering>,
) -> Result<Json<Run>, Problem> {
    Ok(Json(http.kernel.run_answer(&caller, run, answering.wait_id, answering.answer).await?))
}
