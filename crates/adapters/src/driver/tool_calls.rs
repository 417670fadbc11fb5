//! Tool calls of an agent, written into messages in rounds.
//!
//! ```text
//! text, tool_use ─▶ text, tool_use … ─▶ every call has ended ─▶ tool_result, tool_result …
//! ```
//!
//! A call that starts completes the message of the text streamed so far. Calls that overlap form a round; one message
//! holds their results. Each call is recorded when it starts and its result when it ends, so a crash loses neither
//! a started call nor a result. The kernel closes a round that is open when the run ends.

use std::collections::HashSet;

use mainspring_core::{Block, Failure, FileLocation, Grant, GrantEffect, ToolOutcome};
use mainspring_kernel::adapter::{AttemptHandle, HandleError, Record};
use serde_json::{Value, json};

use super::TextBlocks;
use super::files::store_text;

/// The largest arguments that are part of a message. Larger ones are stored as an artifact.
const MAX_INPUT_BYTES: usize = 256 << 10;

/// The kinds of calls for which an agent must ask.
const ACTING_KINDS: [&str; 4] = ["edit", "delete", "move", "execute"];

/// A tool call that starts.
#[derive(Debug, Default)]
pub(crate) struct StartedCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) locations: Vec<FileLocation>,
    pub(crate) input: Option<Value>,
}

/// The tool calls of a turn.
pub(crate) struct ToolCalls<'a> {
    attempt: &'a AttemptHandle,
    /// The calls of the current round.
    round: Vec<RoundCall>,
    /// The agent's files that are not in a message yet, because a round is open.
    files: Vec<Block>,
    /// Whether the agent must ask before it acts.
    must_ask: bool,
    /// The calls for which the agent has asked.
    asked: HashSet<String>,
    /// Whether the agent has asked for the next call.
    asked_ahead: bool,
}

struct RoundCall {
    id: String,
    name: String,
    /// Whether the call changes something or runs a command.
    acts: bool,
    /// The result block of a call that has ended.
    result: Option<Block>,
}

impl<'a> ToolCalls<'a> {
    /// Creates the state of a turn that has no calls yet. Without a default grant that allows everything, the agent must ask
    /// before it acts.
    pub(crate) fn new(attempt: &'a AttemptHandle, default_grant: Option<&Grant>) -> Self {
        let must_ask = default_grant.is_none_or(|grant| grant.effect != GrantEffect::Allow);
        Self { attempt, round: vec![], files: vec![], must_ask, asked: HashSet::new(), asked_ahead: false }
    }

    /// Notes that the agent has asked for the permission of a call.
    pub(crate) fn ask(&mut self, id: &str) {
        self.asked.insert(id.to_owned());
    }

    /// Notes that the agent has asked for a permission without naming the call. The question counts for all open calls,
    /// or for the next call if none is open.
    pub(crate) fn ask_unnamed(&mut self) {
        self.asked_ahead = self.round.is_empty();
        self.asked.extend(self.round.iter().map(|call| call.id.clone()));
    }

    /// Reports whether any call of the round is still open.
    fn is_round_open(&self) -> bool {
        !self.round.is_empty()
    }

    /// Records the start of a call, in a message with the text streamed so far.
    pub(crate) async fn start(
        &mut self,
        text: &mut TextBlocks<'_>,
        call: StartedCall,
    ) -> Result<(), HandleError> {
        let StartedCall { id, name, title, kind, locations, input } = call;
        let input = self.stored_input(&name, input.unwrap_or_else(|| json!({}))).await?;
        let title = title.filter(|title| *title != name);
        if std::mem::take(&mut self.asked_ahead) {
            self.asked.insert(id.clone());
        }
        let acts = kind.as_deref().is_some_and(|kind| ACTING_KINDS.contains(&kind));
        let block = Block::ToolUse { id: id.clone(), name: name.clone(), input, title, kind, locations };
        let mut blocks = self.files.clone();
        blocks.push(block);
        let started = Record::ToolStarted {
            tool_use_id: id.clone(),
            name: name.clone(),
            input: None,
            decided_by: None,
        };
        self.attempt.record(vec![Record::Message { blocks, usage: None }, started]).await?;
        text.end_message();
        self.files.clear();
        self.round.push(RoundCall { id, name, acts, result: None });
        Ok(())
    }

    /// Records the end of a call that has started. The last end of a round writes the message with the results.
    pub(crate) async fn end(
        &mut self,
        id: &str,
        error: Option<Failure>,
        content: Vec<Block>,
    ) -> Result<(), HandleError> {
        let is_open = |call: &RoundCall| call.id == id && call.result.is_none();
        let Some(at) = self.round.iter().position(is_open) else { return Ok(()) };
        let tool_use_id = id.to_owned();
        let content = match &error {
            Some(error) if content.is_empty() => vec![Block::text(error.message.clone())],
            _ => content,
        };
        let result = Block::tool_result(
            tool_use_id.clone(),
            self.round[at].name.clone(),
            content.clone(),
            error.is_some(),
        );
        let mut records = vec![];
        if self.must_ask && self.round[at].acts && !self.asked.contains(id) {
            let name = self.round[at].name.clone();
            records.push(Record::ToolUnasked { tool_use_id: tool_use_id.clone(), name });
        }
        records.push(match error {
            None => Record::ToolCompleted { tool_use_id, content },
            Some(error) => Record::ToolFailed { tool_use_id, outcome: ToolOutcome::Failed, error, content },
        });
        let ends_round =
            self.round.iter().enumerate().all(|(other, call)| other == at || call.result.is_some());
        if ends_round {
            let earlier = |(other, call): (usize, &RoundCall)| {
                if other == at { Some(result.clone()) } else { call.result.clone() }
            };
            let blocks = self.round.iter().enumerate().filter_map(earlier).collect();
            records.push(Record::ToolResults { blocks });
        }
        self.attempt.record(records).await?;
        match ends_round {
            true => self.round.clear(),
            false => self.round[at].result = Some(result),
        }
        Ok(())
    }

    /// Adds a file that the agent has produced to its answer, after the text streamed so far.
    pub(crate) async fn add_file(
        &mut self,
        text: &mut TextBlocks<'_>,
        file: Block,
    ) -> Result<(), HandleError> {
        self.files.push(file);
        match self.is_round_open() {
            // The message with the results comes first.
            true => Ok(()),
            false => self.write_files(text).await,
        }
    }

    /// Writes the files that are not in a message yet. Called when the turn ends or no round is open.
    pub(crate) async fn write_files(&mut self, text: &mut TextBlocks<'_>) -> Result<(), HandleError> {
        if self.files.is_empty() {
            return Ok(());
        }
        self.attempt.record(vec![Record::Message { blocks: self.files.clone(), usage: None }]).await?;
        text.end_message();
        self.files.clear();
        Ok(())
    }

    /// Stores arguments that are too large for a message as an artifact, and refers to it instead.
    async fn stored_input(&self, name: &str, input: Value) -> Result<Value, HandleError> {
        let text = input.to_string();
        if text.len() <= MAX_INPUT_BYTES {
            return Ok(input);
        }
        let stored = store_text(
            self.attempt,
            &text,
            (&format!("{name}.input.json"), "application/json"),
            ("tool", name),
        )
        .await?;
        Ok(match stored {
            Some(artifact) => json!({"artifact": artifact, "bytes": text.len()}),
            None => json!({"bytes": text.len()}),
        })
    }
}
