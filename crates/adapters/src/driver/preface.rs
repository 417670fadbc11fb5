//! The preface: context that a native session lacks, sent before the prompt.

use mainspring_core::{Message, MessageStatus, Role};

/// The size of the transcript that a new native session gets; older messages are left out.
const MAX_TRANSCRIPT_BYTES: usize = 200 << 10;

/// The text that precedes the first prompt of a new native session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Preface {
    /// `None` if there is neither an instruction nor a message.
    pub(super) text: Option<String>,
    /// Whether the text contains a transcript.
    pub(super) reconstructed: bool,
}

impl Preface {
    /// Builds the preface from the instructions and the conversation so far.
    pub(super) fn of(system_prompt: Option<&str>, path: &[impl AsRef<Message>]) -> Self {
        let transcript = transcript(path);
        let instructions = system_prompt.filter(|text| !text.is_empty());
        let instructions = instructions.map(|text| format!("<instructions>\n{text}\n</instructions>"));
        let reconstructed = transcript.is_some();
        let transcript = transcript.map(|text| {
            format!(
                "<conversation>\n{text}</conversation>\nThe conversation above took place before this session was \
                 opened. Go on from there: what follows is the next message."
            )
        });
        let parts: Vec<String> = instructions.into_iter().chain(transcript).collect();
        Self { text: (!parts.is_empty()).then(|| parts.join("\n\n")), reconstructed }
    }
}

/// Builds the preface of a resumed native session: the last turns, if they were cancelled or failed. Not every agent
/// keeps the prompt of an interrupted turn. `cancelled_only` leaves failed turns out.
pub(super) fn interrupted_turns(path: &[impl AsRef<Message>], cancelled_only: bool) -> Option<String> {
    let (_, before) = path.split_last()?;
    let mut lines: Vec<String> = vec![];
    for pair in before.rchunks_exact(2) {
        let (prompt, answer) = (pair[0].as_ref(), pair[1].as_ref());
        let roles = (prompt.role, answer.role);
        let interrupted = match answer.status {
            MessageStatus::Cancelled => true,
            MessageStatus::Failed => !cancelled_only,
            _ => false,
        };
        if roles != (Role::User, Role::Assistant) || !interrupted {
            break;
        }
        lines.push(format!("user: {}\nassistant: {}\n", prompt.text(), answer.text()));
    }
    lines.reverse();
    (!lines.is_empty()).then(|| {
        format!(
            "<interrupted>\n{}</interrupted>\nWhat is above was cut short, and may be missing in this session. Go on \
             from there: what follows is the next message.",
            lines.concat()
        )
    })
}

/// Joins the text of the completed messages before the prompt, which is the last message of the path.
fn transcript(path: &[impl AsRef<Message>]) -> Option<String> {
    let (_, before) = path.split_last()?;
    let mut lines: Vec<String> = vec![];
    let mut size = 0;
    for message in before.iter().rev().map(AsRef::as_ref) {
        let text = message.text();
        if message.status != MessageStatus::Completed || text.is_empty() {
            continue;
        }
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let line = format!("{role}: {text}\n");
        size += line.len();
        if size > MAX_TRANSCRIPT_BYTES {
            lines.push("(what was said before is left out)\n".into());
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    (!lines.is_empty()).then(|| lines.concat())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainspring_core::{Block, MessageId, SessionId, Time};

    use super::*;

    fn message(role: Role, status: MessageStatus, text: &str) -> Arc<Message> {
        Arc::new(Message {
            id: MessageId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            role,
            status,
            content: vec![Block::text(text)],
            usage: None,
            created_at: Time(0),
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
        let preface = Preface::of(Some("be kind"), &path);
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
        assert_eq!(Preface::of(None, &path[..1]), nothing);
        assert_eq!(Preface::of(Some(""), &path[..0]), nothing);
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
        insta::assert_snapshot!(interrupted_turns(&path, false).unwrap(), @r"
        <interrupted>
        user: my dog is Rex
        assistant: what a
        </interrupted>
        What is above was cut short, and may be missing in this session. Go on from there: what follows is the next message.
        ");
        assert_eq!(interrupted_turns(&path, true), None);
        path[3] = message(Role::Assistant, MessageStatus::Completed, "what a dog");
        assert_eq!(interrupted_turns(&path, false), None);
        path[3] = message(Role::Assistant, MessageStatus::Cancelled, "what a");
        assert!(interrupted_turns(&path, true).unwrap().contains("user: my dog is Rex"));
        assert_eq!(interrupted_turns(&path[..1], false), None);
    }

    #[test]
    fn a_long_transcript_keeps_its_end() {
        let long = "x".repeat(MAX_TRANSCRIPT_BYTES / 2 - 100);
        let path: Vec<_> =
            (0..5).map(|no| message(Role::User, MessageStatus::Completed, &format!("{no} {long}"))).collect();
        let text = transcript(&path).unwrap();
        assert!(text.starts_with("(what was said before is left out)\nuser: 2 x"), "{}", &text[..60]);
        assert!(text.contains("user: 3 x") && !text.contains("user: 4 x"));
    }
}
