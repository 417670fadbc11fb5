//! Surfaces: the places in an application that show a conversation, each with the thing that its conversation is about.

use mainspring_api::{SessionTarget, jsonl};
use mainspring_core::ExternalRef;

/// A place that shows a conversation. The same surface always leads to the same session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surface {
    /// The kind of place.
    pub kind: String,
    /// The application's thing that the conversation is about, unique per owner.
    pub external_ref: ExternalRef,
}

impl From<&Surface> for SessionTarget {
    /// Names the session of a surface.
    fn from(surface: &Surface) -> Self {
        Self {
            external_ref: Some(surface.external_ref.clone()),
            surface_kind: Some(surface.kind.clone()),
            ..Self::default()
        }
    }
}

impl Surface {
    /// Builds a query with only the fields that name the surface's session.
    pub(super) fn query(&self) -> jsonl::Query {
        jsonl::Query {
            surface_kind: Some(self.kind.clone()),
            external_ref_kind: Some(self.external_ref.kind.clone()),
            external_ref_id: Some(self.external_ref.id.clone()),
            ..jsonl::Query::default()
        }
    }

    /// The main chat; `chat` distinguishes several main chats.
    pub fn main_chat(chat: Option<&str>) -> Self {
        Self::new("main_chat", "chat", chat.unwrap_or("default"))
    }

    /// The chat about a task.
    pub fn task_chat(task: &str) -> Self {
        Self::new("task_chat", "task", task)
    }

    /// A floating pill.
    pub fn floating_pill(pill: &str) -> Self {
        Self::new("floating_pill", "pill", pill)
    }

    /// Any other place.
    pub fn new(kind: &str, ref_kind: &str, ref_id: &str) -> Self {
        let external_ref = ExternalRef { kind: ref_kind.to_owned(), id: ref_id.to_owned() };
        Self { kind: kind.to_owned(), external_ref }
    }
}
