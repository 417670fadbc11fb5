//! Dialects: the protocol of one kind of agent, and the options for running one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mainspring_core::{AuthMethod, Failure, FailureCode, Grant, Run, Supervision, UsageReports};
use mainspring_kernel::adapter::{AttemptHandle, Login, Record, RuntimeFacts};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::folders::Folders;
use mainspring_kernel::policy::{Permissions, Rule, Rules};
use mainspring_kernel::tasks::Tasks;
use serde_json::{Map, Value};

use super::{Driver, TurnOutcome};
use crate::endpoint::RelayOptions;
use crate::pool::PooledWorker;
use crate::process::{Launch, Log, Pipes, Process};
use crate::sandbox::SandboxOptions;

/// How many characters of an agent's log a failure's message quotes.
const LAST_OUTPUT_CHARS: usize = 500;

/// How to run one agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The adapter's name.
    pub name: String,
    /// The guard's command.
    pub guard: Vec<OsString>,
    /// Identifies this mainspring instance. After a crash, the next instance finds leftover processes by this scope.
    pub scope: String,
    /// The agent's command.
    pub command: Vec<String>,
    /// Additional variables of the agent's environment.
    pub env: Vec<(String, String)>,
    /// Names of further variables to copy from mainspring's own environment.
    pub pass_env: Vec<String>,
    /// The working directory of runs that name none.
    pub cwd: PathBuf,
    /// Whether an operator has chosen `cwd`. If not, it must lie in the folders of the run's caller.
    pub is_cwd_configured: bool,
    /// The folders in which agents may work.
    pub folders: Folders,
    /// The maximum number of processes.
    pub max_processes: usize,
    /// How long an idle process is kept.
    pub idle: Duration,
    /// How long starting a process, or opening a session, may take.
    pub start_timeout: Duration,
    /// How long a process may take to exit by itself.
    pub stop_grace: Duration,
    /// The policy for permissions that no rule decides.
    pub permissions: Permissions,
    /// Exceptions to `permissions`. Only for agents whose requests describe the action.
    pub rules: Vec<Rule>,
    /// When the agent's log is kept.
    pub keep_log: KeepLog,
    /// The model of runs that name none. `None` leaves the choice to the agent.
    pub model: Option<String>,
    /// The agent's models by the names of logical profiles.
    pub profiles: BTreeMap<String, String>,
    /// How the agent's processes are confined.
    pub sandbox: SandboxOptions,
    /// The processes that the agent's guards end.
    pub supervision: Supervision,
    /// How the agent's calls are answered.
    pub relay: RelayOptions,
}

/// When an agent's log is kept as an artifact of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepLog {
    /// If the attempt failed.
    #[default]
    Failed,
    /// Always.
    Always,
}

/// The protocol of agents that may require authentication.
pub(crate) trait LoginDialect: Dialect {
    /// The authentication methods the agent offers; empty before its first process.
    fn auth_methods(&self) -> Vec<AuthMethod>;

    /// Authenticates with one of these methods in a separate process. Processes that start later are authenticated, too.
    fn authenticate(
        &self,
        launch: &Launch,
        context: &ProcessContext,
        method: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The protocol of one kind of agent.
pub(crate) trait Dialect: Send + Sync + Sized + 'static {
    /// One agent process.
    type Worker: AgentWorker;
    /// A prompt in the agent's format.
    type Prompt: Send;

    /// Whether a native session keeps its process as long as the pool may start others.
    const PINS_PROCESS: bool;
    /// Whether a prompt can join a running turn.
    const CAN_STEER: bool;
    /// When the agent reports the usage of a turn.
    const USAGE_REPORTS: UsageReports;
    /// Whether a native id can be a path, which the agent opens as its session. A caller may not adopt such an id.
    const NATIVE_IS_PATH: bool = false;
    /// Whether a process that survives a cancelled turn is sure to remember the prompt of that turn.
    const KEEPS_CANCELLED_PROMPT: bool;

    /// Returns the driver's login; `None` if these agents need no authentication.
    fn login(driver: &Driver<Self>) -> Option<&dyn Login>;

    /// Additional arguments of the agent's command for runs under these permissions. A process serves only runs with
    /// the same arguments.
    fn arguments(&self, permissions: Permissions) -> &'static [&'static str];

    /// Converts the prompt of an attempt to the agent's format.
    fn prompt(&self, attempt: &AttemptHandle) -> impl Future<Output = Result<Self::Prompt, Failure>> + Send;

    /// Starts an agent process and initialises the connection.
    fn start(
        &self,
        launch: &Launch,
        context: &ProcessContext,
    ) -> impl Future<Output = Result<Self::Worker, SetupError>> + Send;

    /// Opens a new native session in `cwd` for `attempt`. Returns its id.
    fn open(
        &self,
        worker: &Self::Worker,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<String, SetupError>> + Send;

    /// Resumes a native session that the process did not serve last.
    fn resume(
        &self,
        worker: &Self::Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<(), ResumeError>> + Send;

    /// Forks `native` into a new native session. Returns its id. Called only if [`AgentWorker::can_fork`].
    fn fork(
        &self,
        worker: &Self::Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> impl Future<Output = Result<String, ResumeError>> + Send;

    /// Requests that the agent frees a native session that is not needed soon. Called only if
    /// [`AgentWorker::can_close`].
    fn close(&self, worker: &Self::Worker, native: &str) -> impl Future<Output = ()> + Send;

    /// Sets the model of a native session and other settings that the dialect knows. Returns the model that the agent
    /// uses now, if it says so.
    fn configure(
        &self,
        worker: &Self::Worker,
        native: &str,
        run: &Run,
        model: Option<&str>,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send;

    /// Prompts the agent and processes its messages until the turn ends.
    fn run_turn(
        &self,
        turn: TurnContext<'_, Self::Worker>,
        prompt: Self::Prompt,
    ) -> impl Future<Output = TurnOutcome> + Send;

    /// Asks the agent to stop its turn. Returns false if the connection is closed.
    fn cancel(&self, worker: &Self::Worker, native: &str) -> bool;
}

/// One agent process with an initialised connection.
pub(crate) trait AgentWorker: PooledWorker {
    /// Whether the agent can resume native sessions of earlier processes.
    fn can_resume(&self) -> bool;
    /// Whether the agent can fork a native session.
    fn can_fork(&self) -> bool;
    /// Whether the agent can free a native session on request.
    fn can_close(&self) -> bool;
    /// The agent's process.
    fn process(&self) -> &Process;
    /// The name and version of the agent, if the agent gives them.
    fn agent_info(&self) -> Option<Value>;
    /// Describes the output of the agent that ended the connection, such as a line that is too long.
    fn fault(&self) -> Option<&'static str>;
    /// Waits until the process has ended or the connection is closed. The log is complete then, unless the agent's own
    /// output ended the connection.
    fn disconnected(&self) -> impl Future<Output = ()> + Send;
}

/// The services that agent processes share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ProcessContext {
    /// The background tasks of the processes. A task ends with its process.
    pub(crate) tasks: Tasks,
    pub(crate) clock: Clock,
    /// Counts agent messages that belonged to no current turn or could not be parsed.
    pub(crate) ignored: Arc<AtomicU64>,
}

/// Why a native session was not resumed or forked.
pub(crate) enum ResumeError {
    /// The agent no longer knows the session.
    Unknown(String),
    /// The agent cannot provide something that the session needs.
    Refused(Failure),
    /// The agent has closed the connection.
    Disconnected,
}

/// Everything a dialect needs to run one turn.
pub(crate) struct TurnContext<'a, W> {
    pub(crate) attempt: &'a AttemptHandle,
    pub(crate) worker: Arc<W>,
    pub(crate) native: &'a str,
    /// Decides permissions that no rule decides. `None` means that a person decides.
    pub(crate) default_grant: Option<Grant>,
    /// Rules that decide permissions first.
    pub(crate) rules: Arc<Rules>,
    /// Parameters for commands run on the agent's behalf: in the session's folder, without the agent's own variables.
    pub(crate) launch: Launch,
    /// The session's folder, with its links resolved, and the folders in which agents may work.
    pub(crate) folder: PathBuf,
    pub(crate) folders: &'a Folders,
    pub(crate) context: &'a ProcessContext,
    /// Whether the native session was opened for this turn.
    pub(crate) is_new_session: bool,
    /// Text to send before the prompt.
    pub(crate) preface: Option<String>,
}

impl<W> TurnContext<'_, W> {
    /// Records facts about the execution when it ends.
    pub(crate) async fn record_at_end(&self, facts: RuntimeFacts) {
        // A revoked attempt has recorded its end already.
        let _ = self.attempt.record_at_end(vec![Record::Runtime(Box::new(facts))]).await;
    }

    /// Records why the agent ended its turn, as the agent reports it.
    pub(crate) async fn record_stop_reason(&self, reason: &str) {
        let metadata = Map::from_iter([("stopReason".to_owned(), reason.into())]);
        self.record_at_end(RuntimeFacts { metadata, ..RuntimeFacts::default() }).await;
    }
}

/// Why an agent could not be started, or its native session not opened.
#[derive(Debug)]
pub(crate) struct SetupError {
    pub(crate) failure: Failure,
    /// Whether another attempt may succeed.
    pub(crate) retryable: bool,
}

impl SetupError {
    pub(crate) fn retryable(failure: Failure) -> Self {
        Self { failure, retryable: true }
    }
}

/// Makes an error that is not retryable.
impl From<Failure> for SetupError {
    fn from(failure: Failure) -> Self {
        Self { failure, retryable: false }
    }
}

/// Starts the agent's process. A command that does not exist is not tried again.
pub(crate) fn start_process(
    launch: &Launch,
    context: &ProcessContext,
) -> Result<(Process, Pipes), SetupError> {
    if let Some(command) = launch.missing_command() {
        let message =
            format!("the command {command:?} was not found; install it, or mend the adapter's `command`");
        return Err(Failure::new(FailureCode::AdapterUnavailable, message).into());
    }
    Process::start(launch, &context.tasks, &context.clock).map_err(|error| {
        SetupError::retryable(Failure::new(FailureCode::AdapterUnavailable, error.to_string()))
    })
}

/// The failure of an attempt whose agent process has ended, or sent something that ended the connection.
pub(crate) fn process_ended(worker: &impl AgentWorker) -> Failure {
    let message = match worker.fault() {
        Some(fault) => format!("the connection was closed because the agent {fault}"),
        None => "the agent's process has ended".into(),
    };
    let failure = Failure::new(FailureCode::TransportInterruption, message);
    with_last_output(failure, worker.process().log())
}

/// Appends the end of the agent's log to the failure's message.
pub(crate) fn with_last_output(failure: Failure, log: &Log) -> Failure {
    let text = log.text();
    let text = text.trim();
    let start = text.char_indices().rev().nth(LAST_OUTPUT_CHARS - 1).map_or(0, |(index, _)| index);
    match &text[start..] {
        "" => failure,
        output => Failure::new(failure.code, format!("{}; its last output: {output}", failure.message)),
    }
}
