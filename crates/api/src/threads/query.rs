//! Queries of the threads API. Unknown parameters are ignored: newer clients send more.

use serde::{Deserialize, Serialize};

/// The query of `GET /v1/ai/threads/{thread}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadGetQuery {
    /// `false`, in upper or lower case: the record has no messages, and the delta from its token has all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_messages: Option<String>,
}

/// The query of `GET /v1/ai/threads/{thread}/delta`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadDeltaQuery {
    /// The token of the last record or delta. Absent or empty: the delta has all messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The query of `GET /v1/ai/threads`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadListQuery {
    /// The number of threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next_token` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
    /// `true`, in upper or lower case: only pinned threads. Another value: only threads that are not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
}

/// The query of `GET /v1/ai/agents`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadAgentListQuery {
    /// The `next_token` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}
