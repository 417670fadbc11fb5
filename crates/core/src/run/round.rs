//! Rounds of tool calls: the calls at the end of a run's path that have no result.
//!
//! ```text
//! agent: call a ──▶ agent: call b ──▶ user: joins the run ──▶ results of a, b
//!       [a]            [a, b]              [a, b]                  []
//! ```
//!
//! Invariant: a turn is complete only while no call of its path is open.

use std::sync::Arc;

use super::close::left_open;
use crate::{Block, CallResult, ClientResult, Message, MessageId, Role, RunId, Time};

/// A tool call whose result no message holds yet.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenToolCall {
    /// The run.
    pub run: RunId,
    /// Id of the call, which is the tool's idempotency key.
    pub tool_use_id: String,
    /// Name of the tool.
    pub name: String,
    /// When the call began. Absent if it was never executed.
    pub started_at: Option<Time>,
    /// The result, once the call has ended. It is stored here until all calls of the round have ended.
    pub ended: Option<EndedToolCall>,
}

/// The end of a tool call whose result no message holds yet.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedToolCall {
    /// The result. Shared, since the open calls are copied often.
    pub result: Arc<CallResult>,
    /// The message that will hold the result.
    pub message: MessageId,
}

impl OpenToolCall {
    /// The time from the start of the call to `ended_at`, in milliseconds; `None` if it was never executed.
    pub fn duration_ms(&self, ended_at: Time) -> Option<u64> {
        self.started_at.map(|started_at| ended_at.since(started_at))
    }
}

/// Removes the ended calls from `calls` and returns them in order.
pub fn take_ended(calls: &mut Vec<OpenToolCall>) -> Vec<OpenToolCall> {
    calls.extract_if(.., |call| call.ended.is_some()).collect()
}

/// Removes the unfinished calls from `calls` and returns them in order.
pub fn take_unfinished(calls: &mut Vec<OpenToolCall>) -> Vec<OpenToolCall> {
    calls.extract_if(.., |call| call.ended.is_none()).collect()
}

/// The results that no message holds yet, by the id of the call: those of `calls` that have ended, then those that the
/// caller has `given`. The first result of a call counts.
pub fn known_results(calls: &[OpenToolCall], given: &[ClientResult]) -> Vec<(String, CallResult)> {
    let ended = |call: &OpenToolCall| {
        Some((call.tool_use_id.clone(), CallResult::clone(&call.ended.as_ref()?.result)))
    };
    calls.iter().filter_map(ended).chain(given.iter().map(ClientResult::to_call_result)).collect()
}

/// Adds to the results in `blocks` the facts that only the calls know: whether they were declined, and how long they
/// took.
pub fn complete_results(blocks: &mut [Block], calls: &[OpenToolCall]) {
    for OpenToolCall { tool_use_id, ended, .. } in calls {
        let is_result = |block: &&mut Block| matches!(block, Block::ToolResult { tool_use_id: of, .. } if of == tool_use_id);
        if let (Some(ended), Some(block)) = (ended, blocks.iter_mut().find(is_result)) {
            ended.result.complete(block);
        }
    }
}

/// The messages that an attempt writes before its agent works.
#[derive(Debug, Clone, PartialEq)]
pub struct PathStart {
    /// The content of the message with the results of the tool calls that are open above the run.
    pub results: Option<Vec<Block>>,
    /// True if the attempt writes the run's prompt.
    pub writes_prompt: bool,
    /// The role of the run's last message after these messages.
    pub last_role: Role,
}

/// Decides which messages an attempt writes before its agent works. Only the first attempt of a run writes any: it
/// closes the calls that are `open_above` the run. A run without a prompt of its own answers an earlier prompt again.
/// `last_role` is the role of the run's last message, if an earlier attempt wrote one.
pub fn path_start(
    is_first: bool,
    open_above: &[(String, String)],
    has_prompt: bool,
    last_role: Option<Role>,
) -> PathStart {
    match is_first {
        true => PathStart {
            results: (!open_above.is_empty()).then(|| left_open(open_above.to_vec())),
            writes_prompt: has_prompt,
            last_role: Role::User,
        },
        false => {
            PathStart { results: None, writes_prompt: false, last_role: last_role.unwrap_or(Role::User) }
        }
    }
}

/// Updates `open`, the tool calls of a path without a result (id and name), for `message`, which is written at the end of
/// the path. One message holds the results of all open calls.
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
    use crate::message::text_of;
    use crate::{MessageStatus, SessionId};

    /// Builds a message from its blocks, joined by `+`: `t` text, `cX` a call, `rX` a result, `p` a prompt.
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

    /// Applies the messages of a path. Returns the ids of the calls that are open at its end, and whether the path
    /// completes a turn.
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
    fn a_turn_is_complete_when_its_last_message_is_the_agents_and_no_call_is_open() {
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

    /// Builds calls from their ids; `1!` has ended, with its id as its result.
    fn calls(ids: &str) -> Vec<OpenToolCall> {
        let call = |word: &str| {
            let id = word.trim_end_matches('!');
            let result = CallResult {
                content: vec![Block::text(id)],
                declined: true,
                runtime_ms: Some(5),
                ..CallResult::default()
            };
            let ended = EndedToolCall { result: result.into(), message: MessageId::from_random([3; 16]) };
            OpenToolCall {
                run: RunId::from_random([4; 16]),
                tool_use_id: id.into(),
                name: "add".into(),
                started_at: None,
                ended: word.ends_with('!').then_some(ended),
            }
        };
        ids.split_whitespace().map(call).collect()
    }

    fn ids(calls: &[OpenToolCall]) -> String {
        calls.iter().map(|call| call.tool_use_id.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ended_and_unfinished_calls_are_taken_separately() {
        for (all, ended, unfinished) in
            [("", "", ""), ("1! 2 3! 4", "1 3", "2 4"), ("1 2", "", "1 2"), ("1! 2!", "1 2", "")]
        {
            let mut left = calls(all);
            let taken = take_ended(&mut left);
            assert_eq!([ids(&taken), ids(&left)], [ended, unfinished], "{all}");
            let mut left = calls(all);
            let taken = take_unfinished(&mut left);
            assert_eq!([ids(&taken), ids(&left)], [unfinished, ended], "{all}");
        }
    }

    #[test]
    fn the_duration_of_a_call_counts_from_its_start() {
        let [mut call] = calls("1").try_into().unwrap();
        assert_eq!(call.duration_ms(Time(30)), None);
        call.started_at = Some(Time(10));
        assert_eq!(call.duration_ms(Time(30)), Some(20));
    }

    #[test]
    fn the_results_of_ended_calls_come_before_those_that_the_caller_gave() {
        let given = |id: &str| ClientResult {
            tool_use_id: id.into(),
            content: json!(format!("given {id}")),
            ..ClientResult::default()
        };
        let known = known_results(&calls("1! 2"), &[given("1"), given("3")]);
        let text = |(id, result): &(String, CallResult)| format!("{id}: {}", text_of(&result.content));
        assert_eq!(known.iter().map(text).collect::<Vec<_>>(), ["1: 1", "1: given 1", "3: given 3"]);
    }

    #[test]
    fn a_result_gets_the_facts_of_its_own_call_only() {
        let mut blocks = ["1", "2", "3"].map(|id| Block::tool_result(id, "add", vec![], false));
        complete_results(&mut blocks, &calls("1! 2"));
        let shown = blocks.map(|block| match block {
            Block::ToolResult { declined, runtime_ms, .. } => (declined, runtime_ms),
            other => panic!("{other:?}"),
        });
        assert_eq!(shown, [(true, Some(5)), (false, None), (false, None)]);
    }

    #[test]
    fn only_a_first_attempt_closes_the_calls_above_and_writes_the_prompt() {
        let (above, none) = ([("1".to_owned(), "add".to_owned())], &[][..]);
        for (is_first, above, has_prompt, last_role, expected) in [
            (true, &above[..], true, None, (1, true, Role::User)),
            (true, &above[..], false, Some(Role::Assistant), (1, false, Role::User)),
            (true, none, true, None, (0, true, Role::User)),
            (true, none, false, None, (0, false, Role::User)),
            (false, &above[..], true, Some(Role::Assistant), (0, false, Role::Assistant)),
            (false, none, true, None, (0, false, Role::User)),
        ] {
            let start = path_start(is_first, above, has_prompt, last_role);
            let results = start.results.map_or(0, |blocks| blocks.len());
            let shown = (results, start.writes_prompt, start.last_role);
            assert_eq!(shown, expected, "{is_first} {above:?} {has_prompt} {last_role:?}");
        }
    }

    #[test]
    fn a_result_goes_to_a_message_only_if_its_call_is_open() {
        let open = [("1".to_owned(), "add".to_owned())];
        assert_eq!(result_place("1", &open), ResultPlace::Message);
        assert_eq!(result_place("2", &open), ResultPlace::Event);
    }
}
