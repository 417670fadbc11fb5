//! Events: ordered, durable facts, and the one table of their types.
//!
//! An event's `cursor` orders it among all events. Its `pos` is the session's count of streamed bytes at that moment,
//! so events and streamed text share one order. A [`Position`], written `CURSOR.POS`, is the resume point everywhere.
//!
//! Some types are never stored: `message.delta`, whose bytes live in chunks until their message completes;
//! `message.truncated`, which is sent only to a subscriber that has received the lost text; `store.*`, which is sent to
//! every live subscriber; and `event.damaged`, which stands for an event that cannot be read.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Approval, ApprovalRequest, ArtifactId, ArtifactRole, AttemptId, BindingId, BindingStatus, Block, Budget,
    ClientCall, ClientResult, Decider, DelegationId, DelegationMode, DelegationStatus, DigestAuthor, EventId,
    ExternalRef, Failure, Feedback, Fidelity, GoalId, GrantId, LeftProcess, Message, MessageId, Mode,
    OnExpiry, Policy, RetryReason, Route, RunId, RunLimits, RunStatus, Sandbox, SessionId, StateAuthor,
    StateScope, StepId, StopReason, SuppliedResult, Task, Time, Usage, WaitId,
};

mod change;
mod live;
pub use change::SessionChange;
pub use live::LiveEvent;

/// The version of the event envelope.
pub const PROTOCOL_VERSION: u8 = 2;

/// The position of an event in the order of all events. Increasing, with gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before every event.
    pub const START: Self = Self(0);
}

/// A position in a session's stream: the subscriber has seen everything up to event `cursor` and byte `pos`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The last event seen.
    pub cursor: Cursor,
    /// The number of the session's streamed bytes that were seen.
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

/// The error for a text that is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cursor: expected CURSOR.POS, for example 184.5321")]
pub struct BadPosition(String);

impl FromStr for Position {
    type Err = BadPosition;

    fn from_str(text: &str) -> Result<Self, BadPosition> {
        // Accept exactly the printed form: no sign, no whitespace. A bare cursor is refused, since guessing its byte
        // count could repeat text.
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
    /// The event's id.
    pub id: EventId,
    /// The position among all events.
    pub cursor: Cursor,
    /// The session's count of streamed bytes when the event happened.
    pub pos: u64,
    /// The session the event belongs to.
    pub session: SessionId,
    /// The run the event belongs to.
    pub run: Option<RunId>,
    /// The attempt the event belongs to.
    pub attempt: Option<AttemptId>,
    /// The caller's id of the request that created the run.
    pub request: Option<String>,
    /// When the event happened.
    pub at: Time,
    /// The event's type and payload.
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
    /// The version of this envelope: 2.
    protocol_version: u8,
    /// The event's id.
    event_id: EventId,
    /// The position among all events.
    cursor: Cursor,
    /// The session's count of streamed bytes when the event happened.
    pos: u64,
    /// The session the event belongs to.
    session_id: SessionId,
    /// The run the event belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// The attempt the event belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_id: Option<AttemptId>,
    /// The caller's id of the request that created the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    /// When the event happened.
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

/// The public form of an event, for reading.
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

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:literal => $variant:ident { $($(#[$meta:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        /// The type and payload of an event.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = EventBody))]
        #[serde(tag = "type", content = "payload")]
        #[expect(missing_docs, reason = "the variants are documented; docs/events.md lists their fields")]
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

            /// The name of the event type.
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
    /// A property of a session changed.
    "session.updated" => SessionUpdated { #[serde(flatten)] change: SessionChange }
    /// A session was deleted; its remaining data is being removed.
    "session.deleted" => SessionDeleted {}
    /// A run was accepted, or returned to the queue for a retry.
    "run.queued" => RunQueued {
        adapter: String,
        mode: Mode,
        #[serde(default, skip_serializing_if = "Option::is_none")] policy: Option<Policy>,
        #[serde(default, skip_serializing_if = "Option::is_none")] retry_at_ms: Option<Time>,
        #[serde(default, skip_serializing_if = "Option::is_none")] retry_reason: Option<RetryReason>,
        #[serde(default, skip_serializing_if = "Option::is_none")] model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] model_profile: Option<String>,
        #[serde(default, skip_serializing_if = "RunLimits::is_empty")] limits: RunLimits,
    }
    /// The run's prompt was merged into another run, which now works on both. The merged run ends together with it.
    "run.merged" => RunMerged { into_run_id: RunId }
    /// A new attempt of the run starts.
    "run.starting" => RunStarting {}
    /// The agent is working.
    "run.running" => RunRunning {}
    /// The router of a network has decided which agents are called next, or that the network ends.
    "run.routed" => RunRouted { #[serde(flatten)] route: Box<Route> }
    /// The run waits for an input.
    "run.waiting_input" => RunWaitingInput { wait_id: WaitId }
    /// The run waits for an approval.
    "run.waiting_approval" => RunWaitingApproval { wait_id: WaitId }
    /// Cancellation of the run was requested.
    "run.cancellation_requested" => RunCancellationRequested { reason: CancelReason }
    /// The run is being stopped.
    "run.cancelling" => RunCancelling {}
    /// The run completed successfully.
    "run.succeeded" => RunSucceeded { #[serde(flatten)] close: Close }
    /// The run failed and will not be retried automatically.
    "run.failed" => RunFailed { error: Failure, #[serde(flatten)] close: Close }
    /// The run was cancelled. The agent has returned or its processes were killed.
    "run.cancelled" => RunCancelled { reason: CancelReason, #[serde(flatten)] close: Close }
    /// The run exceeded its time limit, or a wait expired without an answer.
    "run.timed_out" => RunTimedOut { error: Failure, #[serde(flatten)] close: Close }
    /// The process that executed the run is gone; the outcome of the run is unknown.
    "run.orphaned" => RunOrphaned { error: Failure, #[serde(flatten)] close: Close }
    /// An attempt of the run was created.
    "attempt.created" => AttemptCreated {
        attempt_no: u32,
        adapter: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] resume_from_attempt_id: Option<AttemptId>,
        #[serde(default, skip_serializing_if = "Option::is_none")] checkpoint_artifact_id: Option<ArtifactId>,
        #[serde(default, skip_serializing_if = "Option::is_none")] retry_reason: Option<RetryReason>,
    }
    /// The agent can work now.
    "attempt.started" => AttemptStarted {}
    /// The agent's processes are confined, or not: the sandbox says which.
    "attempt.confined" => AttemptConfined { #[serde(flatten)] sandbox: Sandbox }
    /// The turn has ended, and processes that it started are still running.
    "attempt.left_running" => AttemptLeftRunning { processes: Vec<LeftProcess> }
    /// The attempt failed.
    "attempt.failed" => AttemptFailed { status: RunStatus, error: Failure, retryable: bool }
    /// The adapter was signalled to stop.
    "attempt.cancel_dispatch" => AttemptCancelDispatch { dispatched: bool, acknowledged: bool }
    /// The attempt stopped.
    "attempt.cancelled" => AttemptCancelled { proof: Proof }
    /// A session of the agent runtime was opened for this session.
    "binding.created" => BindingCreated {
        binding_id: BindingId,
        adapter: String,
        generation: u32,
        fidelity: Fidelity,
        #[serde(default)] reconstructed: bool,
    }
    /// A session of the agent runtime was resumed.
    "binding.resumed" => BindingResumed { binding_id: BindingId }
    /// A session of the agent runtime can no longer be used.
    "binding.stale" => BindingStale { binding_id: BindingId, status: BindingStatus, reason: String }
    /// A binding was replaced by its next generation.
    "binding.replaced" => BindingReplaced { binding_id: BindingId, by: BindingId }
    /// Streamed text of a message that is not complete yet. Never stored as an event.
    "message.delta" => MessageDelta { message_id: MessageId, block: u32, text: String }
    /// A message is complete. Its content replaces its deltas.
    "message.completed" => MessageCompleted {
        message: Arc<Message>,
        #[serde(default, skip_serializing_if = "Option::is_none")] parent_id: Option<MessageId>,
    }
    /// A crash lost streamed text that this subscriber has received: discard everything after `pos`. Never stored.
    "message.truncated" => MessageTruncated { pos: u64 }
    /// Nothing can be stored at present: commands are refused with this code, and the ends of runs wait. Never stored.
    "store.failed" => StoreFailed { code: String, message: String }
    /// The store can be written again. Never stored.
    "store.recovered" => StoreRecovered {}
    /// A stored event, or the message or tool result that it announces, cannot be read. This event is sent in its place
    /// and never stored.
    "event.damaged" => EventDamaged {
        #[serde(default, skip_serializing_if = "Option::is_none")] event_type: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] message_id: Option<MessageId>,
        message: String,
    }
    /// A progress message for people.
    "progress.updated" => ProgressUpdated { text: String }
    /// A tool call is about to be executed.
    "tool.started" => ToolStarted {
        tool_use_id: String,
        name: String,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] input: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")] decided_by: Option<Decider>,
    }
    /// A tool call changed something or ran a command, and the agent has not asked for the permission that the call
    /// needs.
    "tool.unasked" => ToolUnasked { tool_use_id: String, name: String }
    /// A progress report of a tool call.
    "tool.updated" => ToolUpdated { tool_use_id: String, text: String }
    /// A tool call succeeded.
    "tool.completed" => ToolCompleted { tool_use_id: String, name: String, #[serde(flatten)] end: ToolEnd }
    /// A tool call failed, was not executed, or its outcome is unknown.
    "tool.failed" => ToolFailed {
        tool_use_id: String,
        name: String,
        outcome: ToolOutcome,
        error: Failure,
        #[serde(flatten)] end: ToolEnd,
    }
    /// A turn of the run is complete, and the run continues with another one. The run's own end completes its last
    /// turn.
    "turn.completed" => TurnCompleted { message_id: MessageId }
    /// An artifact was created.
    "artifact.created" => ArtifactCreated {
        artifact_id: ArtifactId,
        kind: String,
        role: ArtifactRole,
        #[serde(default, skip_serializing_if = "Option::is_none")] name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] mime_type: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] size_bytes: Option<u64>,
    }
    /// An artifact was deleted.
    "artifact.deleted" => ArtifactDeleted { artifact_id: ArtifactId }
    /// A state key of the session or of a run changed. Large values are omitted; read them with a separate request.
    "state.changed" => StateChanged {
        scope: StateScope,
        key: String,
        version: u64,
        by: StateAuthor,
        deleted: bool,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] value: Option<Value>,
    }
    /// A model call ended.
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
    /// Older messages of the path were replaced by a digest in the model's context. The tree keeps the messages.
    "context.compacted" => ContextCompacted {
        from_message_id: MessageId,
        to_message_id: MessageId,
        messages: u32,
        total: u32,
        by: DigestAuthor,
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")] summary: Option<String>,
    }
    /// The agent's structured output; null with an error if the agent could not produce it.
    "output.completed" => OutputCompleted {
        output: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")] error: Option<Failure>,
    }
    /// The run has a goal, which its agent is to achieve.
    "goal.declared" => GoalDeclared {
        goal_id: GoalId,
        goal_type: String,
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        #[cfg_attr(feature = "schema", schema(value_type = Object))]
        data: Map<String, Value>,
    }
    /// The agent reported a value that does not fit the goal's schema. The goal stays pending.
    "goal.rejected" => GoalRejected { goal_id: GoalId, goal_type: String, tool_use_id: String, error: Failure }
    /// The agent achieved a goal: it reported a value that fits.
    "goal.achieved" => GoalAchieved { goal_id: GoalId, goal_type: String, tool_use_id: String, value: Value }
    /// A goal failed: the run ends without its value.
    "goal.failed" => GoalFailed { goal_id: GoalId, goal_type: String, error: Failure }
    /// The agent ended its turn with pending goals and was reminded of them.
    "goals.reminded" => GoalsReminded { goal_ids: Vec<GoalId>, reminder_no: u32, max_reminders: u32 }
    /// The agent's plan changed. The tasks are the whole plan.
    "tasks.updated" => TasksUpdated { tasks: Vec<Task> }
    /// The run has exceeded a limit that its adapter could not enforce.
    "limit.exceeded" => LimitExceeded { budget: Budget }
    /// Tokens and cost were added to the run.
    "usage.updated" => UsageUpdated { #[serde(flatten)] usage: Usage }
    /// The agent asks for input.
    "input.requested" => InputRequested {
        wait_id: WaitId,
        question: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
    }
    /// The input was provided. `input` is absent if the wait closed without an answer.
    "input.provided" => InputProvided {
        wait_id: WaitId,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] input: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")] answered_by: Option<Box<Decider>>,
    }
    /// The agent asks for an approval.
    "approval.requested" => ApprovalRequested {
        wait_id: WaitId,
        question: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] approval: Option<Box<ApprovalRequest>>,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
        #[serde(default, skip_serializing_if = "Option::is_none")] on_expiry: Option<OnExpiry>,
    }
    /// The approval was decided.
    "approval.resolved" => ApprovalResolved {
        wait_id: WaitId,
        decision: Approval,
        #[serde(default, skip_serializing_if = "Option::is_none")] grant_id: Option<GrantId>,
        #[serde(default, skip_serializing_if = "Option::is_none")] decided_by: Option<Box<Decider>>,
        #[serde(default, skip_serializing_if = "Option::is_none")] told: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] result: Option<SuppliedResult>,
    }
    /// A grant was revoked: nothing is allowed by it any more, nor by the grants of delegated runs that depend on it.
    "grant.revoked" => GrantRevoked { grant_id: GrantId, revoked_by: Box<Decider> }
    /// The agent calls tools that the caller executes.
    "tools.requested" => ToolsRequested {
        wait_id: WaitId,
        calls: Vec<ClientCall>,
        #[serde(default, skip_serializing_if = "Option::is_none")] expires_at_ms: Option<Time>,
    }
    /// All or some results of client tool calls were provided. `results` is absent if the wait closed while results
    /// were missing.
    "tools.provided" => ToolsProvided {
        wait_id: WaitId,
        #[serde(default, skip_serializing_if = "Option::is_none")] results: Option<Vec<ClientResult>>,
    }
    /// A reader gave feedback on a message, or changed the feedback.
    "feedback.given" => FeedbackGiven { #[serde(flatten)] feedback: Box<Feedback> }
    /// A run delegated work to a child run.
    "delegation.created" => DelegationCreated {
        delegation_id: DelegationId,
        child_session_id: SessionId,
        child_run_id: RunId,
        mode: DelegationMode,
        objective: String,
    }
    /// Delegated work ended.
    "delegation.completed" => DelegationCompleted { delegation_id: DelegationId, status: DelegationStatus }
}

/// Reads a present value, including `null`: an input of null is an input.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Body {
    /// Types that are never stored as events.
    pub const TRANSIENT_TYPES: [&'static str; 5] =
        ["message.delta", "message.truncated", "store.failed", "store.recovered", "event.damaged"];

    /// True for types that are never stored as events.
    pub fn is_transient(&self) -> bool {
        Self::TRANSIENT_TYPES.contains(&self.kind())
    }
}

impl Body {
    /// The type of [`Body::MessageCompleted`].
    pub const MESSAGE_COMPLETED: &'static str = "message.completed";
    /// The stored types that a later event supersedes.
    pub const SUPERSEDED_TYPES: [&'static str; 2] = ["progress.updated", "tool.updated"];
    /// Types about how a run is executed, which are not meant for readers of the conversation.
    pub const INTERNAL_TYPES: [&'static str; 9] = [
        "attempt.created",
        "attempt.started",
        "attempt.confined",
        "attempt.cancel_dispatch",
        "binding.created",
        "binding.resumed",
        "binding.stale",
        "binding.replaced",
        "step.completed",
    ];

    /// The status of a run after its event of the type `kind`; `None` for types that change no status.
    pub fn run_status_of(kind: &str) -> Option<RunStatus> {
        kind.strip_prefix("run.").and_then(RunStatus::from_name)
    }

    /// The retention class of an event of this type in the event format of the original daemon: `core` or
    /// `transient`.
    pub fn retention_class(kind: &str) -> &'static str {
        if Self::SUPERSEDED_TYPES.contains(&kind) { "transient" } else { "core" }
    }

    /// The visibility of an event of this type in the event format of the original daemon: `ui` or `internal`.
    pub fn visibility(kind: &str) -> &'static str {
        if Self::INTERNAL_TYPES.contains(&kind) { "internal" } else { "ui" }
    }
}

impl Body {
    /// The event of a run that is accepted.
    pub fn run_accepted(adapter: String, mode: Mode, policy: Option<Policy>) -> Self {
        Self::RunQueued {
            adapter,
            mode,
            policy,
            retry_at_ms: None,
            retry_reason: None,
            model: None,
            model_profile: None,
            limits: RunLimits::default(),
        }
    }

    /// True for the first event of a run. A retry queues the run again with a reason.
    pub const fn is_run_accepted(&self) -> bool {
        matches!(self, Self::RunQueued { retry_reason: None, .. })
    }

    /// True for events that change the goals of a run: those of the `goal` types, and the `run.queued` of a retry.
    pub const fn changes_goals(&self) -> bool {
        matches!(
            self,
            Self::GoalDeclared { .. }
                | Self::GoalRejected { .. }
                | Self::GoalAchieved { .. }
                | Self::GoalFailed { .. }
                | Self::GoalsReminded { .. }
                | Self::RunQueued { retry_reason: Some(_), .. }
        )
    }

    /// True for types that end a run.
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

    /// The id of the tool call that the event ends, and the data of its end; `None` for other events.
    pub fn tool_end_mut(&mut self) -> Option<(&str, &mut ToolEnd)> {
        match self {
            Self::ToolCompleted { tool_use_id, end, .. } | Self::ToolFailed { tool_use_id, end, .. } => {
                Some((tool_use_id, end))
            }
            _ => None,
        }
    }

    /// The closing data of an event that ends a run; `None` for other events.
    pub const fn close(&self) -> Option<&Close> {
        match self {
            Self::RunSucceeded { close }
            | Self::RunFailed { close, .. }
            | Self::RunCancelled { close, .. }
            | Self::RunTimedOut { close, .. }
            | Self::RunOrphaned { close, .. } => Some(close),
            _ => None,
        }
    }

    /// The mutable closing data of an event that ends a run; `None` for other events.
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

/// Data of every event that ends a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Close {
    /// The run's last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The new end of the session's active path. Absent if it did not move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<MessageId>,
    /// Tokens and cost of all attempts.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
}

/// Data of every event that ends a tool call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolEnd {
    /// The message that holds the result, or will hold it once all calls of its round have ended. Absent if the agent
    /// keeps the result to itself, or if the attempt ended before the call did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The result, as the agent sees it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Block>,
    /// How long the call ran, in milliseconds. Absent if it was not executed, or if the attempt ended before
    /// the call did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// Why a run was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// A caller requested it.
    Requested,
    /// A newer prompt replaced the run.
    Superseded,
    /// The parent run that delegated the work was cancelled.
    Parent,
    /// The agent stopped by itself.
    Agent,
    /// The process is shutting down.
    Shutdown,
}

/// The evidence that a cancelled attempt has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The adapter returned.
    Ended,
    /// The adapter did not return within the grace period; all its processes were killed.
    Killed,
    /// The agent's process group has ended. A process that left the group may still run: this operating system cannot
    /// report it.
    Group,
    /// Nothing was executing.
    Idle,
}

/// The outcome of a tool call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// The call failed.
    Failed,
    /// The call may or may not have taken effect.
    Unknown,
    /// The call was not executed: it was refused, or its arguments are invalid.
    Rejected,
}

#[cfg(test)]
mod tests;
