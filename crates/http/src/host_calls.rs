//! `/v1/host-calls`: tools that a host runs for the agents of its runs.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use mainspring_api::{HostCall, HostCallAnswered, HostCallQuery, HostCallResult, header_name};
use utoipa::IntoParams;

use crate::access::Authenticated;
use crate::body::{Json, JsonObject, QueryParams};
use crate::watch::RequestSlot;
use crate::{Http, Problem};

/// Documents the header that names a host.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "documents a header; `host_name` reads it")]
pub(super) struct HostHeader {
    /// The name of the host: a random secret that the host has chosen. Tool calls by the agents of a run go to the
    /// host that the run was created with.
    #[param(rename = "Mainspring-Host", min_length = 1, max_length = 512)]
    mainspring_host: Option<String>,
}

/// Reads the host that a request names.
pub(super) fn host_name(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let host = headers.get(header_name::HOST).map(HeaderValue::to_str).transpose();
    host.map_err(|_| Problem::invalid("the Mainspring-Host must be plain text"))
}

fn required_host(headers: &HeaderMap) -> Result<&str, Problem> {
    host_name(headers)?.ok_or_else(|| Problem::invalid("name the host: Mainspring-Host: SECRET"))
}

/// Lists the calls that a host has to answer; if there are none, waits for one
#[utoipa::path(
    get, path = "/v1/host-calls", params(HostCallQuery, HostHeader),
    responses((status = 200, description = "The pending calls of the host, none if the time is over", body = Vec<HostCall>)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn host_call_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    slot: RequestSlot,
    headers: HeaderMap,
    QueryParams(query): QueryParams<HostCallQuery>,
) -> Result<Json<Vec<HostCall>>, Problem> {
    let host = required_host(&headers)?;
    let wait_ms = query.wait_ms.unwrap_or_default();
    let _permit = match wait_ms {
        0 => None,
        _ => {
            let permit = http.streams.acquire(&http.kernel, &caller.owner, None)?;
            slot.release();
            Some(permit)
        }
    };
    let calls = http.kernel.host_calls(&caller, host, query.after.unwrap_or_default(), wait_ms);
    tokio::select! {
        calls = calls => Ok(Json(calls?)),
        // The server must not wait for its hosts when it stops.
        () = http.stop.cancelled() => Ok(Json(vec![])),
    }
}

/// Answers a call of a host's tool
#[utoipa::path(
    post, path = "/v1/host-calls", request_body = HostCallResult, params(HostHeader),
    responses((status = 200, description = "Whether the agent got the result", body = HostCallAnswered)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn host_call_answer(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    JsonObject(answer): JsonObject<HostCallResult>,
) -> Result<Json<HostCallAnswered>, Problem> {
    let host = required_host(&headers)?;
    let delivered = http.kernel.host_call_answer(&caller, host, answer.no, answer.result)?;
    Ok(Json(HostCallAnswered { delivered }))
}
