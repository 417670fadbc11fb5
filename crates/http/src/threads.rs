//! `/v1/ai`: sessions as threads, for the `roboto` Python package.
//!
//! This edge translates: a thread is a session on the adapter `native`, a message that is sent becomes a run, and a
//! continuation token encodes which messages a client holds. It decides nothing that the kernel decides. Errors have
//! the form of that API: a layer above the usual admission rewrites problems.
//!
//! ```text
//! threads.rs    routes, caller, envelopes        view.rs      a session as a thread
//! read.rs       records, deltas, lists           path.rs      the messages of a thread
//! write.rs      start, send, results, …          places.rs    the numbers of runs and messages in a thread
//! agents.rs     agents to launch                 token.rs     continuation tokens and deltas
//! errors.rs     problems as exceptions           views.rs     the threads that were read last
//! ```

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use axum::{RequestPartsExt as _, Router, middleware};
use mainspring_api::threads::Data;
use mainspring_core::SessionId;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::SessionRef;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::Authenticated;
use crate::endpoint::Operations;
use crate::{Http, Problem, body, watch};

mod agents;
mod errors;
mod path;
mod places;
mod read;
mod token;
mod view;
mod views;
mod write;

pub(super) use views::Views;

/// The adapter of threads: the one that pursues goals and calls client tools.
const ADAPTER: &str = "native";
/// The first version of the API whose clients drop messages when a delta says so.
const RESETTING_VERSION: &str = "2026-10-02";
/// The first version of the API whose names say `thread` instead of `session`.
const THREADS_VERSION: &str = "2026-05-20";

/// True for an operation of this edge. The OpenAPI document does not contain them.
pub(super) fn is_operation(id: &str) -> bool {
    id.starts_with("thread_")
}

/// A route: method, path below its base, name in metrics.
struct Route {
    method: Method,
    path: &'static str,
    id: &'static str,
    handler: axum::routing::MethodRouter<Http>,
}

fn route<A: 'static>(
    method: Method,
    path: &'static str,
    id: &'static str,
    handler: impl Handler<A, Http>,
) -> Route {
    let filter = match method {
        Method::GET => MethodFilter::GET,
        Method::PUT => MethodFilter::PUT,
        Method::DELETE => MethodFilter::DELETE,
        _ => MethodFilter::POST,
    };
    Route { method, path, id, handler: on(filter, handler) }
}

/// The routes of threads. `/chats` is the old name of threads.
fn thread_routes() -> Vec<Route> {
    vec![
        route(Method::GET, "", "thread_list", read::thread_list),
        route(Method::POST, "", "thread_start", write::thread_start),
        route(Method::POST, "/search", "thread_search", read::thread_search),
        route(Method::GET, "/{thread}", "thread_get", read::thread_get),
        route(Method::DELETE, "/{thread}", "thread_delete", write::thread_delete),
        route(Method::GET, "/{thread}/delta", "thread_delta", read::thread_delta),
        route(Method::POST, "/{thread}/messages", "thread_send", write::thread_send),
        route(Method::POST, "/{thread}/tool-results", "thread_results", write::thread_results),
        route(Method::POST, "/{thread}/cancel", "thread_cancel", write::thread_cancel),
        route(Method::POST, "/{thread}/fork", "thread_fork", write::thread_fork),
        route(Method::POST, "/{thread}/visibility", "thread_visibility", write::thread_visibility),
        route(Method::POST, "/{thread}/pin", "thread_pin", write::thread_pin),
        route(
            Method::POST,
            "/{thread}/messages/{number}/feedback",
            "thread_feedback",
            write::thread_feedback,
        ),
    ]
}

/// The routes of agents to launch.
fn agent_routes() -> Vec<Route> {
    vec![
        route(Method::GET, "", "thread_agent_list", agents::launcher_list),
        route(Method::POST, "", "thread_agent_create", agents::launcher_create),
        route(Method::GET, "/{agent}", "thread_agent_get", agents::launcher_get),
        route(Method::PUT, "/{agent}", "thread_agent_update", agents::launcher_update),
        route(Method::DELETE, "/{agent}", "thread_agent_delete", agents::launcher_delete),
        route(Method::GET, "/name/{name}", "thread_agent_find", agents::launcher_find),
        route(Method::POST, "/{agent}/launch", "thread_agent_launch", agents::launcher_launch),
    ]
}

fn profiles_route() -> Route {
    route(Method::GET, "", "thread_profiles", read::thread_profiles)
}

/// The ids of the operations of the threads API, which the OpenAPI document does not contain.
pub fn thread_operations() -> Vec<&'static str> {
    let routes = thread_routes().into_iter().chain(agent_routes()).chain([profiles_route()]);
    routes.map(|route| route.id).collect()
}

/// Builds the router of `/v1/ai`, and adds its operations to `operations`.
pub(super) fn router(http: &Http, operations: &mut Operations) -> Router<Http> {
    let mut router = Router::new();
    let mut add = |base: &str, route: Route| {
        // A client whose base address ends with a slash sends paths with two slashes.
        for prefix in ["", "/"] {
            let path = format!("{prefix}{base}{}", route.path);
            operations.add_undocumented(route.id, route.method.clone(), &path);
            router = std::mem::take(&mut router).route(&path, route.handler.clone());
        }
    };
    for base in ["/v1/ai/threads", "/v1/ai/chats"] {
        thread_routes().into_iter().for_each(|route| add(base, route));
    }
    agent_routes().into_iter().for_each(|route| add("/v1/ai/agents", route));
    add("/v1/ai/model-profiles", profiles_route());
    router
        .layer(middleware::from_fn_with_state(http.clone(), watch::admit))
        .layer(middleware::from_fn(errors::rewrite))
}

/// The caller of a request, and the version of the API that its client understands.
pub(super) struct ThreadCaller {
    pub(super) caller: Caller,
    /// The version of the API that the client speaks; empty for the latest.
    version: String,
    /// True for a path below `/v1/ai/chats`.
    is_chat: bool,
}

impl FromRequestParts<Http> for ThreadCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, http).await?;
        check_org(&caller, &parts.headers)?;
        let version = header_text(&parts.headers, "x-roboto-api-version").unwrap_or_default().to_owned();
        let is_chat = parts.uri.path().trim_start_matches('/').starts_with("v1/ai/chats");
        Ok(Self { caller, version, is_chat })
    }
}

impl ThreadCaller {
    /// False for a client that ignores `reset_from_message_sequence_num`.
    fn resets(&self) -> bool {
        self.version.is_empty() || self.version.as_str() >= RESETTING_VERSION
    }

    /// True for a client that calls a thread a session.
    fn is_old(&self) -> bool {
        self.is_chat || (!self.version.is_empty() && self.version.as_str() < THREADS_VERSION)
    }

    /// The client id of a run, which records the key that sent the prompt. It also records whether the client sent a
    /// message: a client that sends only goals does not hold the message that the server writes for them.
    fn client_id(&self, has_message: bool) -> String {
        let kind = if has_message { "threads" } else { "threads.goals" };
        match self.caller.key {
            Some(key) => format!("{kind}:{key}"),
            None => kind.into(),
        }
    }

    /// Wraps an answer, with the names that the client knows.
    fn answer(&self, data: &impl Serialize) -> Response {
        if !self.is_old() {
            return json_response(json_of(data));
        }
        let mut data = serde_json::to_value(data).unwrap_or_default();
        with_old_names(&mut data);
        json_response(json_of(&data))
    }
}

/// Wraps an answer.
fn json_of(data: &impl Serialize) -> Bytes {
    serde_json::to_vec(&Data { data }).unwrap_or_default().into()
}

fn json_response(json: Bytes) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// Renames the id fields of threads to their old names.
fn with_old_names(data: &mut Value) {
    match data {
        Value::Object(fields) => {
            for (new, old) in
                [("thread_id", "session_id"), ("forked_from_thread_id", "forked_from_session_id")]
            {
                if let Some(id) = fields.remove(new) {
                    fields.insert(old.into(), id);
                }
            }
            if let Some(items) = fields.get_mut("items") {
                with_old_names(items);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(with_old_names),
        _ => {}
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// The org of a caller's threads. Without an org, the name of the owner takes its place.
fn org_id(org: Option<&str>, owner: &str) -> String {
    org.unwrap_or(owner).to_owned()
}

/// Refuses a request that names another org than the caller's.
fn check_org(caller: &Caller, headers: &HeaderMap) -> Result<(), Problem> {
    let own = org_id(caller.org.as_deref(), &caller.owner);
    for name in ["x-roboto-org-id", "x-roboto-resource-owner-id"] {
        if let Some(org) = header_text(headers, name).filter(|org| *org != own && *org != caller.owner) {
            let org: String = org.chars().take(128).collect();
            let detail = format!("the key belongs to the org {own:?}, not to {org:?}");
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail));
        }
    }
    Ok(())
}

/// Extracts a body. Fields that are not known are ignored, since newer clients send more.
pub(super) struct ThreadBody<T>(pub(super) T, pub(super) Arc<[u8]>);

impl<T: DeserializeOwned> FromRequest<Http> for ThreadBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Problem> {
        let bytes = body::read(http, request.into_body()).await?;
        let value = serde_json::from_slice(&bytes);
        let value = value.map_err(|error| Problem::invalid(format!("the body: {error}")))?;
        Ok(Self(value, bytes.into()))
    }
}

/// Extracts a query. Fields that are not known are ignored.
pub(super) struct ThreadQuery<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Http> for ThreadQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Http) -> Result<Self, Problem> {
        let query = Query::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
        Ok(Self(query))
    }
}

/// Extracts the thread of a path. A text that is not an id is answered as not found.
pub(super) struct ThreadPath(SessionId, Option<String>);

impl ThreadPath {
    fn by(&self) -> SessionRef {
        SessionRef::Id(self.0)
    }
}

impl FromRequestParts<Http> for ThreadPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Http) -> Result<Self, Problem> {
        let path: Result<Path<Vec<(String, String)>>, _> = parts.extract().await;
        let Path(path) = path.map_err(|error| Problem::invalid(error.body_text()))?;
        let of = |name: &str| path.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let id = of("thread").unwrap_or_default();
        let thread = id.parse().map_err(|_| {
            let id: String = id.chars().take(64).collect();
            Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no thread {id:?}"))
        })?;
        Ok(Self(thread, of("number")))
    }
}

#[cfg(test)]
mod tests;
