//! Event streams. The events themselves are defined in core.

use mainspring_core::{AttemptId, Body, Position};
use serde::{Deserialize, Serialize};

/// Selects events of a session or a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events after this position: the id of a server-sent event, or the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$"))]
    pub after: Option<String>,
    /// The number of events in a page; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `Mainspring-History` of the answer in which `after` was read. If the position is not of that history,
    /// because the state directory was replaced by an older copy, the stream begins with a reset, and a page is
    /// refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
    /// Decides if the stream of a session keeps the session in memory; a run's stream never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub mode: Option<SubscriptionMode>,
}

impl EventsQuery {
    /// Selects a page of events after a position.
    pub fn after(position: Position, limit: Option<usize>) -> Self {
        Self { after: Some(position.to_string()), limit, ..Self::default() }
    }
}

/// Whether a subscription keeps its session in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SubscriptionMode {
    /// Keeps the session in memory.
    #[default]
    Controller,
    /// Does not keep the session in memory: the stream pauses while the session is unloaded, and continues when it is
    /// loaded again.
    Observer,
}

/// Selects events of all of the caller's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct OwnerEventsQuery {
    /// Only events after this position: the id of a server-sent event, or the `next` of the previous page. If not given, a
    /// page begins at the first event and a stream at the present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$"))]
    pub after: Option<String>,
    /// The number of events in a page; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `Mainspring-History` of the answer in which `after` was read. If the position is not of that history,
    /// because the state directory was replaced by an older copy, the position is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
    /// Only events whose types begin with one of these words, for example `run,attempt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = "^[a-z]+(,[a-z]+)*$"))]
    pub types: Option<String>,
}

/// A thought of an agent: streamed live, stored nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Thought {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The text.
    pub text: String,
}

impl Thought {
    /// The name of the server-sent event.
    pub const KIND: &str = "thought";
}

/// `store.failed` or `store.recovered`, in the stream of all sessions. Sent live only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreNotice {
    /// The resume point.
    pub position: Position,
    /// The type and payload.
    #[serde(flatten)]
    pub body: Body,
}

/// Marks that every event up to `position` was sent: later events are live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaughtUp {
    /// The resume point.
    pub position: Position,
}

impl CaughtUp {
    /// The name of the server-sent event.
    pub const KIND: &str = "caught_up";
}
