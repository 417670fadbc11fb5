//! Rounds of tool calls: the calls at the end of a run's path that have no result.
//!
//! ```text
//! agent: call a ──▶ agent: call b ──▶ user: joins the run ──▶ results of a, b
//!       [a]            [a, b]              [a, b]                  []
//! ```
//!
//! Invariant: a turn is complete only while no call of its path is open.

use crate::{Message, Role};

/// Changes `open`, the id and name of each tool call without a result, for `message`, which is written beneath them. One
/// message holds the results of all open calls.
pub fn apply(open: &mut Vec<(String, String)>, message: &Message) {
    match message.role {
        Role::Assistant => open.extend(message.tool_calls()),
        Role::User if !message.is_prompt() => open.clear(),
        // A prompt that joins the run while tools work.
        Role::User => {}
    }
}

/// True when a path completes a turn: `last_role` is the role of its last message, and `open` its tool calls without a
/// result.
pub fn is_turn_complete(last_role: Option<Role>, open: &[(String, String)]) -> bool {
    last_role == Some(Role::Assistant) && open.is_empty()
}

/// The place of the result of a tool call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultPlace {
    /// The message that will hold the results of the round.
    Message,
    /// The event of the call's end: no message of the path holds the call, so none will hold its result.
    Event,
}

/// Decides which place gets the result of the tool call `tool_use_id`; `open` are the calls of the path without a result.
pub fn result_place(tool_use_id: &str, open: &[(String, String)]) -> ResultPlace {
    match open.iter().any(|(id, _)| id == tool_use_id) {
        true => ResultPlace::Message,
        false => ResultPlace::Event,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Block, MessageId, MessageStatus, SessionId, Time};

    /// Builds a message from its blocks: `t` text, `cX` a call, `rX` a result, `p` a prompt.
    fn message(blocks: &str) -> Message {
        let block = |word: &str| match word.split_at(1) {
            ("c", id) => Block::tool_use(id, "add", json!({})),
            ("r", id) => Block::tool_result(id, "add", vec![], false),
            _ => Block::text("hi"),
        };
        Message {
            id: MessageId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            role: if blocks.starts_with(['r', 'p']) { Role::User } else { Role::Assistant },
            status: MessageStatus::Completed,
            content: blocks.split('+').map(block).collect(),
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        }
    }

    /// Plays the messages of a path: the ids of the calls that are open at its end, and whether it completes a turn.
    fn play(path: &str) -> (String, bool) {
        let (mut open, mut last_role) = (vec![], None);
        for message in path.split_whitespace().map(message) {
            apply(&mut open, &message);
            last_role = Some(message.role);
        }
        let ids: Vec<&str> = open.iter().map(|(id, _)| id.as_str()).collect();
        (ids.join(" "), is_turn_complete(last_role, &open))
    }

    #[test]
    fn calls_are_open_until_the_message_with_the_results() {
        for (path, open) in [
            ("p", ""),
            ("p t", ""),
            ("p t+c1", "1"),
            ("p c1+c2", "1 2"),
            ("p c1 c2", "1 2"),
            ("p c1 p", "1"),
            ("p c1 p c2", "1 2"),
            ("p c1+c2 r1", ""),
            ("p c1 r1 c2", "2"),
        ] {
            assert_eq!(play(path).0, open, "{path}");
        }
    }

    #[test]
    fn a_turn_is_complete_when_the_agent_has_the_last_word_and_no_call_is_open() {
        for (path, is_complete) in [
            ("", false),
            ("p", false),
            ("p t", true),
            ("p c1", false),
            ("p c1 r1", false),
            ("p c1 r1 t", true),
        ] {
            assert_eq!(play(path).1, is_complete, "{path}");
        }
    }

    #[test]
    fn only_the_result_of_an_open_call_belongs_to_a_message() {
        let open = [("1".to_owned(), "add".to_owned())];
        assert_eq!(result_place("1", &open), ResultPlace::Message);
        assert_eq!(result_place("2", &open), ResultPlace::Event);
    }
}
