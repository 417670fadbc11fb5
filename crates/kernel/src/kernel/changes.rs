//! Changes of files, from the diffs that tool calls on a session's active path have recorded.

use std::collections::BTreeMap;

use mainspring_api::{ChangesState, FileChange, SessionChanges, TurnChanges};
use mainspring_core::{Block, Message, RunId, SessionId};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::SessionRef;

/// Messages that are read at once.
const PAGE: usize = 500;
/// Messages that one answer looks at.
const MAX_MESSAGES: usize = 5_000;
/// Bytes of changed text after which an answer ends.
const MAX_BYTES: usize = 4 << 20;
/// Characters of a turn's prompt.
const PROMPT_CHARS: usize = 200;

impl Kernel {
    /// Reads the changes of files on the active path, from depth `before` or the tip towards the root. Returns at least
    /// `limit` turns with changes, unless there are fewer, the changes are large or the turns have many messages.
    pub async fn session_changes(
        &self,
        caller: &Caller,
        by: &SessionRef,
        mut before: Option<u32>,
        limit: Option<usize>,
    ) -> Result<SessionChanges, Error> {
        let session = self.session_get(caller, by).await?;
        let limit = self.page(limit)?;
        let mut found = Found::default();
        let (mut next, mut damaged) = (None, vec![]);
        while let Some(tip) = session.tip {
            let path = self.shared.store.path(tip, before, PAGE).await?;
            let is_full = path.len() >= PAGE;
            let first = path.first().and_then(|placed| placed.point).filter(|first| is_full && first.pos > 0);
            damaged.splice(0..0, path.damaged.iter().cloned());
            for placed in path.iter().rev() {
                found.read_backwards(&placed.message);
            }
            next = first.map(|first| first.pos.to_string());
            before = first.map(|first| first.pos);
            if before.is_none()
                || found.messages >= MAX_MESSAGES
                || found.bytes >= MAX_BYTES
                || found.turns.len() >= limit
            {
                break;
            }
        }
        Ok(found.finish(session.id, next, damaged))
    }
}

/// The changes found so far. Messages are read, and changes collected, from the last to the first.
#[derive(Debug, Default)]
struct Found {
    messages: usize,
    tool_calls: u64,
    bytes: usize,
    turns: Vec<TurnChanges>,
    /// The runs with changes whose prompt was not found yet.
    prompts: BTreeMap<RunId, String>,
}

impl Found {
    fn read_backwards(&mut self, message: &Message) {
        self.messages += 1;
        self.tool_calls += message.tool_calls().len() as u64;
        if message.is_prompt() {
            self.note_prompt(message);
        }
        for block in message.content.iter().rev() {
            let Block::ToolResult { tool_use_id, name, content, is_error, .. } = block else { continue };
            for diff in content.iter().rev() {
                let Some(mut change) = recorded(diff) else { continue };
                change.tool = Some(name.clone());
                change.tool_use_id = Some(tool_use_id.clone());
                change.is_error = *is_error;
                self.bytes +=
                    [&change.before, &change.after].into_iter().flatten().map(String::len).sum::<usize>();
                self.turn(message).changes.push(change);
            }
        }
    }

    /// The turn of a message, which is the last one read or a new one.
    fn turn(&mut self, message: &Message) -> &mut TurnChanges {
        let is_same = self.turns.last().is_some_and(|turn| turn.run_id == message.run);
        if !is_same {
            let (run_id, at) = (message.run, message.created_at);
            self.turns.push(TurnChanges { run_id, at, prompt: None, changes: vec![] });
        }
        let last = self.turns.len() - 1;
        let turn = &mut self.turns[last];
        turn.at = message.created_at;
        turn
    }

    fn note_prompt(&mut self, message: &Message) {
        let text = message.text();
        let text = text.trim();
        if let Some(run) = message.run.filter(|_| !text.is_empty()) {
            self.prompts.insert(run, text.chars().take(PROMPT_CHARS).collect());
        }
    }

    fn finish(
        mut self,
        session_id: SessionId,
        next: Option<String>,
        damaged: Vec<mainspring_core::Damage>,
    ) -> SessionChanges {
        self.turns.reverse();
        for turn in &mut self.turns {
            turn.changes.reverse();
            turn.prompt = turn.run_id.and_then(|run| self.prompts.get(&run).cloned());
        }
        let state = match (self.turns.is_empty(), self.tool_calls) {
            (false, _) => ChangesState::Recorded,
            (true, 0) if damaged.is_empty() => ChangesState::None,
            (true, _) => ChangesState::Unknown,
        };
        let files = files(&self.turns);
        SessionChanges {
            session_id,
            state,
            tool_calls: self.tool_calls,
            files,
            turns: self.turns,
            next,
            damaged,
        }
    }
}

/// The change that a diff describes.
fn recorded(diff: &Block) -> Option<FileChange> {
    let Block::Diff { path, before, after, before_artifact, after_artifact } = diff else { return None };
    Some(FileChange {
        path: path.clone(),
        before: before.clone(),
        after: after.clone(),
        before_artifact: *before_artifact,
        after_artifact: *after_artifact,
        tool: None,
        tool_use_id: None,
        is_error: false,
    })
}

/// Combines the changes of each file: from its first text to its last.
fn files(turns: &[TurnChanges]) -> Vec<FileChange> {
    let mut files: BTreeMap<&str, FileChange> = BTreeMap::new();
    for change in turns.iter().flat_map(|turn| &turn.changes) {
        let file = files.entry(&change.path).or_insert_with(|| FileChange {
            tool: None,
            tool_use_id: None,
            is_error: false,
            ..change.clone()
        });
        file.after.clone_from(&change.after);
        file.after_artifact = change.after_artifact;
    }
    let is_changed =
        |file: &FileChange| (&file.before, file.before_artifact) != (&file.after, file.after_artifact);
    files.into_values().filter(is_changed).collect()
}

#[cfg(test)]
mod tests {
    use mainspring_core::{MessageId, MessageStatus, Role, Time};
    use serde_json::json;

    use super::*;

    fn run(no: u8) -> RunId {
        RunId::from_random([no; 16])
    }

    fn message(of: u8, at: i64, role: Role, content: Vec<Block>) -> Message {
        let (id, session) = (MessageId::from_random([1; 16]), SessionId::from_random([2; 16]));
        let (status, run) = (MessageStatus::Completed, Some(run(of)));
        Message {
            id,
            session,
            run,
            role,
            status,
            content,
            usage: None,
            created_at: Time(at),
            agent: None,
            external_id: None,
        }
    }

    fn diff(path: &str, before: Option<&str>, after: &str) -> Block {
        let (before, after) = (before.map(str::to_owned), Some(after.to_owned()));
        Block::Diff { path: path.into(), before, after, before_artifact: None, after_artifact: None }
    }

    fn result(content: Vec<Block>, is_error: bool) -> Block {
        Block::tool_result("t", "write", content, is_error)
    }

    fn read(path: &[Message]) -> SessionChanges {
        let mut found = Found::default();
        path.iter().rev().for_each(|message| found.read_backwards(message));
        found.finish(SessionId::from_random([2; 16]), None, vec![])
    }

    #[test]
    fn changes_are_listed_by_turn_and_combined_by_file() {
        let call = || vec![Block::tool_use("t", "write", json!({}))];
        let changes = read(&[
            message(1, 1, Role::User, vec![Block::text(" make it ")]),
            message(1, 2, Role::Assistant, call()),
            message(
                1,
                3,
                Role::User,
                vec![result(vec![diff("/b", None, "1"), diff("/a", Some("x"), "y")], false)],
            ),
            message(2, 4, Role::User, vec![Block::text("again")]),
            message(2, 5, Role::Assistant, call()),
            message(
                2,
                6,
                Role::User,
                vec![result(vec![diff("/b", Some("1"), "2"), diff("/a", Some("y"), "x")], true)],
            ),
        ]);
        assert_eq!((changes.state, changes.tool_calls), (ChangesState::Recorded, 2));
        let turns: Vec<_> =
            changes.turns.iter().map(|turn| (turn.run_id, turn.at.0, turn.prompt.as_deref())).collect();
        assert_eq!(turns, [(Some(run(1)), 3, Some("make it")), (Some(run(2)), 6, Some("again"))]);
        let paths: Vec<_> = changes.turns[0].changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["/b", "/a"], "in the order in which they were made");
        assert!(changes.turns[1].changes[0].is_error && !changes.turns[0].changes[0].is_error);
        // The second turn has undone the change of /a.
        let files: Vec<_> = changes
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.before.clone(), file.after.clone()))
            .collect();
        assert_eq!(files, [("/b", None, Some("2".into()))]);
    }

    #[test]
    fn tool_calls_without_recorded_changes_leave_the_changes_unknown() {
        let prompt = || message(1, 1, Role::User, vec![Block::text("go")]);
        let call = message(1, 2, Role::Assistant, vec![Block::tool_use("t", "bash", json!({}))]);
        assert_eq!(read(&[prompt()]).state, ChangesState::None);
        assert_eq!(read(&[prompt(), call]).state, ChangesState::Unknown);
    }
}
