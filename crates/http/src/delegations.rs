//! Delegations: work that a run hands to a session of its own.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use mainspring_core::{Delegation, DelegationMode, DelegationResult, Mode, RequestName, Run, RunOptions};
use mainspring_kernel::kernel::DelegationRequest;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Known;
use crate::body::{Input, NamedDelegation, NamedRun, Once, idempotency_key};
use crate::runs::{HowToAnswer, preferred_wait};
use crate::sessions::Target;
use crate::{Http, Problem};

/// Work to delegate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Work {
    /// How.
    mode: DelegationMode,
    /// What is to be achieved.
    #[schema(min_length = 1)]
    objective: String,
    /// What the child needs to know for that; it sees nothing else of its parent.
    #[serde(default)]
    #[schema(max_length = 4000)]
    context: Option<String>,
    /// To continue, the child's session, by its id; else what a new one is like. Its adapter, folder and agent are the
    /// parent's if not given, its surface kind `delegated_agent`.
    #[serde(default)]
    session: Target,
    /// The adapter; the session's if not given.
    #[serde(default)]
    adapter: Option<String>,
    /// Whether the child may act; never more than its parent, and only answer if not given.
    #[serde(default = "ask")]
    run_mode: Mode,
    /// All else it needs. How much it may use is never more than its parent has left.
    #[serde(default)]
    options: RunOptions,
    /// How deep delegation may go, the child counted; 3 if not given.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 5)]
    max_depth: Option<u32>,
    /// Who asks; needed with a `requestId`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    client_id: Option<String>,
    /// The client's own name for this request: the same name again gives the same delegation.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    request_id: Option<String>,
}

fn ask() -> Mode {
    Mode::Ask
}

/// Work that was delegated.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Delegated {
    /// The tie between the two runs.
    delegation: Delegation,
    /// The child.
    run: Run,
    /// The same request was sent before; this is what it made.
    replayed: bool,
    /// What came of it; absent until the child has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<DelegationResult>,
}

/// Hands work of a run that is at work to a session of its own: one child, however often it is sent
#[utoipa::path(
    post, path = "/v1/runs/{run}/delegations", request_body = Work, params(NamedRun, Once, HowToAnswer),
    responses(
        (status = 200, description = "The child has ended, or was made before", body = Delegated),
        (status = 202, description = "The child, which goes on", body = Delegated),
    ),
    extensions(("x-problems" = json!([
        "adapter_full", "adapter_incompatible", "adapter_not_registered", "delegation_too_deep", "forbidden", "no_org",
        "overloaded", "request_conflict", "run_ended", "run_merged", "would_deadlock", "wrong_state",
    ]))),
)]
pub(super) async fn run_delegate(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    headers: HeaderMap,
    Input(work): Input<Work>,
) -> Result<Response, Problem> {
    if work.request_id.is_some() && work.client_id.is_none() {
        return Err(Problem::invalid(
            "a requestId is the client's own: send a clientId too, or an Idempotency-Key",
        ));
    }
    if work.session.starts() {
        return Err(Problem::invalid("what is delegated does not start a session: leave new and load out"));
    }
    let delegate = DelegationRequest {
        mode: work.mode,
        objective: work.objective,
        context: work.context,
        session: work.session.into(),
        adapter: work.adapter,
        run_mode: work.run_mode,
        options: work.options,
        max_depth: work.max_depth,
        name: RequestName {
            client_id: work.client_id,
            request_id: work.request_id,
            idempotency_key: idempotency_key(&headers)?.map(str::to_owned),
        },
    };
    let made = http.kernel.run_delegate(&caller, run, delegate).await?;
    let run = match preferred_wait(&headers) {
        Some(timeout) => http.kernel.run_wait(&caller, made.run.id, timeout).await?,
        None => made.run,
    };
    let (delegation, outcome) = http.kernel.delegation_get(&caller, made.delegation.id).await?;
    let ready = made.replayed || run.state.status().is_ended();
    let status = if ready { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(Delegated { delegation, run, replayed: made.replayed, outcome })).into_response())
}

/// The delegations around a run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kin {
    /// The one that made the run; absent if nobody delegated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Delegation>,
    /// Those that the run has made, the oldest first.
    children: Vec<Delegation>,
}

/// The delegations around a run: the one that made it, and those it has made
#[utoipa::path(
    get, path = "/v1/runs/{run}/delegations", params(NamedRun),
    responses((status = 200, description = "All of them", body = Kin)),
)]
pub(super) async fn run_delegations(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
) -> Result<Json<Kin>, Problem> {
    let kin = http.kernel.run_delegations(&caller, run).await?;
    Ok(Json(Kin { parent: kin.parent, children: kin.children }))
}

/// A delegation, with what came of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settled {
    #[serde(flatten)]
    delegation: Delegation,
    /// What came of it; absent until the child has ended, and once the child is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<DelegationResult>,
}

/// A delegation, and what came of it
#[utoipa::path(
    get, path = "/v1/delegations/{delegation}", params(NamedDelegation),
    responses((status = 200, description = "The delegation", body = Settled)),
)]
pub(super) async fn delegation_get(
    State(http): State<Http>,
    Known(caller): Known,
    NamedDelegation(id): NamedDelegation,
) -> Result<Json<Settled>, Problem> {
    let (delegation, outcome) = http.kernel.delegation_get(&caller, id).await?;
    Ok(Json(Settled { delegation, outcome }))
}
