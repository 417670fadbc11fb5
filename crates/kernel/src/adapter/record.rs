//! Records: the facts that an adapter makes durable.

use std::sync::Arc;

use mainspring_core::{
    Approval, ApprovalRequest, Block, Budget, CallResult, Decider, Digest, DigestAuthor, Failure, Fidelity,
    GoalId, Grant, GrantId, LeftProcess, MessageId, PlannedTask, PromptRef, Route, Sandbox, StateChange,
    StepInput, StopReason, Time, ToolOutcome, Usage,
};
use serde_json::{Map, Value};

/// A fact that an adapter makes durable. The records of one call are durable together.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A new native session is ready and the attempt runs. The native session gets the prompt next. Only for adapters that
    /// use bindings.
    Opened {
        /// The runtime's id of the native session.
        native: Option<String>,
        /// How much of the native session survives a restart of the runtime.
        fidelity: Fidelity,
        /// True if the native session was given the text of the path.
        reconstructed: bool,
    },
    /// The native session of [`super::Assignment::binding`] is ready and the attempt runs.
    Resumed,
    /// How the agent's processes are confined, if they are.
    Confined(Sandbox),
    /// The turn has ended, and processes that it started are still running.
    LeftRunning {
        /// The processes.
        processes: Vec<LeftProcess>,
    },
    /// Facts about the execution of the attempt, and about the native session that it uses.
    Runtime(Box<RuntimeFacts>),
    /// A standing decision applies to this run.
    Granted(Box<Grant>),
    /// A request for permission was decided without asking a person.
    Decided {
        /// The request.
        question: String,
        /// The request as data.
        request: Option<Box<ApprovalRequest>>,
        /// The decision.
        decision: Approval,
        /// The grant that decided.
        grant: Option<GrantId>,
        /// The party that decided.
        by: Decider,
        /// The reply to the agent.
        told: Option<String>,
    },
    /// The agent that writes the following messages of the run.
    Agent {
        /// Its definition, as `ID@VERSION`.
        name: String,
    },
    /// The agent's message is complete: the streamed text, then `blocks`.
    Message {
        /// Content that was not streamed, such as tool calls.
        blocks: Vec<Block>,
        /// Usage of this message. A message without tool calls reports its turn: the usage since the previous such message.
        usage: Option<Usage>,
    },
    /// A model was called. If a [`Record::Message`] precedes it in the same call, the model made that message.
    Step(Box<StepTaken>),
    /// Older messages of the path are replaced by a digest in prompts to models.
    Compacted(Box<Compacted>),
    /// The adapter prompts the agent again within the run.
    Continued {
        /// Content of the prompt.
        blocks: Vec<Block>,
    },
    /// The run's structured output.
    Output {
        /// The output; null if there is none.
        output: Value,
        /// Why there is no output.
        error: Option<Failure>,
    },
    /// The agent reports the value of a goal, which fits the goal's schema.
    GoalAchieved {
        /// The goal.
        goal: GoalId,
        /// Id of the tool call.
        tool_use_id: String,
        /// The value.
        value: Value,
    },
    /// The agent reports a value that does not fit the goal's schema.
    GoalRejected {
        /// The goal.
        goal: GoalId,
        /// Id of the tool call.
        tool_use_id: String,
        /// Why the value does not fit.
        reason: String,
    },
    /// The agent has ended its turn and is reminded of its pending goals.
    GoalsReminded {
        /// The maximum number of reminders.
        max: u32,
    },
    /// The agent's whole plan, in place of the one before.
    Tasks {
        /// The tasks, in order.
        tasks: Vec<PlannedTask>,
    },
    /// Results of tool calls, as a message of the user's side.
    ToolResults {
        /// Tool results, in the order of the calls.
        blocks: Vec<Block>,
    },
    /// A tool call is about to run.
    ToolStarted {
        /// Id of the call.
        tool_use_id: String,
        /// Name of the tool.
        name: String,
        /// Arguments, if no message holds them.
        input: Option<Value>,
        /// The party that allowed the call, unless another record names it.
        decided_by: Option<Decider>,
    },
    /// The agent made a tool call without asking for the permission that it needs.
    ToolUnasked {
        /// Id of the call.
        tool_use_id: String,
        /// Name of the tool.
        name: String,
    },
    /// A tool call reports progress.
    ToolUpdated {
        /// Id of the call.
        tool_use_id: String,
        /// The report.
        text: String,
    },
    /// A tool call succeeded. If a message of the path holds the call, the result is kept until
    /// [`Record::ToolResults`].
    ToolCompleted {
        /// Id of the call.
        tool_use_id: String,
        /// The result.
        content: Vec<Block>,
    },
    /// A tool call failed. The result is kept like that of a call that succeeded.
    ToolFailed {
        /// Id of the call.
        tool_use_id: String,
        /// Kind of failure.
        outcome: ToolOutcome,
        /// The failure.
        error: Failure,
        /// The result for the agent; the message of the failure if empty.
        content: Vec<Block>,
    },
    /// A tool call got its result without being executed.
    ToolDecided {
        /// Id of the call.
        tool_use_id: String,
        /// Name of the tool.
        name: String,
        /// Why the call was rejected; none if the result was supplied in place of the tool's.
        rejection: Option<Failure>,
        /// The result for the agent.
        content: Vec<Block>,
    },
    /// The caller of the run has executed a tool call.
    ToolProvided {
        /// Id of the call.
        tool_use_id: String,
        /// Name of the tool.
        name: String,
        /// When the caller was asked; none if that is not known any more.
        asked_at: Option<Time>,
        /// The result for the agent.
        result: CallResult,
    },
    /// Progress of the run.
    Progress {
        /// Text to display.
        text: String,
    },
    /// A title for the session. Ignored if a person has set one.
    Title {
        /// The title; a longer one is cut to 50 characters.
        title: String,
    },
    /// Tokens and cost that were used.
    Usage(Usage),
    /// The attempt has changed state of its owner.
    OwnerState(Box<StateChange>),
    /// The router of a network has decided. The kernel adds the run's last message.
    Routed(Box<Route>),
    /// A key of the run's state changes: the actor decides the change and adds its row. Not for
    /// [`super::AttemptHandle::record_at_end`].
    RunState {
        /// The key.
        key: String,
        /// The new value; none to remove the key.
        value: Option<Value>,
    },
}

impl Record {
    /// True for output of the agent: a message or a tool call. An attempt with output may have had effects.
    pub(crate) const fn is_output(&self) -> bool {
        matches!(
            self,
            Self::Message { .. }
                | Self::Continued { .. }
                | Self::ToolResults { .. }
                | Self::ToolStarted { .. }
                | Self::ToolDecided { .. }
                | Self::ToolProvided { .. }
        )
    }
}

/// A model call as an adapter records it; see [`mainspring_core::Step`].
#[derive(Debug, Clone, PartialEq)]
pub struct StepTaken {
    /// Number of the call within the run.
    pub no: u32,
    /// Agent definition.
    pub agent: String,
    /// Provider of the model.
    pub provider: String,
    /// Model.
    pub model: String,
    /// Profile that selected the model.
    pub profile: Option<String>,
    /// Prompt of the call.
    pub prompt: PromptRef,
    /// Ids of the tool calls the model made.
    pub tool_calls: Vec<String>,
    /// Why the model stopped.
    pub stop_reason: StopReason,
    /// The failure, if the call failed.
    pub error: Option<Failure>,
    /// Usage of the call.
    pub usage: Option<Usage>,
    /// Usage as the provider reported it.
    pub raw_usage: Value,
    /// When the call began.
    pub started_at: Time,
    /// When the first piece of the answer arrived.
    pub first_piece_at: Option<Time>,
    /// Data that the provider requires in later calls, kept until the run ends.
    pub private: Option<Value>,
    /// The run's remaining budget.
    pub budget: Option<Budget>,
    /// The input of the model besides messages.
    pub input: Option<Arc<StepInput>>,
    /// The response as the provider reported it, without its text.
    pub raw: Value,
}

/// Facts that an adapter knows about the execution of an attempt. A fact that is not given leaves the earlier one as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeFacts {
    /// The process of the runtime that executes the attempt.
    pub instance: Option<String>,
    /// The runtime's own id of the execution.
    pub native_run: Option<String>,
    /// The model of the native session, as the runtime names it.
    pub model: Option<String>,
    /// Further facts about the execution.
    pub metadata: Map<String, Value>,
    /// Further facts about the native session.
    pub binding_metadata: Map<String, Value>,
}

/// A compaction of older messages, as an adapter records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compacted {
    /// The digest that replaces the messages in prompts. The kernel sets its time.
    pub digest: Digest,
    /// The first message that no earlier digest covered.
    pub from: MessageId,
    /// Number of newly covered messages.
    pub messages: u32,
    /// Author of the digest.
    pub by: DigestAuthor,
    /// Estimated tokens of the path before.
    pub tokens_before: u64,
    /// Estimated tokens of the path now.
    pub tokens_after: u64,
}
