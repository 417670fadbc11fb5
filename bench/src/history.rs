//! Sessions with a history, written directly into a store: the same rows and events that the kernel writes for a
//! turn.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::store::{Commit, Fence, NewEvent, Row, Store};
use serde_json::json;

use crate::adapter;
use crate::world::{OWNER, text};

/// The number of events of a turn.
pub(crate) const EVENTS_PER_TURN: usize = 8;
/// The number of turns per commit.
const TURNS_PER_COMMIT: u32 = 50;

/// Builds rows and events as if the kernel had written them.
#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) ids: Ids,
    now: Time,
    node: NodeId,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let ids = Ids::system();
        Self { node: ids.node(), ids, now: Clock::system().now() }
    }

    pub(crate) fn session(&self) -> Session {
        Session {
            id: self.ids.session(),
            owner: OWNER.into(),
            org: None,
            visibility: Visibility::Private,
            key: None,
            title: Some("a talk about foxes".into()),
            status: SessionStatus::Open,
            surface_kind: "api".into(),
            external_ref: None,
            legacy_alias: None,
            agent_definition: "generalist".into(),
            adapter: adapter::ANSWER.into(),
            cwd: None,
            model_profile: None,
            model: None,
            system_prompt: None,
            model_options: None,
            metadata: json!({}),
            rules: vec![],
            tools: vec![],
            labels: vec![],
            idle_unload_ms: None,
            tip: None,
            tip_message: None,
            version: 1,
            created_at: self.now,
            updated_at: self.now,
            last_activity_at: self.now,
            pinned: false,
            pinned_at: None,
            title_source: Some(TitleSource::Manual),
            forked_from: None,
            base: None,
        }
    }

    /// A run that has succeeded.
    pub(crate) fn run(&self, session: SessionId, no: u32) -> Run {
        Run {
            id: self.ids.run(),
            session,
            owner: OWNER.into(),
            no,
            parent: None,
            request: RequestName::default(),
            fingerprint: [7; 16],
            system_prompt_hash: None,
            adapter: adapter::ANSWER.into(),
            mode: Mode::Act,
            prompt: None,
            options: RunOptions::default(),
            place: Place::Tip,
            steers: false,
            merged_into: None,
            budget: None,
            pen: None,
            state: RunState::Succeeded {},
            attempts: 1,
            last_attempt: None,
            final_message: None,
            final_text: None,
            output: None,
            usage: Usage::default(),
            created_at: self.now,
            retried_at: None,
            started_at: Some(self.now),
            goals: vec![],
            tasks: vec![],
            completed_at: Some(self.now),
            updated_at: self.now,
        }
    }

    pub(crate) fn attempt(&self, run: RunId) -> Attempt {
        Attempt {
            id: self.ids.attempt(),
            run,
            no: 1,
            status: RunStatus::Succeeded,
            adapter: adapter::ANSWER.into(),
            node: self.node,
            binding: None,
            resume_from: None,
            checkpoint: None,
            error: None,
            retry_reason: None,
            retryable: false,
            usage: Usage::default(),
            sandbox: None,
            left_running: vec![],
            instance: None,
            native_run: None,
            metadata: serde_json::Map::new(),
            cancellation: Cancellation::default(),
            created_at: self.now,
            started_at: Some(self.now),
            completed_at: Some(self.now),
        }
    }

    pub(crate) fn message(&self, session: SessionId, run: RunId, role: Role) -> Arc<Message> {
        Arc::new(Message {
            id: self.ids.message(),
            session,
            run: Some(run),
            role,
            status: MessageStatus::Completed,
            content: vec![Block::text(text(500))],
            usage: None,
            created_at: self.now,
            agent: None,
            external_id: None,
        })
    }

    pub(crate) fn event(&self, run: RunId, attempt: Option<AttemptId>, body: Body) -> NewEvent {
        NewEvent { id: self.ids.event(), pos: 0, run: Some(run), attempt, at: self.now, body }
    }

    /// Stores a session of `turns` turns with two messages each.
    pub(crate) async fn stored_session(&self, store: &dyn Store, turns: u32) -> SessionId {
        let mut session = self.session();
        let fence = store.lease_take(session.id, self.node).await.unwrap();
        let line = Line::open(self.ids.line(), None);
        for first in (0..turns).step_by(TURNS_PER_COMMIT as usize) {
            let last = turns.min(first + TURNS_PER_COMMIT);
            let mut commit = empty(fence);
            for turn in first..last {
                self.turn(&mut commit, &mut session, line.id, turn);
            }
            commit.rows.push(Row::Line(Line { end: last * 2, ..line }));
            commit.rows.push(Row::Session(Arc::new(session.clone())));
            store.commit(Arc::new(commit)).await.unwrap();
        }
        if turns == 0 {
            let mut commit = empty(fence);
            commit.rows.push(Row::Session(Arc::new(session.clone())));
            store.commit(Arc::new(commit)).await.unwrap();
        }
        session.id
    }

    fn turn(&self, commit: &mut Commit, session: &mut Session, line: LineId, turn: u32) {
        let mut run = self.run(session.id, turn + 1);
        let attempt = self.attempt(run.id);
        let prompt = self.message(session.id, run.id, Role::User);
        let answer = self.message(session.id, run.id, Role::Assistant);
        let point = |pos| Point { line, pos };
        run.prompt = Some(prompt.id);
        run.pen = Some(point(turn * 2 + 2));
        run.last_attempt = Some(attempt.id);
        run.final_message = Some(answer.id);
        let bodies = self.bodies(session, &prompt, &answer);
        for (at, body) in bodies.into_iter().enumerate() {
            let by = (at > 0).then_some(attempt.id);
            commit.events.push(self.event(run.id, by, body));
        }
        session.tip = run.pen.map(|pen| point(pen.pos - 1));
        session.tip_message = Some(answer.id);
        session.version += 1;
        commit.rows.push(Row::Message(prompt, Some(point(turn * 2))));
        commit.rows.push(Row::Message(answer, Some(point(turn * 2 + 1))));
        commit.rows.push(Row::Run(Arc::new(run)));
        commit.rows.push(Row::Attempt(Box::new(attempt)));
    }

    /// The events of a turn.
    pub(crate) fn bodies(
        &self,
        session: &Session,
        prompt: &Arc<Message>,
        answer: &Arc<Message>,
    ) -> [Body; EVENTS_PER_TURN] {
        [
            Body::run_accepted(adapter::ANSWER.into(), Mode::Act, Some(Policy::Enqueue)),
            Body::AttemptCreated {
                attempt_no: 1,
                adapter: adapter::ANSWER.into(),
                resume_from_attempt_id: None,
                checkpoint_artifact_id: None,
                retry_reason: None,
            },
            Body::RunStarting {},
            Body::MessageCompleted { message: prompt.clone(), parent_id: session.tip_message },
            Body::AttemptStarted {},
            Body::RunRunning {},
            Body::MessageCompleted { message: answer.clone(), parent_id: Some(prompt.id) },
            Body::RunSucceeded {
                close: Close { message_id: Some(answer.id), tip: Some(answer.id), usage: Usage::default() },
            },
        ]
    }
}

fn empty(fence: Fence) -> Commit {
    Commit { fence, events: vec![], rows: vec![] }
}
