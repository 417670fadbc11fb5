//! The end of the path that the active run writes: the role of the last message, the tool calls without a
//! result, and the state keys that the run has written since.

use mainspring_core::run::round::{self, ResultPlace};
use mainspring_core::{Message, Role};

/// The end of the active run's path.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenPath {
    /// The role of the run's last message.
    last_role: Option<Role>,
    /// Tool calls of the round at the path's end that have no result: id and name. A round may span several messages of
    /// the agent.
    unanswered: Vec<(String, String)>,
    /// State keys that the run has written since its last message.
    state_keys: Vec<String>,
}

impl OpenPath {
    /// Restores the end of a path that was read from the store.
    pub(crate) fn restore(&mut self, last_role: Option<Role>, unanswered: Vec<(String, String)>) {
        self.last_role = last_role;
        self.unanswered = unanswered;
    }

    /// Begins an attempt on a path whose last message has `last_role`. The first attempt of a run drops the open calls of
    /// an earlier path.
    pub(crate) fn start(&mut self, is_first: bool, last_role: Role) {
        if is_first {
            self.unanswered.clear();
        }
        self.last_role = Some(last_role);
    }

    /// Records that the path of a retried run ends with a message of the role user.
    pub(crate) fn reopen(&mut self) {
        self.last_role = Some(Role::User);
    }

    /// Adds a message at the end of the path.
    pub(crate) fn add_message(&mut self, message: &Message) {
        self.last_role = Some(message.role);
        round::apply(&mut self.unanswered, message);
        self.state_keys.clear();
    }

    /// The role of the run's last message.
    pub(crate) fn last_role(&self) -> Option<Role> {
        self.last_role
    }

    /// True when the path completes a turn.
    pub(crate) fn is_turn_complete(&self) -> bool {
        round::is_turn_complete(self.last_role, &self.unanswered)
    }

    /// Decides which place gets the result of a tool call.
    pub(crate) fn result_place(&self, tool_use_id: &str) -> ResultPlace {
        round::result_place(tool_use_id, &self.unanswered)
    }

    /// Takes the tool calls without a result; the caller writes their results.
    pub(crate) fn take_unanswered(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.unanswered)
    }

    /// Records that the run has written a key of the session's state after its last message.
    pub(crate) fn add_state_key(&mut self, key: &str) {
        if !self.state_keys.iter().any(|known| known == key) {
            self.state_keys.push(key.to_owned());
        }
    }

    /// Takes the state keys that were written after the run's last message.
    pub(crate) fn take_state_keys(&mut self) -> Vec<String> {
        std::mem::take(&mut self.state_keys)
    }
}
