//! Feedback on messages of threads.

use mainspring_core::Sentiment;
use serde::{Deserialize, Serialize};

use super::Timestamp;

/// Feedback to give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitFeedbackRequest {
    /// Whether the feedback is positive or negative.
    pub sentiment: Sentiment,
    /// The categories.
    #[serde(default)]
    pub categories: Option<Vec<String>>,
    /// A comment.
    #[serde(default)]
    pub notes: Option<String>,
}

/// Feedback on a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFeedbackRecord {
    /// The id.
    pub feedback_id: String,
    /// The thread. Answers to old clients call it `session_id`.
    #[serde(alias = "session_id")]
    pub thread_id: String,
    /// The index of the message.
    pub message_sequence_num: usize,
    /// The org of the thread; without one, the name of its owner.
    pub org_id: String,
    /// When the feedback was first given.
    pub created: Timestamp,
    /// The owner that gave the feedback.
    pub created_by: String,
    /// When the feedback was last given.
    pub modified: Timestamp,
    /// The owner that last gave the feedback.
    pub modified_by: String,
    /// Whether the feedback is positive or negative.
    pub sentiment: Sentiment,
    /// The categories, sorted, each once.
    pub categories: Vec<String>,
    /// A comment.
    pub notes: Option<String>,
}
