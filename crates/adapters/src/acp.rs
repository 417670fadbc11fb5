//! Agents that speak the Agent Client Protocol over their standard input and output.
//!
//! ```text
//! attempt ─▶ worker of the pool ─▶ native session: the one of the binding, taken up again, or a new one ─▶ turn
//! ```
//!
//! What an agent can do is read from the agent. One that can neither resume nor load gets a new native session with the
//! text of the path whenever the process that knew the old one is gone.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent_client_protocol::v1::schema::ContentBlock;
use async_trait::async_trait;
use mainspring_core::{AttemptId, Failure, Fidelity, Mode};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Record,
    RestartBehavior,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::Permissions;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use serde_json::json;

use crate::pool::{Home, Lease, Pool, PoolOptions, Worker as _};
use crate::process::{self, Launch, check_folder};

mod content;
mod turn;
mod wire;
mod worker;
use turn::{Turn, Turned};
use wire::CallError;
use worker::{Choice, Resumes, Worker};

/// How many messages of a path are looked at when a native session is told of it.
const PATH: usize = 500;

/// How to run one agent.
#[derive(Debug, Clone)]
pub struct AcpOptions {
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
    /// How it is to authenticate; not at all if none.
    pub auth_method: Option<String>,
    /// The model of runs that name none; the agent's own if none.
    pub model: Option<String>,
    /// The agent's mode for runs that may act.
    pub act_mode: Option<String>,
    /// The agent's mode for runs that may only answer.
    pub ask_mode: Option<String>,
}

/// Drives one agent, in as many processes as are needed.
pub struct AcpAdapter {
    options: AcpOptions,
    pool: Pool<Worker>,
    /// For what belongs to processes: it ends when they have.
    process_tasks: Tasks,
    clock: Clock,
    /// The workers of the attempts that are under way, and the native sessions they prompt.
    live: Mutex<HashMap<AttemptId, Live>>,
    /// How the agent takes up sessions, once one has been started.
    resumes: Mutex<Option<Resumes>>,
    /// What native sessions have cost so far, as their agents say.
    costs: Mutex<HashMap<String, f64>>,
    ignored: Arc<AtomicU64>,
}

struct Live {
    worker: Arc<Worker>,
    native: Option<String>,
}

/// Why an attempt does not go on.
enum Stop {
    Cancelled,
    Failed(Failure, bool),
    Stale(String),
    Handle(HandleError),
}

impl From<HandleError> for Stop {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

impl AcpAdapter {
    /// An adapter that starts its first process when it is needed.
    pub fn new(options: AcpOptions, clock: Clock) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let pool = PoolOptions { max: options.max_processes, idle: millis(options.idle), backoff: 250 };
        Self {
            pool: Pool::new(pool, clock.clone(), Tasks::default()),
            process_tasks: Tasks::default(),
            options,
            clock,
            live: Mutex::default(),
            resumes: Mutex::default(),
            costs: Mutex::default(),
            ignored: Arc::default(),
        }
    }

    /// How many processes there are, and how many of them are idle.
    pub fn processes(&self) -> (usize, usize) {
        self.pool.size()
    }

    /// How many messages of agents concerned no turn that was under way, or were not understood.
    pub fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    /// Ends every process and starts no other.
    pub async fn close(&self) {
        self.pool.close().await;
        self.process_tasks.stop();
        self.process_tasks.wait().await;
    }

    async fn run(&self, attempt: &AttemptHandle) -> Result<End, Stop> {
        let about = attempt.assignment();
        let cwd = about.run.options.cwd.as_ref().map_or_else(|| self.options.cwd.clone(), PathBuf::from);
        check_folder(&cwd).map_err(|error| refused("invalid_request", error.to_string()))?;
        let prompt = content::prompt(&about.prompt).map_err(|failure| Stop::Failed(failure, false))?;
        let bound = about.binding.as_ref().and_then(|binding| binding.native.clone());

        let lease = self.lease(attempt, &cwd, bound.as_deref()).await?;
        let worker = lease.worker();
        self.live.lock().insert(attempt.id(), Live { worker: worker.clone(), native: None });
        match self.play(attempt, &lease, &cwd, bound, prompt).await {
            Ok((native, Turned::Ended(end))) => {
                let only = worker.resumes() == Resumes::No;
                lease.release(Some(Home { native, only }));
                Ok(end)
            }
            Ok((_, Turned::Unknown(reason))) | Err(Stop::Stale(reason)) => {
                lease.release(None);
                Err(Stop::Stale(reason))
            }
            // What it does now is not known, and the attempt ends only when it does nothing.
            Ok((_, Turned::Broken(end))) => {
                self.end(attempt, lease).await?;
                Ok(end)
            }
            Err(stop) => {
                self.end(attempt, lease).await?;
                Err(stop)
            }
        }
    }

    /// Opens or takes up the native session and has it answer; gives its id.
    async fn play(
        &self,
        attempt: &AttemptHandle,
        lease: &Lease<Worker>,
        cwd: &Path,
        bound: Option<String>,
        prompt: Vec<ContentBlock>,
    ) -> Result<(String, Turned), Stop> {
        let worker = lease.worker();
        let session = self.session(attempt, lease, cwd, bound);
        let (native, preface) = self.in_time(attempt, &worker, session).await?;
        let choices = self.choose(attempt, &worker, &native);
        self.in_time(attempt, &worker, choices).await?;

        let standing = self.options.permissions.of_mode(attempt.assignment().run.mode).standing(attempt);
        let granted = standing.iter().cloned().map(|grant| Record::Granted(Box::new(grant)));
        let opened = match &preface {
            None => Record::Resumed,
            Some(preface) => Record::Opened {
                native: Some(native.clone()),
                fidelity: fidelity(worker.resumes()),
                reconstructed: preface.reconstructed,
            },
        };
        attempt.record(granted.chain([opened]).collect()).await?;
        if let Some(live) = self.live.lock().get_mut(&attempt.id()) {
            live.native = Some(native.clone());
        }
        if attempt.is_cancelled() {
            // Told to stop before there was anything to stop; nobody tells the agent later.
            return Err(Stop::Cancelled);
        }
        let told = preface.as_ref().and_then(|preface| preface.text.as_deref()).map(ContentBlock::from);
        let cost_before = match &preface {
            Some(_) => Some(0.0),
            None => self.costs.lock().get(&native).copied(),
        };
        let turn = Turn::new(attempt, worker, &native, standing, cost_before);
        let (turned, cost) = turn.play(told.into_iter().chain(prompt).collect()).await;
        if let Some(cost) = cost {
            self.costs.lock().insert(native.clone(), cost);
        }
        Ok((native, turned))
    }

    /// Ends a worker that cannot be trusted any more.
    async fn end(&self, attempt: &AttemptHandle, lease: Lease<Worker>) -> Result<(), Stop> {
        let worker = lease.worker();
        drop(lease);
        match worker.kill().await {
            Death::Proven => Ok(()),
            // To return would say that it has stopped. The kernel gives up waiting and asks [`AcpAdapter::kill`].
            Death::Unproven if attempt.is_cancelled() => std::future::pending().await,
            Death::Unproven => Err(refused(
                "transport_interruption",
                "the agent's process was ended from outside; whether all of it has ended is not known".into(),
            )),
        }
    }

    /// A worker for this attempt.
    async fn lease(
        &self,
        attempt: &AttemptHandle,
        cwd: &Path,
        native: Option<&str>,
    ) -> Result<Lease<Worker>, Stop> {
        let start = async || {
            let launch = self.launch(attempt.id(), cwd);
            let start = Worker::start(
                &launch,
                self.options.auth_method.as_deref(),
                self.ignored.clone(),
                &self.process_tasks,
                &self.clock,
            );
            let until = self.deadline();
            tokio::select! {
                started = start => started,
                () = self.clock.sleep_until(until) => Err(self.too_slow("start")),
            }
        };
        let lease = tokio::select! {
            lease = self.pool.acquire(cwd, native, start) => lease,
            () = attempt.cancelled() => {
                // What was being started is being ended; nothing is said before it has.
                process::ended(&self.launch(attempt.id(), cwd).mark(), &self.clock).await;
                return Err(Stop::Cancelled);
            }
        };
        let lease = lease.map_err(|failure| {
            let again = failure.code == "adapter_unavailable" || failure.code == "timeout";
            Stop::Failed(failure, again)
        })?;
        let lease =
            lease.ok_or_else(|| refused("adapter_unavailable", "mainspring is shutting down".into()))?;
        *self.resumes.lock() = Some(lease.worker().resumes());
        Ok(lease)
    }

    /// The native session: the one that is bound, or a new one with what it is told first.
    async fn session(
        &self,
        attempt: &AttemptHandle,
        lease: &Lease<Worker>,
        cwd: &Path,
        bound: Option<String>,
    ) -> Result<(String, Option<Preface>), Stop> {
        let worker = lease.worker();
        if let Some(native) = bound {
            if lease.home.as_ref().is_some_and(|home| home.native == native) {
                return Ok((native, None));
            }
            return match worker.resume(&native, cwd).await {
                Ok(()) => Ok((native, None)),
                Err(CallError::Gone) => Err(Stop::Failed(worker.failure(&CallError::Gone), true)),
                Err(error) => Err(Stop::Stale(error.to_string())),
            };
        }
        let path = attempt.path(PATH).await?;
        let system_prompt = attempt.assignment().run.options.system_prompt.as_deref();
        let (text, reconstructed) = content::preface(system_prompt, &path);
        let native = worker.open(cwd).await.map_err(|failure| {
            let again = failure.code == "transport_interruption";
            Stop::Failed(failure, again)
        })?;
        Ok((native, Some(Preface { text, reconstructed })))
    }

    /// Chooses the model and the mode that the run wants.
    async fn choose(&self, attempt: &AttemptHandle, worker: &Worker, native: &str) -> Result<(), Stop> {
        let run = &attempt.assignment().run;
        let model = run.options.model.as_ref().or(self.options.model.as_ref());
        let mode = match run.mode {
            Mode::Act => self.options.act_mode.as_ref(),
            Mode::Ask => self.options.ask_mode.as_ref(),
        };
        let wanted = [(Choice::Model, model), (Choice::Mode, mode)];
        for (what, value) in wanted.into_iter().filter_map(|(what, value)| Some((what, value?))) {
            let chosen = worker.choose(native, what, value).await;
            chosen.map_err(|failure| Stop::Failed(failure, false))?;
        }
        Ok(())
    }

    /// Bounds what is to happen before the agent works: by time, by a cancellation, by the agent's end.
    async fn in_time<T>(
        &self,
        attempt: &AttemptHandle,
        worker: &Worker,
        what: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, Stop> {
        let until = self.deadline();
        tokio::select! {
            done = what => done,
            () = attempt.cancelled() => Err(Stop::Cancelled),
            () = worker.gone() => Err(Stop::Failed(worker.failure(&CallError::Gone), true)),
            () = self.clock.sleep_until(until) => Err(Stop::Failed(self.too_slow("open its session"), true)),
        }
    }

    fn deadline(&self) -> mainspring_core::Time {
        self.clock.now().plus(u64::try_from(self.options.start_timeout.as_millis()).unwrap_or(u64::MAX))
    }

    fn too_slow(&self, what: &str) -> Failure {
        let waited = self.options.start_timeout.as_millis();
        Failure::new("timeout", format!("the agent did not {what} within {waited} ms"))
    }

    /// How the process is started that `attempt` needs: at most one, so that its name is the attempt's.
    fn launch(&self, attempt: AttemptId, cwd: &Path) -> Launch {
        let options = &self.options;
        Launch {
            guard: options.guard.clone(),
            command: options.command.clone(),
            env: options.env.clone(),
            pass_env: options.pass_env.clone(),
            cwd: cwd.to_owned(),
            grace: options.stop_grace,
            scope: options.scope.clone(),
            name: attempt.to_string(),
        }
    }
}

/// What a new native session is told first.
struct Preface {
    text: Option<String>,
    reconstructed: bool,
}

fn refused(code: &str, message: String) -> Stop {
    Stop::Failed(Failure::new(code, message), false)
}

/// What of a native session survives its process.
fn fidelity(resumes: Resumes) -> Fidelity {
    match resumes {
        Resumes::Resume | Resumes::Load => Fidelity::Native,
        // The kernel has the path, so the next one is told of it.
        Resumes::No => Fidelity::Reconstructed,
    }
}

#[async_trait]
impl Adapter for AcpAdapter {
    fn capabilities(&self) -> Capabilities {
        let resumes = self.resumes.lock().unwrap_or(Resumes::No);
        let native = fidelity(resumes) == Fidelity::Native;
        Capabilities {
            adapter: self.options.name.clone(),
            resume_fidelity: fidelity(resumes),
            supports_native_resume: native,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: !native,
            supports_model_switching: true,
            supports_artifact_emission: false,
            supports_tools: true,
            supports_steering: false,
            restart_behavior: match native {
                true => RestartBehavior::NativeBindingsSurvive,
                false => RestartBehavior::ProcessLocalBindingsStale,
            },
            uses_bindings: true,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let ended = Box::pin(self.run(&attempt)).await;
        // Of an execution that is dropped the worker stays known, to be killed.
        self.live.lock().remove(&attempt.id());
        Executed::Ended(match ended {
            Ok(end) => end,
            // Without authority nobody listens; what is returned is not applied.
            Err(Stop::Cancelled | Stop::Handle(HandleError::Revoked)) => return End::stopped(),
            Err(Stop::Stale(reason)) => End::Stale { reason },
            Err(Stop::Failed(error, retryable)) => return End::failed(error, retryable),
            Err(Stop::Handle(HandleError::Kernel(error))) => {
                return End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable());
            }
        })
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        let told = match self.live.lock().get(&attempt) {
            Some(Live { worker, native: Some(native) }) => {
                worker.connection.notify("session/cancel", json!({"sessionId": native}))
            }
            // It has not begun, and stops by itself.
            _ => true,
        };
        Dispatch { dispatched: told, acknowledged: false }
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        let live = self.live.lock().remove(&attempt);
        match live {
            Some(live) => live.worker.kill().await,
            // It may have been dropped while its process started; that is ended by its guard.
            None => process::ended(&self.launch(attempt, &self.options.cwd).mark(), &self.clock).await,
        }
    }
}
