//! Domain types and rules of mainspring.
//!
//! Each state machine has a pure `decide(state, command) -> events or refusal` and an infallible `apply(state,
//! event)`. Ids and times are passed in with the command. Nothing here does I/O, reads a clock, draws a random number
//! or is async; `tests/it/dependencies.rs` enforces this.

pub mod access;
pub mod agent;
pub mod allow;
pub mod approval;
pub mod attempt;
pub mod binding;
mod damage;
pub mod delegation;
pub mod digest;
pub mod event;
pub mod failure;
pub mod feedback;
pub mod given;
pub mod goal;
pub mod history;
pub mod id_prefix;
pub mod ids;
pub mod launch;
pub mod lease;
pub mod limits;
pub mod media;
pub mod memory;
pub mod message;
pub mod model;
pub mod network;
pub mod permits;
pub mod placement;
mod process;
pub mod quota;
pub mod record;
pub mod refusal;
pub mod repeat;
pub mod retention;
pub mod retry;
pub mod run;
mod sandbox;
#[cfg(feature = "schema")]
mod schema;
pub mod script;
pub mod session;
pub mod state;
pub mod step;
pub mod stream;
pub mod task;
pub mod time;
pub mod tool;
pub mod tree;
pub mod turn;
pub mod usage;
pub mod wait;
pub mod webhook;

pub use access::{AccessRole, ApiKey, Visibility};
pub use agent::{AgentDefinition, AgentName};
pub use allow::{KeyList, KeyLists, NotListed, Spend, day_of};
pub use approval::{
    Approval, ApprovalAnswer, ApprovalChoice, ApprovalRequest, ApprovalScope, Decider, MayAnswer, NewGrant,
    Replies, RequestedAction, RequestedCall, SuppliedResult,
};
pub use attempt::{Attempt, Cancellation};
pub use binding::{Binding, BindingStatus, Fidelity};
pub use damage::{Damage, Rows};
pub use delegation::{
    Delegation, DelegationMode, DelegationResult, DelegationStatus, DoneEffect, NetworkMember, NewDelegation,
    RequestFields, StoredRequest,
};
pub use digest::{Digest, DigestAuthor};
pub use event::{
    BadPosition, Body, CancelReason, Close, Cursor, Event, LiveEvent, PROTOCOL_VERSION, Position, Proof,
    SessionChange, ToolEnd, ToolOutcome,
};
pub use failure::{Failure, FailureCode};
pub use feedback::{BadFeedback, Feedback, NewFeedback, Sentiment};
pub use given::{GivenMessage, validate_messages};
pub use goal::{BadGoal, DeclaredGoal, Goal, GoalStatus, GoalType};
pub use history::History;
pub use id_prefix::{BadIdPrefix, IdKind, IdPrefix};
pub use ids::{
    ArtifactId, AttemptId, BadId, BindingId, DelegationId, EventId, FeedbackId, GoalId, GrantId, KeyId,
    LineId, MessageId, NodeId, RunId, SessionId, StepId, WaitId, WebhookId,
};
pub use lease::LeaseTimes;
pub use limits::{BadName, Limits};
pub use message::{Block, FileLocation, Message, MessageStatus, Role};
pub use model::{KeyPresence, ModelList, ModelPrice, ModelProfile, ModelProvider};
pub use network::{Network, Route, Stage};
pub use process::{LeftProcess, Supervision};
pub use quota::{OwnerQuotas, PoolUse, Quotas, Resource};
pub use record::{Artifact, ArtifactRole, AuthMethod, Grant, GrantEffect, GrantSource};
pub use refusal::{FirstAnswer, Refusal};
pub use retention::{ArtifactAge, ArtifactRetention, artifact_ids};
pub use retry::{Fallback, NextAttempt, RetryReason, RunChange};
pub use run::{
    AgentLimits, Budget, Limit, Mode, Place, Policy, RequestName, Run, RunLimits, RunOption, RunOptions,
    RunOutput, RunState, RunStatus,
};
pub use sandbox::{Enforcement, Sandbox, SandboxProfile, SandboxReach};
pub use session::{ExternalRef, LegacyAlias, Origin, Session, SessionStatus, TitleSource};
pub use state::{
    Expect, StateAuthor, StateChange, StateEntry, StateOutcome, StateScope, StateSlot, StateWriter,
    VersionMismatch,
};
pub use step::{OfferedTool, PromptRef, Step, StepInput, StopReason};
pub use task::{PlannedTask, Subtask, SubtaskStatus, Task, TaskStatus};
pub use time::Time;
pub use tool::{CallResult, ClientCall, ClientResult, ClientTool, ResultStatus};
pub use tree::{Line, Point, Range};
pub use usage::{Cost, Usage, UsageReports, UsageSum};
pub use wait::{Answer, Answerer, OnExpiry, Wait, WaitRequest};
pub use webhook::{DeadLetter, Delivery, Webhook};
