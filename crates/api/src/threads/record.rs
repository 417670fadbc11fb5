//! Threads and their changes, as answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{AgentMessage, AgentTask, AgentThreadGoalRecord, Timestamp};

/// The side that has the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentThreadStatus {
    /// The thread has no message.
    NotStarted,
    /// A person may send a message.
    UserTurn,
    /// The server works.
    RobotoTurn,
    /// The client has to execute tools.
    ClientToolTurn,
    /// The last turn has not achieved its goals. A person may send a message.
    GoalsFailed,
}

/// The readers of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadVisibility {
    /// The creator of the thread.
    #[default]
    Private,
    /// Every member of the thread's org.
    Org,
}

/// Where a thread was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadOrigin {
    /// Through an API.
    Api,
    /// In Slack. Not produced by mainspring.
    Slack,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentThreadRecord {
    /// The id of the thread, which is the id of the session. Answers to old clients name this field `session_id`.
    #[serde(alias = "session_id", alias = "chat_id")]
    pub thread_id: String,
    /// When the thread was created.
    pub created: Timestamp,
    /// The owner of the thread.
    pub created_by: String,
    /// The creator with its kind: `user:ID`.
    #[serde(default)]
    pub created_by_principal: Option<String>,
    /// The org of the thread; without one, the name of its owner.
    pub org_id: String,
    /// The messages.
    #[serde(default)]
    pub messages: Vec<AgentMessage>,
    /// The token of the next delta.
    pub continuation_token: String,
    /// The side that has the turn.
    pub status: AgentThreadStatus,
    /// The activity of the server that no message shows, such as a wait.
    #[serde(default)]
    pub activity: Option<String>,
    /// The title.
    #[serde(default)]
    pub title: Option<String>,
    /// The model profile.
    #[serde(default)]
    pub model_profile: Option<String>,
    /// The thread that this one was forked from. Answers to old clients name this field `forked_from_session_id`.
    #[serde(default, alias = "forked_from_session_id")]
    pub forked_from_thread_id: Option<String>,
    /// The last message that both threads share.
    #[serde(default)]
    pub forked_from_message_sequence_num: Option<usize>,
    /// The readers of the thread.
    #[serde(default)]
    pub visibility: ThreadVisibility,
    /// The agent that the thread was launched from.
    #[serde(default)]
    pub created_from_agent_id: Option<String>,
    /// Always null: mainspring has no triggers.
    #[serde(default)]
    pub created_from_trigger_id: Option<String>,
    /// Where the thread was started.
    #[serde(default)]
    pub origin: Option<ThreadOrigin>,
    /// When the caller pinned the thread. In lists and searches only.
    #[serde(default)]
    pub pinned_at: Option<Timestamp>,
    /// The goals; null if they were not loaded.
    #[serde(default)]
    pub goals: Option<Vec<AgentThreadGoalRecord>>,
    /// The plan; null if it was not loaded.
    #[serde(default)]
    pub tasks: Option<Vec<AgentTask>>,
}

/// The changes of a thread after a continuation token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentThreadDelta {
    /// New messages, and additions to the content of known ones, by index.
    pub messages_by_idx: BTreeMap<usize, AgentMessage>,
    /// The token of the next delta.
    pub continuation_token: String,
    /// The reader drops its messages from this index on, and then applies `messages_by_idx`.
    #[serde(default)]
    pub reset_from_message_sequence_num: Option<usize>,
    /// The side that has the turn.
    #[serde(default)]
    pub status: Option<AgentThreadStatus>,
    /// The activity of the server that no message shows, such as a wait; null if there is none.
    #[serde(default)]
    pub activity: Option<String>,
    /// The title; null if it has not changed.
    #[serde(default)]
    pub title: Option<String>,
    /// All goals; null if none has changed.
    #[serde(default)]
    pub goals: Option<Vec<AgentThreadGoalRecord>>,
    /// The whole plan; null if it has not changed.
    #[serde(default)]
    pub tasks: Option<Vec<AgentTask>>,
}

impl AgentThreadRecord {
    /// Applies a delta to the thread, as a client does.
    pub fn apply(&mut self, delta: AgentThreadDelta) {
        self.continuation_token = delta.continuation_token;
        if let Some(from) = delta.reset_from_message_sequence_num {
            self.messages.truncate(from);
        }
        for (index, message) in delta.messages_by_idx {
            match self.messages.get_mut(index) {
                Some(known) => {
                    known.status = message.status;
                    known.content.extend(message.content);
                }
                None => self.messages.push(message),
            }
        }
        self.status = delta.status.unwrap_or(self.status);
        self.activity = delta.activity;
        self.title = delta.title.or(self.title.take());
        self.goals = delta.goals.or(self.goals.take());
        self.tasks = delta.tasks.or(self.tasks.take());
    }
}

/// The answer of a change that returns no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedThread {
    /// The thread. Answers to old clients name this field `session_id`.
    #[serde(alias = "session_id")]
    pub thread_id: String,
}

/// A model profile that threads may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelProfileResponse {
    /// The name of the profile.
    pub id: String,
    /// The name for people.
    pub label: String,
    /// The description for people.
    pub description: String,
    /// True for the profile of threads that name no profile.
    #[serde(default)]
    pub is_default: bool,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadPage<T> {
    /// The items.
    pub items: Vec<T>,
    /// The token of the next page; null on the last page.
    pub next_token: Option<String>,
}

/// The envelope of every success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Data<T> {
    /// The answer.
    pub data: T,
}

/// The envelope of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEnvelope {
    /// The error.
    pub error: ThreadError,
}

/// An error. The `roboto` package knows no other fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadError {
    /// The name of the exception that the package raises.
    pub error_code: String,
    /// A sentence for people.
    pub message: String,
}
