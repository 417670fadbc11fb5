//! Imports the events of one session under their original numbers.
//!
//! An event that has a counterpart in this store keeps its number and id. The others are skipped, which frees their
//! numbers. The original has no events for messages: the two messages of each run use two of the run's free numbers.
//! Events that only the import knows, such as a run becoming orphaned, come after all original events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_core::{
    Attempt, AttemptId, BindingId, BindingStatus, Body, CancelReason, Close, DelegationStatus, Failure,
    Message, Proof, Run, RunId, RunStatus, Time, ToolEnd, ToolOutcome,
};
use mainspring_kernel::store::{NewEvent, Row};
use serde_json::Value;

use super::rows::Fields;
use super::session::{Draft, DraftRun};
use super::{Import, OmiError, UNRECORDED_ERROR, event_id, id};

const REDUNDANT: &str = "another event says the same";
const STREAMED: &str = "streamed text: the final text of its run contains it";
const THOUGHT: &str = "thoughts, or what may contain thoughts, are not imported";
const UNKNOWN_TYPE: &str = "its type has no counterpart here";
const CONTRADICTS_END: &str = "it contradicts how its run or attempt ended";
const MISSING_SUBJECT: &str = "it refers to a record that is not there";

/// The converted event, or the reason to skip it.
type Converted = Result<Body, &'static str>;

/// The events of a session, grouped as the import needs them.
#[derive(Default)]
struct SessionEvents {
    /// The events to write, by number.
    by_seq: BTreeMap<u64, NewEvent>,
    /// The number of each run's first event.
    first: HashMap<RunId, u64>,
    /// The numbers of each run's skipped events.
    free: HashMap<RunId, Vec<u64>>,
    /// The number of the event that ends each run.
    ends: HashMap<RunId, u64>,
}

impl Import<'_> {
    /// Writes the runs and the events of a session.
    pub(super) fn import_events(&mut self, draft: &Draft, rows: &[Fields]) -> Result<(), OmiError> {
        let runs: HashMap<RunId, &DraftRun> = draft.runs.iter().map(|run| (run.run.id, run)).collect();
        let mut events = SessionEvents { ends: end_numbers(&runs, rows), ..SessionEvents::default() };
        for row in rows {
            self.import_event(draft, &runs, &mut events, row);
        }
        for run in &draft.runs {
            self.write_run(draft, run, &mut events)?;
        }
        for (seq, event) in events.by_seq {
            self.commit(draft.session.id, vec![event], vec![], Some(seq))?;
        }
        // Readers learn the names of a session from this event, which the original did not always write.
        if !rows.iter().any(|row| row.text("type") == Some("session.created")) {
            let event = NewEvent { at: draft.session.created_at, ..self.event(None, session_created(draft)) };
            self.commit(draft.session.id, vec![event], vec![], None)?;
        }
        for (binding_id, status, reason) in &draft.ended_bindings {
            let (binding_id, status, reason) = (*binding_id, *status, (*reason).to_owned());
            let body = Body::BindingStale { binding_id, status, reason };
            let event = self.event(None, body);
            self.commit(draft.session.id, vec![event], vec![], None)?;
        }
        Ok(())
    }

    /// Converts one event into `events`, or frees its number.
    fn import_event(
        &mut self,
        draft: &Draft,
        runs: &HashMap<RunId, &DraftRun>,
        events: &mut SessionEvents,
        row: &Fields,
    ) {
        let original_id = row.text_or_empty("event_id");
        let seq = row.number("event_seq").and_then(|seq| u64::try_from(seq).ok()).filter(|seq| *seq > 0);
        let Some(seq) = seq else {
            return self.report.skipped("events", "invalid number", &original_id);
        };
        let run = match row.text("run_id").map(|run| id::<RunId>(run).and_then(|run| runs.get(&run))) {
            Some(None) => return,
            run => run.flatten().copied(),
        };
        if let Some(run) = run {
            events.first.entry(run.run.id).or_insert(seq);
        }
        match self.convert_event(draft, run, &events.ends, seq, row) {
            Ok(body) => {
                let attempt = row.text("attempt_id").and_then(id::<AttemptId>);
                let is_known =
                    run.is_some_and(|run| run.attempts.iter().any(|known| Some(known.id) == attempt));
                let event = NewEvent {
                    id: event_id(&original_id, self.options.ids),
                    pos: 0,
                    run: run.map(|run| run.run.id),
                    attempt: attempt.filter(|_| is_known),
                    at: row.time("created_at_ms").unwrap_or(Time(0)),
                    body,
                };
                self.report.imported("events");
                events.by_seq.insert(seq, event);
            }
            Err(why) => {
                self.report.skipped_unnamed("events", why);
                if let Some(run) = run {
                    events.free.entry(run.run.id).or_default().push(seq);
                }
            }
        }
    }

    /// Writes the rows of a run and the events that come after all original ones.
    fn write_run(
        &mut self,
        draft: &Draft,
        run: &DraftRun,
        events: &mut SessionEvents,
    ) -> Result<(), OmiError> {
        let mut rows: Vec<Row> =
            run.attempts.iter().map(|attempt| Row::Attempt(Box::new(attempt.clone()))).collect();
        rows.push(Row::Run(Arc::new(run.run.clone())));
        // No event of the run has a lower number.
        let begin = events.first.get(&run.run.id).copied();
        self.commit(draft.session.id, vec![], rows, Some(begin.unwrap_or(self.seq + 1)))?;
        let late = self.add_message_events(run, events);
        self.commit(draft.session.id, late, vec![], None)
    }

    /// Adds the events of a run's two messages under free numbers. Returns the events that come after all original ones:
    /// the end of a run that the original did not end, and its messages if no number is free.
    fn add_message_events(&mut self, run: &DraftRun, events: &mut SessionEvents) -> Vec<NewEvent> {
        let end = events.ends.get(&run.run.id).copied();
        let mut free = events.free.remove(&run.run.id).unwrap_or_default();
        free.retain(|seq| end.is_none_or(|end| *seq < end));
        let completed = |message: &Arc<Message>, parent_id| NewEvent {
            at: message.created_at,
            ..self.event(Some(run.run.id), Body::MessageCompleted { message: message.clone(), parent_id })
        };
        let prompt = completed(&run.prompt, run.parent);
        let answer = completed(&run.answer, Some(run.prompt.id));
        let mut late = vec![];
        // If only one number is free, the answer gets it.
        let last = free.pop();
        let messages = [(free.first().copied(), prompt), (last, answer)];
        for (seq, event) in messages {
            match (seq, end) {
                (Some(seq), _) => drop(events.by_seq.insert(seq, event)),
                (None, None) => late.push(event),
                (None, Some(_)) => {
                    let how = "no free number for a message event: the message is only in the tree";
                    self.report.changed("runs", how, &run.run.id.to_string());
                }
            }
        }
        if end.is_none() {
            for attempt in run.attempts.iter().filter(|attempt| run.unfinished.contains(&attempt.id)) {
                if let Ok(body) = attempt_failed(attempt) {
                    late.push(NewEvent { attempt: Some(attempt.id), ..self.event(Some(run.run.id), body) });
                }
            }
            let ended = self.event(Some(run.run.id), run_ended(run));
            late.push(NewEvent { attempt: run.run.last_attempt, ..ended });
        }
        late
    }

    fn convert_event(
        &self,
        draft: &Draft,
        run: Option<&DraftRun>,
        ends: &HashMap<RunId, u64>,
        seq: u64,
        row: &Fields,
    ) -> Converted {
        let kind = row.text("type").unwrap_or_default();
        let payload: Value =
            serde_json::from_str(row.text("payload_json").unwrap_or("{}")).unwrap_or_default();
        if let Some(status) = ended_status(kind) {
            let run = run.ok_or(MISSING_SUBJECT)?;
            return match ends.get(&run.run.id) {
                Some(end) if *end == seq => Ok(run_ended(run)),
                _ if run.run.state.status() == status => Err(REDUNDANT),
                _ => Err(CONTRADICTS_END),
            };
        }
        match kind.split_once('.').unwrap_or_default() {
            ("run", kind) => convert_run_event(kind, &run.ok_or(MISSING_SUBJECT)?.run),
            ("attempt", kind) => convert_attempt_event(kind, attempt_of(run, row)?, &payload),
            ("runtime", "attempt_orphaned") => {
                convert_attempt_event("orphaned", attempt_of(run, row)?, &payload)
            }
            ("runtime", "binding_stale") => convert_binding_event("stale", draft, &payload),
            ("binding", kind) => convert_binding_event(kind, draft, &payload),
            ("adapter", "tool_activity") => convert_tool_event(&payload),
            ("session", "created") => Ok(session_created(draft)),
            ("artifact", "created") => {
                let artifact = payload["artifactId"].as_str().and_then(|id| draft.artifacts.get(id));
                let artifact = artifact.ok_or(MISSING_SUBJECT)?;
                Ok(Body::ArtifactCreated {
                    artifact_id: artifact.id,
                    kind: artifact.kind.clone(),
                    role: artifact.role,
                    name: artifact.name.clone(),
                    mime_type: artifact.mime_type.clone(),
                    size_bytes: artifact.size_bytes,
                })
            }
            ("delegation", kind) => self.convert_delegation_event(kind, &payload),
            ("message", "completed") => Err(REDUNDANT),
            ("progress", _) => Err(THOUGHT),
            _ if kind.contains("thinking") => Err(THOUGHT),
            _ if kind.ends_with("delta") => Err(STREAMED),
            _ => Err(UNKNOWN_TYPE),
        }
    }

    fn convert_delegation_event(&self, kind: &str, payload: &Value) -> Converted {
        let known = payload["delegationId"].as_str().and_then(|id| self.delegations.get(id));
        let delegation = known.and_then(super::rows::DelegationRow::delegation).ok_or(MISSING_SUBJECT)?;
        let status = payload["status"].as_str().and_then(DelegationStatus::from_name);
        match (kind, status.unwrap_or(delegation.status)) {
            ("created", _) => Ok(Body::DelegationCreated {
                delegation_id: delegation.id,
                child_session_id: delegation.child_session,
                child_run_id: delegation.child_run,
                mode: delegation.mode,
                objective: delegation.objective,
            }),
            (_, DelegationStatus::Pending | DelegationStatus::Running) => Err(REDUNDANT),
            ("completed", status) => Ok(Body::DelegationCompleted { delegation_id: delegation.id, status }),
            _ => Err(UNKNOWN_TYPE),
        }
    }
}

fn session_created(draft: &Draft) -> Body {
    Body::SessionCreated {
        key: None,
        title: draft.session.title.clone(),
        adapter: draft.session.adapter.clone(),
        surface_kind: draft.session.surface_kind.clone(),
        external_ref: draft.session.external_ref.clone(),
    }
}

/// Finds the event that ends each run: the last one that agrees with the status in the run's row.
fn end_numbers(runs: &HashMap<RunId, &DraftRun>, rows: &[Fields]) -> HashMap<RunId, u64> {
    let mut ends = HashMap::new();
    for row in rows {
        let run = row.text("run_id").and_then(id::<RunId>).and_then(|run| runs.get(&run));
        let ends_run = |run: &&&DraftRun| {
            ended_status(row.text("type").unwrap_or_default()) == Some(run.run.state.status())
                && run.unfinished.is_empty()
        };
        if let (Some(run), Some(seq)) = (run.filter(ends_run), row.number("event_seq")) {
            ends.insert(run.run.id, u64::try_from(seq).unwrap_or(0));
        }
    }
    ends
}

/// Returns the final status that an event of this type gives its run.
fn ended_status(kind: &str) -> Option<RunStatus> {
    let name = match kind {
        "runtime.run_orphaned" => "orphaned",
        kind => kind.strip_prefix("run.")?,
    };
    RunStatus::from_name(name).filter(|status| status.is_ended())
}

fn run_ended(run: &DraftRun) -> Body {
    let message = run.run.final_message;
    let close = Close { message_id: message, tip: message, usage: run.run.usage };
    let error = run.run.state.error().cloned();
    let error = error.unwrap_or_else(|| Failure::new("unknown", UNRECORDED_ERROR));
    match run.run.state.status() {
        RunStatus::Succeeded => Body::RunSucceeded { close },
        RunStatus::Cancelled => Body::RunCancelled { reason: CancelReason::Requested, close },
        RunStatus::Failed => Body::RunFailed { error, close },
        RunStatus::TimedOut => Body::RunTimedOut { error, close },
        _ => Body::RunOrphaned { error, close },
    }
}

fn convert_run_event(kind: &str, run: &Run) -> Converted {
    match kind {
        "created" | "queued" => Ok(Body::run_accepted(run.adapter.clone(), run.mode, None)),
        "starting" => Ok(Body::RunStarting {}),
        "running" => Ok(Body::RunRunning {}),
        "cancellation_requested" => Ok(Body::RunCancellationRequested { reason: CancelReason::Requested }),
        "cancelling" => Ok(Body::RunCancelling {}),
        "cancel_ack" => Err(REDUNDANT),
        _ => Err(UNKNOWN_TYPE),
    }
}

fn attempt_of<'a>(run: Option<&'a DraftRun>, row: &Fields) -> Result<&'a Attempt, &'static str> {
    let id = row.text("attempt_id").and_then(id::<AttemptId>);
    let find = |run: &'a DraftRun| run.attempts.iter().find(|attempt| Some(attempt.id) == id);
    run.and_then(find).ok_or(MISSING_SUBJECT)
}

fn convert_attempt_event(kind: &str, attempt: &Attempt, payload: &Value) -> Converted {
    let flag = |name: &str| payload[name].as_bool().unwrap_or(false);
    match kind {
        "created" => Ok(Body::AttemptCreated {
            attempt_no: attempt.no,
            adapter: attempt.adapter.clone(),
            resume_from_attempt_id: attempt.resume_from,
            checkpoint_artifact_id: attempt.checkpoint,
            retry_reason: attempt.retry_reason,
        }),
        "started" => Ok(Body::AttemptStarted {}),
        "cancel_dispatch" => Ok(Body::AttemptCancelDispatch {
            dispatched: flag("dispatchAttempted"),
            acknowledged: flag("adapterAcknowledged"),
        }),
        "succeeded" => Err(REDUNDANT),
        "cancelled" if attempt.status == RunStatus::Cancelled => {
            Ok(Body::AttemptCancelled { proof: Proof::Ended })
        }
        "failed" | "timed_out" | "orphaned" => attempt_failed(attempt),
        "cancelled" => Err(CONTRADICTS_END),
        _ => Err(UNKNOWN_TYPE),
    }
}

fn attempt_failed(attempt: &Attempt) -> Converted {
    if !attempt.status.is_settled() {
        return Err(CONTRADICTS_END);
    }
    let error = attempt.error.clone();
    let error = error.unwrap_or_else(|| Failure::new("unknown", UNRECORDED_ERROR));
    Ok(Body::AttemptFailed { status: attempt.status, error, retryable: attempt.retryable })
}

fn convert_binding_event(kind: &str, draft: &Draft, payload: &Value) -> Converted {
    let find_binding = |name: &str| {
        payload[name].as_str().and_then(id::<BindingId>).and_then(|binding| draft.bindings.get(&binding))
    };
    let binding = find_binding("bindingId").ok_or(MISSING_SUBJECT)?;
    let stale = |status| {
        let reason =
            payload["reason"].as_str().unwrap_or("the original did not record the reason").to_owned();
        Ok(Body::BindingStale { binding_id: binding.id, status, reason })
    };
    match kind {
        "created" => Ok(Body::BindingCreated {
            binding_id: binding.id,
            adapter: binding.adapter.clone(),
            generation: binding.generation,
            fidelity: binding.fidelity,
            reconstructed: false,
        }),
        "replaced" => {
            let before = find_binding("replacesBindingId").ok_or(MISSING_SUBJECT)?;
            Ok(Body::BindingReplaced { binding_id: before.id, by: binding.id })
        }
        "resumed" => Ok(Body::BindingResumed { binding_id: binding.id }),
        "stale" => stale(BindingStatus::Stale),
        "invalidated" => stale(BindingStatus::Invalid),
        _ => Err(UNKNOWN_TYPE),
    }
}

fn convert_tool_event(payload: &Value) -> Converted {
    let name = payload["name"].as_str().ok_or(MISSING_SUBJECT)?.to_owned();
    // Not every runtime of the original gave its tool calls an id.
    let tool_use_id = payload["toolUseId"].as_str().unwrap_or(&name).to_owned();
    match payload["status"].as_str() {
        Some("started") => {
            let input = payload.get("input").cloned();
            Ok(Body::ToolStarted { tool_use_id, name, input, decided_by: None })
        }
        Some("completed") => Ok(Body::ToolCompleted { tool_use_id, name, end: ToolEnd::default() }),
        Some("failed") => Ok(Body::ToolFailed {
            tool_use_id,
            name,
            outcome: ToolOutcome::Failed,
            error: Failure::new("tool_failed", UNRECORDED_ERROR),
            end: ToolEnd::default(),
        }),
        _ => Err(UNKNOWN_TYPE),
    }
}
