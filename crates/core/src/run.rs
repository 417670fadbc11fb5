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
//! A queued run that steers may be merged into the active one instead of being started: then it has no attempts, and
//! follows that run to its end.
//!
//! Invariants: at most one attempt of a run is not ended; attempt numbers grow by one; `succeeded` and
//! `cancelled` are final; what comes from an attempt without authority is refused.

use serde::{Deserialize, Serialize};

use crate::attempt::{self, Attempt};
use crate::wait::{self, Answer, Wait, WaitRequest};
use crate::{
    AttemptId, Body, CancelReason, Close, Failure, MessageId, NodeId, Point, Proof, Refusal, RunId,
    SessionId, Time, Usage, WaitId,
};

mod budget;
pub mod close;
mod request;
mod state;
pub use budget::Budget;
pub use request::{Limit, Mode, Place, Policy, RequestName, RunLimits, RunOptions};
pub use state::{RunState, RunStatus};

/// One accepted unit of intent in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its id.
    #[serde(rename = "runId")]
    pub id: RunId,
    /// Its session.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// Whose it is.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// Its number within its session, from 1: the order of acceptance.
    #[serde(rename = "runNo")]
    pub no: u32,
    /// The run that delegated it.
    #[serde(rename = "parentRunId", skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Who asked, and the caller's name for the request.
    #[serde(flatten)]
    pub request: RequestName,
    /// The hash of what was asked, so that the same name with another body is a conflict.
    #[serde(skip)]
    pub fingerprint: [u8; 16],
    /// The adapter that executes it.
    pub adapter: String,
    /// Whether it may act or only answer.
    pub mode: Mode,
    /// The user message that started it; none when it answers an earlier one again.
    #[serde(rename = "promptMessageId", skip_serializing_if = "Option::is_none")]
    pub prompt: Option<MessageId>,
    /// All else it needs.
    pub options: RunOptions,
    /// Where in the tree it writes.
    pub place: Place,
    /// Its prompt is to join the run that is active, at its next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steers: bool,
    /// The run that its prompt joined; it ends as that one ends.
    #[serde(rename = "mergedIntoRunId", default, skip_serializing_if = "Option::is_none")]
    pub merged_into: Option<RunId>,
    /// Where its next message goes; none until it starts.
    #[serde(skip)]
    pub pen: Option<Point>,
    /// Where it stands.
    #[serde(flatten)]
    pub state: RunState,
    /// How many attempts there have been.
    pub attempts: u32,
    /// The latest attempt.
    #[serde(rename = "lastAttemptId", skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<AttemptId>,
    /// The last message it wrote.
    #[serde(rename = "finalMessageId", skip_serializing_if = "Option::is_none")]
    pub final_message: Option<MessageId>,
    /// What all its attempts used.
    pub usage: Usage,
    /// What it may still use, as of its latest model call; absent if nothing is limited, or no model was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// When it was accepted.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When its first attempt was created.
    #[serde(rename = "startedAtMs", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(rename = "completedAtMs", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When it last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

impl Run {
    /// The fingerprint of a run of which it is not known what exactly was asked: its name alone decides.
    pub const ASKED_UNKNOWN: [u8; 16] = [0; 16];

    /// True when a request of this fingerprint may be the one that made it.
    pub fn is_asked_by(&self, fingerprint: [u8; 16]) -> bool {
        self.fingerprint == fingerprint || self.fingerprint == Self::ASKED_UNKNOWN
    }

    /// Why nothing can be asked of a run that nobody works on: it has ended, or is part of another.
    pub fn not_live(&self) -> Refusal {
        let status = self.state.status();
        match self.merged_into.filter(|_| !status.is_ended()) {
            Some(into) => Refusal::Merged { into },
            None => Refusal::Ended { status },
        }
    }
}

/// What may be asked of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Create the next attempt.
    Start,
    /// The attempt's adapter takes control.
    Open {
        /// Who says so.
        by: AttemptId,
    },
    /// The attempt needs an answer.
    Wait {
        /// Who says so.
        by: AttemptId,
        /// What it needs.
        wait: Wait,
    },
    /// Somebody answers.
    Answer {
        /// What is answered.
        wait: WaitId,
        /// The answer.
        answer: Answer,
    },
    /// Nobody has answered in time, and the attempt goes on without an answer.
    Lapse {
        /// Which attempt.
        by: AttemptId,
    },
    /// A worker is free to go on with the answer.
    Resume {
        /// Which attempt.
        by: AttemptId,
    },
    /// Stop.
    Cancel {
        /// Why.
        reason: CancelReason,
    },
    /// The attempt's adapter was told to stop.
    Dispatched {
        /// Which attempt.
        by: AttemptId,
        /// The signal left.
        dispatched: bool,
        /// The adapter confirmed it.
        acknowledged: bool,
    },
    /// The attempt has ended.
    Finish {
        /// Which attempt.
        by: AttemptId,
        /// How.
        outcome: Outcome,
    },
    /// Try an ended run again.
    Retry,
    /// Its prompt joins another run.
    Merge {
        /// Which.
        into: RunId,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It did its work.
    Succeeded,
    /// It stopped because it was told to, or by itself.
    Stopped {
        /// How that is known.
        proof: Proof,
    },
    /// It went wrong; `status` is failed, timed_out or orphaned. Tried again at `retry_at` if there is one.
    Failed {
        /// Which of the settled states the run ends in if it is not tried again.
        status: RunStatus,
        /// What went wrong.
        error: Failure,
        /// Whether it might go right another time.
        retryable: bool,
        /// When it is tried again.
        retry_at: Option<Time>,
    },
}

/// Decides what `command` does to `run`: the events to record, or a refusal.
///
/// `attempt` is the run's latest attempt. All events of one decision concern the same attempt. What a run's end says
/// ([`Close`]) is left empty here; whoever writes its last messages fills it in.
pub fn decide(run: &Run, attempt: Option<&Attempt>, command: Command) -> Result<Vec<Body>, Refusal> {
    let status = run.state.status();
    let close = Close::default();
    if let Some(into) = run.merged_into.filter(|_| !status.is_ended() || command == Command::Retry) {
        return Err(Refusal::Merged { into });
    }
    match (&run.state, command) {
        (RunState::Queued { .. }, Command::Merge { into }) if run.steers => {
            Ok(vec![Body::RunMerged { into_run_id: into }])
        }
        (RunState::Queued { .. }, Command::Start) => Ok(vec![
            Body::AttemptCreated {
                attempt_no: run.attempts + 1,
                adapter: run.adapter.clone(),
                resume_from_attempt_id: run.last_attempt,
            },
            Body::RunStarting {},
        ]),
        (_, Command::Open { by }) => {
            let attempt = authority(run, attempt, by)?;
            Ok(vec![attempt::decide(attempt, attempt::Command::Open)?, Body::RunRunning {}])
        }
        (_, Command::Wait { by, wait }) => {
            authority(run, attempt, by)?;
            match &run.state {
                RunState::Running { .. } => Ok(wait::open(&wait)),
                _ => Err(wrong(status)),
            }
        }
        (state, Command::Answer { wait, answer }) => settled(state, wait, Some(answer)),
        (state, Command::Lapse { by }) => {
            authority(run, attempt, by)?;
            match state.wait() {
                Some(wait) if wait.answer.is_none() => settled(state, wait.id, None),
                _ => Err(wrong(status)),
            }
        }
        (state, Command::Resume { by }) => {
            authority(run, attempt, by)?;
            match state.wait() {
                Some(wait) if wait.answer.is_some() => Ok(vec![Body::RunRunning {}]),
                _ => Err(wrong(status)),
            }
        }
        (RunState::Queued { .. }, Command::Cancel { reason }) => {
            Ok(vec![Body::RunCancellationRequested { reason }, Body::RunCancelled { reason, close }])
        }
        (RunState::Cancelling { .. }, Command::Cancel { .. }) => Ok(vec![]),
        (state, Command::Cancel { reason }) if state.holder().is_some() => {
            let mut events = vec![Body::RunCancellationRequested { reason }];
            match state.wait() {
                // Nothing executes while the wait is held by the store alone, so nothing is left to stop.
                Some(wait) if !wait.held => {
                    events.extend(settled(state, wait.id, None)?);
                    events.push(Body::AttemptCancelled { proof: Proof::Idle });
                    events.push(Body::RunCancelled { reason, close });
                }
                Some(wait) => {
                    events.extend(settled(state, wait.id, None)?);
                    events.push(Body::RunCancelling {});
                }
                None => events.push(Body::RunCancelling {}),
            }
            Ok(events)
        }
        (_, Command::Cancel { .. }) => Err(Refusal::Ended { status }),
        (_, Command::Dispatched { by, dispatched, acknowledged }) => {
            let attempt = authority(run, attempt, by)?;
            Ok(vec![attempt::decide(attempt, attempt::Command::Dispatch { dispatched, acknowledged })?])
        }
        (_, Command::Finish { by, outcome }) => {
            authority(run, attempt, by)?;
            finished(run, outcome)
        }
        (state, Command::Retry) if state.status().is_settled() => Ok(vec![requeued(run, None)]),
        (_, Command::Start | Command::Retry | Command::Merge { .. }) => Err(wrong(status)),
    }
}

/// What `body`, which happened to the run that `run` was merged into, means for `run`: it ends as that one, and is
/// taken up again with it. Its usage is that one's, and not counted twice.
pub fn follow(run: &Run, body: &Body) -> Option<Body> {
    let settled = run.state.status().is_settled();
    match body {
        Body::RunQueued { .. } if settled => Some(requeued(run, None)),
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

fn finished(run: &Run, outcome: Outcome) -> Result<Vec<Body>, Refusal> {
    let (state, close) = (&run.state, Close::default());
    let mut events = match state.wait() {
        Some(wait) => settled(state, wait.id, None)?,
        None => vec![],
    };
    let orphaned = matches!(outcome, Outcome::Failed { status: RunStatus::Orphaned, .. });
    match (state, outcome) {
        (RunState::Cancelling { reason, .. }, Outcome::Stopped { proof }) => {
            events.push(Body::AttemptCancelled { proof });
            events.push(Body::RunCancelled { reason: *reason, close });
        }
        // Once a stop was asked for, an attempt that has ended is a stopped one, whatever it says of itself. Only of
        // an orphaned one is it not known that it has.
        (RunState::Cancelling { reason, .. }, Outcome::Succeeded | Outcome::Failed { .. }) if !orphaned => {
            events.push(Body::AttemptCancelled { proof: Proof::Ended });
            events.push(Body::RunCancelled { reason: *reason, close });
        }
        (RunState::Running { .. }, Outcome::Succeeded) => events.push(Body::RunSucceeded { close }),
        (_, Outcome::Succeeded) => return Err(wrong(state.status())),
        (_, Outcome::Stopped { proof }) => {
            events.push(Body::AttemptCancelled { proof });
            events.push(Body::RunCancelled { reason: CancelReason::Agent, close });
        }
        (state, Outcome::Failed { status, error, retryable, retry_at }) => {
            let status = if status.is_settled() { status } else { RunStatus::Failed };
            events.push(Body::AttemptFailed { status, error: error.clone(), retryable });
            events.push(match (status, retry_at, state) {
                (_, Some(at), state) if !matches!(state, RunState::Cancelling { .. }) => {
                    requeued(run, Some(at))
                }
                (RunStatus::TimedOut, ..) => Body::RunTimedOut { error, close },
                (RunStatus::Orphaned, ..) => Body::RunOrphaned { error, close },
                _ => Body::RunFailed { error, close },
            });
        }
    }
    Ok(events)
}

/// The events that close the open wait `wait`, with its answer or without one.
fn settled(state: &RunState, wait: WaitId, answer: Option<Answer>) -> Result<Vec<Body>, Refusal> {
    let open = state.wait().filter(|open| open.id == wait);
    let open = open.ok_or(Refusal::NotWaiting { wait, status: state.status() })?;
    if answer.is_none() && open.answer.is_some() {
        return Ok(vec![]);
    }
    Ok(wait::decide(open, answer)?.into_iter().collect())
}

fn requeued(run: &Run, retry_at: Option<Time>) -> Body {
    Body::RunQueued { adapter: run.adapter.clone(), mode: run.mode, policy: None, retry_at_ms: retry_at }
}

fn authority<'a>(run: &Run, attempt: Option<&'a Attempt>, by: AttemptId) -> Result<&'a Attempt, Refusal> {
    match (run.state.holder(), attempt) {
        (Some(holder), Some(attempt)) if holder == by && attempt.id == by => Ok(attempt),
        (Some(holder), _) => Err(Refusal::StaleAttempt { by, holder }),
        (None, _) => Err(Refusal::NoAuthority { by, status: run.state.status() }),
    }
}

fn wrong(status: RunStatus) -> Refusal {
    Refusal::WrongState { what: "run", status: status.name() }
}

/// Creates the attempt that an [`Body::AttemptCreated`] announces.
pub fn attempt_of(run: &Run, id: AttemptId, node: NodeId, at: Time) -> Attempt {
    Attempt {
        id,
        run: run.id,
        no: run.attempts + 1,
        status: RunStatus::Starting,
        adapter: run.adapter.clone(),
        node,
        binding: None,
        resume_from: run.last_attempt,
        error: None,
        retryable: false,
        usage: Usage::default(),
        cancellation: attempt::Cancellation::default(),
        created_at: at,
        started_at: None,
        completed_at: None,
    }
}

/// Changes `run` as `body` says. Cannot fail: what was decided happens.
///
/// `attempt` is the attempt the event belongs to, `wait` the one it opens.
pub fn apply(run: &mut Run, body: &Body, attempt: Option<AttemptId>, wait: Option<&Wait>, at: Time) {
    run.updated_at = at;
    let end = |run: &mut Run, state: RunState, close: &Close| {
        run.state = state;
        run.final_message = close.message_id.or(run.final_message);
        run.completed_at = Some(at);
    };
    match body {
        Body::RunQueued { retry_at_ms, .. } => {
            run.state = RunState::Queued { retry_at: *retry_at_ms };
            run.completed_at = None;
        }
        Body::AttemptCreated { attempt_no, .. } => {
            run.attempts = *attempt_no;
            run.last_attempt = attempt;
            run.started_at = run.started_at.or(Some(at));
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
            if let (Some(attempt), Some(wait)) = (attempt, wait.cloned()) {
                run.state = match wait.request {
                    WaitRequest::Input | WaitRequest::Tools => RunState::WaitingInput { attempt, wait },
                    WaitRequest::Approval => RunState::WaitingApproval { attempt, wait },
                };
            }
        }
        // Where nobody has answered, that is the answer: the run ends with it, or goes on.
        Body::InputProvided { wait_id, input } => {
            answer(run, *wait_id, Answer::Input { input: input.clone().unwrap_or_default() });
        }
        Body::ApprovalResolved { wait_id, decision, .. } => {
            answer(run, *wait_id, Answer::Approval { decision: *decision });
        }
        Body::ToolsProvided { wait_id, results } => {
            if let Some(wait) = run.state.wait_mut().filter(|wait| wait.id == *wait_id) {
                wait::give(wait, results.as_deref());
            }
        }
        Body::RunCancellationRequested { reason } => {
            if let Some(attempt) = run.state.holder() {
                run.state = RunState::Cancelling { attempt, reason: *reason };
            }
        }
        Body::UsageUpdated { usage } => run.usage += *usage,
        Body::StepCompleted { budget: Some(budget), .. } => run.budget = Some(*budget),
        Body::RunSucceeded { close } => end(run, RunState::Succeeded {}, close),
        Body::RunFailed { error, close } => end(run, RunState::Failed { error: error.clone() }, close),
        Body::RunCancelled { reason, close } => end(run, RunState::Cancelled { reason: *reason }, close),
        Body::RunTimedOut { error, close } => end(run, RunState::TimedOut { error: error.clone() }, close),
        Body::RunOrphaned { error, close } => end(run, RunState::Orphaned { error: error.clone() }, close),
        _ => {}
    }
}

fn answer(run: &mut Run, to: WaitId, answer: Answer) {
    if let Some(wait) = run.state.wait_mut().filter(|wait| wait.id == to) {
        wait.answer = Some(answer);
    }
}

#[cfg(test)]
mod tests;
