//! The driver: everything that agents in their own processes have in common, independent of their protocol.
//!
//! ```text
//! attempt ─▶ worker from the pool ─▶ native session: the bound one resumed, a fork, or a new one ─▶ turn
//! ```
//!
//! The driver asks the agent for its capabilities. If the agent cannot resume a session of an ended process, the next
//! attempt opens a new native session with the messages of the path as text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mainspring_core::{
    AttemptId, AuthMethod, Failure, FailureCode, Fidelity, LeftProcess, RunOption, Sandbox, SandboxProfile,
};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Login, RestartBehavior,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::is_path;
use mainspring_kernel::policy::Rule;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;

use crate::pool::{Lease, Pool, PoolOptions, PooledWorker as _, WorkerKey};
use crate::process::{self, Launch, Log, ProcessId};
use crate::sandbox::{ProcessSandbox, SandboxOptions};

mod attachment;
mod attempt;
mod dialect;
mod files;
mod left_running;
mod lost_session;
mod model_error;
mod model_match;
mod preface;
mod session;
mod session_locks;
mod stderr_log;
mod tool_calls;
mod turn;
pub(crate) use attachment::read_attachment;
pub use dialect::{AgentOptions, KeepLog};
pub(crate) use dialect::{
    AgentWorker, Dialect, LoginDialect, ProcessContext, ResumeError, SetupError, TurnContext, process_ended,
    start_process, with_last_output,
};
pub(crate) use files::{FileContent, diff_block, file_name, output_blocks, store_file};
use left_running::LeftRunning;
pub(crate) use lost_session::Cause;
pub(crate) use model_error::ModelError;
pub(crate) use model_match::find_models;
use session_locks::SessionLocks;
pub(crate) use tool_calls::{StartedCall, ToolCalls};
pub(crate) use turn::{QuestionQueue, TOOL_UPDATE_INTERVAL_MS, TextBlocks, TurnOutcome, excerpt};

/// How long a login may take. A person may have to complete it in another program.
const LOGIN_TIMEOUT_MS: u64 = 10 * 60 * 1_000;
/// The pause after the first failed start of a process.
const START_BACKOFF_MS: u64 = 250;

/// Drives one agent, in as many processes as needed.
pub(crate) struct Driver<D: Dialect> {
    dialect: Arc<D>,
    options: AgentOptions,
    pool: Pool<D::Worker>,
    context: ProcessContext,
    active: Mutex<HashMap<AttemptId, ActiveAttempt<D::Worker>>>,
    session_locks: SessionLocks,
    /// Whether the agent can resume sessions; unknown before its first process.
    can_resume: Mutex<Option<bool>>,
    sandbox: Arc<SandboxOptions>,
    /// The sandbox of runs that may act.
    acting_sandbox: Sandbox,
    /// The processes that turns left running.
    left_running: LeftRunning,
}

/// An attempt that has a worker.
struct ActiveAttempt<W> {
    worker: Arc<W>,
    /// The native session that the worker prompts, once the session is open.
    native: Option<String>,
    /// The native session the worker served before.
    previous_native: Option<String>,
}

/// Why an attempt ended without a turn outcome.
enum AttemptError {
    Cancelled,
    /// The failure, and whether it is retryable.
    Failed(Failure, bool),
    /// The agent no longer has the native session.
    Stale {
        reason: String,
        /// Whether the state of the agent's process is unknown.
        is_broken: bool,
    },
    Handle(HandleError),
}

impl From<HandleError> for AttemptError {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

impl From<SetupError> for AttemptError {
    fn from(error: SetupError) -> Self {
        Self::Failed(error.failure, error.retryable)
    }
}

impl<D: Dialect> Driver<D> {
    /// Creates a driver without processes; the first attempt starts one.
    pub(crate) fn new(dialect: D, options: AgentOptions, clock: Clock) -> Self {
        let pool = PoolOptions {
            max_workers: options.max_processes,
            idle_ms: to_millis(options.idle),
            backoff_ms: START_BACKOFF_MS,
            pinned: D::PINS_PROCESS,
        };
        Self {
            pool: Pool::new(pool, clock.clone(), Tasks::default()),
            context: ProcessContext { tasks: Tasks::default(), clock, ignored: Arc::default() },
            dialect: Arc::new(dialect),
            sandbox: Arc::new(options.sandbox.clone()),
            acting_sandbox: options
                .sandbox
                .decide(options.permissions, options.permissions, &options.cwd)
                .unwrap_or_else(|failure| Sandbox::none(Some(failure.message))),
            options,
            active: Mutex::default(),
            session_locks: SessionLocks::default(),
            can_resume: Mutex::default(),
            left_running: LeftRunning::default(),
        }
    }

    /// Waits for the time that an agent may take to start.
    fn start_timeout(&self) -> impl Future<Output = ()> + Send + use<D> {
        self.context.clock.sleep_for(to_millis(self.options.start_timeout))
    }

    fn timeout_failure(&self, action: &str) -> Failure {
        let waited = self.options.start_timeout.as_millis();
        let message = format!("the agent did not {action} within {waited} ms, its start_timeout_ms");
        Failure::new(FailureCode::Timeout, message)
    }

    /// The parameters of the process that `attempt` starts. An attempt starts at most one, so the attempt's id names it.
    fn launch(&self, attempt: AttemptId, key: &WorkerKey) -> Launch {
        let options = &self.options;
        let arguments = key.arguments.iter().map(|argument| (*argument).to_owned());
        Launch {
            guard: options.guard.clone(),
            command: options.command.iter().cloned().chain(arguments).collect(),
            env: options.env.clone(),
            pass_env: options.pass_env.clone(),
            cwd: key.cwd.clone(),
            grace: options.stop_grace,
            scope: options.scope.clone(),
            name: attempt.to_string(),
            log: Log::new(self.secrets()),
            supervision: options.supervision,
            endpoint: None,
            sandbox: Some(ProcessSandbox {
                options: match &key.reach {
                    Some(reach) => Arc::new(self.sandbox.within(reach)),
                    None => self.sandbox.clone(),
                },
                profile: key.sandbox,
                folder: key.cwd.clone(),
                command: options.command.clone(),
                env: options.env.clone(),
                pass_env: options.pass_env.clone(),
            }),
        }
    }

    /// The value of the mark variable in the process that `attempt` starts.
    fn mark(&self, attempt: AttemptId) -> String {
        process::mark(&self.options.scope, &attempt.to_string())
    }
}

/// An adapter whose agents run in processes.
#[async_trait]
pub(crate) trait ProcessDriver: Adapter {
    /// The number of processes, and how many of them are idle.
    fn processes(&self) -> (usize, usize);
    /// The number of agent messages that belonged to no current turn or could not be parsed.
    fn ignored(&self) -> u64;
    /// Stops every process and refuses to start others.
    async fn close(&self);
}

#[async_trait]
impl<D: Dialect> ProcessDriver for Driver<D> {
    fn processes(&self) -> (usize, usize) {
        self.pool.size()
    }

    fn ignored(&self) -> u64 {
        self.context.ignored.load(Ordering::Relaxed)
    }

    async fn close(&self) {
        self.pool.close().await;
        self.context.tasks.stop();
        self.context.tasks.wait().await;
    }
}

#[async_trait]
impl<D: LoginDialect> Login for Driver<D> {
    fn methods(&self) -> Vec<AuthMethod> {
        self.dialect.auth_methods()
    }

    async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        let permissions = self.options.permissions;
        // The login runs without a sandbox: a person has requested it, and it may have to write anywhere, such as into
        // a key ring.
        let key = WorkerKey {
            owner: String::new(),
            cwd: self.options.cwd.clone(),
            arguments: self.dialect.arguments(permissions),
            sandbox: SandboxProfile::Off,
            reach: None,
        };
        // A login belongs to no attempt; its process ends with it.
        let launch = Launch { name: "login".into(), ..self.launch(AttemptId::from_bytes([0; 16]), &key) };
        tokio::select! {
            done = self.dialect.authenticate(&launch, &self.context, method) => done,
            () = self.context.clock.sleep_for(LOGIN_TIMEOUT_MS) => {
                Err(Failure::new(FailureCode::Timeout, "the login was not completed within ten minutes"))
            }
        }
    }
}

#[async_trait]
impl<D: Dialect> Adapter for Driver<D> {
    fn rules(&self) -> &[Rule] {
        &self.options.rules
    }

    fn otherwise(&self) -> Vec<Rule> {
        self.options.permissions.as_rules()
    }

    fn check_profile(&self, profile: &str) -> Result<(), String> {
        // An adapter without profiles does not use the option at all.
        match self.options.profiles.is_empty() || self.options.profiles.contains_key(profile) {
            true => Ok(()),
            false => Err(self.unknown_profile(profile)),
        }
    }

    fn check_native(&self, native: &str) -> Result<(), String> {
        match D::NATIVE_IS_PATH && is_path(native) {
            false => Ok(()),
            true => Err(format!(
                "the agent would open the file {native:?} as its session: sessions of this adapter are not adopted by path"
            )),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let native = self.can_resume.lock().unwrap_or(false);
        Capabilities {
            adapter: self.options.name.clone(),
            resume_fidelity: fidelity(native),
            supports_native_resume: native,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: D::PINS_PROCESS || !native,
            in_process: false,
            supports_model_switching: true,
            supports_artifact_emission: true,
            supports_tools: true,
            supports_client_tools: false,
            supports_steering: D::CAN_STEER,
            restart_behavior: match native {
                true => RestartBehavior::NativeBindingsSurvive,
                false => RestartBehavior::ProcessLocalBindingsStale,
            },
            uses_bindings: true,
            supports_authentication: D::login(self).is_some(),
            keeps_limits: false,
            limits_tools: false,
            options: match self.options.profiles.is_empty() {
                true => vec![RunOption::SystemPrompt, RunOption::Model],
                false => vec![RunOption::SystemPrompt, RunOption::Model, RunOption::ModelProfile],
            },
            usage_reports: D::USAGE_REPORTS,
            sandbox: Some(self.acting_sandbox.clone()),
            supervision: Some(self.options.supervision),
            unavailable: None,
        }
    }

    fn unavailable(&self) -> Option<String> {
        let AgentOptions { command, env, pass_env, cwd, .. } = &self.options;
        let program = process::missing_program(command, env, pass_env, cwd)?;
        Some(format!("there is no program {program:?}; install it, or change the adapter's command"))
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let log = Mutex::default();
        let result = Box::pin(self.run_attempt(&attempt, &log)).await;
        let failed = match &result {
            Ok(end) => matches!(end, End::Failed { .. }),
            Err(error) => matches!(error, AttemptError::Failed(..) | AttemptError::Stale { .. }),
        };
        if failed || self.options.keep_log == KeepLog::Always {
            let log = log.lock().take();
            if let Some(log) = log {
                self.keep_log(&attempt, &log).await;
            }
        }
        // If this future is dropped instead, the worker stays registered for `kill`.
        self.active.lock().remove(&attempt.id());
        Executed::Ended(match result {
            Ok(end) => end,
            // The kernel ignores the result of a revoked attempt.
            Err(AttemptError::Cancelled | AttemptError::Handle(HandleError::Revoked)) => {
                return End::stopped();
            }
            Err(AttemptError::Stale { reason, .. }) => End::Stale { reason },
            Err(AttemptError::Failed(error, retryable)) => return End::failed(error, retryable),
            Err(AttemptError::Handle(HandleError::Kernel(error))) => {
                return End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable());
            }
        })
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        let dispatched = match self.active.lock().get(&attempt) {
            Some(ActiveAttempt { worker, native: Some(native), .. }) => self.dialect.cancel(worker, native),
            // The turn has not begun. `execute` watches the cancellation itself.
            _ => true,
        };
        Dispatch { dispatched, acknowledged: false }
    }

    fn login(&self) -> Option<&dyn Login> {
        D::login(self)
    }

    fn left_running(&self, attempt: AttemptId) -> Vec<LeftProcess> {
        self.left_running.list(attempt).into_iter().map(ProcessId::describe).collect()
    }

    async fn end_left_running(&self, attempt: AttemptId) {
        self.left_running.end(attempt, &self.context.clock).await;
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        let active = self.active.lock().remove(&attempt);
        let worker = match active {
            Some(active) => active.worker.kill().await,
            None => Death::Proven,
        };
        // The future may have been dropped while a process started or terminal commands ran. Their guards end them.
        let mark = self.mark(attempt);
        let others = process::wait_until_gone(&mark, &self.context.clock).await;
        if worker == Death::Proven { others } else { worker }
    }

    fn forget(&self, native: &str) {
        let idle = self.pool.take_idle(native);
        let served_before = |active: &&ActiveAttempt<D::Worker>| {
            active.previous_native.as_deref() == Some(native) && active.native.as_deref() != Some(native)
        };
        let busy = self.active.lock().values().find(served_before).map(|active| active.worker.clone());
        let worker = idle.as_ref().map(Lease::worker).or(busy);
        let Some(worker) = worker.filter(|worker| worker.can_close()) else {
            idle.into_iter().for_each(|lease| lease.release(None));
            return;
        };
        let (dialect, timeout) = (self.dialect.clone(), self.start_timeout());
        let (native, tasks) = (native.to_owned(), self.pool.tasks().clone());
        self.pool.tasks().spawn(async move {
            tokio::select! {
                () = dialect.close(&worker, &native) => {}
                () = worker.disconnected() => {}
                () = tasks.stopping() => {}
                () = timeout => {}
            }
            idle.into_iter().for_each(|lease| lease.release(None));
        });
    }
}

/// A failure that is not retryable.
fn permanent(code: impl Into<FailureCode>, message: String) -> AttemptError {
    AttemptError::Failed(Failure::new(code, message), false)
}

/// How much of a native session survives its process. Without resume, the next native session gets the path that the
/// kernel has stored.
fn fidelity(can_resume: bool) -> Fidelity {
    if can_resume { Fidelity::Native } else { Fidelity::Reconstructed }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
