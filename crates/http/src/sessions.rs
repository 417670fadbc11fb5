//! `/v1/sessions`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::{
    ExternalRef, LegacyAlias, Message, Position, Run, RunOptions, Session, SessionId, SessionStatus, Time,
    Visibility,
};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{
    Caller, NewSession, Opening, RunQuery, SessionPatch, SessionQuery, SessionScope, SessionStart,
    SessionTarget, Snapshot, Started, session_ref,
};
use mainspring_kernel::store::SessionRef;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::{Asked, Input, Named, Once, idempotency_key};
use crate::{Http, Problem};

/// Which session, and what it is like if it is new.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionTarget)]
pub(super) struct Target {
    /// By id: it must exist.
    #[serde(default)]
    pub(super) session_id: Option<SessionId>,
    /// By the caller's own key.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$")]
    pub(super) key: Option<String>,
    /// By what it stands for in the caller's world.
    #[serde(default)]
    external_ref: Option<ExternalRef>,
    /// By a compatibility alias.
    #[serde(default)]
    legacy_alias: Option<LegacyAlias>,
    /// A new session's title.
    #[serde(default)]
    title: Option<String>,
    /// What kind of surface opens a new session; `api` if not given.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    surface_kind: Option<String>,
    /// A new session's adapter.
    #[serde(default)]
    adapter: Option<String>,
    /// The folder that a new session's runs work in.
    #[serde(default)]
    cwd: Option<String>,
    /// A new session's logical model.
    #[serde(default)]
    model_profile: Option<String>,
    /// The agent definition that a new session follows.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    agent_definition: Option<String>,
    /// The caller's own data of a new session.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// Who may read a new session besides its owner.
    #[serde(default)]
    visibility: Option<Visibility>,
    /// The model that a new session's runs use.
    #[serde(default)]
    model: Option<String>,
    /// The instructions that a new session's runs get.
    #[serde(default)]
    system_prompt: Option<String>,
    /// What a new session's runs tell the model's provider besides.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    model_options: Option<Map<String, Value>>,
    /// Make it: true, or the key it is to have.
    #[serde(default)]
    new: Option<NewName>,
    /// Take it up, by id or key.
    #[serde(default)]
    load: Option<String>,
    /// Whoever starts it cannot do without a model.
    #[serde(default)]
    model_required: bool,
    /// Refused for a new session, and of no effect for one that is loaded.
    #[serde(default)]
    messages: Option<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum NewName {
    Any(bool),
    Key(String),
}

impl Target {
    /// True when it says how the session is started, which no prompt does.
    pub(super) fn starts(&self) -> bool {
        self.new.is_some() || self.load.is_some() || self.messages.is_some() || self.model_required
    }

    fn start(self) -> Result<SessionStart, Problem> {
        if self.session_id.is_some()
            || self.key.is_some()
            || self.external_ref.is_some()
            || self.legacy_alias.is_some()
        {
            return Err(Problem::invalid("name the session by `new` or `load` alone"));
        }
        let (model_required, messages) = (self.model_required, self.messages.is_some());
        let load = self.load.as_deref().map(session_ref).transpose()?;
        let new = match &self.new {
            Some(NewName::Key(key)) => Some(Some(key.clone())),
            Some(NewName::Any(true)) => Some(None),
            Some(NewName::Any(false)) | None => None,
        };
        Ok(SessionStart { new, load, like: SessionTarget::from(self).new, model_required, messages })
    }
}

impl From<Target> for SessionTarget {
    fn from(target: Target) -> Self {
        Self {
            id: target.session_id,
            key: target.key,
            external_ref: target.external_ref,
            legacy_alias: target.legacy_alias,
            new: NewSession {
                title: target.title,
                surface_kind: target.surface_kind,
                adapter: target.adapter,
                cwd: target.cwd,
                model_profile: target.model_profile,
                agent_definition: target.agent_definition,
                metadata: target.metadata,
                visibility: target.visibility,
                model: target.model,
                system_prompt: target.system_prompt,
                model_options: target.model_options,
            },
        }
    }
}

/// A session with its version as an entity tag.
pub(super) struct Tagged(pub(super) Session);

impl IntoResponse for Tagged {
    fn into_response(self) -> Response {
        tagged(self.0.version, &self.0)
    }
}

/// What has a version, with it as an entity tag.
pub(super) fn tagged(version: u64, body: &impl Serialize) -> Response {
    ([(header::ETAG, tag(version))], Json(body)).into_response()
}

pub(super) fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// The session that the body names, in memory; a new one if there is none
#[utoipa::path(
    post, path = "/v1/sessions", request_body = Target, params(Once),
    responses(
        (status = 200, description = "It exists", body = Opened, headers(("ETag" = String), ("Location" = String))),
        (status = 201, description = "It was made", body = Opened, headers(("ETag" = String), ("Location" = String))),
    ),
    extensions(("x-problems" = json!(["forbidden", "adapter_not_registered", "request_conflict", "already_exists", "ambiguous_mode", "no_model", "initial_messages_not_supported", "no_org"]))),
)]
pub(super) async fn session_resolve(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Input(target): Input<Target>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    if target.starts() {
        let Started { session, opening, options } =
            http.kernel.session_start(&caller, target.start()?, key).await?;
        return Ok(opened(session, opening, Some(options)));
    }
    let (session, opening) = http.kernel.session_open(&caller, &target.into(), key).await?;
    Ok(opened(session, opening, None))
}

/// A session, and how it came to be in memory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenedSession)]
struct Opened {
    #[serde(flatten)]
    session: Session,
    /// How it came to be in memory.
    opening: Opening,
    /// What its prompts are to be sent with, where it was started by `new` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<RunOptions>,
}

fn opened(session: Session, opening: Opening, options: Option<RunOptions>) -> Response {
    let status = if opening == Opening::Created { StatusCode::CREATED } else { StatusCode::OK };
    let place = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let tag = HeaderValue::from_str(&tag(session.version));
    let mut response = (status, Json(Opened { session, opening, options })).into_response();
    let headers = response.headers_mut();
    headers.extend(place.into_iter().map(|place| (header::LOCATION, place)));
    headers.extend(tag.into_iter().map(|tag| (header::ETAG, tag)));
    response
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Whose.
    #[serde(default)]
    #[param(inline)]
    scope: SessionScope,
    /// Only those that are pinned, or only those that are not.
    pinned: Option<bool>,
    /// Only these.
    status: Option<SessionStatus>,
    /// Only these.
    surface_kind: Option<String>,
    /// Only the one that stands for something of this kind; with `externalId`.
    external_kind: Option<String>,
    /// Which one of that kind.
    external_id: Option<String>,
    /// Only the one that has an alias within this scope; with `legacyKey`.
    legacy_scope: Option<String>,
    /// Which one of that scope.
    legacy_key: Option<String>,
    /// How many; 50 if not given.
    limit: Option<usize>,
    /// The `next` of the page before.
    #[param(pattern = r"^[0-9]{1,18}\.ses_[0-9a-f]{32}$")]
    before: Option<String>,
}

impl ListQuery {
    /// The names that the one that is meant has, each if it is whole; none if all are meant.
    fn names(&self) -> Option<Vec<SessionRef>> {
        let pair = |one: &Option<String>, other: &Option<String>| one.clone().zip(other.clone());
        let external = pair(&self.external_kind, &self.external_id);
        let external = external.map(|(kind, id)| SessionRef::External(ExternalRef { kind, id }));
        let legacy = pair(&self.legacy_scope, &self.legacy_key);
        let legacy = legacy.map(|(scope, key)| SessionRef::Legacy(LegacyAlias { scope, key }));
        let named = [&self.external_kind, &self.external_id, &self.legacy_scope, &self.legacy_key];
        named.iter().any(|name| name.is_some()).then(|| external.into_iter().chain(legacy).collect())
    }

    /// Whether a session that is meant by its name is one of these.
    fn fits(&self, session: &Session) -> bool {
        self.pinned.is_none_or(|pinned| pinned == session.pinned)
            && self.status.is_none_or(|status| status == session.status)
            && self.surface_kind.as_ref().is_none_or(|kind| *kind == session.surface_kind)
    }
}

/// One page of a list, and where the next one begins.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<T> {
    /// What there is.
    pub(super) items: Vec<T>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

impl<T> Page<T> {
    /// A page is followed by another if it is full.
    pub(super) fn of(http: &Http, items: Vec<T>, limit: Option<usize>, place: impl Fn(&T) -> String) -> Self {
        let full = items.len() >= limit.unwrap_or(http.kernel.limits().page.min(50));
        let next = items.last().filter(|_| full).map(place);
        Self { items, next }
    }
}

/// Reads where a page begins: `MILLISECONDS.ID`.
pub(super) fn place<I: std::str::FromStr>(text: Option<String>) -> Result<Option<(Time, I)>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let read = text.split_once('.').and_then(|(time, id)| Some((Time(time.parse().ok()?), id.parse().ok()?)));
    read.map(Some).ok_or_else(|| Problem::invalid(format!("{text:?} is not the `next` of an earlier page")))
}

/// A session and where its latest run stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedSession)]
pub(super) struct Listed {
    #[serde(flatten)]
    session: Session,
    /// Its latest run; null if it has none.
    #[schema(required)]
    latest_run: Option<Run>,
}

/// Sessions, the latest activity first
#[utoipa::path(
    get, path = "/v1/sessions", params(ListQuery),
    responses((status = 200, description = "A page", body = Page<Listed>)),
)]
pub(super) async fn session_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<Listed>>, Problem> {
    let limit = query.limit;
    if let Some(names) = query.names() {
        return Ok(Json(Page { items: named(&http, &caller, &query, &names).await?, next: None }));
    }
    let before = place(query.before)?;
    let (scope, pinned, status) = (query.scope, query.pinned, query.status);
    let query = SessionQuery { scope, pinned, status, surface_kind: query.surface_kind, before, limit };
    let sessions = http.kernel.session_list(&caller, query).await?;
    let items = sessions.into_iter().map(|(session, latest_run)| Listed { session, latest_run }).collect();
    let at = |listed: &Listed| format!("{}.{}", listed.session.last_activity_at.0, listed.session.id);
    Ok(Json(Page::of(&http, items, limit, at)))
}

/// The one session that has all of these names; a name that is not whole is nobody's.
async fn named(
    http: &Http,
    caller: &Caller,
    query: &ListQuery,
    names: &[SessionRef],
) -> Result<Vec<Listed>, Problem> {
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
    let Some(session) = found.filter(|session| query.fits(session)) else { return Ok(vec![]) };
    let runs = RunQuery { session: Some(session.id), limit: Some(1), ..RunQuery::default() };
    let latest_run = http.kernel.run_list(caller, runs).await?.into_iter().next();
    Ok(vec![Listed { session, latest_run }])
}

/// One session
#[utoipa::path(
    get, path = "/v1/sessions/{session}", params(Named),
    responses((status = 200, description = "It; its version is the ETag", body = Session, headers(("ETag" = String)))),
)]
pub(super) async fn session_get(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Tagged, Problem> {
    Ok(Tagged(http.kernel.session_get(&caller, &by).await?))
}

/// What of a session to change; what is absent stays as it is, null clears.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionPatch)]
pub(super) struct Patch {
    /// Null or empty: none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    title: Option<Option<String>>,
    /// `open` or `archived`; null: as it is.
    #[serde(default)]
    status: Option<SessionStatus>,
    /// Whether it is pinned; null: as it is.
    #[serde(default)]
    pinned: Option<bool>,
    /// Who may read it besides its owner; null: as it is.
    #[serde(default)]
    visibility: Option<Visibility>,
    /// The model that its runs use.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    model: Option<Option<String>>,
    /// The logical model that its runs use.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    model_profile: Option<Option<String>>,
    /// The instructions that its runs get.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    system_prompt: Option<Option<String>>,
    /// What its runs tell the model's provider besides; replaces what was there.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    model_options: Option<Option<Map<String, Value>>>,
    /// The folder that its runs work in.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    cwd: Option<Option<String>>,
    /// The caller's own data; replaces what was there.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Option<Value>>,
}

/// Tells a null that was sent from a field that was not.
pub(super) fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// The version that `If-Match` names.
pub(super) fn version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let read = value.to_str().ok().and_then(|text| text.trim_matches('"').parse().ok());
    read.map(Some).ok_or_else(|| Problem::invalid("If-Match takes the ETag of the session"))
}

/// Changes a session; with `If-Match`, only if nobody has changed it meanwhile
#[utoipa::path(
    patch, path = "/v1/sessions/{session}", request_body = Patch,
    params(Named, ("If-Match" = Option<String>, Header, description = "The ETag that it must still have.")),
    responses((status = 200, description = "As it is now", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["forbidden", "session_busy", "no_org", "wrong_state", "version_conflict"]))),
)]
pub(super) async fn session_patch(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Input(patch): Input<Patch>,
) -> Result<Tagged, Problem> {
    let version = version(&headers)?;
    let patch = SessionPatch {
        title: patch.title,
        status: patch.status,
        pinned: patch.pinned,
        visibility: patch.visibility,
        model: patch.model,
        model_profile: patch.model_profile,
        system_prompt: patch.system_prompt,
        model_options: patch.model_options,
        cwd: patch.cwd,
        metadata: patch.metadata.map(|metadata| metadata.unwrap_or_else(|| Value::Object(Map::new()))),
        version,
    };
    Ok(Tagged(http.kernel.session_patch(&caller, &by, patch).await?))
}

/// What is left of a session that was deleted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = KeptForForks)]
struct Kept {
    /// The forks that still see a part of it.
    kept_for_forks: Vec<SessionId>,
}

/// Deletes a session and everything of it; refused while a run lives
#[utoipa::path(
    delete, path = "/v1/sessions/{session}", params(Named),
    responses(
        (status = 204, description = "It is gone"),
        (status = 200, description = "It is gone, but for what its forks still see", body = Kept),
    ),
    extensions(("x-problems" = json!(["forbidden", "session_busy", "wrong_state"]))),
)]
pub(super) async fn session_delete(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Response, Problem> {
    let deleted = http.kernel.session_delete(&caller, &by).await?;
    Ok(match deleted.forks {
        forks if forks.is_empty() => StatusCode::NO_CONTENT.into_response(),
        kept_for_forks => Json(Kept { kept_for_forks }).into_response(),
    })
}

/// Whether a session left memory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClosedSession)]
pub(super) struct Closed {
    /// True if the session was in memory.
    closed: bool,
}

/// Lets an idle session leave memory now
#[utoipa::path(
    post, path = "/v1/sessions/{session}/close", params(Named),
    responses((status = 200, description = "It is not in memory", body = Closed)),
    extensions(("x-problems" = json!(["forbidden", "session_busy"]))),
)]
pub(super) async fn session_close(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Json<Closed>, Problem> {
    Ok(Json(Closed { closed: http.kernel.session_close(&caller, &by).await? }))
}

/// Which events to prune.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Compaction {
    /// The resume point before which events are pruned.
    #[schema(pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$")]
    before: String,
}

/// Which events were pruned.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Compacted {
    /// Up to where events are gone.
    floor: Position,
}

/// Prunes events: none of a run that has not ended, and no messages
#[utoipa::path(
    post, path = "/v1/sessions/{session}/compact", params(Named), request_body = Compaction,
    responses((status = 200, description = "Up to where events are gone", body = Compacted)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn session_compact(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Input(compaction): Input<Compaction>,
) -> Result<Json<Compacted>, Problem> {
    let before: Position = compaction
        .before
        .parse()
        .map_err(|bad: mainspring_core::BadPosition| Problem::invalid(bad.to_string()))?;
    Ok(Json(Compacted { floor: http.kernel.session_compact(&caller, &by, before.cursor).await? }))
}

/// The session at one instant, and where its stream stands then
#[utoipa::path(
    get, path = "/v1/sessions/{session}/snapshot", params(Named),
    responses((status = 200, description = "All that a new reader needs", body = Snapshot)),
)]
pub(super) async fn session_snapshot(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Json<Snapshot>, Problem> {
    Ok(Json(http.kernel.session_snapshot(&caller, &by).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PathQuery {
    /// How many; 50 if not given.
    limit: Option<usize>,
    /// Only messages above this depth.
    before: Option<u32>,
}

/// The end of the active path, root first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/messages", params(Named, PathQuery),
    responses((status = 200, description = "Its messages", body = Page<Message>)),
)]
pub(super) async fn session_messages(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<PathQuery>,
) -> Result<Json<Page<std::sync::Arc<Message>>>, Problem> {
    let items = http.kernel.session_path(&caller, &by, query.before, query.limit).await?;
    Ok(Json(Page { items, next: None }))
}
