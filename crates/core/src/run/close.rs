//! The end of a run: every open tool call gets an outcome, streamed text becomes messages, and the session's path
//! continues after the run or where it was before.
//!
//! ```text
//! tool call that has not finished      ──▶ tool.failed, outcome unknown
//! tool call without a result           ──▶ a result, all in one user message
//! streamed text                        ──▶ messages of the agent, the last one with the error
//! the run's last message               ──▶ the session's tip, unless the run is a branch that did not succeed
//! ```
//!
//! If an attempt fails and the run is tried again, its streamed text goes to an abandoned line (see
//! [`crate::tree::aside`]), and the path stays open.
//!
//! Invariant: on the path of an ended run every tool call has a result, and the last message is the agent's.

use crate::{
    Block, Body, CallResult, Failure, MessageId, MessageStatus, Place, Role, Run, ToolEnd, ToolOutcome,
};

/// How the last messages of a run end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The status of the messages.
    pub status: MessageStatus,
    /// The error that the last message shows.
    pub error: Option<Failure>,
}

impl Ending {
    /// The ending that belongs to the event `body`, which ends a run.
    pub fn of(body: &Body) -> Self {
        match body {
            Body::RunCancelled { .. } => Self {
                status: MessageStatus::Cancelled,
                error: Some(Failure::new("cancelled", "the run was cancelled")),
            },
            Body::RunFailed { error, .. }
            | Body::RunTimedOut { error, .. }
            | Body::RunOrphaned { error, .. } => {
                Self { status: MessageStatus::Failed, error: Some(error.clone()) }
            }
            _ => Self { status: MessageStatus::Completed, error: None },
        }
    }
}

/// The parts of a run's path that are open when the run ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Open<'a> {
    /// Tool calls at the path's end whose result no message holds: id and name.
    pub unanswered: Vec<(String, String)>,
    /// Results that some of these calls have, by id.
    pub known: &'a [(String, CallResult)],
    /// The role of the last message.
    pub last_role: Option<Role>,
    /// Streamed text that no message holds yet, in order.
    pub streamed: Vec<NewMessage>,
}

/// A message to be written: its id and its content.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// The id.
    pub id: MessageId,
    /// The content.
    pub content: Vec<Block>,
}

/// The messages that close a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Closing {
    /// The content of the message with the results of the open tool calls.
    pub results: Option<Vec<Block>>,
    /// The last messages of the agent, in order. The last one reports the usage of the turn.
    pub messages: Vec<NewMessage>,
}

/// Decides which messages close a run. `fresh` makes the ids of messages that were not streamed.
pub fn close(open: Open<'_>, error: Option<&Failure>, mut fresh: impl FnMut() -> MessageId) -> Closing {
    let Open { unanswered, known, last_role, streamed: mut messages } = open;
    let results = match unanswered.is_empty() {
        true => None,
        false => Some(settle(unanswered, known)),
    };
    let last_role = if results.is_some() { Some(Role::User) } else { last_role };
    if messages.is_empty() && (error.is_some() || last_role != Some(Role::Assistant)) {
        messages.push(NewMessage { id: fresh(), content: vec![] });
    }
    if let (Some(error), Some(last)) = (error, messages.last_mut()) {
        last.content.push(Block::Error { code: error.code.to_string(), message: error.message.clone() });
    }
    Closing { results, messages }
}

/// Gives each of `calls` its `known` result, or one that says that the outcome is unknown.
pub fn settle(calls: Vec<(String, String)>, known: &[(String, CallResult)]) -> Vec<Block> {
    let mut blocks = without_result(calls, "outcome unknown: the run ended before the tool answered");
    for block in &mut blocks {
        if let Block::ToolResult { tool_use_id, content, is_error, .. } = block
            && let Some((_, result)) = known.iter().find(|(id, _)| id == tool_use_id)
        {
            content.clone_from(&result.content);
            *is_error = result.is_error;
            result.complete(block);
        }
    }
    blocks
}

/// Gives each of `calls`, id and name, an error result that says `why` there is none.
pub fn without_result(calls: Vec<(String, String)>, why: &str) -> Vec<Block> {
    let result = |(id, name): (String, String)| Block::tool_result(id, name, vec![Block::text(why)], true);
    calls.into_iter().map(result).collect()
}

/// Gives each of `calls`, which a fork or an import has left open, an error result, so that the conversation can
/// continue.
pub fn left_open(calls: Vec<(String, String)>) -> Vec<Block> {
    without_result(calls, "no result: the conversation went on without it")
}

/// The event of a tool call that has not finished when its run ends.
pub fn outcome_unknown(tool_use_id: String, name: String) -> Body {
    Body::ToolFailed {
        tool_use_id,
        name,
        outcome: ToolOutcome::Unknown,
        error: Failure::new("outcome_unknown", "the run ended before the tool answered"),
        end: ToolEnd::default(),
    }
}

/// True when the agent's message `content` completes a turn. A message with a tool call does not.
pub fn completes_turn(content: &[Block]) -> bool {
    !content.iter().any(|block| matches!(block, Block::ToolUse { .. }))
}

/// The message at which the session's path continues after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathEnd {
    /// The run's last message.
    Tip,
    /// The tip before the run. The run's line is abandoned.
    Unmoved,
}

/// Decides whether a run that was placed at `place` and ends with `status` moves the session's tip.
pub fn path_end(place: Place, status: MessageStatus) -> PathEnd {
    match place.is_branch() && status != MessageStatus::Completed {
        true => PathEnd::Unmoved,
        false => PathEnd::Tip,
    }
}

impl Run {
    /// The user message that the run answers: its own prompt, or an earlier one.
    pub fn answered_message(&self) -> Option<MessageId> {
        self.prompt.or(match self.place {
            Place::Regenerate { message_id } => Some(message_id),
            Place::Tip | Place::Root | Place::Edit { .. } => None,
        })
    }

    /// The parent of the next message that the run writes; `tip` is the last message of the session's path.
    pub fn parent_message(&self, tip: Option<MessageId>) -> Option<MessageId> {
        match (self.final_message, self.place) {
            (Some(written), _) => Some(written),
            (None, Place::Tip) => tip,
            (None, Place::Regenerate { message_id } | Place::Edit { message_id }) => Some(message_id),
            (None, Place::Root) => None,
        }
    }
}

#[cfg(test)]
mod tests;
