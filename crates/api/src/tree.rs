//! A session's tree of messages.

use std::sync::Arc;

use mainspring_core::{Message, MessageId};
use serde::{Deserialize, Serialize};

/// Selects a part of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct TreeQuery {
    /// The number of messages; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only messages after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<MessageId>,
}

/// One message of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    /// The message.
    #[serde(flatten)]
    pub message: Arc<Message>,
    /// The parent message.
    pub parent_id: Option<MessageId>,
    /// The number of messages above this one.
    pub depth: u32,
    /// True on the active path.
    pub active: bool,
    /// True in a branch that was rolled back.
    pub abandoned: bool,
    /// The child that was visited last: the path continues there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<MessageId>,
}

/// One message with its children and siblings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MessageView {
    /// The message and its place in the tree. The cursor is the same as in the tree.
    #[serde(flatten)]
    pub node: TreeNode,
    /// The children: first the one on the same line, then the others, the oldest first.
    pub children: Vec<MessageId>,
    /// The children of the same parent, this message included; for a root, the roots. Empty in a branch that was rolled
    /// back.
    pub siblings: Vec<MessageId>,
    /// True when there are more children or siblings than listed.
    pub more: bool,
}

/// The message that the active path is moved to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Navigation {
    /// The message; null empties the path.
    #[serde(default, deserialize_with = "crate::present_or_null")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<MessageId>, required))]
    pub message_id: Option<Option<MessageId>>,
}

/// The message to fork a session from, and the names of the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fork {
    /// The last message that the two sessions share.
    pub message_id: MessageId,
    /// The fork's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub key: Option<String>,
    /// The fork's title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}
