//! Events: ordered, durable facts, and the one table of their types.
//!
//! An event's `cursor` orders it among all events; its `pos` is the session's running count of
//! streamed bytes at that moment, so events and streamed text have one order. `cursor.pos` is the
//! resume point everywhere. Two types are never stored: `message.delta`, whose bytes live in chunks
//! until their message completes, and `message.truncated`, which one subscriber is told.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Approval, ArtifactId, ArtifactRole, AttemptId, BindingId, BindingStatus, Budget, ClientCall,
    ClientResult, DelegationId, DelegationMode, DelegationStatus, DigestBy, EventId, ExternalRef, Failure,
    Fidelity, GrantId, Message, MessageId, Mode, Policy, RunId, RunStatus, SessionId, SessionStatus,
    StateAuthor, StateScope, StepId, StopReason, Time, TitleSource, Usage, Visibility, WaitId,
};

/// The version of the event envelope.
pub const PROTOCOL_VERSION: u8 = 2;

/// The place of an event in the order of all events. Increases; not dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before every event.
    pub const START: Self = Self(0);
}

/// A point in a session's stream: everything up to event `cursor` and byte `pos` has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The last event seen.
    pub cursor: Cursor,
    /// How many streamed bytes of the session have been seen.
    pub pos: u64,
}

impl Position {
    /// Before everything.
    pub const START: Self = Self { cursor: Cursor::START, pos: 0 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.cursor.0, self.pos)
    }
}

/// Why a text is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cursor: expected CURSOR.POS, for example 184.5321")]
pub struct BadPosition(String);

impl FromStr for Position {
    type Err = BadPosition;

    fn from_str(text: &str) -> Result<Self, BadPosition> {
        // No sign, no blank: what we print and nothing else. A bare cursor is not accepted, since
        // guessing its byte count could show text twice.
        let number =
            |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        text.split_once('.')
            .and_then(|(cursor, pos)| Some(Self { cursor: Cursor(number(cursor)?), pos: number(pos)? }))
            .ok_or_else(|| BadPosition(text.chars().take(64).collect()))
    }
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
crate::schema::text!(Position, r"^[0-9]+\.[0-9]+$");

/// One event with its envelope.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ReadEnvelope")]
pub struct Event {
    /// Its id.
    pub id: EventId,
    /// Its place among all events.
    pub cursor: Cursor,
    /// The session's count of streamed bytes when it happened.
    pub pos: u64,
    /// The session it belongs to.
    pub session: SessionId,
    /// The run it belongs to.
    pub run: Option<RunId>,
    /// The attempt it belongs to.
    pub attempt: Option<AttemptId>,
    /// The caller's name for the request that made the run.
    pub request: Option<String>,
    /// When it happened.
    pub at: Time,
    /// What happened.
    pub body: Body,
}

impl Event {
    /// The resume point right after this event.
    pub fn position(&self) -> Position {
        Position { cursor: self.cursor, pos: self.pos }
    }
}

/// The public form of an event.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    /// 2.
    protocol_version: u8,
    /// Its id.
    event_id: EventId,
    /// Its place among all events.
    cursor: Cursor,
    /// The session's count of streamed bytes when it happened.
    pos: u64,
    /// The session it belongs to.
    session_id: SessionId,
    /// The run it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// The attempt it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_id: Option<AttemptId>,
    /// The caller's name for the request that made the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    /// When it happened.
    timestamp_ms: Time,
    #[serde(flatten)]
    body: &'a Body,
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for Event {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        Envelope::schema()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for Event {
    fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
        Envelope::schemas(schemas);
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Envelope {
            protocol_version: PROTOCOL_VERSION,
            event_id: self.id,
            cursor: self.cursor,
            pos: self.pos,
            session_id: self.session,
            run_id: self.run,
            attempt_id: self.attempt,
            request_id: self.request.as_deref(),
            timestamp_ms: self.at,
            body: &self.body,
        }
        .serialize(serializer)
    }
}

/// What an event looks like to those who read it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadEnvelope {
    event_id: EventId,
    cursor: Cursor,
    pos: u64,
    session_id: SessionId,
    run_id: Option<RunId>,
    attempt_id: Option<AttemptId>,
    request_id: Option<String>,
    timestamp_ms: Time,
    #[serde(flatten)]
    body: Body,
}

impl From<ReadEnvelope> for Event {
    fn from(envelope: ReadEnvelope) -> Self {
        let ReadEnvelope { event_id: id, cursor, pos, session_id: session, run_id: run, .. } = envelope;
        let ReadEnvelope { attempt_id: attempt, request_id: request, timestamp_ms: at, body, .. } = envelope;
        Self { id, cursor, pos, session, run, attempt, request, at, body }
    }
}

/// What is shown live and never stored: the envelope of an event, without an id and a time, since it is none.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ReadLive")]
pub struct Live {
    /// The resume point right after it.
    pub position: Position,
    /// The session.
    pub session: SessionId,
    /// The run, where it is known.
    pub run: Option<RunId>,
    /// `message.delta` or `message.truncated`.
    pub body: Body,
}

impl Serialize for Live {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope<'a> {
            protocol_version: u8,
            cursor: Cursor,
            pos: u64,
            session_id: SessionId,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_id: Option<RunId>,
            #[serde(flatten)]
            body: &'a Body,
        }
        Envelope {
            protocol_version: PROTOCOL_VERSION,
            cursor: self.position.cursor,
            pos: self.position.pos,
            session_id: self.session,
            run_id: self.run,
            body: &self.body,
        }
        .serialize(serializer)
    }
}

/// What it looks like to those who read it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadLive {
    cursor: Cursor,
    pos: u64,
    session_id: SessionId,
    run_id: Option<RunId>,
    #[serde(flatten)]
    body: Body,
}

impl From<ReadLive> for Live {
    fn from(envelope: ReadLive) -> Self {
        let ReadLive { cursor, pos, session_id: session, run_id: run, body } = envelope;
        Self { position: Position { cursor, pos }, session, run, body }
    }
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:literal => $variant:ident { $($(#[$meta:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        /// What happened: the type of an event and its payload.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = EventBody))]
        #[serde(tag = "type", content = "payload")]
        #[expect(missing_docs, reason = "the variants say it; docs/events.md lists each field")]
        pub enum Body {
            $(
                $(#[$doc])*
                #[serde(rename = $name, rename_all = "camelCase")]
                #[cfg_attr(feature = "schema", schema(rename = $name))]
                $variant { $($(#[$meta])* $field: $type),* },
            )*
        }

        impl Body {
            /// Every event type, in the order of the table.
            pub const TYPES: &'static [&'static str] = &[$($name),*];

            /// The type's name.
            pub const fn kind(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),* }
            }
        }
    };
}

bodies! {
    /// A session was created.
    "session.created" => SessionCreated {
        #[serde(default, skip_serializing_if = "Option::is_none")] key: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] title: Option<String>,
        adapter: String,
        surface_kind: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] external_ref: Option<ExternalRef>,
    }
    /// Something about a session changed.
    "session.updated" => SessionUpdated { #[serde(flatten)] change: SessionChange }
    /// A session was deleted; what is left of it is being removed.
    "session.deleted" => SessionDeleted {}
    /// A run was accepted, or goes back to the queue to be tried again.
    "run.queued" => RunQueued {
        adapter: String,
        mode: Mode,
        #[serde(default, skip_serializing_if = "Option::is_none")] policy: Option<Policy>,
        #[serde(default, skip_serializing_if = "Option::is_none")] retry_at_ms: Option<Time>,
    }
    /// Its prompt became part of another run, which works on both from now on. It ends as that one ends.
    "run.merged" => RunMerged { into_run_id: RunId }
    /// A worker was assigned.
    "run.starting" => RunStarting {}
    /// The agent works.
    "run.running" => RunRunning {}
    /// The run waits for an input.
    "run.waiting_input" => RunWaitingInput { wait_id: WaitId }
    /// The run waits for an approval.
    "run.waiting_approval" => RunWaitingApproval { wait_id: WaitId }
    /// Somebody asked for the run to stop.
    "run.cancellation_requested" => RunCancellationRequested { reason: CancelReason }
    /// The run is being stopped.
    "run.cancelling" => RunCancelling {}
    /// The run did what it was asked.
    "run.succeeded" => RunSucceeded { #[serde(flatten)] close: Close }
    /// The run failed, and will not be tried again by itself.
    "run.failed" => RunFailed { error: Failure, #[serde(flatten)] close: Close }
    /// The run was stopped: proven by the agent's end or its processes' death.
    "run.cancelled" => RunCancelled { reason: CancelReason, #[serde(flatten)] close: Close }
    /// The run took too long, or nobody answered in time.
    "run.timed_out" => RunTimedOut { error: Failure, #[serde(flatten)] close: Close }
    /// What became of the run is not known: whoever executed it is gone.
    "run.orphaned" => RunOrphaned { error: Failure, #[serde(flatten)] close: Close }
    /// An execution of the run was created.
    "attempt.created" => AttemptCreated {
        attempt_no: u32,
        adapter: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] resume_from_attempt_id: Option<AttemptId>,
    }
    /// The adapter has control.
    "attempt.started" => AttemptStarted {}
    /// The attempt ended without success.
    "attempt.failed" => AttemptFailed { status: RunStatus, error: Failure, retryable: bool }
    /// The adapter was told to stop.
    "attempt.cancel_dispatch" => AttemptCancelDispatch { dispatched: bool, acknowledged: bool }
    /// The attempt has stopped.
    "attempt.cancelled" => AttemptCancelled { proof: Proof }
    /// A runtime-native session was opened for this session.
    "binding.created" => BindingCreated {
        binding_id: BindingId,
        adapter: String,
        generation: u32,
        fidelity: Fidelity,
        #[serde(default)] reconstructed: bool,
    }
    /// A runtime-native session was taken up again.
    "binding.resumed" => BindingResumed { binding_id: BindingId }
    /// A runtime-native session can no longer be used.
    "binding.stale" => BindingStale { binding_id: BindingId, status: BindingStatus, reason: String }
    /// The next generation took a binding's place.
    "binding.replaced" => BindingReplaced { binding_id: BindingId, by: BindingId }
    /// Streamed text, not yet part of a completed message. Never stored as an event.
    "message.delta" => MessageDelta { message_id: MessageId, block: u32, text: String }
    /// A message is whole. Its text replaces its deltas.
    "message.completed" => MessageCompleted {
        message: Arc<Message>,
        #[serde(default, skip_serializing_if = "Option::is_none")] parent_id: Option<MessageId>,
    }
    /// A crash lost streamed text that this subscriber had been shown: drop what lies after `pos`. Never stored.
    "message.truncated" => MessageTruncated { pos: u64 }
    /// How far the work is, for people.
    "progress.updated" => ProgressUpdated { text: String }
    /// A tool call is about to run: its intent.
    "tool.started" => ToolStarted {
        tool_use_id: String,
        name: String,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] input: Option<Value>,
    }
    /// A tool call reports.
    "tool.updated" => ToolUpdated { tool_use_id: String, text: String }
    /// A tool call succeeded.
    "tool.completed" => ToolCompleted { tool_use_id: String, name: String }
    /// A tool call failed, or its outcome is not known.
    "tool.failed" => ToolFailed { tool_use_id: String, name: String, outcome: ToolOutcome, error: Failure }
    /// A concrete result exists.
    "artifact.created" => ArtifactCreated {
        artifact_id: ArtifactId,
        kind: String,
        role: ArtifactRole,
        #[serde(default, skip_serializing_if = "Option::is_none")] name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] mime_type: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] size_bytes: Option<u64>,
    }
    /// A concrete result was deleted.
    "artifact.deleted" => ArtifactDeleted { artifact_id: ArtifactId }
    /// State of the session or of a run changed. A value that is large is left out: read it.
    "state.changed" => StateChanged {
        scope: StateScope,
        key: String,
        version: u64,
        by: StateAuthor,
        deleted: bool,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] value: Option<Value>,
    }
    /// A model was called: what came of it.
    "step.completed" => StepCompleted {
        step_id: StepId,
        step_no: u32,
        provider: String,
        model: String,
        stop_reason: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")] message_id: Option<MessageId>,
        #[serde(default, skip_serializing_if = "Option::is_none")] error: Option<Failure>,
        #[serde(default, skip_serializing_if = "Option::is_none")] budget: Option<Budget>,
    }
    /// Older messages of the path are not shown to the model any more: what it is told instead. The tree keeps them.
    "context.compacted" => ContextCompacted {
        from_message_id: MessageId,
        to_message_id: MessageId,
        messages: u32,
        total: u32,
        by: DigestBy,
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")] summary: Option<String>,
    }
    /// The agent answered in the form it was asked for; null if it could not, and then why.
    "output.completed" => OutputCompleted {
        output: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")] error: Option<Failure>,
    }
    /// Tokens and cost were spent.
    "usage.updated" => UsageUpdated { #[serde(flatten)] usage: Usage }
    /// The agent asks for an input.
    "input.requested" => InputRequested {
        wait_id: WaitId,
        question: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
    }
    /// The input was given; absent when nobody gave one in time.
    "input.provided" => InputProvided {
        wait_id: WaitId,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] input: Option<Value>,
    }
    /// The agent asks for an approval.
    "approval.requested" => ApprovalRequested {
        wait_id: WaitId,
        question: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
    }
    /// The approval was decided.
    "approval.resolved" => ApprovalResolved {
        wait_id: WaitId,
        decision: Approval,
        #[serde(default, skip_serializing_if = "Option::is_none")] grant_id: Option<GrantId>,
    }
    /// The agent calls tools that the caller executes.
    "tools.requested" => ToolsRequested {
        wait_id: WaitId,
        calls: Vec<ClientCall>,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
    }
    /// Results of such calls were given, all or some; absent when those still missing are not waited for any more.
    "tools.provided" => ToolsProvided {
        wait_id: WaitId,
        #[serde(default, skip_serializing_if = "Option::is_none")] results: Option<Vec<ClientResult>>,
    }
    /// A run handed part of its work to another.
    "delegation.created" => DelegationCreated {
        delegation_id: DelegationId,
        child_session_id: SessionId,
        child_run_id: RunId,
        mode: DelegationMode,
        objective: String,
    }
    /// Delegated work has ended.
    "delegation.completed" => DelegationCompleted { delegation_id: DelegationId, status: DelegationStatus }
}

/// Reads what is there, also `null`: an input of null is an input.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Body {
    /// True for what is shown live and never stored as an event.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::MessageDelta { .. } | Self::MessageTruncated { .. })
    }
}

impl Body {
    /// True for what ends a run.
    pub const fn ends_run(&self) -> bool {
        matches!(
            self,
            Self::RunSucceeded { .. }
                | Self::RunFailed { .. }
                | Self::RunCancelled { .. }
                | Self::RunTimedOut { .. }
                | Self::RunOrphaned { .. }
        )
    }

    /// What a run's end says; none for every other event.
    pub fn close_mut(&mut self) -> Option<&mut Close> {
        match self {
            Self::RunSucceeded { close }
            | Self::RunFailed { close, .. }
            | Self::RunCancelled { close, .. }
            | Self::RunTimedOut { close, .. }
            | Self::RunOrphaned { close, .. } => Some(close),
            _ => None,
        }
    }
}

/// What changed about a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "changed", rename_all = "snake_case")]
pub enum SessionChange {
    /// It has another title, or none.
    Title {
        /// The title now.
        title: Option<String>,
        /// Who gave it.
        #[serde(default)]
        source: TitleSource,
    },
    /// It is kept at hand, or not any more.
    Pinned {
        /// Whether it is.
        pinned: bool,
    },
    /// It is shown to others, or not any more.
    Visibility {
        /// Who may read it now.
        visibility: Visibility,
    },
    /// Its runs use another model.
    Model {
        /// The model now.
        model: Option<String>,
    },
    /// Its runs use another model profile.
    #[serde(rename_all = "camelCase")]
    ModelProfile {
        /// The profile now.
        model_profile: Option<String>,
    },
    /// Its runs get other instructions.
    #[serde(rename_all = "camelCase")]
    SystemPrompt {
        /// The instructions now.
        system_prompt: Option<String>,
    },
    /// Its runs tell the model's provider something else.
    #[serde(rename_all = "camelCase")]
    ModelOptions {
        /// The options now.
        #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
        model_options: Option<Map<String, Value>>,
    },
    /// Its runs work in another folder.
    Cwd {
        /// The folder now.
        cwd: Option<String>,
    },
    /// The caller's own data is another.
    Metadata {
        /// The data now.
        metadata: Value,
    },
    /// It was archived, reopened or closed.
    Status {
        /// Its status now.
        status: SessionStatus,
    },
    /// Its events up to one were pruned.
    Compacted {
        /// The last event that is gone.
        floor: Cursor,
    },
    /// Its active path ends elsewhere.
    Tip {
        /// The last message of the path now.
        tip: Option<MessageId>,
    },
}

/// What every run's end says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Close {
    /// The run's last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Where the session's active path ends now; absent when it did not move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<MessageId>,
    /// What all attempts used.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
}

/// Why a run was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Somebody asked.
    Requested,
    /// A newer prompt took its place.
    Superseded,
    /// The run that delegated it was cancelled.
    Parent,
    /// The agent stopped by itself and said so.
    Agent,
    /// The process is shutting down.
    Shutdown,
}

/// How it is known that a cancelled attempt has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The adapter returned.
    Ended,
    /// It did not within the grace period; everything that acted for it was killed.
    Killed,
    /// Nothing was executing.
    Idle,
}

/// How a tool call that did not succeed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It failed.
    Failed,
    /// It may or may not have had its effect.
    Unknown,
}

#[cfg(test)]
mod tests;
