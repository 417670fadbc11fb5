//! Dialects: how one kind of agent is spoken to, and what it takes to run one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mainspring_core::{AuthMethod, Failure, Grant, Run};
use mainspring_kernel::adapter::AttemptHandle;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::{Permissions, Rule, Rules};
use mainspring_kernel::tasks::Tasks;

use super::Turned;
use crate::pool::Worker;
use crate::process::{Launch, Log, Process};

/// The last of what an agent wrote to its standard error, in a failure.
const LAST_WORDS: usize = 500;

/// How to run one agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The adapter's name.
    pub name: String,
    /// The guard's command.
    pub guard: Vec<OsString>,
    /// Whose processes these are: what is left of them is found by it after a crash.
    pub scope: String,
    /// The agent's command.
    pub command: Vec<String>,
    /// What it finds in its environment besides what every agent does.
    pub env: Vec<(String, String)>,
    /// Variables of mainspring's own environment that it may see besides.
    pub pass_env: Vec<String>,
    /// Where runs work that name no folder.
    pub cwd: PathBuf,
    /// How many processes there are at once.
    pub max_processes: usize,
    /// How long an idle process is kept.
    pub idle: Duration,
    /// How long a start, or the opening of a session, may take.
    pub start_timeout: Duration,
    /// How long a process may take to end by itself.
    pub stop_grace: Duration,
    /// Who decides what it may do.
    pub permissions: Permissions,
    /// What is decided otherwise. Only for agents that say what they want to do.
    pub rules: Vec<Rule>,
    /// When what it writes to its standard error is kept.
    pub keep_log: KeepLog,
    /// The model of runs that name none; the agent's own if none.
    pub model: Option<String>,
}

/// When what an agent writes to its standard error is kept as an artifact of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepLog {
    /// When the attempt has failed.
    #[default]
    Failed,
    /// Always.
    Always,
}

/// How one kind of agent is spoken to.
pub(crate) trait Dialect: Send + Sync + 'static {
    /// One agent process.
    type Worker: Agent;
    /// A prompt as the agent gets it.
    type Prompt: Send;

    /// A native session keeps its process while there is room for others.
    const PINNED: bool;
    /// A prompt can join a turn that is under way.
    const STEERS: bool;
    /// Its agents may want to be authenticated.
    const AUTHENTICATES: bool;

    /// What the agent's command is given besides, for runs under these permissions. Processes that were given
    /// something else are not used for them.
    fn arguments(&self, permissions: Permissions) -> &'static [&'static str];

    /// The prompt of an attempt as the agent gets it.
    fn prompt(&self, attempt: &AttemptHandle) -> impl Future<Output = Result<Self::Prompt, Failure>> + Send;

    /// Starts an agent and greets it.
    fn start(
        &self,
        launch: &Launch,
        ground: &Ground,
    ) -> impl Future<Output = Result<Self::Worker, SetupError>> + Send;

    /// The ways to authenticate that the agent has named, once one has been started.
    fn auth_methods(&self) -> Vec<AuthMethod> {
        vec![]
    }

    /// Authenticates the agent by one of them, on a process of its own; those that are started later as well.
    fn authenticate(
        &self,
        _launch: &Launch,
        _ground: &Ground,
        method: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let message = format!("there is nothing to authenticate by {method:?}");
        async { Err(Failure::new("adapter_incompatible", message)) }
    }

    /// Opens a new native session in `cwd`, for `attempt`: its id.
    fn open(
        &self,
        worker: &Self::Worker,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<String, SetupError>> + Send;

    /// Takes up a native session that the process has not served last.
    fn resume(
        &self,
        worker: &Self::Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<(), Lost>> + Send;

    /// Makes a new native session that goes on from where `native` stands: its id. Only for agents that fork.
    fn fork(
        &self,
        worker: &Self::Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<String, Lost>> + Send;

    /// Lets the agent drop what it holds for a native session that it is not going to be asked for. Only for agents that
    /// close.
    fn close(&self, worker: &Self::Worker, native: &str) -> impl Future<Output = ()> + Send;

    /// Chooses what can be chosen of a native session: `model`, and what else the dialect knows of.
    fn choose(
        &self,
        worker: &Self::Worker,
        native: &str,
        run: &Run,
        model: Option<&str>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Prompts the agent and listens until it has ended its turn.
    fn play(&self, turn: Turn<'_, Self::Worker>, prompt: Self::Prompt)
    -> impl Future<Output = Turned> + Send;

    /// Passes the wish to stop on; false if the agent is gone.
    fn cancel(&self, worker: &Self::Worker, native: &str) -> bool;
}

/// One agent process that has been greeted.
pub(crate) trait Agent: Worker {
    /// It takes up native sessions of earlier processes.
    fn resumes(&self) -> bool;
    /// It makes a native session that goes on from another.
    fn forks(&self) -> bool;
    /// It drops what it holds for a native session when it is told to.
    fn closes(&self) -> bool;
    /// Its process.
    fn process(&self) -> &Process;
    /// Resolves once it is gone.
    fn gone(&self) -> impl Future<Output = ()> + Send;
}

/// What processes are started on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ground {
    /// For what belongs to processes: it ends when they have.
    pub(crate) tasks: Tasks,
    pub(crate) clock: Clock,
    /// Messages of agents that concerned no turn that was under way, or were not understood.
    pub(crate) ignored: Arc<AtomicU64>,
}

/// Why a native session was not taken up again.
pub(crate) enum Lost {
    /// The agent does not know it any more.
    Unknown(String),
    /// The agent cannot be given what the session needs.
    Refused(Failure),
    /// The agent is gone.
    Gone,
}

/// A turn that is about to be played.
pub(crate) struct Turn<'a, W> {
    pub(crate) attempt: &'a AttemptHandle,
    pub(crate) worker: Arc<W>,
    pub(crate) native: &'a str,
    /// Decides permissions; a person does if there is none.
    pub(crate) standing: Option<Grant>,
    /// Decides before that.
    pub(crate) rules: Arc<Rules>,
    /// How a command is run for the agent: in the session's folder, without what is the agent's alone.
    pub(crate) launch: Launch,
    pub(crate) ground: &'a Ground,
    /// The native session was opened for this turn.
    pub(crate) opened: bool,
    /// What it is told before the prompt.
    pub(crate) preface: Option<String>,
}

/// An agent could not be started, or its native session could not be opened.
#[derive(Debug)]
pub(crate) struct SetupError {
    pub(crate) failure: Failure,
    /// Another attempt may succeed.
    pub(crate) retryable: bool,
}

impl SetupError {
    /// A failure that another attempt may not meet.
    pub(crate) fn retryable(failure: Failure) -> Self {
        Self { failure, retryable: true }
    }
}

/// A failure that every attempt meets.
impl From<Failure> for SetupError {
    fn from(failure: Failure) -> Self {
        Self { failure, retryable: false }
    }
}

/// What to tell of an agent that is gone.
pub(crate) fn gone(agent: &impl Agent) -> Failure {
    let failure = Failure::new("transport_interruption", "the agent's process has ended");
    with_last_words(failure, agent.process().log())
}

/// What went wrong, and the last that the agent wrote to its standard error.
pub(crate) fn with_last_words(failure: Failure, log: &Log) -> Failure {
    let written = log.text();
    let words = written.trim();
    let from = words.char_indices().rev().nth(LAST_WORDS - 1).map_or(0, |(at, _)| at);
    match &words[from..] {
        "" => failure,
        words => Failure::new(failure.code, format!("{}; its last words: {words}", failure.message)),
    }
}
