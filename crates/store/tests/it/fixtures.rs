//! Stores under test, and data to put into them.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Commit, Fence, NewEvent, Row, Store, StoreError};
use mainspring_reference_store::MemoryStore;
use mainspring_store::{Fault, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use serde_json::json;
use tempfile::TempDir;

pub(crate) const OWNER: &str = "ada";
pub(crate) const NOW: Time = Time(1_800_000_000_000);
pub(crate) const NO_LIMIT: usize = 1_000_000;

/// A store under test, and the folder of its database.
pub(crate) struct Subject {
    pub(crate) store: Arc<dyn Store>,
    inject_fault: Box<dyn Fn(Fault)>,
    _folder: Option<TempDir>,
}

impl Subject {
    pub(crate) fn inject_fault(&self, fault: Fault) {
        (self.inject_fault)(fault);
    }
}

pub(crate) fn sqlite_open(folder: &Path) -> SqliteStore {
    SqliteStore::open(&folder.join("test.sqlite3"), SqliteOptions::default(), NOW).unwrap()
}

pub(crate) fn postgres_open() -> PostgresStore {
    PostgresStore::open(&crate::cluster::database(), PostgresOptions::default()).unwrap()
}

/// Creates every store, empty.
pub(crate) fn every_store() -> Vec<(&'static str, Subject)> {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Arc::new(sqlite_open(folder.path()));
    let memory = Arc::new(MemoryStore::default());
    let postgres = Arc::new(postgres_open());
    let (sqlite_fault, memory_fault) = (Arc::clone(&sqlite), Arc::clone(&memory));
    let postgres_fault = Arc::clone(&postgres);
    vec![
        (
            "memory",
            Subject {
                store: memory,
                inject_fault: Box::new(move |fault| memory_fault.inject_fault(fault)),
                _folder: None,
            },
        ),
        (
            "sqlite",
            Subject {
                store: sqlite,
                inject_fault: Box::new(move |fault| sqlite_fault.inject_fault(fault)),
                _folder: Some(folder),
            },
        ),
        (
            "postgres",
            Subject {
                store: postgres,
                inject_fault: Box::new(move |fault| postgres_fault.inject_fault(fault)),
                _folder: None,
            },
        ),
    ]
}

fn bytes(n: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&n.to_be_bytes());
    bytes
}

macro_rules! make_id {
    ($($make:ident => $id:ident),* $(,)?) => {
        $(pub(crate) fn $make(n: u64) -> $id {
            $id::from_random(bytes(n))
        })*
    };
}
make_id! {
    session_id => SessionId, run_id => RunId, attempt_id => AttemptId, event_id => EventId, message_id => MessageId,
    node_id => NodeId, wait_id => WaitId, binding_id => BindingId, grant_id => GrantId, artifact_id => ArtifactId,
    delegation_id => DelegationId, key_id => KeyId, step_id => StepId,
}

pub(crate) fn session(n: u64) -> Session {
    Session {
        id: session_id(n),
        owner: OWNER.into(),
        org: None,
        visibility: Visibility::Private,
        key: None,
        title: Some(format!("session {n}")),
        status: SessionStatus::Open,
        surface_kind: "chat".into(),
        external_ref: None,
        legacy_alias: None,
        agent_definition: "generalist@1".into(),
        adapter: "native".into(),
        cwd: None,
        model_profile: None,
        model: None,
        system_prompt: None,
        model_options: None,
        metadata: json!({}),
        tip: None,
        tip_message: None,
        version: 1,
        created_at: NOW,
        updated_at: NOW,
        last_activity_at: NOW.plus(n),
        pinned: false,
        pinned_at: None,
        title_source: Some(TitleSource::Manual),
        forked_from: None,
        base: None,
        rules: vec![],
        tools: vec![],
        idle_unload_ms: None,
        labels: vec![],
    }
}

/// Builds run `n`, number `no` of session `of`.
pub(crate) fn run(n: u64, of: u64, no: u32, state: RunState) -> Run {
    Run {
        id: run_id(n),
        session: session_id(of),
        owner: OWNER.into(),
        no,
        parent: None,
        request: RequestName::default(),
        fingerprint: [7; 16],
        adapter: "native".into(),
        mode: Mode::Act,
        prompt: None,
        options: RunOptions::default(),
        system_prompt_hash: None,
        place: Place::Tip,
        steers: false,
        merged_into: None,
        budget: None,
        final_text: None,
        output: None,
        goals: vec![],
        tasks: vec![],
        pen: None,
        state,
        attempts: 0,
        last_attempt: None,
        final_message: None,
        usage: Usage::default(),
        created_at: NOW.plus(n),
        started_at: None,
        retried_at: None,
        completed_at: None,
        updated_at: NOW.plus(n),
    }
}

pub(crate) fn queued() -> RunState {
    RunState::Queued { retry_at: None, retry_reason: None }
}

pub(crate) fn attempt(n: u64, run: u64, no: u32, status: RunStatus) -> Attempt {
    Attempt {
        id: attempt_id(n),
        run: run_id(run),
        no,
        status,
        adapter: "native".into(),
        node: node_id(1),
        instance: None,
        native_run: None,
        binding: None,
        resume_from: None,
        checkpoint: None,
        retry_reason: None,
        error: None,
        retryable: false,
        usage: Usage::default(),
        sandbox: None,
        left_running: vec![],
        metadata: serde_json::Map::new(),
        cancellation: Cancellation::default(),
        created_at: NOW,
        started_at: None,
        completed_at: None,
    }
}

pub(crate) fn binding(n: u64, of: u64, adapter: &str, generation: u32, status: BindingStatus) -> Binding {
    Binding {
        id: binding_id(n),
        session: session_id(of),
        adapter: adapter.into(),
        generation,
        native: Some(format!("native-{n}")),
        fidelity: Fidelity::Reconstructed,
        status,
        node: node_id(1),
        instance: None,
        model: None,
        last_message: Some(message_id(n)),
        cwd: Some("/work".into()),
        system_prompt_hash: Some("abc".into()),
        reconstructed: n.is_multiple_of(2),
        metadata: serde_json::Map::new(),
        created_at: NOW,
        updated_at: NOW.plus(1),
        last_used_at: None,
        invalidated_at: None,
        invalidation_reason: None,
    }
}

pub(crate) fn message(n: u64, of: u64, text: &str) -> Message {
    Message {
        id: message_id(n),
        session: session_id(of),
        run: None,
        role: if n.is_multiple_of(2) { Role::User } else { Role::Assistant },
        status: MessageStatus::Completed,
        content: vec![Block::text(text)],
        usage: None,
        created_at: NOW,
        agent: n.is_multiple_of(3).then(|| "coder@2".into()),
        external_id: None,
    }
}

pub(crate) fn artifact(n: u64, of: u64, hash: &str) -> Artifact {
    Artifact {
        id: artifact_id(n),
        session: session_id(of),
        run: None,
        attempt: None,
        kind: "file".into(),
        role: ArtifactRole::Result,
        uri: format!("blake3:{hash}"),
        name: Some(format!("{n}.txt")),
        mime_type: Some("text/plain".into()),
        content_hash: Some(hash.into()),
        size_bytes: Some(7),
        metadata: serde_json::Map::from_iter([("n".to_owned(), n.into())]),
        created_at: NOW.plus(n),
    }
}

pub(crate) fn point(line: i64, pos: u32) -> Point {
    Point { line: LineId(line), pos }
}

pub(crate) fn line(id: i64, parent: Option<Point>, messages: u32) -> Line {
    let mut line = Line::open(LineId(id), parent);
    line.end += messages;
    line
}

pub(crate) fn event(n: u64, body: Body) -> NewEvent {
    NewEvent { id: event_id(n), pos: 0, run: None, attempt: None, at: NOW.plus(n), body }
}

pub(crate) fn progress(n: u64) -> NewEvent {
    event(n, Body::ProgressUpdated { text: format!("step {n}") })
}

/// Takes the lease of session `n`.
pub(crate) async fn lease(store: &dyn Store, n: u64) -> Fence {
    store.lease_take(session_id(n), node_id(1)).await.unwrap()
}

pub(crate) async fn commit(
    store: &dyn Store,
    fence: Fence,
    rows: Vec<Row>,
    events: Vec<NewEvent>,
) -> Result<Vec<Cursor>, StoreError> {
    store.commit(Arc::new(Commit { fence, events, rows })).await
}

/// Stores session `n` and returns its fence.
pub(crate) async fn create_session(store: &dyn Store, n: u64) -> Fence {
    let fence = lease(store, n).await;
    commit(store, fence, vec![Row::Session(Arc::new(session(n)))], vec![]).await.unwrap();
    fence
}

pub(crate) async fn delete_session(store: &dyn Store, fence: Fence) {
    let mut session = store.session_load(fence.session).await.unwrap().unwrap().session;
    session.status = SessionStatus::Deleted;
    commit(store, fence, vec![Row::Session(Arc::new(session))], vec![]).await.unwrap();
}

pub(crate) async fn events(store: &dyn Store, n: u64) -> Vec<Event> {
    store.events_after(session_id(n), None, Cursor::START, NO_LIMIT).await.unwrap()
}

pub(crate) fn row_session(session: Session) -> Row {
    Row::Session(Arc::new(session))
}

pub(crate) fn row_run(run: Run) -> Row {
    Row::Run(Arc::new(run))
}

pub(crate) fn row_attempt(attempt: Attempt) -> Row {
    Row::Attempt(Box::new(attempt))
}

pub(crate) fn row_message(message: Message, point: Option<Point>) -> Row {
    Row::Message(Arc::new(message), point)
}
