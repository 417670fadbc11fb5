//! Runs: one accepted request, retried as attempts until it ends.
//!
//! ```text
//! queued ──start──▶ starting ──open──▶ running ──finish──▶ succeeded
//!  ▲  │                 │              ▲    │ └─wait──▶ waiting_input | waiting_approval ─┐
//!  │  │                 │              └────┼────────────── answer, resume ──────────────┘
//!  │  │                 └──── cancel ───────┴──▶ cancelling ──finish──▶ cancelled
//!  │  └─ cancel ──▶ cancelled
//!  └── fail, to be tried again        fail ──▶ failed | timed_out | orphaned ──retry──▶ queued
//! ```
//!
//! A queued run that steers can be merged into the active run instead of being started. A merged run has no attempts
//! and ends together with the run it was merged into.
//!
//! Invariants: at most one attempt of a run has not ended; attempt numbers grow by one; `succeeded` and `cancelled`
//! are final; reports of an attempt without authority are refused.

use serde::{Deserialize, Serialize};

use crate::attempt::{self, Attempt};
use crate::goal::{self, Goal};
use crate::wait::{self, Answer, Answerer, Wait, WaitRequest};
use crate::{
    ArtifactId, AttemptId, Body, CancelReason, Close, Cost, Failure, MessageId, NextAttempt, NodeId, Point,
    Proof, Refusal, RetryReason, RunChange, RunId, Session, SessionId, Task, Time, Usage, WaitId,
};

mod budget;
pub mod close;
mod output;
mod request;
pub mod round;
mod state;
pub use budget::Budget;
pub use output::RunOutput;
pub use request::{AgentLimits, Limit, Mode, Place, Policy, RequestName, RunLimits, RunOption, RunOptions};
pub use state::{RunState, RunStatus};

/// A run: one accepted request of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The run's id.
    #[serde(rename = "runId")]
    pub id: RunId,
    /// The session the run belongs to.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The owner of the run.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The number of the run within its session, from 1, in the order of acceptance.
    #[serde(rename = "runNo")]
    pub no: u32,
    /// The parent run that delegated this run.
    #[serde(rename = "parentRunId", skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The caller's names for the request.
    #[serde(flatten)]
    pub request: RequestName,
    /// The hash of the request body. A request with the same name and another hash is a conflict.
    #[serde(skip)]
    pub fingerprint: [u8; 16],
    /// The adapter that executes the run.
    pub adapter: String,
    /// Whether the agent may act or only answer.
    pub mode: Mode,
    /// The user message that started the run. Absent if the run answers an earlier message again.
    #[serde(rename = "promptMessageId", skip_serializing_if = "Option::is_none")]
    pub prompt: Option<MessageId>,
    /// The options of the run.
    pub options: RunOptions,
    /// The hash of the system prompt, by which native sessions are compared. Absent if the run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt_hash: Option<String>,
    /// The place in the session's tree where the run writes.
    pub place: Place,
    /// True when the prompt is to join the active run at its next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steers: bool,
    /// The run that this run's prompt was merged into. This run ends together with it.
    #[serde(rename = "mergedIntoRunId", default, skip_serializing_if = "Option::is_none")]
    pub merged_into: Option<RunId>,
    /// The position of the run's next message in the tree; `None` until the run starts.
    #[serde(skip)]
    pub pen: Option<Point>,
    /// The state of the run.
    #[serde(flatten)]
    pub state: RunState,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The latest attempt.
    #[serde(rename = "lastAttemptId", skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<AttemptId>,
    /// The last message the run wrote.
    #[serde(rename = "finalMessageId", skip_serializing_if = "Option::is_none")]
    pub final_message: Option<MessageId>,
    /// All text that the agent wrote in the run. Present when a single ended run is read; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_text: Option<String>,
    /// The structured output. Absent if the run has no output schema, or none of its answers was checked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RunOutput>>,
    /// The goals of the run, in the order in which they were declared. Absent if it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<Goal>,
    /// The plan that the agent keeps. Absent if it keeps none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    /// Tokens and cost of all attempts.
    pub usage: Usage,
    /// The remaining budget as of the latest model call. Absent if the run has no limits or no model was called yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<Budget>>,
    /// When the run was accepted.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the first attempt was created.
    #[serde(rename = "startedAtMs", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When a caller last retried the run. The time limit counts from then.
    #[serde(rename = "retriedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub retried_at: Option<Time>,
    /// When the run ended.
    #[serde(rename = "completedAtMs", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When the run last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

impl Run {
    /// Fingerprint of a run whose request body is unknown: the request is identified by its name alone.
    pub const UNKNOWN_FINGERPRINT: [u8; 16] = [0; 16];

    /// True when a request with this fingerprint can be the one that created the run.
    pub fn matches_fingerprint(&self, fingerprint: [u8; 16]) -> bool {
        self.fingerprint == fingerprint || self.fingerprint == Self::UNKNOWN_FINGERPRINT
    }

    /// The agent definition that the run follows: its own, or that of its session for a run of an earlier version.
    pub fn agent_definition<'a>(&'a self, session: &'a Session) -> &'a str {
        self.options.agent_definition.as_deref().unwrap_or(&session.agent_definition)
    }

    /// The time from which the run's time limit counts: its start, or its last retry by a caller.
    pub fn limited_since(&self) -> Time {
        self.retried_at.or(self.started_at).unwrap_or(self.created_at)
    }

    /// The limits that remain for the run at `now`. `agent` are the limits of its agent, `delegated` is the usage of its
    /// children. The latest budget takes precedence, since it includes extensions and the limits of the adapter.
    pub fn limits_left(&self, agent: AgentLimits, delegated: &Usage, now: Time) -> RunLimits {
        let limits = self.options.limits.of_agent(agent);
        let budget = self.budget.as_deref().copied().unwrap_or_default();
        let used = self.usage + *delegated;
        let max_tokens = budget.max_tokens.or(limits.max_tokens);
        let max_cost = budget.max_cost.or(limits.max_cost);
        let ends_at = budget.ends_at.or(limits.max_time.map(|max| self.limited_since().plus(max)));
        RunLimits {
            max_steps: budget.steps_left.or(limits.max_steps),
            max_tokens: max_tokens.map(|max| max.saturating_sub(used.tokens())),
            max_cost: max_cost.map(|max| Cost(max.0.saturating_sub(used.cost.0))),
            max_time: ends_at.map(|ends_at| ends_at.since(now)),
            ..limits
        }
    }

    /// The time from which the time limit counts while `attempt` executes. If the clock was set back between two
    /// attempts, it counts from the creation of the later attempt, so that the run exceeds its limit by at most the
    /// limit's own length.
    pub fn limited_since_in(&self, attempt: &Attempt) -> Time {
        self.limited_since().min(attempt.created_at)
    }

    /// Adjusts the deadlines of a run that is loaded at `now`, if the clock was set back since the run was stored. Returns
    /// true if the run has changed.
    pub fn keep_deadlines(&mut self, now: Time) -> bool {
        let set_at = self.updated_at;
        if now >= set_at {
            return false;
        }
        let (retry_at, wait) = match &mut self.state {
            RunState::Queued { retry_at, .. } => (retry_at.as_mut(), None),
            state => (None, state.wait_mut()),
        };
        let of_wait = wait.into_iter().flat_map(Wait::deadlines_mut);
        let mut has_changed = false;
        for deadline in retry_at.into_iter().chain(of_wait) {
            *deadline = deadline.kept_from(set_at, now);
            has_changed = true;
        }
        if has_changed {
            self.updated_at = now;
        }
        has_changed
    }

    /// The refusal for commands to a run that is not live: it has ended or was merged into another run.
    pub fn not_live(&self) -> Refusal {
        let status = self.state.status();
        match self.merged_into.filter(|_| !status.is_ended()) {
            Some(into) => Refusal::Merged { into },
            None => Refusal::Ended { status },
        }
    }
}

/// A command to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Create the next attempt.
    Start {
        /// The newest checkpoint of the run, if it was tried before.
        checkpoint: Option<ArtifactId>,
    },
    /// The agent of an attempt can work now.
    Open {
        /// The attempt that reports it.
        by: AttemptId,
    },
    /// An attempt needs an answer.
    Wait {
        /// The attempt that asks.
        by: AttemptId,
        /// The wait to open.
        wait: Wait,
    },
    /// A wait is answered.
    Answer {
        /// The wait.
        wait: WaitId,
        /// The answer.
        answer: Answer,
        /// The party that answers.
        by: Option<Answerer>,
    },
    /// The open wait has expired, and the attempt continues without an answer.
    Lapse {
        /// The attempt that continues.
        by: AttemptId,
    },
    /// A worker is free to continue with the answer.
    Resume {
        /// The attempt that continues.
        by: AttemptId,
    },
    /// Cancel the run.
    Cancel {
        /// The reason.
        reason: CancelReason,
    },
    /// The adapter of an attempt was signalled to stop.
    Dispatched {
        /// The attempt.
        by: AttemptId,
        /// The signal was sent.
        dispatched: bool,
        /// The adapter acknowledged the signal.
        acknowledged: bool,
    },
    /// An attempt ended.
    Finish {
        /// The attempt.
        by: AttemptId,
        /// The outcome.
        outcome: Outcome,
    },
    /// Retry a run that has ended.
    Retry {
        /// The reason.
        reason: RetryReason,
        /// The changes that the retry makes to the run.
        change: RunChange,
    },
    /// Merge the run's prompt into another run.
    Merge {
        /// The other run.
        into: RunId,
    },
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The attempt completed successfully.
    Succeeded,
    /// The attempt stopped, on request or by itself.
    Stopped {
        /// The evidence that it stopped.
        proof: Proof,
    },
    /// The attempt failed. `retry` is the next attempt, if there is one.
    Failed {
        /// The status of the run if it is not retried: failed, timed_out or orphaned.
        status: RunStatus,
        /// The error.
        error: Failure,
        /// True when the error is temporary.
        retryable: bool,
        /// The next attempt.
        retry: Option<Box<NextAttempt>>,
    },
}

/// Decides the effect of `command` on `run`: the events to record, or a refusal.
///
/// `attempt` is the run's latest attempt. All events of one decision concern the same attempt. The [`Close`] of an
/// event that ends the run is left empty; the writer of the run's last messages fills it in. Goals that are pending when
/// the run ends fail before the event that ends the run.
pub fn decide(run: &Run, attempt: Option<&Attempt>, command: Command) -> Result<Vec<Body>, Refusal> {
    let mut events = decide_run(run, attempt, command)?;
    if let Some(end) = events.iter().position(Body::ends_run).filter(|_| !run.goals.is_empty()) {
        let concluded = goal::conclude(run, &events[end]);
        events.splice(end..end, concluded);
    }
    Ok(events)
}

fn decide_run(run: &Run, attempt: Option<&Attempt>, command: Command) -> Result<Vec<Body>, Refusal> {
    let status = run.state.status();
    let close = Close::default();
    if let Some(into) =
        run.merged_into.filter(|_| !status.is_ended() || matches!(command, Command::Retry { .. }))
    {
        return Err(Refusal::Merged { into });
    }
    match (&run.state, command) {
        (RunState::Queued { .. }, Command::Merge { into }) if run.steers => {
            Ok(vec![Body::RunMerged { into_run_id: into }])
        }
        (RunState::Queued { retry_reason, .. }, Command::Start { checkpoint }) => {
            Ok(vec![attempt_created(run, *retry_reason, checkpoint), Body::RunStarting {}])
        }
        (_, Command::Open { by }) => {
            let attempt = check_authority(run, attempt, by)?;
            Ok(vec![attempt::decide(attempt, attempt::Command::Open)?, Body::RunRunning {}])
        }
        (_, Command::Wait { by, wait }) => {
            check_authority(run, attempt, by)?;
            match &run.state {
                RunState::Running { .. } => Ok(wait::open(&wait)),
                _ => Err(wrong_state(status)),
            }
        }
        (state, Command::Answer { wait, answer, by }) => resolve_wait(state, wait, Some(answer), by),
        (state, Command::Lapse { by }) => {
            check_authority(run, attempt, by)?;
            match state.wait() {
                Some(wait) if wait.answer.is_none() => resolve_wait(state, wait.id, None, None),
                _ => Err(wrong_state(status)),
            }
        }
        (state, Command::Resume { by }) => {
            check_authority(run, attempt, by)?;
            match state.wait() {
                Some(wait) if wait.answer.is_some() => Ok(vec![Body::RunRunning {}]),
                _ => Err(wrong_state(status)),
            }
        }
        (RunState::Queued { .. }, Command::Cancel { reason }) => {
            Ok(vec![Body::RunCancellationRequested { reason }, Body::RunCancelled { reason, close }])
        }
        (RunState::Cancelling { .. }, Command::Cancel { .. }) => Ok(vec![]),
        (state, Command::Cancel { reason }) if state.holder().is_some() => {
            let mut events = vec![Body::RunCancellationRequested { reason }];
            match state.wait() {
                // Only the store holds the wait: nothing is executing, so there is nothing to stop.
                Some(wait) if !wait.held => {
                    events.extend(resolve_wait(state, wait.id, None, None)?);
                    events.push(Body::AttemptCancelled { proof: Proof::Idle });
                    events.push(Body::RunCancelled { reason, close });
                }
                Some(wait) => {
                    events.extend(resolve_wait(state, wait.id, None, None)?);
                    events.push(Body::RunCancelling {});
                }
                None => events.push(Body::RunCancelling {}),
            }
            Ok(events)
        }
        (_, Command::Cancel { .. }) => Err(Refusal::Ended { status }),
        (_, Command::Dispatched { by, dispatched, acknowledged }) => {
            let attempt = check_authority(run, attempt, by)?;
            Ok(vec![attempt::decide(attempt, attempt::Command::Dispatch { dispatched, acknowledged })?])
        }
        (_, Command::Finish { by, outcome }) => {
            check_authority(run, attempt, by)?;
            finish(run, outcome)
        }
        (state, Command::Retry { reason, change }) if state.status().is_settled() => {
            Ok(vec![run_queued(run, NextAttempt { reason, at: None, change })])
        }
        (_, Command::Start { .. } | Command::Retry { .. } | Command::Merge { .. }) => {
            Err(wrong_state(status))
        }
    }
}

/// Propagates an event of the run that `run` was merged into: `run` ends with that run and is requeued with it. Its
/// usage is left empty so that it is not counted twice.
pub fn follow(run: &Run, body: &Body) -> Option<Body> {
    let settled = run.state.status().is_settled();
    match body {
        Body::RunQueued { retry_reason, .. } if settled => {
            let reason = retry_reason.unwrap_or(RetryReason::User);
            Some(run_queued(run, NextAttempt { reason, at: None, change: RunChange::default() }))
        }
        body if body.ends_run() && !run.state.status().is_ended() => {
            let mut body = body.clone();
            if let Some(close) = body.close_mut() {
                *close = Close { message_id: close.message_id, ..Close::default() };
            }
            Some(body)
        }
        _ => None,
    }
}

fn finish(run: &Run, outcome: Outcome) -> Result<Vec<Body>, Refusal> {
    let (state, close) = (&run.state, Close::default());
    let mut events = match state.wait() {
        Some(wait) => resolve_wait(state, wait.id, None, None)?,
        None => vec![],
    };
    let orphaned = matches!(outcome, Outcome::Failed { status: RunStatus::Orphaned, .. });
    match (state, outcome) {
        (RunState::Cancelling { reason, .. }, Outcome::Stopped { proof }) => {
            events.push(Body::AttemptCancelled { proof });
            events.push(Body::RunCancelled { reason: *reason, close });
        }
        // After a stop was requested, an attempt that ended counts as stopped, whatever outcome it reports. Only for
        // an orphaned attempt it is unknown whether it has ended.
        (RunState::Cancelling { reason, .. }, Outcome::Succeeded | Outcome::Failed { .. }) if !orphaned => {
            events.push(Body::AttemptCancelled { proof: Proof::Ended });
            events.push(Body::RunCancelled { reason: *reason, close });
        }
        (RunState::Running { .. }, Outcome::Succeeded) => match goal::failure_if_pending(run) {
            None => events.push(Body::RunSucceeded { close }),
            Some(error) => {
                let status = RunStatus::Failed;
                events.push(Body::AttemptFailed { status, error: error.clone(), retryable: false });
                events.push(Body::RunFailed { error, close });
            }
        },
        (_, Outcome::Succeeded) => return Err(wrong_state(state.status())),
        (_, Outcome::Stopped { proof }) => {
            events.push(Body::AttemptCancelled { proof });
            events.push(Body::RunCancelled { reason: CancelReason::Agent, close });
        }
        (state, Outcome::Failed { status, error, retryable, retry }) => {
            let status = if status.is_settled() { status } else { RunStatus::Failed };
            events.push(Body::AttemptFailed { status, error: error.clone(), retryable });
            events.push(match (status, retry, state) {
                (_, Some(retry), state) if !matches!(state, RunState::Cancelling { .. }) => {
                    run_queued(run, *retry)
                }
                (RunStatus::TimedOut, ..) => Body::RunTimedOut { error, close },
                (RunStatus::Orphaned, ..) => Body::RunOrphaned { error, close },
                _ => Body::RunFailed { error, close },
            });
        }
    }
    Ok(events)
}

/// Builds the events that answer the open wait `wait`, or that close it without an answer.
fn resolve_wait(
    state: &RunState,
    wait: WaitId,
    answer: Option<Answer>,
    by: Option<Answerer>,
) -> Result<Vec<Body>, Refusal> {
    let open = state.wait().filter(|open| open.id == wait);
    let open = open.ok_or(Refusal::NotWaiting { wait, status: state.status() })?;
    if answer.is_none() && open.answer.is_some() {
        return Ok(vec![]);
    }
    Ok(wait::decide(open, answer, by)?.into_iter().collect())
}

fn run_queued(run: &Run, retry: NextAttempt) -> Body {
    let RunChange { adapter, model, model_profile, limits } = retry.change;
    Body::RunQueued {
        adapter: adapter.unwrap_or_else(|| run.adapter.clone()),
        mode: run.mode,
        policy: None,
        retry_at_ms: retry.at,
        retry_reason: Some(retry.reason),
        model,
        model_profile,
        limits,
    }
}

fn check_authority<'a>(
    run: &Run,
    attempt: Option<&'a Attempt>,
    by: AttemptId,
) -> Result<&'a Attempt, Refusal> {
    match (run.state.holder(), attempt) {
        (Some(holder), Some(attempt)) if holder == by && attempt.id == by => Ok(attempt),
        (Some(holder), _) => Err(Refusal::StaleAttempt { by, holder }),
        (None, _) => Err(Refusal::NoAuthority { by, status: run.state.status() }),
    }
}

fn attempt_created(run: &Run, retry_reason: Option<RetryReason>, checkpoint: Option<ArtifactId>) -> Body {
    Body::AttemptCreated {
        attempt_no: run.attempts + 1,
        adapter: run.adapter.clone(),
        resume_from_attempt_id: run.last_attempt,
        checkpoint_artifact_id: checkpoint,
        retry_reason,
    }
}

fn wrong_state(status: RunStatus) -> Refusal {
    Refusal::WrongState { what: "run", status: status.name() }
}

/// Creates the attempt of a [`Body::AttemptCreated`] event.
pub fn new_attempt(
    run: &Run,
    id: AttemptId,
    checkpoint: Option<ArtifactId>,
    node: NodeId,
    at: Time,
) -> Attempt {
    let retry_reason = match run.state {
        RunState::Queued { retry_reason, .. } => retry_reason,
        _ => None,
    };
    Attempt {
        id,
        run: run.id,
        no: run.attempts + 1,
        status: RunStatus::Starting,
        adapter: run.adapter.clone(),
        node,
        instance: None,
        native_run: None,
        binding: None,
        resume_from: run.last_attempt,
        checkpoint,
        retry_reason,
        error: None,
        retryable: false,
        usage: Usage::default(),
        sandbox: None,
        left_running: vec![],
        metadata: serde_json::Map::new(),
        cancellation: attempt::Cancellation::default(),
        created_at: at,
        started_at: None,
        completed_at: None,
    }
}

/// Applies an event to `run`. Infallible: the event has already been decided.
///
/// `attempt` is the attempt the event belongs to, `wait` the wait that the event opens.
pub fn apply(run: &mut Run, body: &Body, attempt: Option<AttemptId>, wait: Option<&Wait>, at: Time) {
    run.updated_at = at;
    let end = |run: &mut Run, state: RunState, close: &Close| {
        run.state = state;
        run.final_message = close.message_id.or(run.final_message);
        run.completed_at = Some(at);
    };
    match body {
        Body::RunQueued { adapter, retry_at_ms, retry_reason, model, model_profile, limits, .. } => {
            let is_reopened = run.state.status().is_ended();
            run.state = RunState::Queued { retry_at: *retry_at_ms, retry_reason: *retry_reason };
            run.completed_at = None;
            if retry_reason.is_some() {
                let adapter = Some(adapter.clone());
                let (model, model_profile) = (model.clone(), model_profile.clone());
                RunChange { adapter, model, model_profile, limits: *limits }.apply(run);
            }
            if is_reopened {
                restart_time_limit(run, at);
                goal::reopen(&mut run.goals);
            }
        }
        Body::AttemptCreated { attempt_no, .. } => {
            run.attempts = *attempt_no;
            run.last_attempt = attempt;
            run.started_at = run.started_at.or(Some(at));
            // Discards the output of an earlier attempt.
            run.output = None;
        }
        Body::RunMerged { into_run_id } => run.merged_into = Some(*into_run_id),
        Body::RunStarting {} => {
            if let Some(attempt) = attempt {
                run.state = RunState::Starting { attempt };
            }
        }
        Body::RunRunning {} => {
            if let Some(attempt) = attempt {
                run.state = RunState::Running { attempt };
            }
        }
        Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. } => {
            if let (Some(attempt), Some(wait)) = (attempt, wait.cloned().map(Box::new)) {
                run.state = match wait.request {
                    WaitRequest::Input | WaitRequest::Tools => RunState::WaitingInput { attempt, wait },
                    WaitRequest::Approval => RunState::WaitingApproval { attempt, wait },
                };
            }
        }
        // A wait that closed without an answer is recorded with an empty answer; the run then ends or continues.
        Body::InputProvided { wait_id, input, .. } => {
            set_answer(run, *wait_id, Answer::Input { input: input.clone().unwrap_or_default() });
        }
        Body::ApprovalResolved { wait_id, decision, reason, result, .. } => {
            set_answer(run, *wait_id, Answer::approval(*decision, reason.clone(), result.clone()));
        }
        Body::ToolsProvided { wait_id, results } => {
            if let Some(wait) = run.state.wait_mut().filter(|wait| wait.id == *wait_id) {
                wait::record_results(wait, results.as_deref());
            }
        }
        Body::RunCancellationRequested { reason } => {
            if let Some(attempt) = run.state.holder() {
                run.state = RunState::Cancelling { attempt, reason: *reason };
            }
        }
        Body::UsageUpdated { usage } => run.usage += *usage,
        Body::OutputCompleted { output, error } => {
            run.output = Some(Box::new(RunOutput::new(output.clone(), error.clone())));
        }
        Body::StepCompleted { budget: Some(budget), .. } | Body::LimitExceeded { budget } => {
            run.budget = Some(Box::new(*budget));
        }
        Body::TasksUpdated { tasks } => run.tasks.clone_from(tasks),
        Body::RunSucceeded { close } => end(run, RunState::Succeeded {}, close),
        Body::RunFailed { error, close } => end(run, RunState::Failed { error: error.clone() }, close),
        Body::RunCancelled { reason, close } => end(run, RunState::Cancelled { reason: *reason }, close),
        Body::RunTimedOut { error, close } => end(run, RunState::TimedOut { error: error.clone() }, close),
        Body::RunOrphaned { error, close } => end(run, RunState::Orphaned { error: error.clone() }, close),
        other => goal::apply(&mut run.goals, other, at),
    }
}

/// Lets the time limit of a run count from `at`, its retry by a caller.
fn restart_time_limit(run: &mut Run, at: Time) {
    let since = run.limited_since();
    if let Some(ends_at) = run.budget.as_mut().and_then(|budget| budget.ends_at.as_mut()) {
        *ends_at = at.plus(ends_at.since(since));
    }
    run.retried_at = Some(at);
}

fn set_answer(run: &mut Run, to: WaitId, answer: Answer) {
    if let Some(wait) = run.state.wait_mut().filter(|wait| wait.id == to) {
        wait.answer = Some(answer);
    }
}

#[cfg(test)]
pub(crate) mod tests;
