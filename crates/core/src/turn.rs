//! Turns of other programs: messages that a program appends to a session after it has run the turn itself.
//!
//! The results of a turn are messages of its agents and the results of their tool calls. They are complete: every tool
//! call has its result in the next message of the role user. Only messages with further tool calls of the same round
//! may stand between the two.

use crate::{Block, Role};

/// Maximum number of messages in the results of one turn.
pub const MAX_RESULT_MESSAGES: usize = 500;

/// Why the messages of a turn or a history are refused: they are not complete, or a message holds a block that it may not
/// hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("messages[{index}]: {reason}")]
pub struct BadTurn {
    /// The index of the message.
    pub index: usize,
    /// The error, and what to send instead.
    pub reason: String,
}

/// Checks that `messages` are the complete results of a turn.
pub fn check_results<'a>(messages: impl IntoIterator<Item = (Role, &'a [Block])>) -> Result<(), BadTurn> {
    let mut open: Vec<&str> = vec![];
    let mut last = None;
    for (index, (role, content)) in messages.into_iter().enumerate() {
        let checked = match role {
            Role::Assistant => check_assistant(content, &mut open),
            Role::User => check_tool_results(content, &mut open),
        };
        checked.map_err(|reason| BadTurn { index, reason })?;
        if index >= MAX_RESULT_MESSAGES {
            let reason = format!("the results of a turn have at most {MAX_RESULT_MESSAGES} messages");
            return Err(BadTurn { index, reason });
        }
        last = Some(index);
    }
    match (last, open.first()) {
        (None, _) => {
            Err(BadTurn { index: 0, reason: "the results of a turn have at least one message".into() })
        }
        (Some(index), Some(_)) => Err(BadTurn { index, reason: without_result(&open) }),
        (Some(_), None) => Ok(()),
    }
}

/// Checks a message of an agent, and adds its tool calls to `open`, the calls without a result.
pub(crate) fn check_assistant<'a>(content: &'a [Block], open: &mut Vec<&'a str>) -> Result<(), String> {
    let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    if !open.is_empty() && !calls {
        return Err(without_result(open));
    }
    for block in content {
        match block {
            Block::Text { .. } | Block::Thinking {} | Block::Attachment { .. } | Block::Error { .. } => {}
            Block::ToolUse { id, .. } if id.is_empty() => return Err("a tool call needs an id".into()),
            Block::ToolUse { id, .. } if open.contains(&id.as_str()) => {
                return Err(format!("two tool calls have the id {id:?}"));
            }
            Block::ToolUse { id, .. } => open.push(id),
            Block::ToolResult { .. } => {
                return Err("a tool result belongs into a message of the role user".into());
            }
            Block::Diff { .. } => return Err("a change of a file belongs into a tool result".into()),
        }
    }
    Ok(())
}

fn check_tool_results(content: &[Block], open: &mut Vec<&str>) -> Result<(), String> {
    let only = "a message of the role user holds tool results only; append a message of a person by itself";
    if content.is_empty() {
        return Err(only.into());
    }
    if !content.iter().all(|block| matches!(block, Block::ToolResult { .. })) {
        return Err(only.into());
    }
    answer_calls(content, open)
}

/// Removes from `open` the calls whose results are in `content`. Refuses a result without a call, and a call that stays
/// open.
pub(crate) fn answer_calls(content: &[Block], open: &mut Vec<&str>) -> Result<(), String> {
    for block in content {
        let Block::ToolResult { tool_use_id, .. } = block else { continue };
        let Some(at) = open.iter().position(|id| id == tool_use_id) else {
            return Err(format!("no tool call before it has the id {tool_use_id:?}"));
        };
        open.remove(at);
    }
    if open.is_empty() { Ok(()) } else { Err(without_result(open)) }
}

pub(crate) fn without_result(open: &[&str]) -> String {
    format!("these tool calls have no result, and a finished turn has one for each: {}", open.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Builds messages from a script: `t` text, `cX` a call, `rX` a result, `p` a prompt, `+` joins blocks of a message.
    fn check(script: &str) -> Result<(), String> {
        let block = |word: &str| match word.split_at(1) {
            ("t" | "p", _) => Block::text("hi"),
            ("c", id) => Block::tool_use(id, "add", json!({})),
            (_, id) => Block::tool_result(id, "add", vec![Block::text("2")], false),
        };
        let message = |text: &str| {
            let role = if text.starts_with(['r', 'p']) { Role::User } else { Role::Assistant };
            (role, text.split('+').map(block).collect::<Vec<_>>())
        };
        let messages: Vec<_> = script.split_whitespace().map(message).collect();
        let checked = check_results(messages.iter().map(|(role, content)| (*role, content.as_slice())));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_finished_turn_has_a_result_for_each_call() {
        for complete in ["t", "t t", "t+c1 r1 t", "c1+c2 r2+r1 t", "c1 c2 r1+r2", "c1 r1 c1 r1 t"] {
            assert_eq!(check(complete), Ok(()), "{complete}");
        }
    }

    #[test]
    fn an_incomplete_turn_is_refused_with_the_index_of_the_message() {
        for (script, error) in [
            ("", "messages[0]: the results of a turn have at least one message"),
            ("c1", "messages[0]: these tool calls have no result, and a finished turn has one for each: 1"),
            (
                "c1+c2 r1",
                "messages[1]: these tool calls have no result, and a finished turn has one for each: 2",
            ),
            (
                "c1 t r1",
                "messages[1]: these tool calls have no result, and a finished turn has one for each: 1",
            ),
            ("t r1", "messages[1]: no tool call before it has the id \"1\""),
            ("c1+c1 r1", "messages[0]: two tool calls have the id \"1\""),
            ("c", "messages[0]: a tool call needs an id"),
            ("t+r1", "messages[0]: a tool result belongs into a message of the role user"),
        ] {
            assert_eq!(check(script), Err(error.to_owned()), "{script}");
        }
        let prompt = check("t p").unwrap_err();
        assert!(
            prompt.starts_with("messages[1]: a message of the role user holds tool results only"),
            "{prompt}"
        );
        assert!(check(&"t ".repeat(MAX_RESULT_MESSAGES)).is_ok());
        assert!(check(&"t ".repeat(MAX_RESULT_MESSAGES + 1)).unwrap_err().contains("at most 500"));
    }
}
