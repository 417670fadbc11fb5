//! What a native session is told before its first prompt: what it cannot know.

use mainspring_core::{Message, MessageStatus, Role};

/// How much of a path's text is handed to a fresh native session: the last of it.
const CONTEXT: usize = 200 << 10;

/// What a new native session is told first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Preface {
    /// Nothing, where there is nothing to be told.
    pub(super) text: Option<String>,
    /// A conversation is part of it.
    pub(super) reconstructed: bool,
}

impl Preface {
    /// Instructions, and the conversation so far.
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

/// What a session that is taken up from where its agent keeps it may lack: the last turns, if they were cut short. Most
/// agents keep what they were asked by then, and not all do.
pub(super) fn missed(path: &[impl AsRef<Message>]) -> Option<String> {
    let (_, before) = path.split_last()?;
    let mut lines: Vec<String> = vec![];
    for pair in before.rchunks_exact(2) {
        let (asked, said) = (pair[0].as_ref(), pair[1].as_ref());
        let roles = (asked.role, said.role);
        if roles != (Role::User, Role::Assistant) || said.status != MessageStatus::Failed {
            break;
        }
        lines.push(format!("user: {}\nassistant: {}\n", asked.text(), said.text()));
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

/// The text of the messages before the last, which is the prompt. Failed and cancelled ones are not part of it.
fn transcript(path: &[impl AsRef<Message>]) -> Option<String> {
    let (_, before) = path.split_last()?;
    let mut lines: Vec<String> = vec![];
    let mut size = 0;
    for message in before.iter().rev().map(AsRef::as_ref) {
        let text = message.text();
        if message.status != MessageStatus::Completed || text.is_empty() {
            continue;
        }
        let who = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let line = format!("{who}: {text}\n");
        size += line.len();
        if size > CONTEXT {
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

    fn said(role: Role, status: MessageStatus, text: &str) -> Arc<Message> {
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
    fn a_fresh_session_is_told_what_it_cannot_know() {
        let path = [
            said(Role::User, MessageStatus::Completed, "my name is Ada"),
            said(Role::Assistant, MessageStatus::Completed, "hello Ada"),
            said(Role::User, MessageStatus::Completed, "and now?"),
            said(Role::Assistant, MessageStatus::Failed, "half a"),
            said(Role::User, MessageStatus::Completed, "what is my name?"),
        ];
        let told = Preface::of(Some("be kind"), &path);
        assert!(told.reconstructed);
        insta::assert_snapshot!(told.text.unwrap(), @r"
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
    fn a_session_that_is_taken_up_is_told_what_was_cut_short() {
        let mut path = vec![
            said(Role::User, MessageStatus::Completed, "my name is Ada"),
            said(Role::Assistant, MessageStatus::Completed, "hello Ada"),
            said(Role::User, MessageStatus::Completed, "my dog is Rex"),
            said(Role::Assistant, MessageStatus::Failed, "what a"),
            said(Role::User, MessageStatus::Completed, "who?"),
        ];
        insta::assert_snapshot!(missed(&path).unwrap(), @r"
        <interrupted>
        user: my dog is Rex
        assistant: what a
        </interrupted>
        What is above was cut short, and may be missing in this session. Go on from there: what follows is the next message.
        ");
        for status in [MessageStatus::Completed, MessageStatus::Cancelled] {
            path[3] = said(Role::Assistant, status, "what a dog");
            assert_eq!(missed(&path), None);
        }
        assert_eq!(missed(&path[..1]), None);
    }

    #[test]
    fn of_a_long_conversation_the_end_is_told() {
        let long = "x".repeat(CONTEXT / 2 - 100);
        let path: Vec<_> =
            (0..5).map(|no| said(Role::User, MessageStatus::Completed, &format!("{no} {long}"))).collect();
        let told = transcript(&path).unwrap();
        assert!(told.starts_with("(what was said before is left out)\nuser: 2 x"), "{}", &told[..60]);
        assert!(told.contains("user: 3 x") && !told.contains("user: 4 x"));
    }
}
