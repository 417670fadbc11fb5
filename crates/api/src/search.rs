//! Search.

use mainspring_core::{MessageId, Role, SessionId, Time};
use serde::{Deserialize, Serialize};

use crate::Scope;

/// A full-text query.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct SearchQuery {
    /// The text to look for: any text is a query.
    pub q: String,
    /// The number of hits; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The sessions that are searched; the caller's own if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub scope: Option<Scope>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}(\.ses_[0-9a-f]{32})?$"))]
    pub before: Option<String>,
}

/// A search hit: a session found by its title, or a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// The session.
    pub session_id: SessionId,
    /// The session's title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The message; absent if the title matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The author of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// When the message was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_ms: Option<Time>,
    /// The part of the text that matched, on one line.
    pub snippet: String,
    /// When the caller has pinned the session. Absent if it is not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_at_ms: Option<Time>,
}
