//! Given messages: a history that a caller gives to a session, and the rule that decides whether it is complete.
//!
//! A history is complete, so that a prompt can follow it, if every tool call in it has a result: models accept no other
//! history. Appended turns follow the same rule ([`turn`](crate::turn)), so a caller can also give any history
//! that a program could append. A history may end with a person's message that has no answer.

use serde::{Deserialize, Serialize};

use crate::turn::{BadTurn, answer_calls, check_assistant, without_result};
use crate::{Block, Role};

/// A message that a caller gives to a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GivenMessage {
    /// The author's side of the conversation.
    pub role: Role,
    /// The content.
    pub content: Vec<Block>,
}

/// Checks that a history is complete.
pub fn validate_messages(messages: &[GivenMessage]) -> Result<(), BadTurn> {
    let mut open = vec![];
    for (index, message) in messages.iter().enumerate() {
        let checked = match (message.content.is_empty(), message.role) {
            (true, _) => Err("the message has no content".into()),
            (false, Role::Assistant) => check_assistant(&message.content, &mut open),
            (false, Role::User) => check_user(&message.content, &mut open),
        };
        checked.map_err(|reason| BadTurn { index, reason })?;
    }
    match messages.len().checked_sub(1) {
        Some(index) if !open.is_empty() => Err(BadTurn { index, reason: without_result(&open) }),
        _ => Ok(()),
    }
}

/// Checks a message of the user's side: text and attachments of a person, and the results of all open calls.
fn check_user(content: &[Block], open: &mut Vec<&str>) -> Result<(), String> {
    let is_allowed = |block: &Block| {
        matches!(block, Block::Text { .. } | Block::Attachment { .. } | Block::ToolResult { .. })
    };
    if !content.iter().all(is_allowed) {
        return Err("a message of the role user holds text, attachments and tool results only".into());
    }
    answer_calls(content, open)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(messages: Value) -> String {
        let messages: Vec<GivenMessage> = serde_json::from_value(messages).unwrap();
        validate_messages(&messages).map_or_else(|invalid| invalid.to_string(), |()| "complete".into())
    }

    #[test]
    fn a_history_is_complete_if_every_call_has_a_result() {
        let text = |text| json!([{"type": "text", "text": text}]);
        let user = || json!({"role": "user", "content": text("hi")});
        let answer = || json!({"role": "assistant", "content": text("ho")});
        let call = |ids: &[&str]| {
            let calls =
                ids.iter().map(|id| json!({"type": "tool_use", "id": id, "name": "add", "input": {}}));
            json!({"role": "assistant", "content": calls.collect::<Vec<_>>()})
        };
        let result = |id| {
            let result = json!({"type": "tool_result", "toolUseId": id, "name": "add", "content": []});
            json!({"role": "user", "content": [result]})
        };
        let both = json!({"role": "user", "content": [result("a")["content"][0], result("b")["content"][0]]});
        let open = |at: usize, id: &str| {
            format!(
                "messages[{at}]: these tool calls have no result, and a finished turn has one for each: {id}"
            )
        };
        for (messages, wanted) in [
            (json!([]), "complete".to_owned()),
            (json!([user(), answer()]), "complete".to_owned()),
            (json!([answer()]), "complete".to_owned()),
            (json!([user()]), "complete".to_owned()),
            (json!([user(), user()]), "complete".to_owned()),
            (json!([user(), call(&["a"]), result("a"), answer()]), "complete".to_owned()),
            (json!([user(), call(&["a"]), result("a")]), "complete".to_owned()),
            (json!([user(), call(&["a", "b"]), both, answer()]), "complete".to_owned()),
            (json!([user(), call(&["a"]), call(&["b"]), both, answer()]), "complete".to_owned()),
            (json!([user(), call(&["a"])]), open(1, "a")),
            (json!([user(), call(&["a", "b"]), result("a"), answer()]), open(2, "b")),
            (json!([user(), call(&["a"]), user(), answer()]), open(2, "a")),
            (json!([user(), call(&["a"]), answer()]), open(2, "a")),
            (
                json!([result("a"), answer()]),
                "messages[0]: no tool call before it has the id \"a\"".to_owned(),
            ),
            (
                json!([call(&["a", "a"]), result("a"), answer()]),
                "messages[0]: two tool calls have the id \"a\"".to_owned(),
            ),
            (
                json!([{"role": "user", "content": []}, answer()]),
                "messages[0]: the message has no content".to_owned(),
            ),
            (
                json!([{"role": "user", "content": call(&["a"])["content"]}, answer()]),
                "messages[0]: a message of the role user holds text, attachments and tool results only"
                    .to_owned(),
            ),
        ] {
            assert_eq!(check(messages.clone()), wanted, "{messages}");
        }
    }
}
