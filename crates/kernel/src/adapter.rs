//! Adapters: what drives one kind of agent runtime, and the handle the kernel gives it for one attempt.
//!
//! An adapter executes; the kernel decides. Through the handle an adapter streams, records and reads. Its authority
//! ends with the attempt: a late call is refused and counted, never applied.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
pub use mainspring_api::{Capabilities, RestartBehavior};
use mainspring_core::{
    Answer, Approval, Attempt, AttemptId, AuthMethod, Binding, Block, Budget, ClientCall, ClientResult,
    Digest, DigestAuthor, Failure, Fidelity, Grant, GrantId, Message, MessageId, Point, PromptRef, Run,
    Session, StopReason, Time, ToolOutcome, Usage, WaitId, WaitRequest,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::feed::DeltaError;
use crate::store::Effect;

mod handle;
pub use crate::kernel::NewArtifact;
pub use handle::AttemptHandle;
pub(crate) use handle::{HandleParts, Holder, Recording};

/// Drives one kind of agent runtime.
#[async_trait]
pub trait Adapter: Send + Sync + 'static {
    /// What it can do. The kernel relies on every word of it.
    fn capabilities(&self) -> Capabilities;

    /// Executes one attempt, or goes on with one that has waited: then [`AttemptHandle::answer`] says what came.
    ///
    /// If the future is dropped, the attempt has been given up; [`Adapter::kill`] is called next.
    async fn execute(&self, attempt: AttemptHandle) -> Executed;

    /// Passes the wish to stop on to the runtime and says what is known of it. [`AttemptHandle::cancelled`] has
    /// resolved before this is called, and `execute` is expected to return.
    async fn cancel(&self, attempt: AttemptId) -> Dispatch;

    /// Ends whatever still acts for an attempt whose `execute` was dropped, and says whether that is proven.
    async fn kill(&self, attempt: AttemptId) -> Death;

    /// Returns the login of the runtime; `None` if its agents need no authentication. Must agree with
    /// [`Capabilities::supports_authentication`].
    fn login(&self) -> Option<&dyn Login> {
        None
    }

    /// A native session is not going to be taken up soon, or ever: what a runtime holds for it may go. Does not wait.
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
    /// The attempt needs an answer; it is executed again with it.
    Waiting(Ask),
}

/// How an attempt ended.
#[derive(Debug)]
pub enum End {
    /// It did its work. What was streamed and not recorded is its last message.
    Succeeded {
        /// What was used since it was last recorded.
        usage: Usage,
    },
    /// It stopped before its work was done.
    Stopped {
        /// What was used since it was last recorded.
        usage: Usage,
    },
    /// It went wrong.
    Failed {
        /// How.
        error: Failure,
        /// Whether it might go right another time.
        retryable: bool,
        /// What was used since it was last recorded.
        usage: Usage,
    },
    /// The runtime no longer knows the native session: the run is tried again at once, with the next generation.
    Stale {
        /// What the runtime said.
        reason: String,
    },
}

impl End {
    /// It did its work.
    pub fn succeeded() -> Executed {
        Executed::Ended(Self::Succeeded { usage: Usage::default() })
    }

    /// It stopped before its work was done.
    pub fn stopped() -> Executed {
        Executed::Ended(Self::Stopped { usage: Usage::default() })
    }

    /// It went wrong.
    pub fn failed(error: Failure, retryable: bool) -> Executed {
        Executed::Ended(Self::Failed { error, retryable, usage: Usage::default() })
    }
}

/// A question to a person, or to the caller's tools.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// What kind of answer it takes.
    pub request: WaitRequest,
    /// The question.
    pub question: String,
    /// When it expires, or lapses; after the kernel's default if not given.
    pub expires_at: Option<Time>,
    /// For [`WaitRequest::Tools`]: the calls that the caller is to make.
    pub calls: Vec<ClientCall>,
    /// Results of other calls of the same message, which the answer holds again and which are kept if none comes.
    pub results: Vec<ClientResult>,
    /// What the adapter wants back with the answer.
    pub resume: Value,
}

impl Ask {
    /// A question, which expires after the kernel's default.
    pub fn new(request: WaitRequest, question: impl Into<String>) -> Self {
        let question = question.into();
        Self { request, question, expires_at: None, calls: vec![], results: vec![], resume: Value::Null }
    }

    /// Calls that the caller is to make.
    pub fn calls(calls: Vec<ClientCall>) -> Self {
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        let question = format!("What do your tools say: {}?", names.join(", "));
        Self { calls, ..Self::new(WaitRequest::Tools, question) }
    }
}

/// What earlier attempts of a run left of its tool calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EarlierCalls {
    /// Those that were begun, whether or not they have ended.
    pub begun: HashSet<String>,
    /// Results that the caller gave, and to which wait.
    pub given: Vec<(WaitId, ClientResult)>,
}

/// An answer, and what the adapter wanted back with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// What the adapter wanted back.
    pub resume: Value,
}

/// What is known of a wish to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// It was passed on.
    pub dispatched: bool,
    /// The runtime confirmed it.
    pub acknowledged: bool,
}

/// Whether nothing acts for an attempt any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Nothing does.
    Proven,
    /// That cannot be known, as with a remote agent.
    Unproven,
}

/// One thing an adapter makes durable. All of one call are durable together.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A new native session is ready: the attempt runs, and its prompt is what the native session hears next. Only for
    /// adapters that use bindings.
    Opened {
        /// The runtime's own id of it.
        native: Option<String>,
        /// What of it survives a restart of the runtime.
        fidelity: Fidelity,
        /// It was handed the text of the path.
        reconstructed: bool,
    },
    /// The native session of [`Assignment::binding`] is ready: the attempt runs.
    Resumed,
    /// A standing decision holds for this run.
    Granted(Box<Grant>),
    /// A permission was decided without asking anybody.
    Decided {
        /// What was asked.
        question: String,
        /// The decision.
        decision: Approval,
        /// The grant that says so.
        grant: Option<GrantId>,
    },
    /// The agent's message is whole: what was streamed, then `blocks`.
    Message {
        /// What was not streamed, such as tool calls.
        blocks: Vec<Block>,
        /// What it cost. A message that calls no tool says what its turn cost: this, and all since the one before.
        usage: Option<Usage>,
    },
    /// A model was called. After a [`Record::Message`] of the same call, that is what it made.
    Step(Box<StepTaken>),
    /// Older messages of the path are not shown to models any more.
    Compacted(Box<Compacted>),
    /// The user's side goes on by itself: the agent is asked again.
    Continued {
        /// What it is told.
        blocks: Vec<Block>,
    },
    /// The agent answered in the form it was asked for; null if it could not.
    Output {
        /// The answer.
        output: Value,
        /// Why there is none.
        error: Option<Failure>,
    },
    /// What the tools answered: the user's side.
    ToolResults {
        /// Tool results, in the order of the calls.
        blocks: Vec<Block>,
    },
    /// A tool call is about to run.
    ToolStarted {
        /// The call.
        tool_use_id: String,
        /// The tool.
        name: String,
        /// Its arguments, where no message holds them.
        input: Option<Value>,
    },
    /// A tool call reports.
    ToolUpdated {
        /// The call.
        tool_use_id: String,
        /// What it says.
        text: String,
    },
    /// A tool call succeeded.
    ToolCompleted {
        /// The call.
        tool_use_id: String,
    },
    /// A tool call failed.
    ToolFailed {
        /// The call.
        tool_use_id: String,
        /// How.
        outcome: ToolOutcome,
        /// Why.
        error: Failure,
    },
    /// How far the work is.
    Progress {
        /// For people.
        text: String,
    },
    /// What the session is about, in a few words: its title, unless a person has given it one.
    Title {
        /// At most 50 characters of it are taken.
        title: String,
    },
    /// Tokens and cost were spent.
    Usage(Usage),
}

/// What an adapter says of a model call; see [`mainspring_core::Step`].
#[derive(Debug, Clone, PartialEq)]
pub struct StepTaken {
    /// Its number within the run.
    pub no: u32,
    /// The agent definition.
    pub agent: String,
    /// Who ran the model.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The profile that named it.
    pub profile: Option<String>,
    /// What it was shown.
    pub prompt: PromptRef,
    /// The tool calls it made.
    pub tool_calls: Vec<String>,
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// What went wrong.
    pub error: Option<Failure>,
    /// What it used.
    pub usage: Usage,
    /// The same in the provider's own words.
    pub raw_usage: Value,
    /// When it was asked.
    pub started_at: Time,
    /// When its first piece came.
    pub first_piece_at: Option<Time>,
    /// What the provider demands back, until the run ends.
    pub private: Option<Value>,
    /// What the run may still use.
    pub budget: Option<Budget>,
}

/// What an adapter says of messages that models are not shown any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compacted {
    /// What models are told instead; when it was made is the kernel's to say.
    pub digest: Digest,
    /// The first of the messages that no digest stood for before.
    pub from: MessageId,
    /// How many of them there are.
    pub messages: u32,
    /// Who decided what the digest says.
    pub by: DigestAuthor,
    /// Tokens that the path came to before, by estimate.
    pub tokens_before: u64,
    /// Tokens that it comes to now, by estimate.
    pub tokens_after: u64,
}

/// The path as it is to be shown to a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// What stands for the older messages.
    pub digest: Option<Digest>,
    /// The last prompt, if it lies among those.
    pub prompt: Option<Arc<Message>>,
    /// The messages after those, each with its place, root first.
    pub messages: Vec<(Point, Arc<Message>)>,
}

/// Why a call of the handle was not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The attempt has no authority any more. Stop.
    #[error("the attempt has no authority any more")]
    Revoked,
    /// The call does not make sense, or the store could not take it. Nothing was recorded.
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

/// What an attempt is about, as of its start.
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
    /// The native session to take up; none where a new one must be opened.
    pub binding: Option<Binding>,
    /// The answer it waited for.
    pub answer: Option<Answered>,
    /// Tool calls that an earlier attempt began and that have no outcome.
    pub open_effects: Vec<Effect>,
    /// Resolves when the attempt shall stop.
    pub cancel: CancellationToken,
}
