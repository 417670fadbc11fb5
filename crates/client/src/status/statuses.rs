//! Applies events to the known statuses.

use std::collections::HashMap;

use mainspring_core::{
    ArtifactId, ArtifactRole, AttemptId, Body, Event, ExternalRef, Failure, Run, RunId, RunStatus, Session,
    SessionChange, SessionId, Time, Usage,
};

/// Maximum number of known sessions; the least recently changed ones are dropped first.
const MAX_SESSIONS: usize = 10_000;

/// Maximum number of known artifacts of a run.
const MAX_ARTIFACTS: usize = 1_000;

/// The known status of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The session's id.
    pub session_id: SessionId,
    /// The kind of surface that opened the session; `None` if unknown.
    pub surface_kind: Option<String>,
    /// The application's thing that the session is about.
    pub external_ref: Option<ExternalRef>,
    /// The title, for display.
    pub title: Option<String>,
    /// The session's latest run.
    pub latest_run: Option<RunId>,
    /// The number of this session's last change, counted over all sessions: the smallest is the least recently
    /// changed.
    changed: u64,
}

/// The known status of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunView {
    /// The run's id.
    pub run_id: RunId,
    /// The run's session.
    pub session_id: SessionId,
    /// The status that mainspring reported.
    pub status: RunStatus,
    /// The progress, for display.
    pub progress: Option<String>,
    /// The attempt that executes the run; `None` if there is none.
    pub active_attempt: Option<AttemptId>,
    /// The usage of all attempts so far.
    pub usage: Usage,
    /// The reason why the run did not succeed.
    pub error: Option<Failure>,
    /// The artifacts of the run, the oldest first. `None` if they are not all known: the run began before the statuses
    /// were followed, or has created over 1,000. Read them with `Client::run_artifacts` then.
    pub artifacts: Option<Vec<ArtifactView>>,
    /// The time of the last change.
    pub updated_at: Time,
}

/// An artifact of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactView {
    /// The artifact's id.
    pub artifact_id: ArtifactId,
    /// The kind, for example `file`.
    pub kind: String,
    /// The role.
    pub role: ArtifactRole,
    /// The name, for display.
    pub name: Option<String>,
}

/// The known statuses of sessions and runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Statuses {
    sessions: HashMap<SessionId, SessionView>,
    runs: HashMap<RunId, RunView>,
    by_external_ref: HashMap<ExternalRef, SessionId>,
    changes: u64,
}

impl Statuses {
    pub(super) fn session(&self, session: SessionId) -> Option<&SessionView> {
        self.sessions.get(&session)
    }

    pub(super) fn run(&self, run: RunId) -> Option<&RunView> {
        self.runs.get(&run)
    }

    pub(super) fn latest_run(&self, session: SessionId) -> Option<&RunView> {
        self.runs.get(&self.sessions.get(&session)?.latest_run?)
    }

    pub(super) fn session_by_external_ref(&self, external: &ExternalRef) -> Option<&SessionView> {
        self.sessions.get(self.by_external_ref.get(external)?)
    }

    pub(super) fn is_full(&self) -> bool {
        self.sessions.len() >= MAX_SESSIONS
    }

    /// Records the description of a session.
    pub(super) fn record_session(&mut self, session: &Session) {
        let view = self.touch(session.id);
        view.surface_kind = Some(session.surface_kind.clone());
        view.external_ref.clone_from(&session.external_ref);
        view.title.clone_from(&session.title);
        self.index_external_ref(session.id, session.external_ref.as_ref());
    }

    /// Records the status of a run; `latest` if the run is its session's latest.
    pub(super) fn record_run(&mut self, run: &Run, latest: bool) {
        let status = run.state.status();
        let view = RunView {
            run_id: run.id,
            session_id: run.session,
            status,
            progress: None,
            active_attempt: run.last_attempt.filter(|_| has_attempt(status)),
            usage: run.usage,
            error: run.state.error().cloned(),
            artifacts: None,
            updated_at: run.updated_at,
        };
        self.runs.insert(run.id, view);
        let session = self.touch(run.session);
        if latest {
            session.latest_run = Some(run.id);
        }
    }

    /// Applies an event that the listed statuses may already include.
    pub(super) fn replay(&mut self, event: &Event) -> Option<SessionId> {
        // Usage is a sum and must not be counted twice. All other events set values, so a repetition is harmless.
        let known_run = event.run.and_then(|run| self.runs.get(&run));
        let is_counted = known_run.is_some_and(|run| run.updated_at >= event.at);
        match event.body {
            Body::UsageUpdated { .. } if is_counted => None,
            _ => self.apply(event),
        }
    }

    /// Applies an event. Returns its session if the session's description is unknown.
    pub(super) fn apply(&mut self, event: &Event) -> Option<SessionId> {
        let id = event.session;
        match &event.body {
            Body::SessionDeleted {} => {
                self.remove_session(id);
                return None;
            }
            Body::SessionCreated { title, surface_kind, external_ref, .. } => {
                let view = self.touch(id);
                view.surface_kind = Some(surface_kind.clone());
                view.title.clone_from(title);
                view.external_ref.clone_from(external_ref);
                self.index_external_ref(id, external_ref.as_ref());
            }
            Body::SessionUpdated { change: SessionChange::Title { title, .. } } => {
                self.touch(id).title.clone_from(title);
            }
            // A person deletes an artifact outside of its run.
            Body::ArtifactDeleted { artifact_id } => {
                for run in self.runs.values_mut().filter(|run| run.session_id == id) {
                    run.artifacts
                        .iter_mut()
                        .for_each(|all| all.retain(|one| one.artifact_id != *artifact_id));
                }
            }
            body => {
                if let Some(run) = event.run {
                    self.apply_to_run(run, event, body);
                }
            }
        }
        self.sessions
            .get(&id)
            .filter(|session| session.surface_kind.is_none())
            .map(|session| session.session_id)
    }

    fn apply_to_run(&mut self, id: RunId, event: &Event, body: &Body) {
        // Only a status makes a run known. Other events may be about a run that has ended, such as an uploaded artifact.
        let status = Body::run_status_of(body.kind());
        if status.is_none() && !self.runs.contains_key(&id) {
            return;
        }
        let session = self.touch(event.session);
        // A queued run becomes its session's latest, also when it is retried.
        let previous = match body {
            Body::RunQueued { .. } => session.latest_run.replace(id).filter(|previous| *previous != id),
            _ => None,
        };
        let is_latest = session.latest_run == Some(id);
        let run = self.runs.entry(id).or_insert_with(|| RunView {
            run_id: id,
            session_id: event.session,
            status: RunStatus::Queued,
            progress: None,
            active_attempt: None,
            usage: Usage::default(),
            error: None,
            artifacts: matches!(body, Body::RunQueued { .. }).then(Vec::new),
            updated_at: event.at,
        });
        run.apply(event, body);
        if run.status.is_ended() && !is_latest {
            self.runs.remove(&id);
        }
        if let Some(previous) = previous
            && self.runs.get(&previous).is_some_and(|run| run.status.is_ended())
        {
            self.runs.remove(&previous);
        }
    }

    /// Returns the session, marked as changed; adds it if it is unknown.
    fn touch(&mut self, id: SessionId) -> &mut SessionView {
        self.changes += 1;
        if !self.sessions.contains_key(&id) && self.is_full() {
            self.evict_one();
        }
        let view = self.sessions.entry(id).or_insert(SessionView {
            session_id: id,
            surface_kind: None,
            external_ref: None,
            title: None,
            latest_run: None,
            changed: 0,
        });
        view.changed = self.changes;
        view
    }

    fn index_external_ref(&mut self, id: SessionId, external: Option<&ExternalRef>) {
        if let Some(external) = external {
            self.by_external_ref.insert(external.clone(), id);
        }
    }

    /// Drops the least recently changed session without an active run.
    fn evict_one(&mut self) {
        let is_idle = |session: &&SessionView| {
            let run = session.latest_run.and_then(|run| self.runs.get(&run));
            run.is_none_or(|run| run.status.is_ended())
        };
        let oldest = self.sessions.values().filter(is_idle).min_by_key(|session| session.changed);
        if let Some(id) = oldest.map(|session| session.session_id) {
            self.remove_session(id);
        }
    }

    fn remove_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.runs.retain(|_, run| run.session_id != id);
        if let Some(external) = session.external_ref
            && self.by_external_ref.get(&external) == Some(&id)
        {
            self.by_external_ref.remove(&external);
        }
    }
}

impl RunView {
    fn apply(&mut self, event: &Event, body: &Body) {
        self.updated_at = self.updated_at.max(event.at);
        match body {
            Body::RunQueued { .. } => self.set_status(RunStatus::Queued),
            Body::RunStarting {} => self.set_status(RunStatus::Starting),
            Body::RunRunning {} => self.set_status(RunStatus::Running),
            Body::RunWaitingInput { .. } => self.set_status(RunStatus::WaitingInput),
            Body::RunWaitingApproval { .. } => self.set_status(RunStatus::WaitingApproval),
            Body::RunCancelling {} => self.set_status(RunStatus::Cancelling),
            Body::RunSucceeded { close } => self.end(RunStatus::Succeeded, None, close.usage),
            Body::RunCancelled { close, .. } => self.end(RunStatus::Cancelled, None, close.usage),
            Body::RunFailed { error, close } => self.end(RunStatus::Failed, Some(error), close.usage),
            Body::RunTimedOut { error, close } => self.end(RunStatus::TimedOut, Some(error), close.usage),
            Body::RunOrphaned { error, close } => self.end(RunStatus::Orphaned, Some(error), close.usage),
            Body::AttemptCreated { .. } => self.active_attempt = event.attempt,
            Body::ProgressUpdated { text } => self.progress = Some(text.clone()),
            Body::UsageUpdated { usage } => self.usage += *usage,
            Body::ArtifactCreated { artifact_id, kind, role, name, .. } => self.add_artifact(ArtifactView {
                artifact_id: *artifact_id,
                kind: kind.clone(),
                role: *role,
                name: name.clone(),
            }),
            _ => {}
        }
    }

    fn add_artifact(&mut self, artifact: ArtifactView) {
        let Some(known) = &mut self.artifacts else { return };
        // A replayed event may name a known artifact.
        if known.iter().any(|one| one.artifact_id == artifact.artifact_id) {
            return;
        }
        if known.len() < MAX_ARTIFACTS { known.push(artifact) } else { self.artifacts = None }
    }

    fn set_status(&mut self, status: RunStatus) {
        self.status = status;
        self.error = None;
        if !has_attempt(status) {
            (self.active_attempt, self.progress) = (None, None);
        }
    }

    fn end(&mut self, status: RunStatus, error: Option<&Failure>, usage: Usage) {
        self.set_status(status);
        (self.error, self.usage) = (error.cloned(), usage);
    }
}

/// True when a run of this status has an attempt that executes it.
fn has_attempt(status: RunStatus) -> bool {
    !status.is_ended() && status != RunStatus::Queued
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Cursor, EventId, Mode};

    use super::*;

    fn session(no: u16) -> SessionId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&no.to_be_bytes());
        SessionId::from_random(bytes)
    }

    fn run(no: u8) -> RunId {
        RunId::from_random([no; 16])
    }

    fn event(session_no: u16, run_no: Option<u8>, at: u64, body: Body) -> Event {
        Event {
            id: EventId::from_random([0; 16]),
            cursor: Cursor(at),
            pos: 0,
            session: session(session_no),
            run: run_no.map(run),
            attempt: Some(AttemptId::from_random([9; 16])),
            request: None,
            at: Time(i64::try_from(at).unwrap()),
            body,
        }
    }

    fn queued() -> Body {
        Body::run_accepted("a".into(), Mode::Act, None)
    }

    fn created(external: Option<ExternalRef>) -> Body {
        let (adapter, surface_kind) = ("a".to_owned(), "task_chat".to_owned());
        Body::SessionCreated { key: None, title: None, adapter, surface_kind, external_ref: external }
    }

    fn usage(input_tokens: u64) -> Body {
        Body::UsageUpdated { usage: Usage { input_tokens, ..Usage::default() } }
    }

    #[test]
    fn events_update_the_status_of_a_session_and_its_latest_run() {
        let task = ExternalRef { kind: "task".into(), id: "7".into() };
        let mut statuses = Statuses::default();
        assert_eq!(statuses.apply(&event(1, None, 1, created(Some(task.clone())))), None);
        for body in [
            queued(),
            Body::AttemptCreated {
                attempt_no: 1,
                adapter: "a".into(),
                resume_from_attempt_id: None,
                checkpoint_artifact_id: None,
                retry_reason: None,
            },
        ] {
            statuses.apply(&event(1, Some(1), 2, body));
        }
        for body in [Body::RunStarting {}, Body::RunRunning {}, usage(3), usage(4)] {
            statuses.apply(&event(1, Some(1), 3, body));
        }
        statuses.apply(&event(1, Some(1), 4, Body::ProgressUpdated { text: "half".into() }));
        let view = statuses.latest_run(statuses.session_by_external_ref(&task).unwrap().session_id).unwrap();
        assert_eq!((view.run_id, view.status, view.usage.input_tokens), (run(1), RunStatus::Running, 7));
        assert_eq!((view.progress.as_deref(), view.active_attempt.is_some()), (Some("half"), true));
        let error = Failure::new("executor_lost", "gone");
        statuses.apply(&event(
            1,
            Some(1),
            5,
            Body::RunOrphaned { error: error.clone(), close: Default::default() },
        ));
        let view = statuses.run(run(1)).unwrap();
        assert_eq!(
            (view.status, &view.error, view.active_attempt),
            (RunStatus::Orphaned, &Some(error), None)
        );
        // The next run becomes the latest; the ended one before it is dropped.
        statuses.apply(&event(1, Some(2), 6, queued()));
        assert_eq!((statuses.latest_run(session(1)).unwrap().run_id, statuses.run(run(1))), (run(2), None));
        statuses.apply(&event(1, None, 7, Body::SessionDeleted {}));
        assert!(statuses.session_by_external_ref(&task).is_none() && statuses.run(run(2)).is_none());
    }

    #[test]
    fn the_artifacts_of_a_run_are_known_if_it_was_followed_from_its_start() {
        let id = |no: u8| ArtifactId::from_random([no; 16]);
        let artifact = |no: u8| Body::ArtifactCreated {
            artifact_id: id(no),
            kind: "file".into(),
            role: ArtifactRole::Result,
            name: Some(format!("{no}.txt")),
            mime_type: None,
            size_bytes: None,
        };
        let mut statuses = Statuses::default();
        statuses.apply(&event(1, Some(1), 1, queued()));
        for no in [1, 2, 2] {
            statuses.apply(&event(1, Some(1), 2, artifact(no)));
        }
        let ids = |statuses: &Statuses| {
            let all = statuses.run(run(1)).unwrap().artifacts.clone().unwrap();
            all.into_iter().map(|one| one.artifact_id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&statuses), [id(1), id(2)], "a repeated event adds nothing");
        statuses.apply(&event(1, None, 3, Body::ArtifactDeleted { artifact_id: id(1) }));
        assert_eq!(ids(&statuses), [id(2)]);
        // A run whose start was not seen may have others.
        statuses.apply(&event(2, Some(3), 4, Body::RunRunning {}));
        statuses.apply(&event(2, Some(3), 5, artifact(4)));
        assert_eq!(statuses.run(run(3)).unwrap().artifacts, None);
    }

    #[test]
    fn an_event_without_a_status_makes_no_run_known() {
        let uploaded = Body::ArtifactCreated {
            artifact_id: ArtifactId::from_random([1; 16]),
            kind: "file".into(),
            role: ArtifactRole::Result,
            name: None,
            mime_type: None,
            size_bytes: None,
        };
        let mut statuses = Statuses::default();
        for (no, body) in [
            (1, queued()),
            (1, Body::RunSucceeded { close: Default::default() }),
            (2, queued()),
            // The first run has ended: an artifact is uploaded for it.
            (1, uploaded),
        ] {
            statuses.apply(&event(1, Some(no), 1, body));
        }
        assert_eq!(statuses.run(run(1)), None);
        assert_eq!(statuses.latest_run(session(1)).unwrap().run_id, run(2));
        statuses.apply(&event(1, Some(3), 2, Body::RunRunning {}));
        assert_eq!(statuses.run(run(3)).unwrap().status, RunStatus::Running);
    }

    #[test]
    fn replayed_usage_is_not_counted_twice() {
        let mut statuses = Statuses::default();
        statuses.apply(&event(1, Some(1), 1, queued()));
        statuses.apply(&event(1, Some(1), 5, usage(10)));
        // As if these statuses had been listed; the events that led to them are replayed.
        for (at, body) in [(1, queued()), (3, Body::RunRunning {}), (5, usage(10)), (6, usage(1))] {
            statuses.replay(&event(1, Some(1), at, body));
        }
        let view = statuses.latest_run(session(1)).unwrap();
        assert_eq!((view.status, view.usage.input_tokens), (RunStatus::Running, 11));
    }

    #[test]
    fn an_undescribed_session_is_returned_and_the_oldest_idle_session_is_evicted() {
        let mut statuses = Statuses::default();
        assert_eq!(
            statuses.apply(&event(0, Some(1), 1, queued())),
            Some(session(0)),
            "its description is unknown"
        );
        for no in 1..=u16::try_from(MAX_SESSIONS).unwrap() {
            statuses.apply(&event(no, None, 2, created(None)));
        }
        assert_eq!(statuses.sessions.len(), MAX_SESSIONS);
        assert!(statuses.session(session(0)).is_some(), "its run has not ended");
        assert!(statuses.session(session(1)).is_none(), "it has been idle longest");
    }
}
