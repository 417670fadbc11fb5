//! `/v1/sessions`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::{
    ExternalRef, LegacyAlias, Message, Position, Run, RunOptions, Session, SessionId, SessionStatus, Time,
    Visibility,
};
use mainspring_kernel::kernel::{
    NewSession, Opening, Scope, SessionPatch, SessionQuery, SessionStart, SessionTarget, Snapshot, Started,
    session_ref,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::access::Known;
use super::body::{Asked, Input, Named, idempotency_key};
use super::{Http, Problem};

/// Which session, and what it is like if it is new.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Target {
    #[serde(default)]
    pub(super) session_id: Option<SessionId>,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default)]
    external_ref: Option<ExternalRef>,
    #[serde(default)]
    legacy_alias: Option<LegacyAlias>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    surface_kind: Option<String>,
    #[serde(default)]
    adapter: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    model_profile: Option<String>,
    #[serde(default)]
    agent_definition: Option<String>,
    #[serde(default)]
    metadata: Option<Value>,
    #[serde(default)]
    visibility: Option<Visibility>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    system_prompt: Option<String>,
    #[serde(default)]
    model_options: Option<Map<String, Value>>,
    /// Make it: true, or the key it is to have.
    #[serde(default)]
    new: Option<NewName>,
    /// Take it up, by id or key.
    #[serde(default)]
    load: Option<String>,
    #[serde(default)]
    model_required: bool,
    /// Refused for a new session, and of no effect for one that is loaded.
    #[serde(default)]
    messages: Option<Value>,
}

#[derive(Debug, Deserialize)]
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
        let tag = HeaderValue::from_str(&tag(self.0.version));
        let mut response = Json(self.0).into_response();
        response.headers_mut().extend(tag.into_iter().map(|tag| (header::ETAG, tag)));
        response
    }
}

fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// `POST /v1/sessions`: the session that the body names; a new one if there is none.
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

/// A session with what its prompts are to be sent with, where that was worked out.
#[derive(Serialize)]
struct Opened {
    #[serde(flatten)]
    session: Session,
    opening: Opening,
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    scope: Scope,
    pinned: Option<bool>,
    status: Option<SessionStatus>,
    surface_kind: Option<String>,
    limit: Option<usize>,
    before: Option<String>,
}

/// One page of a list, and where the next one begins.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

impl<T> Page<T> {
    /// A page is followed by another if it is full.
    pub(super) fn of(items: Vec<T>, limit: Option<usize>, place: impl Fn(&T) -> String) -> Self {
        let full = items.len() >= limit.unwrap_or(50);
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

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    #[serde(flatten)]
    session: Session,
    latest_run: Option<Run>,
}

/// `GET /v1/sessions`
pub(super) async fn session_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<Listed>>, Problem> {
    let limit = query.limit;
    let before = place(query.before)?;
    let (scope, pinned, status) = (query.scope, query.pinned, query.status);
    let query = SessionQuery { scope, pinned, status, surface_kind: query.surface_kind, before, limit };
    let sessions = http.kernel.session_list(&caller, query).await?;
    let items = sessions.into_iter().map(|(session, latest_run)| Listed { session, latest_run }).collect();
    let at = |listed: &Listed| format!("{}.{}", listed.session.last_activity_at.0, listed.session.id);
    Ok(Json(Page::of(items, limit, at)))
}

/// `GET /v1/sessions/{session}`
pub(super) async fn session_get(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Tagged, Problem> {
    Ok(Tagged(http.kernel.session_get(&caller, &by).await?))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Patch {
    /// Absent: as it is. Null or empty: none.
    #[serde(default, deserialize_with = "given")]
    title: Option<Option<String>>,
    #[serde(default)]
    status: Option<SessionStatus>,
    #[serde(default)]
    pinned: Option<bool>,
    #[serde(default)]
    visibility: Option<Visibility>,
    /// Absent: as it is. Null: none. So the others.
    #[serde(default, deserialize_with = "given")]
    model: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    model_profile: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    system_prompt: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    model_options: Option<Option<Map<String, Value>>>,
    #[serde(default, deserialize_with = "given")]
    cwd: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
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

/// `PATCH /v1/sessions/{session}`: with `If-Match`, only if nobody has changed it meanwhile.
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
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    /// The forks that still see a part of it.
    kept_for_forks: Vec<SessionId>,
}

/// `DELETE /v1/sessions/{session}`: 204, or 200 and the names of the forks for which a part of it stays.
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

#[derive(Debug, Serialize)]
pub(super) struct Closed {
    /// True if the session was in memory.
    closed: bool,
}

/// `POST /v1/sessions/{session}/close`: lets an idle session leave memory now.
pub(super) async fn session_close(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Json<Closed>, Problem> {
    Ok(Json(Closed { closed: http.kernel.session_close(&caller, &by).await? }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compaction {
    /// The resume point before which events are pruned.
    before: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Compacted {
    /// Up to where events are gone.
    floor: Position,
}

/// `POST /v1/sessions/{session}/compact`: prunes events.
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

/// `GET /v1/sessions/{session}/snapshot`: the session at one instant.
pub(super) async fn session_snapshot(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Json<Snapshot>, Problem> {
    Ok(Json(http.kernel.session_snapshot(&caller, &by).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathQuery {
    limit: Option<usize>,
    /// Only messages above this depth.
    before: Option<u32>,
}

/// `GET /v1/sessions/{session}/messages`: the end of the active path, root first.
pub(super) async fn session_messages(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<PathQuery>,
) -> Result<Json<Page<std::sync::Arc<Message>>>, Problem> {
    let items = http.kernel.session_path(&caller, &by, query.before, query.limit).await?;
    Ok(Json(Page { items, next: None }))
}
