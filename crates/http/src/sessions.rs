//! `/v1/sessions`: sessions, their messages and snapshots.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{
    ClosedSession, Compacted, Compaction, KeptForForks, ListedSession, LiveStatus, MessageListQuery, NewName,
    OpenedSession, Opening, Page, Scope, SessionDetails, SessionListQuery, SessionPatch, SessionTarget,
    SessionUsage, SessionView, Snapshot, ToJson,
};
use mainspring_core::{ExternalRef, LegacyAlias, Message, Position, Rows, Run, RunOptions, Session, Time};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{self, Caller, SessionQuery, SessionStart, Started, session_ref};
use mainspring_kernel::store::SessionRef;
use serde_json::{Map, Value};

use crate::access::Authenticated;
use crate::body::{
    IdempotencyHeader, Json, JsonObject, QueryParams, SessionPath, idempotency_key, json_response,
};
use crate::{Http, Problem};

/// Converts a target that starts a session: `new` or `load`, and no other name.
fn session_start(target: SessionTarget) -> Result<SessionStart, Problem> {
    if target.session_id.is_some()
        || target.key.is_some()
        || target.external_ref.is_some()
        || target.legacy_alias.is_some()
    {
        return Err(Problem::invalid("name the session by `new` or `load` alone"));
    }
    let (model_required, messages) = (target.model_required, target.messages.is_some());
    let load = target.load.as_deref().map(session_ref).transpose()?;
    let new = match &target.new {
        Some(NewName::Key(key)) => Some(Some(key.clone())),
        Some(NewName::Any(true)) => Some(None),
        Some(NewName::Any(false)) | None => None,
    };
    Ok(SessionStart { new, load, like: kernel::SessionTarget::from(target).new, model_required, messages })
}

/// A response with a session and its version as the ETag.
pub(super) struct TaggedSession(pub(super) Session);

impl IntoResponse for TaggedSession {
    fn into_response(self) -> Response {
        tagged(self.0.version, &self.0)
    }
}

/// Builds a response with `version` as the ETag.
pub(super) fn tagged(version: u64, body: &impl ToJson) -> Response {
    ([(header::ETAG, tag(version))], json_response(body)).into_response()
}

pub(super) fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// Finds the session named in the body or creates it, and loads it into memory
#[utoipa::path(
    post, path = "/v1/sessions", request_body = SessionTarget, params(IdempotencyHeader),
    responses(
        (status = 200, description = "The existing session", body = OpenedSession, headers(("ETag" = String), ("Location" = String))),
        (status = 201, description = "The new session", body = OpenedSession, headers(("ETag" = String), ("Location" = String))),
    ),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "adapter_not_registered", "option_not_used", "request_conflict", "already_exists", "ambiguous_mode", "no_model", "initial_messages_not_supported", "no_org"]))),
)]
pub(super) async fn session_resolve(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    JsonObject(target): JsonObject<SessionTarget>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    if target.has_start_fields() {
        let Started { session, opening, options } =
            http.kernel.session_start(&caller, session_start(target)?, key).await?;
        return Ok(opened_response(session, opening, Some(options)));
    }
    let (session, opening) = http.kernel.session_open(&caller, &target.into(), key).await?;
    Ok(opened_response(session, opening, None))
}

fn opened_response(session: Session, opening: Opening, options: Option<RunOptions>) -> Response {
    let status = if opening == Opening::Created { StatusCode::CREATED } else { StatusCode::OK };
    let location = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let tag = HeaderValue::from_str(&tag(session.version));
    let mut response = (status, Json(OpenedSession { session, opening, options })).into_response();
    let headers = response.headers_mut();
    headers.extend(location.into_iter().map(|location| (header::LOCATION, location)));
    headers.extend(tag.into_iter().map(|tag| (header::ETAG, tag)));
    response
}

/// Returns the names in the query; a name with only one of its two parts is left out. `None` if the query names no session.
fn names(query: &SessionListQuery) -> Result<Option<Vec<SessionRef>>, Problem> {
    let pair = |one: &Option<String>, other: &Option<String>| one.clone().zip(other.clone());
    let external = pair(&query.external_kind, &query.external_id);
    let external = external.map(|(kind, id)| SessionRef::External(ExternalRef { kind, id }));
    let legacy = pair(&query.legacy_scope, &query.legacy_key);
    let legacy = legacy.map(|(scope, key)| SessionRef::Legacy(LegacyAlias { scope, key }));
    let by_name = query.session.as_deref().map(session_ref).transpose()?;
    let named =
        [&query.external_kind, &query.external_id, &query.legacy_scope, &query.legacy_key, &query.session];
    let all = || by_name.into_iter().chain(external).chain(legacy).collect();
    Ok(named.iter().any(|name| name.is_some()).then(all))
}

/// Builds a page. If the page is full, `next` is the last item's `position`.
pub(super) fn page_of<T>(
    http: &Http,
    rows: impl Into<Rows<T>>,
    limit: Option<usize>,
    position: impl Fn(&T) -> String,
) -> Page<T> {
    http.kernel.page_of(rows, limit, position)
}

/// Parses the start of a page: `MILLISECONDS.ID`.
pub(super) fn page_start<I: std::str::FromStr>(text: Option<String>) -> Result<Option<(Time, I)>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let read = text.split_once('.').and_then(|(time, id)| Some((Time(time.parse().ok()?), id.parse().ok()?)));
    read.map(Some).ok_or_else(|| Problem::invalid(format!("{text:?} is not the `next` of an earlier page")))
}

/// Lists sessions, latest activity first
#[utoipa::path(
    get, path = "/v1/sessions", params(SessionListQuery),
    responses((status = 200, description = "A page of sessions", body = Page<ListedSession>)),
)]
pub(super) async fn session_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<SessionListQuery>,
) -> Result<Json<Page<ListedSession>>, Problem> {
    let limit = query.limit;
    let view = query.view.unwrap_or_default();
    let names = names(&query)?;
    // A name finds any session that the caller may read.
    let default_scope = if names.is_some() { Scope::All } else { Scope::Own };
    let (scope, pinned, status) = (query.scope.unwrap_or(default_scope), query.pinned, query.status);
    let (live, open) = (query.live.unwrap_or_default(), query.open.unwrap_or_default());
    let (surface_kind, before) = (query.surface_kind, page_start(query.before)?);
    let query = SessionQuery { scope, pinned, status, surface_kind, open, before, limit, live };
    if let Some(names) = names {
        let found = find_by_names(&http, &caller, &query, &names).await?;
        let mut found = with_view(&http, &caller, found.into(), view).await?;
        found.items.retain(|listed| !live || listed.live_status != LiveStatus::Idle);
        return Ok(Json(Page::from(found)));
    }
    let sessions = http.kernel.session_list(&caller, query).await?;
    let items = with_view(&http, &caller, sessions, view).await?;
    let at = |listed: &ListedSession| format!("{}.{}", listed.session.last_activity_at.0, listed.session.id);
    Ok(Json(page_of(&http, items, limit, at)))
}

/// Lists sessions in the form that the query asks for.
async fn with_view(
    http: &Http,
    caller: &Caller,
    sessions: Rows<(Session, Option<Run>)>,
    view: SessionView,
) -> Result<Rows<ListedSession>, Problem> {
    Ok(match view {
        SessionView::Plain => http.kernel.session_items(sessions).await?,
        SessionView::Cards => http.kernel.session_cards(caller, sessions).await?,
    })
}

/// Finds the session that has all of these names and passes the query's filters except `live`. Finds nothing
/// without names.
async fn find_by_names(
    http: &Http,
    caller: &Caller,
    query: &SessionQuery,
    names: &[SessionRef],
) -> Result<Vec<(Session, Option<Run>)>, Problem> {
    let mut found: Option<Session> = None;
    for name in names {
        let session = match http.kernel.session_get(caller, name).await {
            Ok(session) => session,
            Err(Error::NotFound { .. }) => return Ok(vec![]),
            Err(error) => return Err(error.into()),
        };
        if found.as_ref().is_some_and(|found| found.id != session.id) {
            return Ok(vec![]);
        }
        found = Some(session);
    }
    let Some(session) = found.filter(|session| query.admits(caller, session)) else { return Ok(vec![]) };
    if query.open && !http.kernel.session_is_open(caller, &session) {
        return Ok(vec![]);
    }
    let latest_run = http.kernel.run_latest(&session).await?;
    Ok(vec![(session, latest_run)])
}

/// Returns a session, its activity and its usage
#[utoipa::path(
    get, path = "/v1/sessions/{session}", params(SessionPath),
    responses((status = 200, description = "The session; its version is the ETag", body = SessionDetails, headers(("ETag" = String)))),
)]
pub(super) async fn session_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Response, Problem> {
    let view = http.kernel.session_view(&caller, &by).await?;
    Ok(tagged(view.session.version, &view))
}

/// Reads the version in `If-Match`.
pub(super) fn if_match_version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let read = value.to_str().ok().and_then(|text| text.trim_matches('"').parse().ok());
    read.map(Some).ok_or_else(|| Problem::invalid("If-Match takes the ETag of the session"))
}

/// Changes a session; with `If-Match`, only if the session is unchanged
#[utoipa::path(
    patch, path = "/v1/sessions/{session}", request_body = SessionPatch,
    params(SessionPath, ("If-Match" = Option<String>, Header, description = "The ETag that the session must still have.")),
    responses((status = 200, description = "The changed session", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "session_busy", "option_not_used", "no_org", "wrong_state", "too_many", "version_conflict"]))),
)]
pub(super) async fn session_patch(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    JsonObject(patch): JsonObject<SessionPatch>,
) -> Result<TaggedSession, Problem> {
    let version = if_match_version(&headers)?;
    let patch = kernel::SessionPatch {
        title: patch.title,
        status: patch.status,
        pinned: patch.pinned,
        visibility: patch.visibility,
        model: patch.model,
        model_profile: patch.model_profile,
        system_prompt: patch.system_prompt,
        model_options: patch.model_options,
        rules: patch.rules.map(Option::unwrap_or_default),
        cwd: patch.cwd,
        metadata: patch.metadata.map(|metadata| metadata.unwrap_or_else(|| Value::Object(Map::new()))),
        agent_definition: patch.agent_definition,
        idle_unload_ms: patch.idle_unload_ms,
        version,
    };
    Ok(TaggedSession(http.kernel.session_patch(&caller, &by, patch).await?))
}

/// Deletes a session with all of its data; refused while a run is active
#[utoipa::path(
    delete, path = "/v1/sessions/{session}", params(SessionPath),
    responses(
        (status = 204, description = "The session is deleted"),
        (status = 200, description = "The session is deleted, except for the messages that its forks use", body = KeptForForks),
    ),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "session_busy", "wrong_state"]))),
)]
pub(super) async fn session_delete(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Response, Problem> {
    let deleted = http.kernel.session_delete(&caller, &by).await?;
    Ok(match deleted.forks {
        forks if forks.is_empty() => StatusCode::NO_CONTENT.into_response(),
        kept_for_forks => Json(KeptForForks { kept_for_forks }).into_response(),
    })
}

/// Unloads an idle session from memory
#[utoipa::path(
    post, path = "/v1/sessions/{session}/close", params(SessionPath),
    responses((status = 200, description = "The session is not in memory", body = ClosedSession)),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "session_busy"]))),
)]
pub(super) async fn session_close(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Json<ClosedSession>, Problem> {
    Ok(Json(ClosedSession { closed: http.kernel.session_close(&caller, &by).await? }))
}

/// Deletes old events of a session; keeps its messages and the events of active runs
#[utoipa::path(
    post, path = "/v1/sessions/{session}/compact", params(SessionPath), request_body = Compaction,
    responses((status = 200, description = "The position up to which events are deleted", body = Compacted)),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden"]))),
)]
pub(super) async fn session_compact(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    JsonObject(compaction): JsonObject<Compaction>,
) -> Result<Json<Compacted>, Problem> {
    let before: Position = compaction
        .before
        .parse()
        .map_err(|bad: mainspring_core::BadPosition| Problem::invalid(bad.to_string()))?;
    Ok(Json(Compacted { floor: http.kernel.session_compact(&caller, &by, before.cursor).await? }))
}

/// Returns the current state of a session and the position in its event stream
#[utoipa::path(
    get, path = "/v1/sessions/{session}/snapshot", params(SessionPath),
    responses((status = 200, description = "The snapshot", body = Snapshot)),
)]
pub(super) async fn session_snapshot(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Json<Snapshot>, Problem> {
    Ok(Json(http.kernel.session_snapshot(&caller, &by).await?))
}

/// Sums tokens and cost of all runs of a session, on every branch
#[utoipa::path(
    get, path = "/v1/sessions/{session}/usage", params(SessionPath),
    responses((status = 200, description = "The usage of the session", body = SessionUsage)),
)]
pub(super) async fn session_usage(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Json<SessionUsage>, Problem> {
    Ok(Json(http.kernel.session_usage(&caller, &by).await?))
}

/// Lists the latest messages of the active path, oldest first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/messages", params(SessionPath, MessageListQuery),
    responses((status = 200, description = "A page of messages", body = Page<Message>)),
)]
pub(super) async fn session_messages(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<MessageListQuery>,
) -> Result<Json<Page<std::sync::Arc<Message>>>, Problem> {
    Ok(Json(http.kernel.session_path_page(&caller, &by, query.before, query.limit).await?))
}
