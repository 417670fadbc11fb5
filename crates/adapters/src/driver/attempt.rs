//! One attempt: a worker, a native session, a turn.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::{Binding, Failure, FailureCode, Run, Sandbox, SandboxProfile};
use mainspring_kernel::adapter::{AttemptHandle, Death, End, Record, RuntimeFacts};
use mainspring_kernel::folders::check_usable;
use mainspring_kernel::policy::{Permissions, Rules};
use parking_lot::Mutex;
use serde_json::Map;

use super::lost_session::{Cause, Stage, is_session_lost};
use super::session::SessionStart;
use super::{
    ActiveAttempt, AgentWorker, AttemptError, Dialect, Driver, SetupError, TurnContext, TurnOutcome,
    fidelity, permanent, process_ended, with_last_output,
};
use crate::endpoint::{Endpoint, Peers};
use crate::pool::{LastSession, Lease, PooledWorker as _, WorkerKey};
use crate::process::{self, Launch, Log, ProcessId, Snapshot};
use crate::sandbox::SandboxOptions;

impl<D: Dialect> Driver<D> {
    /// Executes an attempt. Sets `log` to the log of its process as soon as it has one.
    pub(super) async fn run_attempt(
        &self,
        attempt: &AttemptHandle,
        log: &Mutex<Option<Log>>,
    ) -> Result<End, AttemptError> {
        let assignment = attempt.assignment();
        let cwd = assignment.run.options.cwd.as_ref().map_or_else(|| self.options.cwd.clone(), PathBuf::from);
        // Everything below uses the resolved folder: a link in the named one can change at any time.
        let cwd = self.allowed_folder(attempt, &cwd)?;
        check_usable(&cwd).map_err(|error| permanent("invalid_request", error.to_string()))?;
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
        // A fork of a lost session would be lost as well, so only the first attempt forks.
        let origin = match bound.is_some() || assignment.run.attempts > 1 {
            true => None,
            false => attempt.origin().await?,
        };

        let permissions =
            self.options.permissions.for_mode(assignment.run.mode).limited_by_parent(attempt).await?;
        let mut sandbox = self
            .decide_sandbox(&assignment.run, permissions, &cwd)
            .map_err(|failure| AttemptError::Failed(failure, false))?;
        sandbox.folder = (sandbox.profile == SandboxProfile::Workspace)
            .then(|| self.allowed_folder(attempt, &cwd))
            .transpose()?
            .map(|folder| folder.to_string_lossy().into_owned());
        let key = WorkerKey {
            owner: assignment.session.owner.clone(),
            cwd: cwd.clone(),
            arguments: self.dialect.arguments(permissions),
            sandbox: sandbox.profile,
            // Leaves out a reach that allows all that the adapter's own reach allows: it restricts nothing.
            reach: assignment.run.options.sandbox_reach.clone().filter(|outer| {
                let own = self.options.sandbox.reach();
                own.clone().within(outer) != own
            }),
        };
        if let Some(native) = &bound {
            self.pool.end_others(&key, native).await;
        }
        let preferred = bound.as_deref().or_else(|| origin.as_ref()?.native.as_deref());
        let lease = self.lease_worker(attempt, &key, preferred, log).await?;
        let worker = lease.worker();
        // Calls of the process belong to this attempt until the attempt has ended.
        let _attached = worker.process().endpoint().map(|endpoint| endpoint.attach(attempt));
        let previous_native = lease.last_session.as_ref().map(|session| session.native.clone());
        let active = ActiveAttempt { worker: worker.clone(), native: None, previous_native };
        self.active.lock().insert(attempt.id(), active);
        let limits = (permissions, sandbox);
        match self.run_turn(attempt, &lease, &key, (bound, origin), (prompt, limits)).await {
            Ok((native, TurnOutcome::Ended(end))) => {
                let (process_local, cancelled) = (!worker.can_resume(), matches!(end, End::Stopped { .. }));
                lease.release(Some(LastSession { native, process_local, cancelled }));
                Ok(end)
            }
            Ok((_, TurnOutcome::Lost { reason, is_broken }))
            | Err(AttemptError::Stale { reason, is_broken }) => {
                match is_broken {
                    true => self.kill_worker(attempt, lease).await?,
                    false => lease.release(None),
                }
                Err(AttemptError::Stale { reason, is_broken })
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
        key: &WorkerKey,
        source: (Option<String>, Option<Binding>),
        (prompt, (permissions, sandbox)): (D::Prompt, (Permissions, Sandbox)),
    ) -> Result<(String, TurnOutcome), AttemptError> {
        let worker = lease.worker();
        let facts = process_facts(&*worker);
        // Recorded early, so that an attempt that fails before its session is open names its process too.
        attempt.record_at_end(vec![Record::Runtime(Box::new(facts.clone()))]).await?;
        let stage = match source.0 {
            Some(_) => Stage::Resume { is_new_process: lease.is_new },
            None => Stage::Configure,
        };
        let session = self.prepare_session(attempt, lease, &key.cwd, source);
        let (native, start) = self.with_start_timeout(attempt, &*worker, stage, session).await?;
        let session_existed = !matches!(start, SessionStart::Opened(_));
        let run = &attempt.assignment().run;
        let (model, notice) = self.model_of(attempt)?;
        if let Some(text) = notice {
            attempt.record(vec![Record::Progress { text }]).await?;
        }
        let configure = async {
            let configured = self.dialect.configure(&worker, &native, run, model).await;
            configured.map_err(|failure| {
                let cause = Cause::reported(&failure.message);
                match is_session_lost(session_existed, Stage::Configure, cause) {
                    true => AttemptError::Stale { reason: failure.message, is_broken: false },
                    false => AttemptError::Failed(failure, false),
                }
            })
        };
        let model = self.with_start_timeout(attempt, &*worker, Stage::Configure, configure).await?;

        let default_grant = permissions.standing_grant(attempt).await?;
        let granted = default_grant.iter().cloned().map(|grant| Record::Granted(Box::new(grant)));
        let opened = match &start {
            SessionStart::Resumed(_) => Record::Resumed,
            SessionStart::Forked(_) | SessionStart::Opened(_) => Record::Opened {
                native: Some(native.clone()),
                fidelity: fidelity(worker.can_resume()),
                reconstructed: matches!(&start, SessionStart::Opened(preface) if preface.reconstructed),
            },
        };
        let facts = Record::Runtime(Box::new(session_facts(facts, model, &start)));
        attempt.record(granted.chain([opened, facts, Record::Confined(sandbox)]).collect()).await?;
        if let Some(active) = self.active.lock().get_mut(&attempt.id()) {
            active.native = Some(native.clone());
        }
        if attempt.is_cancelled() {
            // `cancel` was called before there was a turn, so the agent was not notified.
            return Err(AttemptError::Cancelled);
        }
        // The folder may have been replaced by a link while the agent started.
        let folder = self.allowed_folder(attempt, &key.cwd)?;
        if folder != key.cwd {
            let message = format!("the folder {} was replaced by a link", key.cwd.display());
            return Err(permanent("folder_not_allowed", message));
        }
        let turn = TurnContext {
            attempt,
            worker,
            native: &native,
            default_grant,
            rules: Arc::new(Rules::for_mode(&attempt.assignment().rules, run.mode)),
            launch: Launch {
                env: vec![],
                pass_env: vec![],
                ..self.launch(attempt.id(), &WorkerKey { arguments: &[], ..key.clone() })
            },
            folder,
            folders: &self.options.folders,
            context: &self.context,
            is_new_session: !session_existed,
            preface: start.preface(attempt).await?,
        };
        let worker = lease.worker();
        self.left_running.begin_turn(worker.process());
        let before = worker.process().snapshot().await;
        let outcome = self.dialect.run_turn(turn, prompt).await;
        let outcome = self.settle_processes(attempt, &*worker, before, outcome).await?;
        Ok((native, outcome))
    }

    /// After a cancellation, ends every process that was started during the turn; the others stay. If these processes
    /// cannot be identified, the whole tree ends. After any other turn, records the processes that the turn left running.
    async fn settle_processes(
        &self,
        attempt: &AttemptHandle,
        worker: &D::Worker,
        before: Option<Snapshot>,
        outcome: TurnOutcome,
    ) -> Result<TurnOutcome, AttemptError> {
        let TurnOutcome::Ended(end) = outcome else { return Ok(outcome) };
        let is_stopped = attempt.is_cancelled() || matches!(end, End::Stopped { .. });
        let Some(before) = before else {
            return Ok(if is_stopped { TurnOutcome::Broken(end) } else { TurnOutcome::Ended(end) });
        };
        if is_stopped {
            return Ok(match worker.process().kill_started_since(&before).await {
                Death::Proven => TurnOutcome::Ended(end),
                // Ends the whole tree instead. The session continues in another process.
                Death::Unproven => TurnOutcome::Broken(end),
            });
        }
        let left = worker.process().started_since(&before).await;
        if !left.is_empty() {
            let processes = left.iter().copied().map(ProcessId::describe).collect();
            attempt.record_at_end(vec![Record::LeftRunning { processes }]).await?;
            self.left_running.insert(attempt.id(), worker.process(), before, left);
        }
        Ok(TurnOutcome::Ended(end))
    }

    /// Decides the sandbox of a run, which is at least as strict as that of the run's parent.
    fn decide_sandbox(&self, run: &Run, permissions: Permissions, cwd: &Path) -> Result<Sandbox, Failure> {
        let (options, adapter) = (&self.options.sandbox, self.options.permissions);
        let Some(limit) = run.options.sandbox else { return options.decide(adapter, permissions, cwd) };
        let own = options.profile.unwrap_or(match permissions {
            Permissions::Legacy => SandboxProfile::Off,
            Permissions::Ask | Permissions::Deny => SandboxProfile::Workspace,
        });
        let options = match &run.options.sandbox_reach {
            Some(outer) => options.within(outer),
            None => options.clone(),
        };
        let limited = SandboxOptions { profile: Some(own.stricter(limit)), ..options };
        // A child is confined even if its adapter waives the sandbox.
        limited.decide(Permissions::Ask, permissions, cwd)
    }

    /// Checks the folder of an attempt again: since the run was accepted, it may have been replaced by a link. Returns the
    /// folder with its links resolved.
    fn allowed_folder(&self, attempt: &AttemptHandle, cwd: &Path) -> Result<PathBuf, AttemptError> {
        let options = &attempt.assignment().run.options;
        // A folder that an operator has configured is allowed for every run that names none and has no parent.
        let is_operators_choice =
            options.cwd.is_none() && options.sandbox.is_none() && self.options.is_cwd_configured;
        let folders = options.folders.as_deref().filter(|_| !is_operators_choice);
        let checked = self.options.folders.check(cwd, folders);
        checked.map_err(|refusal| permanent("folder_not_allowed", refusal.to_string()))
    }

    /// The model of a run, and a notice if it is not the one that the session's profile asks for. The run's own model
    /// and profile take precedence over the session's profile, which takes precedence over the adapter's model.
    fn model_of<'a>(
        &'a self,
        attempt: &'a AttemptHandle,
    ) -> Result<(Option<&'a str>, Option<String>), AttemptError> {
        let assignment = attempt.assignment();
        let (options, profiles) = (&assignment.run.options, &self.options.profiles);
        let default = self.options.model.as_deref();
        if let Some(model) = &options.model {
            return Ok((Some(model), None));
        }
        let of_session = assignment.session.model_profile.as_ref();
        let Some(wanted) = options.model_profile.as_ref().or(of_session).filter(|_| !profiles.is_empty())
        else {
            return Ok((default, None));
        };
        if let Some(model) = profiles.get(wanted) {
            return Ok((Some(model), None));
        }
        let message = self.unknown_profile(wanted);
        match options.model_profile.is_some() && options.model_profile.as_ref() != of_session {
            true => Err(permanent("invalid_request", message)),
            // A profile that is gone does not make the session unusable.
            false => Ok((default, Some(format!("{message}; the default model is used")))),
        }
    }

    /// The message for a model profile that the adapter does not have.
    pub(super) fn unknown_profile(&self, wanted: &str) -> String {
        let (name, profiles) = (&self.options.name, &self.options.profiles);
        let known = profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "the adapter {name:?} has no model profile {wanted:?}; it has {known}: choose one, or write it into \
             [adapters.{name}.profiles]"
        )
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
                FailureCode::TransportInterruption,
                "the agent's process was ended from outside; whether all of it has ended is not known".into(),
            )),
        }
    }

    /// Opens the endpoint of a process that is started for `attempt`.
    fn open_endpoint(&self, attempt: &AttemptHandle, launch: &Launch) -> Result<Endpoint, Failure> {
        let (scope, peers, relay) =
            (&launch.scope, Peers::Guarded(launch.mark()), self.options.relay.clone());
        Endpoint::open(scope, peers, relay, attempt, &self.context.tasks).map_err(|error| {
            Failure::new(
                FailureCode::AdapterUnavailable,
                format!("the socket for the agent's calls was not made: {error}"),
            )
        })
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
            let mut launch = self.launch(attempt.id(), key);
            let endpoint = self.open_endpoint(attempt, &launch).map_err(SetupError::retryable)?;
            // The adapter's own variables come last and override.
            launch.env.splice(..0, endpoint.variables(attempt));
            launch.endpoint = Some(Arc::new(endpoint));
            *log.lock() = Some(launch.log.clone());
            tokio::select! {
                started = self.dialect.start(&launch, &self.context) => started,
                () = self.start_timeout() => {
                    let failure = with_last_output(self.timeout_failure("start"), &launch.log);
                    Err(SetupError::retryable(failure))
                }
            }
        };
        let lease = tokio::select! {
            lease = self.pool.acquire(key, native, start) => lease,
            () = attempt.cancelled() => {
                // The starting process is being killed. The attempt ends only after it.
                let mark = self.mark(attempt.id());
                process::wait_until_gone(&mark, &self.context.clock).await;
                return Err(AttemptError::Cancelled);
            }
        };
        let lease = lease?.ok_or_else(|| {
            permanent(FailureCode::AdapterUnavailable, "mainspring is shutting down".into())
        })?;
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
        stage: Stage,
        step: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let (failure, cause) = tokio::select! {
            done = step => return done,
            () = attempt.cancelled() => return Err(AttemptError::Cancelled),
            () = worker.disconnected() => (process_ended(worker), Cause::Disconnected),
            () = self.start_timeout() => {
                let failure = self.timeout_failure("open its session");
                (with_last_output(failure, worker.process().log()), Cause::TimedOut)
            }
        };
        Err(broken_step(stage, cause, failure))
    }
}

/// The facts about the process that executes an attempt.
fn process_facts(worker: &impl AgentWorker) -> RuntimeFacts {
    // The process is named after the attempt that started it.
    let name = worker.process().name();
    let metadata: Map<_, _> =
        worker.agent_info().map(|agent| ("agent".to_owned(), agent)).into_iter().collect();
    RuntimeFacts {
        instance: Some(format!("worker_{}", name.strip_prefix("att_").unwrap_or(name))),
        binding_metadata: metadata.clone(),
        metadata,
        ..RuntimeFacts::default()
    }
}

/// Adds the facts about the native session.
fn session_facts(mut facts: RuntimeFacts, model: Option<String>, start: &SessionStart) -> RuntimeFacts {
    if let SessionStart::Forked(from) = start {
        facts.binding_metadata.insert("forkedFrom".to_owned(), from.clone().into());
    }
    RuntimeFacts { model, ..facts }
}

/// The error of a step that precedes the turn and has left the agent's process in an unknown state.
pub(super) fn broken_step(stage: Stage, cause: Cause, failure: Failure) -> AttemptError {
    match is_session_lost(true, stage, cause) {
        true => AttemptError::Stale { reason: failure.message, is_broken: true },
        false => AttemptError::Failed(failure, true),
    }
}
