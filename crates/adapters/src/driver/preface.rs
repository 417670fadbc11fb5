//! The preface: context that a native session lacks, sent before the prompt.

use mainspring_core::message::result_text;
use mainspring_core::{Block, Message, MessageId, MessageStatus, Role};

/// The maximum size of the transcript that a new native session gets; older messages are left out.
const MAX_TRANSCRIPT_BYTES: usize = 200 << 10;
/// The maximum size of the arguments or of the result of a tool call in a transcript.
const MAX_TOOL_BYTES: usize = 2 << 10;

/// The text that precedes the first prompt of a new native session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Preface {
    /// `None` if there is neither an instruction nor a message.
    pub(super) text: Option<String>,
    /// Whether the text contains a transcript.
    pub(super) reconstructed: bool,
}

impl Preface {
    /// Builds the preface from the instructions and the path. Messages after `prompt` belong to an earlier attempt.
    pub(super) fn of(system_prompt: Option<&str>, path: &[impl AsRef<Message>], prompt: MessageId) -> Self {
        let (before, after) = split_at(path, prompt);
        let instructions = system_prompt.filter(|text| !text.is_empty());
        let instructions = instructions.map(|text| format!("<instructions>\n{text}\n</instructions>"));
        let conversation = transcript(before).map(|text| {
            format!(
                "<conversation>\n{text}</conversation>\nThe conversation above took place before this session was \
                 opened. Go on from there: what follows is the next message."
            )
        });
        let begun = transcript(after).map(|text| {
            format!(
                "<begun>\n{text}</begun>\nThe next message was being answered when the work was cut short. What is \
                 above has been done already."
            )
        });
        let reconstructed = conversation.is_some() || begun.is_some();
        let parts: Vec<String> = instructions.into_iter().chain(conversation).chain(begun).collect();
        Self { text: (!parts.is_empty()).then(|| parts.join("\n\n")), reconstructed }
    }
}

/// Builds the preface of a resumed native session: the last turns, if they were cancelled or failed. Not every agent
/// keeps the prompt of an interrupted turn. `cancelled_only` leaves failed turns out.
pub(super) fn interrupted_turns(
    path: &[impl AsRef<Message>],
    prompt: MessageId,
    cancelled_only: bool,
) -> Option<String> {
    let (mut rest, _) = split_at(path, prompt);
    let mut turns: Vec<String> = vec![];
    while let Some(last) = rest.last().map(AsRef::as_ref) {
        let interrupted = match last.status {
            MessageStatus::Cancelled => true,
            MessageStatus::Failed => !cancelled_only,
            _ => false,
        };
        if last.role != Role::Assistant || !interrupted {
            break;
        }
        // `path` may begin after the prompt of a very long turn.
        let start = rest.iter().rposition(|message| message.as_ref().is_prompt()).unwrap_or(0);
        let (earlier, turn) = rest.split_at(start);
        let lines = turn.iter().flat_map(|message| lines(message.as_ref()));
        turns.push(lines.collect());
        rest = earlier;
    }
    turns.reverse();
    (!turns.is_empty()).then(|| {
        format!(
            "<interrupted>\n{}</interrupted>\nWhat is above was cut short, and may be missing in this session. Go on \
             from there: what follows is the next message.",
            turns.concat()
        )
    })
}

/// Splits the path into the messages before the prompt and those after it.
fn split_at<M: AsRef<Message>>(path: &[M], prompt: MessageId) -> (&[M], &[M]) {
    match path.iter().rposition(|message| message.as_ref().id == prompt) {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, &[]),
    }
}

/// Joins the texts, tool calls and results of the completed messages. Beyond the maximum size, older messages are left
/// out. `None` if there is no completed message.
fn transcript(path: &[impl AsRef<Message>]) -> Option<String> {
    let mut texts: Vec<String> = vec![];
    let mut size = 0;
    for message in path.iter().rev().map(AsRef::as_ref) {
        if message.status != MessageStatus::Completed {
            continue;
        }
        let text = lines(message).concat();
        size += text.len();
        if size > MAX_TRANSCRIPT_BYTES {
            texts.push("(what was said before is left out)\n".into());
            break;
        }
        texts.push(text);
    }
    texts.reverse();
    let text = texts.concat();
    (!text.is_empty()).then_some(text)
}

/// The text of a message, and each of its tool calls, results and files, as lines of a transcript.
fn lines(message: &Message) -> Vec<String> {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let text = message.text();
    // The answer of a turn that was cut short may be empty.
    let has_text_line = !text.is_empty() || message.status != MessageStatus::Completed;
    let text_line = has_text_line.then(|| format!("{role}: {text}\n"));
    let other = message.content.iter().filter_map(|block| match block {
        Block::ToolUse { name, input, title, .. } => {
            let title = title.as_ref().map(|title| format!(" ({title})")).unwrap_or_default();
            let input = match input.as_object().is_some_and(serde_json::Map::is_empty) {
                true => String::new(),
                false => format!(" {}", shorten(&input.to_string())),
            };
            Some(format!("{role} called the tool {name}{title}{input}\n"))
        }
        Block::ToolResult { name, content, is_error, .. } => {
            let verb = if *is_error { "failed" } else { "returned" };
            Some(format!("the tool {name} {verb}: {}\n", shorten(&result_text(content))))
        }
        Block::Attachment { artifact, mime_type, name } => {
            let name = name.as_deref().unwrap_or("without a name");
            Some(format!("{role} attached a file: {name}, {mime_type}, {artifact}\n"))
        }
        _ => None,
    });
    text_line.into_iter().chain(other).collect()
}

/// Leaves out the middle of a text that is too long for a transcript.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_TOOL_BYTES {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(MAX_TOOL_BYTES * 3 / 4);
    let tail = text.ceil_char_boundary(text.len() - MAX_TOOL_BYTES / 4);
    format!("{} […] {}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainspring_core::{SessionId, Time};
    use serde_json::json;

    use super::*;

    fn message(role: Role, status: MessageStatus, text: &str) -> Arc<Message> {
        with_blocks(role, status, vec![Block::text(text)])
    }

    fn with_blocks(role: Role, status: MessageStatus, content: Vec<Block>) -> Arc<Message> {
        let seed =
            format!("{content:?}").bytes().fold(1_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        Arc::new(Message {
            id: MessageId::from_random([seed; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            role,
            status,
            content,
            usage: None,
            created_at: Time(0),
            agent: None,
            external_id: None,
        })
    }

    #[test]
    fn a_new_session_gets_instructions_and_transcript() {
        let path = [
            message(Role::User, MessageStatus::Completed, "my name is Ada"),
            message(Role::Assistant, MessageStatus::Completed, "hello Ada"),
            message(Role::User, MessageStatus::Completed, "and now?"),
            message(Role::Assistant, MessageStatus::Failed, "half a"),
            message(Role::User, MessageStatus::Completed, "what is my name?"),
        ];
        let preface = Preface::of(Some("be kind"), &path, path[4].id);
        assert!(preface.reconstructed);
        insta::assert_snapshot!(preface.text.unwrap(), @r"
        <instructions>
        be kind
        </instructions>

        <conversation>
        user: my name is Ada
        assistant: hello Ada
        user: and now?
        </conversation>
        The conversation above took place before this session was opened. Go on from there: what follows is the next message.
        ");
        let nothing = Preface { text: None, reconstructed: false };
        assert_eq!(Preface::of(None, &path[..1], path[0].id), nothing);
        assert_eq!(Preface::of(Some(""), &path[..0], path[0].id), nothing);
    }

    #[test]
    fn a_resumed_session_gets_its_interrupted_turns() {
        let mut path = vec![
            message(Role::User, MessageStatus::Completed, "my name is Ada"),
            message(Role::Assistant, MessageStatus::Completed, "hello Ada"),
            message(Role::User, MessageStatus::Completed, "my dog is Rex"),
            message(Role::Assistant, MessageStatus::Failed, "what a"),
            message(Role::User, MessageStatus::Completed, "who?"),
        ];
        insta::assert_snapshot!(interrupted_turns(&path, path[4].id, false).unwrap(), @r"
        <interrupted>
        user: my dog is Rex
        assistant: what a
        </interrupted>
        What is above was cut short, and may be missing in this session. Go on from there: what follows is the next message.
        ");
        assert_eq!(interrupted_turns(&path, path[4].id, true), None);
        path[3] = message(Role::Assistant, MessageStatus::Completed, "what a dog");
        assert_eq!(interrupted_turns(&path, path[4].id, false), None);
        path[3] = message(Role::Assistant, MessageStatus::Cancelled, "what a");
        assert!(interrupted_turns(&path, path[4].id, true).unwrap().contains("user: my dog is Rex"));
        assert_eq!(interrupted_turns(&path[..1], path[0].id, false), None);
    }

    #[test]
    fn a_long_transcript_keeps_its_end() {
        let long = "x".repeat(MAX_TRANSCRIPT_BYTES / 2 - 100);
        let path: Vec<_> =
            (0..5).map(|no| message(Role::User, MessageStatus::Completed, &format!("{no} {long}"))).collect();
        let text = transcript(&path[..4]).unwrap();
        assert!(text.starts_with("(what was said before is left out)\nuser: 2 x"), "{}", &text[..60]);
        assert!(text.contains("user: 3 x") && !text.contains("user: 4 x"));
    }

    /// A prompt, a tool call with its result, and an answer.
    fn tool_turn(status: MessageStatus) -> Vec<Arc<Message>> {
        let call = Block::ToolUse {
            id: "t".into(),
            name: "Write".into(),
            input: json!({"path": "/a"}),
            title: Some("Write /a".into()),
            kind: None,
            locations: vec![],
        };
        let diff = Block::Diff {
            path: "/a".into(),
            before: None,
            after: Some("x".into()),
            before_artifact: None,
            after_artifact: None,
        };
        let result = Block::tool_result("t", "Write", vec![Block::text("ok"), diff], false);
        vec![
            message(Role::User, MessageStatus::Completed, "write a file"),
            with_blocks(Role::Assistant, MessageStatus::Completed, vec![Block::text("I write."), call]),
            with_blocks(Role::User, MessageStatus::Completed, vec![result]),
            message(Role::Assistant, status, "Written."),
            message(Role::User, MessageStatus::Completed, "and now?"),
        ]
    }

    #[test]
    fn tool_calls_and_their_results_are_in_the_transcript() {
        let path = tool_turn(MessageStatus::Completed);
        insta::assert_snapshot!(transcript(&path[..4]).unwrap(), @r#"
        user: write a file
        assistant: I write.
        assistant called the tool Write (Write /a) {"path":"/a"}
        the tool Write returned: ok
        [wrote /a]
        assistant: Written.
        "#);
        let path = tool_turn(MessageStatus::Cancelled);
        let interrupted = interrupted_turns(&path, path[4].id, true).unwrap();
        assert!(
            interrupted.starts_with("<interrupted>\nuser: write a file\nassistant: I write.\n"),
            "{interrupted}"
        );
        assert!(interrupted.contains("the tool Write returned: ok\n[wrote /a]\nassistant: Written.\n"));
    }

    #[test]
    fn a_retried_run_gets_a_transcript_of_its_work() {
        let path = &tool_turn(MessageStatus::Completed)[..3];
        let preface = Preface::of(None, path, path[0].id);
        assert!(preface.reconstructed);
        let text = preface.text.unwrap();
        assert!(
            text.starts_with("<begun>\nassistant: I write.\n") && !text.contains("user: write"),
            "{text}"
        );
    }

    #[test]
    fn a_long_result_is_shortened() {
        let long = shorten(&"漢".repeat(MAX_TOOL_BYTES));
        assert!(long.len() < MAX_TOOL_BYTES + 20 && long.contains(" […] "), "{}", long.len());
    }
}
