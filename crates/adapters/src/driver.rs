//! The driver: everything that agents in their own processes have in common, independent of their protocol.
//!
//! ```text
//! attempt ─▶ worker from the pool ─▶ native session: the bound one resumed, a fork, or a new one ─▶ turn
//! ```
//!
//! The driver asks the agent what it can do. An agent that cannot resume a session of an earlier process gets a new
//! native session with the text of the path whenever the process that had the old one has ended.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mainspring_core::{AttemptId, AuthMethod, Binding, Failure, Fidelity, Time};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Login, Record,
    RestartBehavior,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::{Permissions, Rules};
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;

use crate::pool::{LastSession, Lease, Pool, PoolOptions, PooledWorker as _, WorkerKey};
use crate::process::{self, Launch, Log, check_folder};

mod attachment;
mod dialect;
mod preface;
mod session;
mod session_locks;
mod stderr_log;
mod turn;
pub(crate) use attachment::read_attachment;
pub use dialect::{AgentOptions, KeepLog};
pub(crate) use dialect::{
    AgentWorker, Dialect, LoginDialect, ProcessContext, ResumeError, SetupError, TurnContext, process_ended,
    with_last_output,
};
use session::SessionStart;
use session_locks::SessionLocks;
pub(crate) use turn::{QuestionQueue, TextBlocks, TurnOutcome, excerpt};

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
}

/// An attempt that has a worker.
struct ActiveAttempt<W> {
    worker: Arc<W>,
    /// The native session it prompts, once that is open.
    native: Option<String>,
    /// The native session the worker served before.
    previous_native: Option<String>,
}

/// Why an attempt ended without a turn outcome.
enum AttemptError {
    Cancelled,
    /// The failure, and whether it is retryable.
    Failed(Failure, bool),
    /// The agent no longer knows the native session.
    Stale(String),
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
            pinned: D::PINNED,
        };
        Self {
            pool: Pool::new(pool, clock.clone(), Tasks::default()),
            context: ProcessContext { tasks: Tasks::default(), clock, ignored: Arc::default() },
            dialect: Arc::new(dialect),
            options,
            active: Mutex::default(),
            session_locks: SessionLocks::default(),
            can_resume: Mutex::default(),
        }
    }

    /// Executes an attempt. Sets `log` to the log of its process as soon as it has one.
    async fn run_attempt(
        &self,
        attempt: &AttemptHandle,
        log: &Mutex<Option<Log>>,
    ) -> Result<End, AttemptError> {
        let assignment = attempt.assignment();
        let cwd = assignment.run.options.cwd.as_ref().map_or_else(|| self.options.cwd.clone(), PathBuf::from);
        check_folder(&cwd).map_err(|error| permanent("invalid_request", error.to_string()))?;
        let prompt =
            self.dialect.prompt(attempt).await.map_err(|failure| AttemptError::Failed(failure, false))?;
        let bound = assignment.binding.as_ref().and_then(|binding| binding.native.clone());
        // The lock keeps other attempts from forking the session meanwhile.
        let _lock = match &bound {
            Some(native) => tokio::select! {
                lock = self.session_locks.lock(native) => Some(lock),
                () = attempt.cancelled() => return Err(AttemptError::Cancelled),
            },
            None => None,
        };
        let origin = match bound {
            Some(_) => None,
            None => attempt.origin().await?,
        };

        let permissions = self.options.permissions.of_mode(assignment.run.mode).narrowed(attempt).await?;
        let key = WorkerKey { cwd: cwd.clone(), arguments: self.dialect.arguments(permissions) };
        let preferred = bound.as_deref().or_else(|| origin.as_ref()?.native.as_deref());
        let lease = self.lease_worker(attempt, &key, preferred, log).await?;
        let worker = lease.worker();
        let previous_native = lease.last_session.as_ref().map(|session| session.native.clone());
        let active = ActiveAttempt { worker: worker.clone(), native: None, previous_native };
        self.active.lock().insert(attempt.id(), active);
        match self.run_turn(attempt, &lease, &cwd, (bound, origin), (prompt, permissions)).await {
            Ok((native, TurnOutcome::Ended(end))) => {
                let process_local = !worker.can_resume();
                lease.release(Some(LastSession { native, process_local }));
                Ok(end)
            }
            Ok((_, TurnOutcome::UnknownSession(reason))) | Err(AttemptError::Stale(reason)) => {
                lease.release(None);
                Err(AttemptError::Stale(reason))
            }
            // The agent may still be working. The attempt must not end before the process has.
            Ok((_, TurnOutcome::Broken(end))) => {
                self.kill_worker(attempt, lease).await?;
                Ok(end)
            }
            Err(error) => {
                self.kill_worker(attempt, lease).await?;
                Err(error)
            }
        }
    }

    /// Opens, forks or resumes the native session and prompts it. Returns its id and the outcome of the turn.
    async fn run_turn(
        &self,
        attempt: &AttemptHandle,
        lease: &Lease<D::Worker>,
        cwd: &Path,
        source: (Option<String>, Option<Binding>),
        (prompt, permissions): (D::Prompt, Permissions),
    ) -> Result<(String, TurnOutcome), AttemptError> {
        let worker = lease.worker();
        let session = self.prepare_session(attempt, lease, cwd, source);
        let (native, start) = self.with_start_timeout(attempt, &*worker, session).await?;
        let run = &attempt.assignment().run;
        let model = run.options.model.as_ref().or(self.options.model.as_ref());
        let configure = async {
            let configured = self.dialect.configure(&worker, &native, run, model.map(String::as_str)).await;
            configured.map_err(|failure| AttemptError::Failed(failure, false))
        };
        self.with_start_timeout(attempt, &*worker, configure).await?;

        let standing = permissions.standing(attempt);
        let granted = standing.iter().cloned().map(|grant| Record::Granted(Box::new(grant)));
        let opened = match &start {
            SessionStart::Resumed(_) => Record::Resumed,
            SessionStart::Forked | SessionStart::Opened(_) => Record::Opened {
                native: Some(native.clone()),
                fidelity: fidelity(worker.can_resume()),
                reconstructed: matches!(&start, SessionStart::Opened(preface) if preface.reconstructed),
            },
        };
        attempt.record(granted.chain([opened]).collect()).await?;
        if let Some(active) = self.active.lock().get_mut(&attempt.id()) {
            active.native = Some(native.clone());
        }
        if attempt.is_cancelled() {
            // `cancel` was called before there was a turn, so the agent would never hear of it.
            return Err(AttemptError::Cancelled);
        }
        let turn = TurnContext {
            attempt,
            worker,
            native: &native,
            standing,
            rules: Arc::new(Rules::of_mode(&self.options.rules, run.mode)),
            launch: Launch {
                env: vec![],
                pass_env: vec![],
                ..self.launch(attempt.id(), &WorkerKey { cwd: cwd.to_owned(), ..WorkerKey::default() })
            },
            context: &self.context,
            is_new_session: matches!(start, SessionStart::Opened(_)),
            preface: match start {
                SessionStart::Opened(preface) => preface.text,
                SessionStart::Resumed(interrupted) => interrupted,
                SessionStart::Forked => None,
            },
        };
        let outcome = self.dialect.run_turn(turn, prompt).await;
        Ok((native, outcome))
    }

    /// Kills a worker whose state is unknown.
    async fn kill_worker(
        &self,
        attempt: &AttemptHandle,
        lease: Lease<D::Worker>,
    ) -> Result<(), AttemptError> {
        let worker = lease.worker();
        drop(lease);
        match worker.kill().await {
            Death::Proven => Ok(()),
            // Returning would claim that the agent has stopped. The kernel gives up waiting and calls [`Adapter::kill`].
            Death::Unproven if attempt.is_cancelled() => std::future::pending().await,
            Death::Unproven => Err(permanent(
                "transport_interruption",
                "the agent's process was ended from outside; whether all of it has ended is not known".into(),
            )),
        }
    }

    /// Leases a worker for this attempt, starting a process if needed.
    async fn lease_worker(
        &self,
        attempt: &AttemptHandle,
        key: &WorkerKey,
        native: Option<&str>,
        log: &Mutex<Option<Log>>,
    ) -> Result<Lease<D::Worker>, AttemptError> {
        let start = async || {
            let launch = self.launch(attempt.id(), key);
            *log.lock() = Some(launch.log.clone());
            let until = self.start_deadline();
            tokio::select! {
                started = self.dialect.start(&launch, &self.context) => started,
                () = self.context.clock.sleep_until(until) => {
                    let failure = with_last_output(self.timeout_failure("start"), &launch.log);
                    Err(SetupError::retryable(failure))
                }
            }
        };
        let lease = tokio::select! {
            lease = self.pool.acquire(key, native, start) => lease,
            () = attempt.cancelled() => {
                // The starting process is being killed. The attempt ends only after it.
                let mark = self.launch(attempt.id(), key).mark();
                process::wait_until_gone(&mark, &self.context.clock).await;
                return Err(AttemptError::Cancelled);
            }
        };
        let lease =
            lease?.ok_or_else(|| permanent("adapter_unavailable", "mainspring is shutting down".into()))?;
        let worker = lease.worker();
        *self.can_resume.lock() = Some(worker.can_resume());
        // The log of a reused worker still holds the output of earlier attempts.
        if log.lock().is_none() {
            worker.process().log().clear();
            *log.lock() = Some(worker.process().log().clone());
        }
        Ok(lease)
    }

    /// Runs a step that precedes the turn. It ends early on timeout, cancellation, or the end of the agent's process.
    async fn with_start_timeout<T>(
        &self,
        attempt: &AttemptHandle,
        worker: &D::Worker,
        step: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let until = self.start_deadline();
        tokio::select! {
            done = step => done,
            () = attempt.cancelled() => Err(AttemptError::Cancelled),
            () = worker.disconnected() => Err(AttemptError::Failed(process_ended(worker), true)),
            () = self.context.clock.sleep_until(until) => {
                let failure = self.timeout_failure("open its session");
                Err(AttemptError::Failed(with_last_output(failure, worker.process().log()), true))
            }
        }
    }

    fn start_deadline(&self) -> Time {
        self.context.clock.now().plus(to_millis(self.options.start_timeout))
    }

    fn timeout_failure(&self, action: &str) -> Failure {
        let waited = self.options.start_timeout.as_millis();
        let message = format!("the agent did not {action} within {waited} ms, its start_timeout_ms");
        Failure::new("timeout", message)
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
        }
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
        let key = WorkerKey { cwd: self.options.cwd.clone(), arguments: self.dialect.arguments(permissions) };
        // A login belongs to no attempt; its process ends with it.
        let launch = Launch { name: "login".into(), ..self.launch(AttemptId::from_bytes([0; 16]), &key) };
        let until = self.context.clock.now().plus(LOGIN_TIMEOUT_MS);
        tokio::select! {
            done = self.dialect.authenticate(&launch, &self.context, method) => done,
            () = self.context.clock.sleep_until(until) => {
                Err(Failure::new("timeout", "nobody has finished the login within ten minutes"))
            }
        }
    }
}

#[async_trait]
impl<D: Dialect> Adapter for Driver<D> {
    fn capabilities(&self) -> Capabilities {
        let native = self.can_resume.lock().unwrap_or(false);
        Capabilities {
            adapter: self.options.name.clone(),
            resume_fidelity: fidelity(native),
            supports_native_resume: native,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: D::PINNED || !native,
            supports_model_switching: true,
            supports_artifact_emission: false,
            supports_tools: true,
            supports_client_tools: false,
            supports_steering: D::STEERS,
            restart_behavior: match native {
                true => RestartBehavior::NativeBindingsSurvive,
                false => RestartBehavior::ProcessLocalBindingsStale,
            },
            uses_bindings: true,
            supports_authentication: D::login(self).is_some(),
            keeps_limits: false,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let log = Mutex::default();
        let result = Box::pin(self.run_attempt(&attempt, &log)).await;
        let failed = match &result {
            Ok(end) => matches!(end, End::Failed { .. }),
            Err(error) => matches!(error, AttemptError::Failed(..) | AttemptError::Stale(_)),
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
            Err(AttemptError::Stale(reason)) => End::Stale { reason },
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

    async fn kill(&self, attempt: AttemptId) -> Death {
        let active = self.active.lock().remove(&attempt);
        let worker = match active {
            Some(active) => active.worker.kill().await,
            None => Death::Proven,
        };
        // The future may have been dropped while a process started or terminal commands ran. Their guards end them.
        let mark = self.launch(attempt, &WorkerKey::default()).mark();
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
        let (dialect, clock, until) =
            (self.dialect.clone(), self.context.clock.clone(), self.start_deadline());
        let (native, tasks) = (native.to_owned(), self.pool.tasks().clone());
        self.pool.tasks().spawn(async move {
            tokio::select! {
                () = dialect.close(&worker, &native) => {}
                () = worker.disconnected() => {}
                () = tasks.stopping() => {}
                () = clock.sleep_until(until) => {}
            }
            idle.into_iter().for_each(|lease| lease.release(None));
        });
    }
}

/// A failure that is not retryable.
fn permanent(code: &str, message: String) -> AttemptError {
    AttemptError::Failed(Failure::new(code, message), false)
}

/// How much of a native session survives its process. Without resume, the kernel still has the path for the next one.
fn fidelity(can_resume: bool) -> Fidelity {
    if can_resume { Fidelity::Native } else { Fidelity::Reconstructed }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
