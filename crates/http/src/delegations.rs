//! Delegations: work that a run hands to a child session.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use mainspring_api::{Delegate, Delegated, DelegationView, RunDelegations};
use mainspring_kernel::kernel::DelegationRequest;

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{DelegationPath, IdempotencyHeader, Json, JsonObject, RunPath, idempotency_key};
use crate::runs::{PreferHeader, preferred_wait, waited};
use crate::watch::RequestSlot;
use crate::{Http, Problem};

/// Delegates work of an active run to a child session; a repeated request creates no second child
#[utoipa::path(
    post, path = "/v1/runs/{run}/delegations", request_body = Delegate, params(RunPath, IdempotencyHeader, PreferHeader),
    responses(
        (status = 200, description = "The child run has ended, or the same request created it before", body = Delegated),
        (status = 202, description = "The child run, which has not ended", body = Delegated),
    ),
    extensions(("x-problems" = json!([
        "adapter_full", "adapter_incompatible", "adapter_not_registered", "option_not_used", "limit_not_enforceable", "delegation_too_deep", "too_many_children", "folder_not_allowed", "not_allowed_by_key", "spend_limit_reached", "forbidden", "no_org",
        "overloaded", "request_conflict", "run_ended", "run_merged", "session_closed", "would_deadlock", "wrong_state",
    ]))),
)]
pub(super) async fn run_delegate(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
    slot: RequestSlot,
    headers: HeaderMap,
    JsonObject(mut work): JsonObject<Delegate>,
) -> Result<Response, Problem> {
    let wait = preferred_wait(&headers)?;
    work.idempotency_key = idempotency_key(&headers)?.map(str::to_owned);
    let made = http.kernel.run_delegate(&caller, run, DelegationRequest::try_from(work)?).await?;
    let run = waited(&http, &caller, &slot, wait, (&made.run, None)).await?;
    let (delegation, outcome) = http.kernel.delegation_get(&caller, made.delegation.id).await?;
    let ready = made.replayed || run.state.status().is_ended();
    let status = if ready { StatusCode::OK } else { StatusCode::ACCEPTED };
    let about = About::ids([&delegation.id, &run.session, &run.id]);
    Ok(about.with((status, Json(Delegated { delegation, run, replayed: made.replayed, outcome }))))
}

/// Returns a run's delegations: the one that created the run, and those that the run created
#[utoipa::path(
    get, path = "/v1/runs/{run}/delegations", params(RunPath),
    responses((status = 200, description = "The parent and child delegations", body = RunDelegations)),
)]
pub(super) async fn run_delegations(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
) -> Result<Json<RunDelegations>, Problem> {
    Ok(Json(http.kernel.run_delegations(&caller, run).await?))
}

/// Returns a delegation and its outcome
#[utoipa::path(
    get, path = "/v1/delegations/{delegation}", params(DelegationPath),
    responses((status = 200, description = "The delegation", body = DelegationView)),
)]
pub(super) async fn delegation_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    DelegationPath(id): DelegationPath,
) -> Result<Json<DelegationView>, Problem> {
    let (delegation, outcome) = http.kernel.delegation_get(&caller, id).await?;
    Ok(Json(DelegationView { delegation, outcome }))
}
