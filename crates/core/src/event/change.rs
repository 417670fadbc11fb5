//! The changed properties of a session, as `session.updated` reports them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Cursor;
use crate::{ClientTool, MessageId, SessionStatus, TitleSource, Visibility};

/// A changed property of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "changed", rename_all = "snake_case")]
pub enum SessionChange {
    /// The title changed.
    Title {
        /// The new title; null if it was removed.
        title: Option<String>,
        /// The source of the title.
        #[serde(default)]
        source: TitleSource,
    },
    /// The session was pinned or unpinned.
    Pinned {
        /// Whether the session is pinned.
        pinned: bool,
    },
    /// The visibility changed.
    Visibility {
        /// The new visibility.
        visibility: Visibility,
    },
    /// The default model of the session's runs changed.
    Model {
        /// The new model.
        model: Option<String>,
    },
    /// The default model profile of the session's runs changed.
    #[serde(rename_all = "camelCase")]
    ModelProfile {
        /// The new profile.
        model_profile: Option<String>,
    },
    /// The default system prompt of the session's runs changed.
    #[serde(rename_all = "camelCase")]
    SystemPrompt {
        /// The new system prompt.
        system_prompt: Option<String>,
    },
    /// The default model options of the session's runs changed.
    #[serde(rename_all = "camelCase")]
    ModelOptions {
        /// The new options.
        #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
        model_options: Option<Map<String, Value>>,
    },
    /// The default working folder of the session's runs changed.
    Cwd {
        /// The new folder.
        cwd: Option<String>,
    },
    /// The rules about what the session's agents may do changed.
    Rules {
        /// The new rules.
        rules: Vec<String>,
    },
    /// The agent definition of the session's runs changed.
    #[serde(rename_all = "camelCase")]
    AgentDefinition {
        /// The new definition, as `ID` or `ID@VERSION`.
        agent_definition: String,
    },
    /// The client tools of the session's runs changed.
    Tools {
        /// All tools, in order.
        tools: Vec<ClientTool>,
    },
    /// The time that the idle session stays in memory changed.
    #[serde(rename_all = "camelCase")]
    IdleUnload {
        /// The new time in milliseconds; null for the server's.
        idle_unload_ms: Option<u64>,
    },
    /// The caller's metadata changed.
    Metadata {
        /// The new metadata.
        metadata: Value,
    },
    /// The session was archived, reopened or closed.
    Status {
        /// The new status.
        status: SessionStatus,
    },
    /// Older events of the session were pruned.
    Compacted {
        /// The last pruned event.
        floor: Cursor,
    },
    /// The active path ends at another message.
    Tip {
        /// The last message of the active path.
        tip: Option<MessageId>,
    },
}
