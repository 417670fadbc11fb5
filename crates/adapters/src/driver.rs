//! What every agent in a process of its own has in common, whatever it speaks.
//!
//! ```text
//! attempt ─▶ worker of the pool ─▶ native session: the one of the binding, taken up again, or a new one ─▶ turn
//! ```
//!
//! What an agent can do is read from the agent. One that cannot take up the session of an earlier process gets a new
//! native session with the text of the path whenever the process that knew the old one is gone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mainspring_core::{AttemptId, AuthMethod, Binding, Failure, Fidelity, Time};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Record,
    RestartBehavior,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::{Permissions, Rules};
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;

use crate::pool::{Home, Lease, Pool, PoolOptions, Spot, Worker as _};
use crate::process::{self, Launch, Log, check_folder};

mod dialect;
mod files;
mod log;
mod natives;
mod preface;
mod session;
mod turn;
pub(crate) use dialect::{Agent, Dialect, Ground, Lost, SetupError, Turn, gone, with_last_words};
pub use dialect::{AgentOptions, KeepLog};
pub(crate) use files::attached;
use natives::Natives;
use session::Start;
pub(crate) use turn::{Questions, Turned, Voice, excerpt};

/// How long a login may take, in milliseconds: a person may have to do something elsewhere.
const LOGIN: u64 = 10 * 60 * 1_000;

/// Drives one agent, in as many processes as are needed.
pub(crate) struct Driver<D: Dialect> {
    dialect: Arc<D>,
    options: AgentOptions,
    pool: Pool<D::Worker>,
    ground: Ground,
    /// The workers of the attempts that are under way, and the native sessions they prompt.
    live: Mutex<HashMap<AttemptId, Live<D::Worker>>>,
    natives: Natives,
    /// Whether the agent takes up sessions, once one has been started.
    resumes: Mutex<Option<bool>>,
}

struct Live<W> {
    worker: Arc<W>,
    native: Option<String>,
    /// The native session that the worker served before.
    before: Option<String>,
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

impl From<SetupError> for Stop {
    fn from(error: SetupError) -> Self {
        Self::Failed(error.failure, error.retryable)
    }
}

impl<D: Dialect> Driver<D> {
    /// Starts its first process when it is needed.
    pub(crate) fn new(dialect: D, options: AgentOptions, clock: Clock) -> Self {
        let pool = PoolOptions {
            max: options.max_processes,
            idle: millis(options.idle),
            backoff: 250,
            pinned: D::PINNED,
        };
        Self {
            pool: Pool::new(pool, clock.clone(), Tasks::default()),
            ground: Ground { tasks: Tasks::default(), clock, ignored: Arc::default() },
            dialect: Arc::new(dialect),
            options,
            live: Mutex::default(),
            natives: Natives::default(),
            resumes: Mutex::default(),
        }
    }

    /// Executes an attempt; whose log it is, is in `log` as soon as there is a process.
    async fn run(&self, attempt: &AttemptHandle, log: &Mutex<Option<Log>>) -> Result<End, Stop> {
        let about = attempt.assignment();
        let cwd = about.run.options.cwd.as_ref().map_or_else(|| self.options.cwd.clone(), PathBuf::from);
        check_folder(&cwd).map_err(|error| refused("invalid_request", error.to_string()))?;
        let prompt = self.dialect.prompt(attempt).await.map_err(|failure| Stop::Failed(failure, false))?;
        let bound = about.binding.as_ref().and_then(|binding| binding.native.clone());
        // While it is held, nobody forks it.
        let _held = match &bound {
            Some(native) => tokio::select! {
                held = self.natives.hold(native) => Some(held),
                () = attempt.cancelled() => return Err(Stop::Cancelled),
            },
            None => None,
        };
        let origin = match bound {
            Some(_) => None,
            None => attempt.origin().await?,
        };

        let permissions =
            self.options.permissions.for_mode(about.run.mode).limited_by_parent(attempt).await?;
        let spot = Spot { cwd: cwd.clone(), arguments: self.dialect.arguments(permissions) };
        let near = bound.as_deref().or_else(|| origin.as_ref()?.native.as_deref());
        let lease = self.lease(attempt, &spot, near, log).await?;
        let worker = lease.worker();
        let before = lease.home.as_ref().map(|home| home.native.clone());
        self.live.lock().insert(attempt.id(), Live { worker: worker.clone(), native: None, before });
        match self.play(attempt, &lease, &cwd, (bound, origin), (prompt, permissions)).await {
            Ok((native, Turned::Ended(end))) => {
                let only = !worker.resumes();
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
        lease: &Lease<D::Worker>,
        cwd: &Path,
        from: (Option<String>, Option<Binding>),
        (prompt, permissions): (D::Prompt, Permissions),
    ) -> Result<(String, Turned), Stop> {
        let worker = lease.worker();
        let session = self.session(attempt, lease, cwd, from);
        let (native, start) = self.in_time(attempt, &*worker, session).await?;
        let run = &attempt.assignment().run;
        let model = run.options.model.as_ref().or(self.options.model.as_ref());
        let choices = async {
            let chosen = self.dialect.choose(&worker, &native, run, model.map(String::as_str)).await;
            chosen.map_err(|failure| Stop::Failed(failure, false))
        };
        self.in_time(attempt, &*worker, choices).await?;

        let standing = permissions.standing_grant(attempt);
        let granted = standing.iter().cloned().map(|grant| Record::Granted(Box::new(grant)));
        let opened = match &start {
            Start::Resumed(_) => Record::Resumed,
            Start::Forked | Start::Opened(_) => Record::Opened {
                native: Some(native.clone()),
                fidelity: fidelity(worker.resumes()),
                reconstructed: matches!(&start, Start::Opened(preface) if preface.reconstructed),
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
        let turn = Turn {
            attempt,
            worker,
            native: &native,
            standing,
            rules: Arc::new(Rules::for_mode(&self.options.rules, run.mode)),
            launch: Launch {
                env: vec![],
                pass_env: vec![],
                ..self.launch(attempt.id(), &Spot { cwd: cwd.to_owned(), ..Spot::default() })
            },
            ground: &self.ground,
            opened: matches!(start, Start::Opened(_)),
            preface: match start {
                Start::Opened(preface) => preface.text,
                Start::Resumed(missed) => missed,
                Start::Forked => None,
            },
        };
        let turned = self.dialect.play(turn, prompt).await;
        Ok((native, turned))
    }

    /// Ends a worker that cannot be trusted any more.
    async fn end(&self, attempt: &AttemptHandle, lease: Lease<D::Worker>) -> Result<(), Stop> {
        let worker = lease.worker();
        drop(lease);
        match worker.kill().await {
            Death::Proven => Ok(()),
            // To return would say that it has stopped. The kernel gives up waiting and asks to [`Adapter::kill`].
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
        spot: &Spot,
        native: Option<&str>,
        log: &Mutex<Option<Log>>,
    ) -> Result<Lease<D::Worker>, Stop> {
        let start = async || {
            let launch = self.launch(attempt.id(), spot);
            *log.lock() = Some(launch.log.clone());
            let until = self.deadline();
            tokio::select! {
                started = self.dialect.start(&launch, &self.ground) => started,
                () = self.ground.clock.sleep_until(until) => {
                    let failure = with_last_words(self.too_slow("start"), &launch.log);
                    Err(SetupError::retryable(failure))
                }
            }
        };
        let lease = tokio::select! {
            lease = self.pool.acquire(spot, native, start) => lease,
            () = attempt.cancelled() => {
                // What was being started is being ended; nothing is said before it has.
                process::ended(&self.launch(attempt.id(), spot).mark(), &self.ground.clock).await;
                return Err(Stop::Cancelled);
            }
        };
        let lease =
            lease?.ok_or_else(|| refused("adapter_unavailable", "mainspring is shutting down".into()))?;
        let worker = lease.worker();
        *self.resumes.lock() = Some(worker.resumes());
        // One that was there before has written for others.
        if log.lock().is_none() {
            worker.process().log().begin();
            *log.lock() = Some(worker.process().log().clone());
        }
        Ok(lease)
    }

    /// Bounds what is to happen before the agent works: by time, by a cancellation, by the agent's end.
    async fn in_time<T>(
        &self,
        attempt: &AttemptHandle,
        worker: &D::Worker,
        what: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, Stop> {
        let until = self.deadline();
        tokio::select! {
            done = what => done,
            () = attempt.cancelled() => Err(Stop::Cancelled),
            () = worker.gone() => Err(Stop::Failed(gone(worker), true)),
            () = self.ground.clock.sleep_until(until) => {
                let failure = self.too_slow("open its session");
                Err(Stop::Failed(with_last_words(failure, worker.process().log()), true))
            }
        }
    }

    fn deadline(&self) -> Time {
        self.ground.clock.now().plus(millis(self.options.start_timeout))
    }

    fn too_slow(&self, what: &str) -> Failure {
        let waited = self.options.start_timeout.as_millis();
        let message = format!("the agent did not {what} within {waited} ms, its start_timeout_ms");
        Failure::new("timeout", message)
    }

    /// How the process is started that `attempt` needs: at most one, so that its name is the attempt's.
    fn launch(&self, attempt: AttemptId, spot: &Spot) -> Launch {
        let options = &self.options;
        let arguments = spot.arguments.iter().map(|argument| (*argument).to_owned());
        Launch {
            guard: options.guard.clone(),
            command: options.command.iter().cloned().chain(arguments).collect(),
            env: options.env.clone(),
            pass_env: options.pass_env.clone(),
            cwd: spot.cwd.clone(),
            grace: options.stop_grace,
            scope: options.scope.clone(),
            name: attempt.to_string(),
            log: Log::new(self.secrets()),
        }
    }
}

/// An adapter that has processes.
#[async_trait]
pub(crate) trait Driven: Adapter {
    /// How many processes there are, and how many of them are idle.
    fn processes(&self) -> (usize, usize);
    /// How many messages of agents concerned no turn that was under way, or were not understood.
    fn ignored(&self) -> u64;
    /// Ends every process and starts no other.
    async fn close(&self);
}

#[async_trait]
impl<D: Dialect> Driven for Driver<D> {
    fn processes(&self) -> (usize, usize) {
        self.pool.size()
    }

    fn ignored(&self) -> u64 {
        self.ground.ignored.load(Ordering::Relaxed)
    }

    async fn close(&self) {
        self.pool.close().await;
        self.ground.tasks.stop();
        self.ground.tasks.wait().await;
    }
}

#[async_trait]
impl<D: Dialect> Adapter for Driver<D> {
    fn capabilities(&self) -> Capabilities {
        let native = self.resumes.lock().unwrap_or(false);
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
            supports_authentication: D::AUTHENTICATES,
            keeps_limits: false,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let log = Mutex::default();
        let ended = Box::pin(self.run(&attempt, &log)).await;
        let failed = match &ended {
            Ok(end) => matches!(end, End::Failed { .. }),
            Err(stop) => matches!(stop, Stop::Failed(..) | Stop::Stale(_)),
        };
        if failed || self.options.keep_log == KeepLog::Always {
            let log = log.lock().take();
            if let Some(log) = log {
                self.keep_log(&attempt, &log).await;
            }
        }
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
            Some(Live { worker, native: Some(native), .. }) => self.dialect.cancel(worker, native),
            // It has not begun, and stops by itself.
            _ => true,
        };
        Dispatch { dispatched: told, acknowledged: false }
    }

    fn auth_methods(&self) -> Vec<AuthMethod> {
        self.dialect.auth_methods()
    }

    async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        let permissions = self.options.permissions;
        let spot = Spot { cwd: self.options.cwd.clone(), arguments: self.dialect.arguments(permissions) };
        // Of no attempt: it is ended when it has been tried.
        let launch = Launch { name: "login".into(), ..self.launch(AttemptId::from_bytes([0; 16]), &spot) };
        let until = self.ground.clock.now().plus(LOGIN);
        tokio::select! {
            done = self.dialect.authenticate(&launch, &self.ground, method) => done,
            () = self.ground.clock.sleep_until(until) => {
                Err(Failure::new("timeout", "nobody has finished the login within ten minutes"))
            }
        }
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        let live = self.live.lock().remove(&attempt);
        let worker = match live {
            Some(live) => live.worker.kill().await,
            None => Death::Proven,
        };
        // It may have been dropped while its process started, or while commands ran for it: their guards end them.
        let others = process::ended(&self.launch(attempt, &Spot::default()).mark(), &self.ground.clock).await;
        if worker == Death::Proven { others } else { worker }
    }

    fn forget(&self, native: &str) {
        let idle = self.pool.evict(native);
        let served = |live: &&Live<D::Worker>| {
            live.before.as_deref() == Some(native) && live.native.as_deref() != Some(native)
        };
        let busy = self.live.lock().values().find(served).map(|live| live.worker.clone());
        let Some(worker) = idle.as_ref().map(Lease::worker).or(busy).filter(|worker| worker.closes()) else {
            idle.into_iter().for_each(|lease| lease.release(None));
            return;
        };
        let (dialect, clock, until) = (self.dialect.clone(), self.ground.clock.clone(), self.deadline());
        let (native, tasks) = (native.to_owned(), self.pool.tasks().clone());
        self.pool.tasks().spawn(async move {
            tokio::select! {
                () = dialect.close(&worker, &native) => {}
                () = worker.gone() => {}
                () = tasks.stopping() => {}
                () = clock.sleep_until(until) => {}
            }
            idle.into_iter().for_each(|lease| lease.release(None));
        });
    }
}

fn refused(code: &str, message: String) -> Stop {
    Stop::Failed(Failure::new(code, message), false)
}

/// What of a native session survives its process: the kernel has the path, so the next one is told of it.
fn fidelity(resumes: bool) -> Fidelity {
    if resumes { Fidelity::Native } else { Fidelity::Reconstructed }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
