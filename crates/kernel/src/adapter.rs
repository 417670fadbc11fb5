//! Adapters: drivers of agent runtimes, and the handle the kernel gives them for one attempt.
//!
//! An adapter executes; the kernel decides. Through the handle an adapter streams, records and reads. Its authority
//! ends with the attempt: a late call is refused and counted, never applied.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
pub use mainspring_api::{Capabilities, RestartBehavior};
use mainspring_core::{
    Answer, ApprovalRequest, Attempt, AttemptId, AuthMethod, Binding, ClientCall, ClientResult, Delegation,
    Digest, Failure, LeftProcess, Message, Point, Replies, Run, Session, Time, Usage, WaitId, WaitRequest,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::feed::DeltaError;
use crate::policy::{Layers, Rule};
use crate::store::OpenToolCall;

mod checkpoint;
mod handle;
mod memory;
mod record;
pub use crate::kernel::NewArtifact;

/// The metadata key of an artifact with output of an agent's process. The value names the output stream.
pub const STREAM_KEY: &str = "stream";
/// The value of [`STREAM_KEY`] for the standard error.
pub const STDERR_STREAM: &str = "stderr";
pub use checkpoint::MAX_CHECKPOINT_BYTES;
pub use handle::AttemptHandle;
pub(crate) use handle::{AskReply, HandleParts, HandleReply};
pub use memory::SessionMemory;
pub use record::{Compacted, Record, RuntimeFacts, StepTaken};

/// Drives one kind of agent runtime.
#[async_trait]
pub trait Adapter: Send + Sync + 'static {
    /// Describes the adapter's capabilities. The kernel relies on them, so they must be exact.
    fn capabilities(&self) -> Capabilities;

    /// Returns the reason why no agent can start now, if one is known without starting an agent. Called only when adapters
    /// are listed, so it may read files.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Checks the model profile of a run before the run is accepted. An error names the existing profiles.
    fn check_profile(&self, _profile: &str) -> Result<(), String> {
        Ok(())
    }

    /// Checks the id of a native session that a caller names. An error says why the adapter opens no such session.
    fn check_native(&self, _native: &str) -> Result<(), String> {
        Ok(())
    }

    /// The rules about the agents of this adapter.
    fn rules(&self) -> &[Rule] {
        &[]
    }

    /// The adapter's decisions on actions that no rule matches, as rules; empty if the adapter allows them all. They also
    /// limit the runs that the adapter's runs delegate.
    fn otherwise(&self) -> Vec<Rule> {
        vec![]
    }

    /// Executes one attempt, or continues one that has waited: then [`AttemptHandle::answer`] holds the answer.
    ///
    /// Dropping the future abandons the attempt; the kernel calls [`Adapter::kill`] next.
    async fn execute(&self, attempt: AttemptHandle) -> Executed;

    /// Tells the runtime to stop an attempt, and reports how far the cancellation got. [`AttemptHandle::cancelled`] has
    /// resolved before this is called, and `execute` is expected to return soon.
    async fn cancel(&self, attempt: AttemptId) -> Dispatch;

    /// Stops everything that still acts for an attempt whose `execute` was dropped. Reports whether it is certain that
    /// nothing acts for the attempt any more.
    async fn kill(&self, attempt: AttemptId) -> Death;

    /// Returns the login of the runtime; `None` if its agents need no authentication. Must agree with
    /// [`Capabilities::supports_authentication`].
    fn login(&self) -> Option<&dyn Login> {
        None
    }

    /// Lists the processes that the turn of an attempt left running and that still run. Empty for an adapter without
    /// processes.
    fn left_running(&self, _attempt: AttemptId) -> Vec<LeftProcess> {
        vec![]
    }

    /// Ends the processes of [`Adapter::left_running`].
    async fn end_left_running(&self, _attempt: AttemptId) {}

    /// Releases the resources of a native session that will not be resumed soon. Returns at once.
    fn forget(&self, native: &str);
}

/// Authenticates the runtime of an adapter.
#[async_trait]
pub trait Login: Send + Sync {
    /// Returns the authentication methods that the runtime offers; empty before its first process has started.
    fn methods(&self) -> Vec<AuthMethod>;

    /// Authenticates the runtime with one of these methods.
    async fn authenticate(&self, method: &str) -> Result<(), Failure>;
}

/// How an execution returned.
#[derive(Debug)]
pub enum Executed {
    /// The attempt has ended.
    Ended(End),
    /// The attempt waits for an answer, and is executed again with it.
    Waiting(Ask),
}

/// How an attempt ended.
#[derive(Debug)]
pub enum End {
    /// The attempt completed its work. Streamed text that was not recorded becomes its last message.
    Succeeded {
        /// Usage since the last record.
        usage: Usage,
    },
    /// The attempt stopped before its work was done.
    Stopped {
        /// Usage since the last record.
        usage: Usage,
    },
    /// The attempt failed.
    Failed {
        /// The failure.
        error: Failure,
        /// Whether another attempt may succeed.
        retryable: bool,
        /// Usage since the last record.
        usage: Usage,
    },
    /// The runtime no longer has the native session: the run is retried at once, with the next generation.
    Stale {
        /// Message of the runtime.
        reason: String,
    },
}

impl End {
    /// A success without further usage.
    pub fn succeeded() -> Executed {
        Executed::Ended(Self::Succeeded { usage: Usage::default() })
    }

    /// A stop without further usage.
    pub fn stopped() -> Executed {
        Executed::Ended(Self::Stopped { usage: Usage::default() })
    }

    /// A failure without further usage.
    pub fn failed(error: Failure, retryable: bool) -> Executed {
        Executed::Ended(Self::Failed { error, retryable, usage: Usage::default() })
    }
}

/// A question to a person, or calls of the caller's tools.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Kind of answer.
    pub request: WaitRequest,
    /// The question.
    pub question: String,
    /// When the question expires; after the kernel's default time if not given.
    pub expires_at: Option<Time>,
    /// For [`WaitRequest::Tools`]: the calls that the caller executes.
    pub calls: Vec<ClientCall>,
    /// Results of other calls of the same message. The answer includes them, and they are kept if no answer comes.
    pub results: Vec<ClientResult>,
    /// Data of the adapter that is returned with the answer.
    pub resume: Value,
    /// The reply to the agent for each decision, for [`WaitRequest::Approval`].
    pub replies: Option<Replies>,
    /// The request as data, for [`WaitRequest::Approval`]. Without it, the request can only be allowed once or
    /// denied.
    pub approval: Option<Box<ApprovalRequest>>,
}

impl Ask {
    /// A question that expires after the kernel's default time.
    pub fn new(request: WaitRequest, question: impl Into<String>) -> Self {
        let question = question.into();
        let (calls, results, resume) = (vec![], vec![], Value::Null);
        let (replies, approval) = (None, None);
        Self { request, question, expires_at: None, calls, results, resume, replies, approval }
    }

    /// Calls that the caller executes.
    pub fn calls(calls: Vec<ClientCall>) -> Self {
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        let question = format!("What do your tools say: {}?", names.join(", "));
        Self { calls, ..Self::new(WaitRequest::Tools, question) }
    }
}

/// The tool calls of a run so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EarlierCalls {
    /// Ids of the calls that were begun, ended or not.
    pub begun: HashSet<String>,
    /// Results that the caller gave, each with its wait.
    pub given: Vec<(WaitId, ClientResult)>,
}

/// An answer, with the adapter's data from the question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// The `resume` of the question.
    pub resume: Value,
}

/// How far a cancellation got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// The cancellation was passed on to the runtime.
    pub dispatched: bool,
    /// The runtime confirmed the cancellation.
    pub acknowledged: bool,
}

/// Whether a killed attempt is proven dead: no process acts for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Nothing acts for the attempt any more.
    Proven,
    /// Unknown, as with a remote agent.
    Unproven,
}

/// The path as a model sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// The digest that replaces the older messages.
    pub digest: Option<Digest>,
    /// The last prompt, if the digest covers it.
    pub prompt: Option<Arc<Message>>,
    /// The messages after the digest, each with its point, root first.
    pub messages: Vec<(Point, Arc<Message>)>,
}

/// Why a call of the handle was not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The attempt has lost its authority. Stop.
    #[error("the attempt has no authority any more")]
    Revoked,
    /// The call is invalid, or the store failed. Nothing was recorded.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl From<DeltaError> for HandleError {
    fn from(error: DeltaError) -> Self {
        match error {
            DeltaError::Revoked => Self::Revoked,
            DeltaError::TooLarge(limit) => {
                Self::Kernel(Error::TooLarge { what: "message", size: limit + 1, limit })
            }
        }
    }
}

/// The input of an execution of an attempt, as of the start of the execution.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The session.
    pub session: Arc<Session>,
    /// The run.
    pub run: Arc<Run>,
    /// The attempt.
    pub attempt: Arc<Attempt>,
    /// The user message to answer.
    pub prompt: Arc<Message>,
    /// The native session to resume; none if a new one must be opened.
    pub binding: Option<Binding>,
    /// The answer, if the attempt has waited for one.
    pub answer: Option<Answered>,
    /// Tool calls of the run whose results are in no message yet: calls without an outcome, and finished calls of a
    /// round that has unfinished ones.
    pub open_tool_calls: Vec<OpenToolCall>,
    /// Cancelled when the attempt must stop.
    pub cancel: CancellationToken,
    /// The rules about what the agent may do.
    pub rules: Arc<Layers>,
    /// Data of an embedder that lives as long as the session is in memory.
    pub memory: SessionMemory,
    /// The delegation that the run carries out, unless it is settled.
    pub delegation: Option<Box<Delegation>>,
}
