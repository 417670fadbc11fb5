//! The events of one session of the original, under the numbers they had.
//!
//! An event that has a counterpart here keeps its number and its id. Those that have none leave their numbers, and the
//! messages of their run, of which the original has no events, take two of these. What only the import knows (that a run
//! is orphaned) comes after all that happened there.

use std::collections::{BTreeMap, HashMap};

use mainspring_core::{
    AttemptId, BindingId, BindingStatus, Body, CancelReason, Close, DelegationStatus, Failure, Proof, RunId,
    RunStatus, Time, ToolOutcome,
};
use mainspring_kernel::store::{NewEvent, Row};
use serde_json::Value;

use super::rows::Fields;
use super::session::{Draft, DraftRun};
use super::{Import, OmiError, event_id, id};

const SAID: &str = "another event says the same";
const STREAMED: &str = "streamed text: the final text of its run holds it";
const THOUGHT: &str = "thoughts, or what may hold some, are kept nowhere";
const UNKNOWN: &str = "its type has no counterpart here";
const OTHERWISE: &str = "it contradicts how its run or attempt ended";
const NAMELESS: &str = "what it speaks of is not there";

/// What an event becomes, or why nothing.
type Said = Result<Body, &'static str>;

impl Import<'_> {
    /// Writes the runs and the events of a session.
    pub(super) fn events(&mut self, draft: &Draft, rows: &[Fields]) -> Result<(), OmiError> {
        let runs: HashMap<RunId, &DraftRun> = draft.runs.iter().map(|run| (run.run.id, run)).collect();
        let ends = ends(&runs, rows);
        let (mut told, mut first, mut free) =
            (BTreeMap::new(), HashMap::new(), HashMap::<RunId, Vec<u64>>::new());
        for row in rows {
            let named = row.owned("event_id");
            let Some(seq) =
                row.number("event_seq").and_then(|seq| u64::try_from(seq).ok()).filter(|seq| *seq > 0)
            else {
                self.report.left("events", "its number is not one of ours", &named);
                continue;
            };
            let run = match row.text("run_id").map(|run| id::<RunId>(run).and_then(|run| runs.get(&run))) {
                Some(None) => continue,
                run => run.flatten().copied(),
            };
            if let Some(run) = run {
                first.entry(run.run.id).or_insert(seq);
            }
            match self.body(draft, run, &ends, seq, row) {
                Ok(body) => {
                    let attempt = row.text("attempt_id").and_then(id::<AttemptId>);
                    let known =
                        run.is_some_and(|run| run.attempts.iter().any(|known| Some(known.id) == attempt));
                    let event = NewEvent {
                        id: event_id(&named, self.options.ids),
                        pos: 0,
                        run: run.map(|run| run.run.id),
                        attempt: attempt.filter(|_| known),
                        at: row.time("created_at_ms").unwrap_or(Time(0)),
                        body,
                    };
                    self.report.took("events");
                    told.insert(seq, event);
                }
                Err(why) => {
                    self.report.left_plain("events", why);
                    if let Some(run) = run {
                        free.entry(run.run.id).or_default().push(seq);
                    }
                }
            }
        }
        for run in &draft.runs {
            let id = run.run.id;
            let begin = first.get(&id).copied();
            let mut rows: Vec<Row> =
                run.attempts.iter().map(|one| Row::Attempt(Box::new(one.clone()))).collect();
            rows.push(Row::Run(Box::new(run.run.clone())));
            // Every event of the run lies after this number.
            self.commit(draft.session.id, vec![], rows, Some(begin.unwrap_or(self.seq + 1)))?;
            let end = ends.get(&id).copied();
            let free = free.remove(&id).unwrap_or_default();
            let late = self.spoken(run, end, free, &mut told);
            self.commit(draft.session.id, late, vec![], None)?;
        }
        for (seq, event) in told {
            self.commit(draft.session.id, vec![event], vec![], Some(seq))?;
        }
        // Whoever learns from events what a session stands for learns it from this one, which the original did not write.
        if !rows.iter().any(|row| row.text("type") == Some("session.created")) {
            let event = NewEvent { at: draft.session.created_at, ..self.event(None, created(draft)) };
            self.commit(draft.session.id, vec![event], vec![], None)?;
        }
        for (binding_id, status, reason) in &draft.lost {
            let (binding_id, status, reason) = (*binding_id, *status, (*reason).to_owned());
            let body = Body::BindingStale { binding_id, status, reason };
            let event = self.event(None, body);
            self.commit(draft.session.id, vec![event], vec![], None)?;
        }
        Ok(())
    }

    /// Gives the messages of a run two of its `free` numbers, and gives what comes after all that happened: its end, if
    /// the original has none.
    fn spoken(
        &mut self,
        run: &DraftRun,
        end: Option<u64>,
        mut free: Vec<u64>,
        told: &mut BTreeMap<u64, NewEvent>,
    ) -> Vec<NewEvent> {
        free.retain(|seq| end.is_none_or(|end| *seq < end));
        let completed = |message: &std::sync::Arc<mainspring_core::Message>, parent_id| NewEvent {
            at: message.created_at,
            ..self.event(Some(run.run.id), Body::MessageCompleted { message: message.clone(), parent_id })
        };
        let prompt = completed(&run.prompt, run.parent);
        let answer = completed(&run.answer, Some(run.prompt.id));
        let mut late = vec![];
        // The answer first: a run of which only one number is free did no more than answer.
        let last = free.pop();
        let messages = [(free.first().copied(), prompt), (last, answer)];
        for (seq, event) in messages {
            match (seq, end) {
                (Some(seq), _) => drop(told.insert(seq, event)),
                (None, None) => late.push(event),
                (None, Some(_)) => {
                    let how =
                        "no number was free for the event of a message: the message stands in the tree alone";
                    self.report.changed("runs", how, &run.run.id.to_string());
                }
            }
        }
        if end.is_none() {
            for attempt in run.attempts.iter().filter(|attempt| run.unfinished.contains(&attempt.id)) {
                if let Ok(body) = failed(attempt) {
                    late.push(NewEvent { attempt: Some(attempt.id), ..self.event(Some(run.run.id), body) });
                }
            }
            late.push(NewEvent { attempt: run.run.last_attempt, ..self.event(Some(run.run.id), ended(run)) });
        }
        late
    }

    fn body(
        &self,
        draft: &Draft,
        run: Option<&DraftRun>,
        ends: &HashMap<RunId, u64>,
        seq: u64,
        row: &Fields,
    ) -> Said {
        let kind = row.text("type").unwrap_or_default();
        let payload: Value =
            serde_json::from_str(row.text("payload_json").unwrap_or("{}")).unwrap_or_default();
        if let Some(status) = ending(kind) {
            let run = run.ok_or(NAMELESS)?;
            return match ends.get(&run.run.id) {
                Some(end) if *end == seq => Ok(ended(run)),
                _ if run.run.state.status() == status => Err(SAID),
                _ => Err(OTHERWISE),
            };
        }
        match kind.split_once('.').unwrap_or_default() {
            ("run", kind) => of_run(kind, &run.ok_or(NAMELESS)?.run),
            ("attempt", kind) => of_attempt(kind, attempt_of(run, row)?, &payload),
            ("runtime", "attempt_orphaned") => of_attempt("orphaned", attempt_of(run, row)?, &payload),
            ("runtime", "binding_stale") => of_binding("stale", draft, &payload),
            ("binding", kind) => of_binding(kind, draft, &payload),
            ("adapter", "tool_activity") => tool(&payload),
            ("session", "created") => Ok(created(draft)),
            ("artifact", "created") => {
                let artifact = payload["artifactId"].as_str().and_then(|id| draft.artifacts.get(id));
                let artifact = artifact.ok_or(NAMELESS)?;
                Ok(Body::ArtifactCreated {
                    artifact_id: artifact.id,
                    kind: artifact.kind.clone(),
                    role: artifact.role,
                    name: artifact.name.clone(),
                    mime_type: artifact.mime_type.clone(),
                    size_bytes: artifact.size_bytes,
                })
            }
            ("delegation", kind) => self.of_delegation(kind, &payload),
            ("message", "completed") => Err(SAID),
            ("progress", _) => Err(THOUGHT),
            _ if kind.contains("thinking") => Err(THOUGHT),
            _ if kind.ends_with("delta") => Err(STREAMED),
            _ => Err(UNKNOWN),
        }
    }

    fn of_delegation(&self, kind: &str, payload: &Value) -> Said {
        let known = payload["delegationId"].as_str().and_then(|id| self.delegations.get(id));
        let delegation = known.and_then(super::rows::DelegationRow::delegation).ok_or(NAMELESS)?;
        let status = payload["status"].as_str().and_then(DelegationStatus::from_name);
        match (kind, status.unwrap_or(delegation.status)) {
            ("created", _) => Ok(Body::DelegationCreated {
                delegation_id: delegation.id,
                child_session_id: delegation.child_session,
                child_run_id: delegation.child_run,
                mode: delegation.mode,
                objective: delegation.objective,
            }),
            (_, DelegationStatus::Pending | DelegationStatus::Running) => Err(SAID),
            ("completed", status) => Ok(Body::DelegationCompleted { delegation_id: delegation.id, status }),
            _ => Err(UNKNOWN),
        }
    }
}

fn created(draft: &Draft) -> Body {
    Body::SessionCreated {
        key: None,
        title: draft.session.title.clone(),
        adapter: draft.session.adapter.clone(),
        surface_kind: draft.session.surface_kind.clone(),
        external_ref: draft.session.external_ref.clone(),
    }
}

/// The number of the event that ends each run: the last that says of it what its row says.
fn ends(runs: &HashMap<RunId, &DraftRun>, rows: &[Fields]) -> HashMap<RunId, u64> {
    let mut ends = HashMap::new();
    for row in rows {
        let run = row.text("run_id").and_then(id::<RunId>).and_then(|run| runs.get(&run));
        let ends_run = |run: &&&DraftRun| {
            ending(row.text("type").unwrap_or_default()) == Some(run.run.state.status())
                && run.unfinished.is_empty()
        };
        if let (Some(run), Some(seq)) = (run.filter(ends_run), row.number("event_seq")) {
            ends.insert(run.run.id, u64::try_from(seq).unwrap_or(0));
        }
    }
    ends
}

/// How an event of this type says that a run ended.
fn ending(kind: &str) -> Option<RunStatus> {
    let name = match kind {
        "runtime.run_orphaned" => "orphaned",
        kind => kind.strip_prefix("run.")?,
    };
    RunStatus::from_name(name).filter(|status| status.is_ended())
}

fn ended(run: &DraftRun) -> Body {
    let message = run.run.final_message;
    let close = Close { message_id: message, tip: message, usage: run.run.usage };
    let error = run.run.state.error().cloned();
    let error =
        error.unwrap_or_else(|| Failure::new("unknown", "the original kept no word of what went wrong"));
    match run.run.state.status() {
        RunStatus::Succeeded => Body::RunSucceeded { close },
        RunStatus::Cancelled => Body::RunCancelled { reason: CancelReason::Requested, close },
        RunStatus::Failed => Body::RunFailed { error, close },
        RunStatus::TimedOut => Body::RunTimedOut { error, close },
        _ => Body::RunOrphaned { error, close },
    }
}

fn of_run(kind: &str, run: &mainspring_core::Run) -> Said {
    match kind {
        "created" | "queued" => Ok(Body::RunQueued {
            adapter: run.adapter.clone(),
            mode: run.mode,
            policy: None,
            retry_at_ms: None,
        }),
        "starting" => Ok(Body::RunStarting {}),
        "running" => Ok(Body::RunRunning {}),
        "cancellation_requested" => Ok(Body::RunCancellationRequested { reason: CancelReason::Requested }),
        "cancelling" => Ok(Body::RunCancelling {}),
        "cancel_ack" => Err(SAID),
        _ => Err(UNKNOWN),
    }
}

fn attempt_of<'a>(
    run: Option<&'a DraftRun>,
    row: &Fields,
) -> Result<&'a mainspring_core::Attempt, &'static str> {
    let named = row.text("attempt_id").and_then(id::<AttemptId>);
    let of = |run: &'a DraftRun| run.attempts.iter().find(|attempt| Some(attempt.id) == named);
    run.and_then(of).ok_or(NAMELESS)
}

fn of_attempt(kind: &str, attempt: &mainspring_core::Attempt, payload: &Value) -> Said {
    let flag = |name: &str| payload[name].as_bool().unwrap_or(false);
    match kind {
        "created" => Ok(Body::AttemptCreated {
            attempt_no: attempt.no,
            adapter: attempt.adapter.clone(),
            resume_from_attempt_id: attempt.resume_from,
        }),
        "started" => Ok(Body::AttemptStarted {}),
        "cancel_dispatch" => Ok(Body::AttemptCancelDispatch {
            dispatched: flag("dispatchAttempted"),
            acknowledged: flag("adapterAcknowledged"),
        }),
        "succeeded" => Err(SAID),
        "cancelled" if attempt.status == RunStatus::Cancelled => {
            Ok(Body::AttemptCancelled { proof: Proof::Ended })
        }
        "failed" | "timed_out" | "orphaned" => failed(attempt),
        "cancelled" => Err(OTHERWISE),
        _ => Err(UNKNOWN),
    }
}

fn failed(attempt: &mainspring_core::Attempt) -> Said {
    if !attempt.status.is_settled() {
        return Err(OTHERWISE);
    }
    let error = attempt.error.clone();
    let error =
        error.unwrap_or_else(|| Failure::new("unknown", "the original kept no word of what went wrong"));
    Ok(Body::AttemptFailed { status: attempt.status, error, retryable: attempt.retryable })
}

fn of_binding(kind: &str, draft: &Draft, payload: &Value) -> Said {
    let named = |name: &str| {
        payload[name].as_str().and_then(id::<BindingId>).and_then(|binding| draft.bindings.get(&binding))
    };
    let binding = named("bindingId").ok_or(NAMELESS)?;
    let stale = |status| {
        let reason = payload["reason"].as_str().unwrap_or("the original did not say why").to_owned();
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
            let before = named("replacesBindingId").ok_or(NAMELESS)?;
            Ok(Body::BindingReplaced { binding_id: before.id, by: binding.id })
        }
        "resumed" => Ok(Body::BindingResumed { binding_id: binding.id }),
        "stale" => stale(BindingStatus::Stale),
        "invalidated" => stale(BindingStatus::Invalid),
        _ => Err(UNKNOWN),
    }
}

fn tool(payload: &Value) -> Said {
    let name = payload["name"].as_str().ok_or(NAMELESS)?.to_owned();
    // Not every runtime of the original named its calls.
    let tool_use_id = payload["toolUseId"].as_str().unwrap_or(&name).to_owned();
    match payload["status"].as_str() {
        Some("started") => Ok(Body::ToolStarted { tool_use_id, name, input: payload.get("input").cloned() }),
        Some("completed") => Ok(Body::ToolCompleted { tool_use_id, name }),
        Some("failed") => Ok(Body::ToolFailed {
            tool_use_id,
            name,
            outcome: ToolOutcome::Failed,
            error: Failure::new("tool_failed", "the original kept no word of what went wrong"),
        }),
        _ => Err(UNKNOWN),
    }
}
