//! Checks the records of a file: each by itself, and the rows against the events. `mainspring verify` finds every
//! imported session intact.

use std::collections::{HashMap, HashSet};

use mainspring_core::{
    Attempt, AttemptId, Body, Cost, Message, Run, RunId, RunStatus, Session, SessionChange, SessionStatus,
    StateEntry, StateScope, Step, Time, Usage, goal, task,
};
use serde_json::Value;

use super::import::{LineError, refuse};

/// The largest version, position, time or count of a file: above every real one, and far from an overflow.
const MAX_COUNTER: u64 = Usage::MAX_TOKENS;
/// The largest number of a run, an attempt or a step.
const MAX_NUMBER: u32 = 1 << 31;
/// The largest cost of a file, a billion dollars.
const MAX_COST: Cost = Cost(1_000_000_000_000_000_000);

/// Refuses a version or position with which later ones could overflow.
pub(super) fn check_counter(what: &str, value: u64) -> Result<(), LineError> {
    if value > MAX_COUNTER {
        return refuse(format!("{what} is {value}, above {MAX_COUNTER}"));
    }
    Ok(())
}

/// Refuses the number of a run, an attempt or a step that is not between 1 and the largest.
fn check_number(what: &str, value: u32) -> Result<(), LineError> {
    if value == 0 || value > MAX_NUMBER {
        return refuse(format!("{what} is {value}, not between 1 and {MAX_NUMBER}"));
    }
    Ok(())
}

/// Refuses a time before 1970, or so late that later times could overflow.
pub(super) fn check_time(what: &str, time: Time) -> Result<(), LineError> {
    if u64::try_from(time.0).is_ok_and(|ms| ms <= MAX_COUNTER) {
        return Ok(());
    }
    refuse(format!("{what} is {}, not between 0 and {MAX_COUNTER}", time.0))
}

fn check_times<const N: usize>(of: &str, times: [(&str, Option<Time>); N]) -> Result<(), LineError> {
    let mut given = times.into_iter().filter_map(|(field, time)| Some((field, time?)));
    given.try_for_each(|(field, time)| check_time(&format!("{field} of {of}"), time))
}

fn check_usage(of: &str, usage: &Usage) -> Result<(), LineError> {
    for (field, tokens) in [
        ("inputTokens", usage.input_tokens),
        ("outputTokens", usage.output_tokens),
        ("cacheReadTokens", usage.cache_read_tokens),
        ("cacheWriteTokens", usage.cache_write_tokens),
    ] {
        check_counter(&format!("usage.{field} of {of}"), tokens)?;
    }
    if usage.cost.is_known() && usage.cost > MAX_COST {
        return refuse(format!("usage.costUsd of {of} is {}, above {MAX_COST}", usage.cost));
    }
    Ok(())
}

/// Checks the counters and times of a session.
pub(super) fn check_session(session: &Session) -> Result<(), LineError> {
    let id = session.id.to_string();
    check_counter(&format!("version of {id}"), session.version)?;
    check_times(
        &id,
        [
            ("createdAtMs", Some(session.created_at)),
            ("updatedAtMs", Some(session.updated_at)),
            ("lastActivityAtMs", Some(session.last_activity_at)),
        ],
    )
}

/// Checks the time and the usage of a message.
pub(super) fn check_message(message: &Message) -> Result<(), LineError> {
    let id = message.id.to_string();
    check_times(&id, [("createdAtMs", Some(message.created_at))])?;
    message.usage.as_ref().map_or(Ok(()), |usage| check_usage(&id, usage))
}

fn check_run(run: &Run) -> Result<(), LineError> {
    let id = run.id.to_string();
    check_number(&format!("runNo of {id}"), run.no)?;
    check_usage(&id, &run.usage)?;
    check_goals(&id, run)?;
    check_times(
        &id,
        [
            ("createdAtMs", Some(run.created_at)),
            ("startedAtMs", run.started_at),
            ("retriedAtMs", run.retried_at),
            ("completedAtMs", run.completed_at),
            ("updatedAtMs", Some(run.updated_at)),
        ],
    )
}

/// Refuses goals that contradict themselves or the run's status, and a plan that no agent could have made.
fn check_goals(id: &str, run: &Run) -> Result<(), LineError> {
    for goal in &run.goals {
        let times = [("createdAtMs", Some(goal.created_at)), ("concludedAtMs", goal.concluded_at)];
        check_times(&goal.id.to_string(), times)?;
    }
    if !goal::is_consistent(&run.goals, run.state.status()) {
        return refuse(format!("the goals of {id} contradict its status"));
    }
    if !task::is_consistent(&run.tasks) {
        return refuse(format!("the tasks of {id} are not a plan: positions count from 0, ids differ"));
    }
    Ok(())
}

fn check_attempt(attempt: &Attempt) -> Result<(), LineError> {
    let id = attempt.id.to_string();
    check_usage(&id, &attempt.usage)?;
    check_times(
        &id,
        [
            ("createdAtMs", Some(attempt.created_at)),
            ("startedAtMs", attempt.started_at),
            ("completedAtMs", attempt.completed_at),
        ],
    )
}

fn check_step(step: &Step) -> Result<(), LineError> {
    let id = step.id.to_string();
    check_number(&format!("stepNo of {id}"), step.no)?;
    step.usage.as_ref().map_or(Ok(()), |usage| check_usage(&id, usage))?;
    check_times(
        &id,
        [
            ("startedAtMs", Some(step.started_at)),
            ("firstPieceAtMs", step.first_piece_at),
            ("completedAtMs", Some(step.completed_at)),
        ],
    )
}

/// The facts of the records so far, to compare later records with.
#[derive(Default)]
pub(super) struct Facts {
    runs: HashMap<RunId, RunFacts>,
    attempts: HashSet<AttemptId>,
    /// The hashes of the values of the session's state, by key and version; none for a removed key.
    state: HashMap<(String, u64), Option<[u8; 32]>>,
    /// The keys of the state at the tip, for a file of version 1.
    keys: HashSet<String>,
    /// The last title and the last status that an event has set.
    title: Option<Option<String>>,
    status: Option<SessionStatus>,
}

struct RunFacts {
    status: RunStatus,
    usage: Usage,
    is_merged: bool,
    /// The type of the last event that changes the status of the run.
    last_event: Option<&'static str>,
    /// The usage in the event that ended the run, unless it was retried after.
    event_usage: Option<Usage>,
}

impl Facts {
    /// True if the run comes earlier in the file.
    pub(super) fn has_run(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    /// True if the attempt comes earlier in the file.
    pub(super) fn has_attempt(&self, attempt: AttemptId) -> bool {
        self.attempts.contains(&attempt)
    }

    /// Checks a run with its attempts and steps.
    pub(super) fn add_run(
        &mut self,
        run: &Run,
        attempts: &[Attempt],
        steps: &[Step],
    ) -> Result<(), LineError> {
        let id = run.id;
        check_run(run)?;
        if usize::try_from(run.attempts).ok() != Some(attempts.len()) {
            return refuse(format!(
                "attempts of {id} is {}, but the line has {}",
                run.attempts,
                attempts.len()
            ));
        }
        let mut last_no = 0;
        for attempt in attempts {
            if attempt.run != id || !attempt.status.is_ended() {
                return refuse(format!("{} is not an ended attempt of {id}", attempt.id));
            }
            check_number(&format!("attemptNo of {}", attempt.id), attempt.no)?;
            if attempt.no <= last_no {
                return refuse(format!("attemptNo of {} is {}, not after {last_no}", attempt.id, attempt.no));
            }
            last_no = attempt.no;
            check_attempt(attempt)?;
            if !self.attempts.insert(attempt.id) {
                return refuse(format!("{} is there twice", attempt.id));
            }
        }
        let last = attempts.last().map(|attempt| attempt.id);
        if run.last_attempt.is_some() && run.last_attempt != last {
            return refuse(format!("lastAttemptId of {id} is not that of its last attempt"));
        }
        for step in steps {
            if step.run != id || !attempts.iter().any(|attempt| attempt.id == step.attempt) {
                return refuse(format!("{} is not a step of {id} and its attempts", step.id));
            }
            check_step(step)?;
        }
        let facts = RunFacts {
            status: run.state.status(),
            usage: run.usage,
            is_merged: run.merged_into.is_some(),
            last_event: None,
            event_usage: None,
        };
        match self.runs.insert(id, facts) {
            None => Ok(()),
            Some(_) => refuse(format!("{id} is there twice")),
        }
    }

    /// Notes an entry of the session's state.
    pub(super) fn add_state(&mut self, entry: &StateEntry) -> Result<(), LineError> {
        if !self.keys.insert(entry.key.clone()) {
            return refuse(format!("the key {:?} of the state is there twice", entry.key));
        }
        self.add_state_at(&entry.key, entry.version, Some(&entry.value))
    }

    /// Notes a version of a key of the session's state.
    pub(super) fn add_state_at(
        &mut self,
        key: &str,
        version: u64,
        value: Option<&Value>,
    ) -> Result<(), LineError> {
        match self.state.insert((key.to_owned(), version), value.map(hash)) {
            None => Ok(()),
            Some(_) => refuse(format!("version {version} of the key {key:?} of the state is there twice")),
        }
    }

    /// Checks an event against the earlier records, and notes its facts about them.
    pub(super) fn add_event(&mut self, run: Option<RunId>, body: &Body) -> Result<(), LineError> {
        match body {
            Body::SessionUpdated { change: SessionChange::Title { title, .. } } => {
                self.title = Some(title.clone());
            }
            Body::SessionUpdated { change: SessionChange::Status { status, .. } } => {
                self.status = Some(*status);
            }
            Body::StateChanged { scope: StateScope::Session, key, version, value: Some(value), .. } => {
                let known = self.state.get(&(key.clone(), *version));
                if known.is_some_and(|known| *known != Some(hash(value))) {
                    return refuse(format!("value of the state {key:?} is not that of its entry"));
                }
            }
            _ => {}
        }
        if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
            run.add_event(body);
        }
        Ok(())
    }

    /// Compares the rows with the last events about them, after the last event.
    pub(super) fn check_end(&self, session: &Session) -> Result<(), LineError> {
        if self.title.as_ref().is_some_and(|title| *title != session.title) {
            return refuse("title of the session is not that of its last session.updated event");
        }
        if self.status.is_some_and(|status| status != session.status) {
            return refuse("status of the session is not that of its last session.updated event");
        }
        for (id, run) in self.runs.iter().filter(|(_, run)| !run.is_merged) {
            let differs = |last: &&str| Body::run_status_of(last) != Some(run.status);
            if let Some(last) = run.last_event.filter(differs) {
                let status = run.status.name();
                return refuse(format!("status of {id} is {status}, but its last event is {last}"));
            }
            if run.event_usage.is_some_and(|usage| usage != run.usage) {
                return refuse(format!("usage of {id} is not that of the event that ended it"));
            }
        }
        Ok(())
    }
}

impl RunFacts {
    fn add_event(&mut self, body: &Body) {
        match body {
            Body::RunSucceeded { close }
            | Body::RunFailed { close, .. }
            | Body::RunCancelled { close, .. }
            | Body::RunTimedOut { close, .. }
            | Body::RunOrphaned { close, .. } => self.event_usage = Some(close.usage),
            Body::RunQueued { .. } => self.event_usage = None,
            Body::RunStarting {}
            | Body::RunRunning {}
            | Body::RunWaitingInput { .. }
            | Body::RunWaitingApproval { .. }
            | Body::RunCancelling {} => {}
            _ => return,
        }
        self.last_event = Some(body.kind());
    }
}

fn hash(value: &Value) -> [u8; 32] {
    *blake3::hash(value.to_string().as_bytes()).as_bytes()
}
