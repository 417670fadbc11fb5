//! Continuation tokens: they encode which messages a client holds, and give the delta from there to the present.
//!
//! A token describes the messages of its client by hashes: of the whole prefix, and of the content of the last
//! messages, which may still grow. It names no event. So a token stays valid over restarts, after pruned events and
//! after a change of the branch: the delta resends from the first message that differs. The token of a view is a
//! function of the view, so repeating a request gives the same answer.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainspring_api::threads::{
    AgentContent, AgentMessage, AgentMessageStatus, AgentRole, AgentThreadDelta, AgentThreadStatus,
};
use serde::{Deserialize, Serialize};

use super::view::View;

/// The number of last messages whose content may still grow.
const TAIL: usize = 2;
/// The version of the form of a token.
const VERSION: u8 = 1;

/// The part of a thread that a client holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    version: u8,
    /// The hash of the session's id.
    thread: u64,
    /// Counts of messages, each with the hash of that many first messages. Largest count first.
    marks: Vec<(usize, u64)>,
    /// The messages after the first mark.
    tail: Vec<Held>,
    title: u64,
    goals: u64,
    tasks: u64,
}

/// The part of a message that a client holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    status: AgentMessageStatus,
    blocks: usize,
    /// The bytes of the last block, if that is text.
    text: usize,
    hash: u64,
}

/// A client that does not know how to drop messages must load the thread again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MustReload;

/// How a client treats a delta.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    /// False for a client that ignores `reset_from_message_sequence_num`.
    pub(super) resets: bool,
    /// True if the client has already appended the next user message, because it has sent it.
    pub(super) has_own_message: bool,
}

impl Token {
    /// The token of a client that holds nothing.
    pub(super) fn start(thread: &str) -> Self {
        let marks = vec![(0, 0)];
        Self { version: VERSION, thread: hash(thread), marks, tail: vec![], title: 0, goals: 0, tasks: 0 }
    }

    /// The token of a client that holds all of `view`.
    pub(super) fn of(view: &View) -> Self {
        Self {
            title: hash(&view.session.title),
            goals: hash(&view.plan.goals),
            tasks: hash(&view.plan.tasks),
            ..Self::of_first(view, view.len())
        }
    }

    /// The token of a client that holds the first `count` messages of `view` and nothing else.
    pub(super) fn of_first(view: &View, count: usize) -> Self {
        let end = count.saturating_sub(TAIL);
        // The distances between marks double. So if the thread has changed, a client keeps at least half of the
        // messages that are still the same.
        let distances = std::iter::once(0).chain((0..24).map(|power| 1 << power));
        let ends = distances.map_while(|back| end.checked_sub(back));
        let mut marks: Vec<_> = ends.filter_map(|count| Some((count, view.prefix(count)?))).collect();
        marks.dedup();
        Self {
            version: VERSION,
            thread: hash(&view.session.id.to_string()),
            marks,
            tail: view.starting_at(end).take(count - end).map(|held| Held::of(&held.message)).collect(),
            title: 0,
            goals: 0,
            tasks: 0,
        }
    }

    pub(super) fn encode(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = blake3::hash(&json).as_bytes()[..4].to_vec();
        bytes.extend(json);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token of this thread.
    pub(super) fn decode(text: &str, thread: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (sum, json) = bytes.split_at_checked(4)?;
        let token: Self = serde_json::from_slice(json).ok()?;
        let is_intact = blake3::hash(json).as_bytes().starts_with(sum);
        (is_intact && token.version == VERSION && token.thread == hash(thread)).then_some(token)
    }

    /// The number of messages that the client holds.
    pub(super) fn held(&self) -> usize {
        // The sum could overflow: a client can make up a token.
        self.marks.first().map_or(0, |(count, _)| *count).saturating_add(self.tail.len())
    }

    /// Builds the delta from this token to `view`.
    pub(super) fn delta(&self, view: &View, client: Client) -> Result<AgentThreadDelta, MustReload> {
        let (new, token) = view.held();
        if self == new {
            return Ok(unchanged(view));
        }
        let mut messages = BTreeMap::new();
        let (kept, mut reset) = match self.compare(view, &mut messages) {
            Comparison::Waits => {
                return Ok(AgentThreadDelta { continuation_token: self.encode(), ..unchanged(view) });
            }
            Comparison::Same => (self.held(), None),
            Comparison::Differs(at) => (at, Some(at)),
        };
        if reset.is_some() && !client.resets {
            return Err(MustReload);
        }
        for (index, numbered) in (kept..).zip(view.starting_at(kept)) {
            messages.insert(index, numbered.message.clone());
        }
        let is_user = |message: &AgentMessage| message.role == AgentRole::User;
        if client.resets {
            // The client that sent the message has already appended its own copy, which the reset drops. Other clients
            // hold no message from `kept` on.
            let has_user = messages.range(kept..).any(|(_, message)| is_user(message));
            reset = reset.or(has_user.then_some(kept));
        } else if client.has_own_message
            && let Some(own) = messages.get_mut(&kept).filter(|first| is_user(first))
        {
            own.content.clear();
        }
        let title = view.session.title.clone();
        Ok(AgentThreadDelta {
            messages_by_idx: messages,
            reset_from_message_sequence_num: reset,
            title: title.filter(|_| new.title != self.title),
            goals: (new.goals != self.goals).then(|| view.plan.goals.clone()),
            tasks: (new.tasks != self.tasks).then(|| view.plan.tasks.clone()),
            continuation_token: token.clone(),
            ..unchanged(view)
        })
    }

    /// Compares the messages of the client with the thread, and adds the missing content to `more`.
    fn compare(&self, view: &View, more: &mut BTreeMap<usize, AgentMessage>) -> Comparison {
        let start = match self.known_prefix(view) {
            (start, true) => start,
            (start, false) => return Comparison::Differs(start),
        };
        for (held, index) in self.tail.iter().zip(start..) {
            let Some(numbered) = view.get(index) else {
                let is_last = index + 1 == self.held();
                return match is_last && is_between_results(view) {
                    true => Comparison::Waits,
                    false => Comparison::Differs(index),
                };
            };
            match held.rest_of(&numbered.message) {
                None => return Comparison::Differs(index),
                Some(rest) if rest.is_empty() && held.status == numbered.message.status => {}
                Some(content) => {
                    more.insert(index, AgentMessage { content, ..numbered.message.clone() });
                }
            }
        }
        Comparison::Same
    }

    /// Finds the longest prefix whose mark matches the thread. True if it is the first mark: everything before the tail
    /// matches.
    fn known_prefix(&self, view: &View) -> (usize, bool) {
        let longest = self.marks.first().map_or(0, |(count, _)| *count);
        let known = self.marks.iter().find(|(count, hash)| view.prefix(*count) == Some(*hash));
        known.map_or((0, false), |(count, _)| (*count, *count == longest))
    }
}

enum Comparison {
    /// The thread continues what the client holds.
    Same,
    /// The thread differs from this message on.
    Differs(usize),
    /// The client holds tool results that the run has accepted and not written yet. The client gets nothing until they
    /// are written.
    Waits,
}

/// True while the agent works and the results of the last message's tool calls are not written yet.
fn is_between_results(view: &View) -> bool {
    let is_call = |block: &AgentContent| matches!(block, AgentContent::ToolUse(_));
    let calls = view.path.last().is_some_and(|last| last.message.content.iter().any(is_call));
    calls && view.status == AgentThreadStatus::RobotoTurn
}

/// The delta of a client that holds all of `view`.
pub(super) fn unchanged(view: &View) -> AgentThreadDelta {
    AgentThreadDelta {
        messages_by_idx: BTreeMap::new(),
        continuation_token: view.token().to_owned(),
        reset_from_message_sequence_num: None,
        status: Some(view.status),
        activity: view.activity.clone(),
        title: None,
        goals: None,
        tasks: None,
    }
}

impl Held {
    fn of(message: &AgentMessage) -> Self {
        let blocks = message.content.len();
        let text = match message.content.last() {
            Some(AgentContent::Text(last)) => last.text.len(),
            _ => 0,
        };
        Self { status: message.status, blocks, text, hash: hash_start(message, blocks, text).unwrap_or(0) }
    }

    /// The content of `message` after the part that the client holds; none if `message` does not begin with that part.
    fn rest_of(&self, message: &AgentMessage) -> Option<Vec<AgentContent>> {
        if hash_start(message, self.blocks, self.text)? != self.hash {
            return None;
        }
        let text = self.blocks.checked_sub(1).and_then(|last| match message.content.get(last)? {
            AgentContent::Text(last) => Some(last.text.get(self.text..)?).filter(|rest| !rest.is_empty()),
            _ => None,
        });
        let after = message.content.get(self.blocks..)?.iter().cloned();
        Some(text.map(AgentContent::text).into_iter().chain(after).collect())
    }
}

/// Hashes the first blocks of a message, the last of them up to `text` bytes if it is text.
fn hash_start(message: &AgentMessage, blocks: usize, text: usize) -> Option<u64> {
    let content = message.content.get(..blocks)?;
    let Some((last, first)) = content.split_last() else { return Some(hash(&message.role)) };
    let last = match last {
        AgentContent::Text(last) => &AgentContent::text(last.text.get(..text)?),
        other => other,
    };
    Some(hash(&(message.role, first, last)))
}

/// Extends `before`, the hash of all earlier messages (0 if there are none), by the role and the content of a message.
/// Returns the new hash, and the size of the message in bytes.
pub(super) fn digest(message: &AgentMessage, before: u64) -> (u64, usize) {
    let json = json(&(message.role, &message.content));
    (hash(&(before, hash_bytes(&json))), json.len())
}

fn hash<T: Serialize + ?Sized>(value: &T) -> u64 {
    hash_bytes(&json(value))
}

fn json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = [0; 8];
    hash.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    // Some JSON parsers lose digits of larger numbers.
    u64::from_le_bytes(hash) >> 12
}
