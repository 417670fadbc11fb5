//! A kernel on a new store with a manual clock, and functions that wait for its events.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::ScriptAdapter;
use mainspring_core::{
    Answer, Approval, Body, Cursor, Event, Message, MessageId, NodeId, Position, RequestName, Run, RunId,
    SessionId, Time, WaitId,
};
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Accepted, Caller, MessageTree, RunRequest, Snapshot, TreeQuery};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_kernel::{Error, Kernel, Options};
use mainspring_reference_store::MemoryStore;
use mainspring_store::{Durability, Fault, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use serde_json::json;
use tempfile::TempDir;

pub(crate) const NOW: Time = Time(1_800_000_000_000);

/// A store under test. It outlives the kernels started on it.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) file: Option<PathBuf>,
    fault: Arc<dyn Fn(Fault) + Send + Sync>,
    full: Arc<dyn Fn(bool) + Send + Sync>,
    _folder: Option<Arc<TempDir>>,
}

impl Disk {
    pub(crate) fn memory() -> Self {
        Self::on_memory(Arc::default())
    }

    pub(crate) fn on_memory(store: Arc<MemoryStore>) -> Self {
        Self {
            name: "memory",
            store: store.clone(),
            file: None,
            full: Arc::new({
                let store = store.clone();
                move |is_full| store.set_full(is_full)
            }),
            fault: Arc::new(move |fault| store.inject_fault(fault)),
            _folder: None,
        }
    }

    pub(crate) fn sqlite() -> Self {
        Self::sqlite_with_store().0
    }

    /// Creates a SQLite store, and a handle of its concrete type.
    pub(crate) fn sqlite_with_store() -> (Self, Arc<SqliteStore>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.sqlite3");
        let options = SqliteOptions {
            // Tests simulate crashes of the process, not of the machine.
            durability: Durability::Normal,
            ..SqliteOptions::default()
        };
        let store = Arc::new(SqliteStore::open(&file, options, NOW).unwrap());
        let disk = Self {
            name: "sqlite",
            store: store.clone(),
            file: Some(file),
            full: Arc::new({
                let store = store.clone();
                move |is_full| store.set_full(is_full)
            }),
            fault: Arc::new({
                let store = store.clone();
                move |fault| store.inject_fault(fault)
            }),
            _folder: Some(Arc::new(folder)),
        };
        (disk, store)
    }

    pub(crate) fn postgres() -> Self {
        let url = crate::cluster::database();
        let store = Arc::new(PostgresStore::open(&url, PostgresOptions::default()).unwrap());
        Self {
            name: "postgres",
            store: store.clone(),
            file: None,
            full: Arc::new({
                let store = store.clone();
                move |is_full| store.set_full(is_full)
            }),
            fault: Arc::new(move |fault| store.inject_fault(fault)),
            _folder: None,
        }
    }

    /// Simulates a full disk until it is called with false.
    pub(crate) fn set_full(&self, is_full: bool) {
        (self.full)(is_full);
    }

    /// Injects `fault` into the next commit.
    pub(crate) fn inject_fault(&self, fault: Fault) {
        (self.fault)(fault);
    }
}

/// Creates an empty store of each kind that needs no database server.
pub(crate) fn every_store() -> Vec<Disk> {
    vec![Disk::memory(), Disk::sqlite()]
}

/// Simulates one process: tasks that still run when `process` returns are dropped, as by `kill -9`.
pub(crate) fn run_process<T>(process: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let output = runtime.block_on(process);
    drop(runtime);
    output
}

/// Fails after a timeout instead of hanging. No test depends on timing.
pub(crate) async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(what)).await.expect("timed out")
}

/// Runs the tasks that do not wait for the clock until they are idle. Only reliable with the store in memory on one
/// thread: with other stores a task may still wait for I/O when this returns.
pub(crate) async fn run_ready_tasks() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn advance_until<T>(clock: &Clock, step: u64, mut what: impl Future<Output = T> + Unpin) -> T {
    let turn = async {
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = run_ready_tasks() => clock.advance(step),
            }
        }
    };
    with_timeout(turn).await
}

/// A kernel with its clock, its store and a caller.
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    pub(crate) me: Caller,
}

impl World {
    /// Starts a kernel with the script agent.
    pub(crate) async fn on(disk: Disk) -> Self {
        Self::with(disk, Options::default(), vec![]).await
    }

    /// Starts a kernel with the script agent and `others`.
    pub(crate) async fn with(disk: Disk, options: Options, others: Vec<Arc<dyn Adapter>>) -> Self {
        Self::boot(disk, options, others, Clock::manual(NOW), 1).await
    }

    /// Starts a kernel at the time of `clock`. Needs a new `seed`, since an old seed repeats ids.
    pub(crate) async fn boot(
        disk: Disk,
        options: Options,
        others: Vec<Arc<dyn Adapter>>,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let mut adapters: Vec<Arc<dyn Adapter>> = vec![Arc::new(ScriptAdapter)];
        adapters.extend(others);
        // Waits until the store has handled everything that the previous process had queued.
        let unused = SessionId::from_random([0; 16]);
        disk.store.lease_take(unused, NodeId::from_random([0; 16])).await.unwrap();
        // Retries while the store is unavailable.
        let start = async {
            loop {
                let (store, options) = (disk.store.clone(), options.clone());
                let ids = Ids::seeded(seed);
                match Kernel::start(store, adapters.clone(), options, clock.clone(), ids).await {
                    Err(Error::Unavailable(_)) => {}
                    started => return started.unwrap(),
                }
            }
        };
        Self { kernel: advance_until(&clock, 1, Box::pin(start)).await, clock, disk, me: Caller::new("ada") }
    }

    /// Starts the next process on the same store.
    pub(crate) async fn reboot(disk: &Disk) -> Self {
        Self::boot(disk.clone(), Options::default(), vec![], Clock::manual(NOW.plus(1_000)), 2).await
    }

    pub(crate) async fn send(&self, request: RunRequest) -> Result<Accepted, Error> {
        with_timeout(self.kernel.run_create(&self.me, request)).await
    }

    /// Sends a script to the session of this key.
    pub(crate) async fn prompt(&self, key: &str, script: &str) -> Run {
        self.send(RunRequest::text(key, script)).await.unwrap().run
    }

    /// Sends a script and waits until its run has ended.
    pub(crate) async fn play(&self, key: &str, script: &str) -> Run {
        let run = self.prompt(key, script).await;
        self.ended(run.id).await
    }

    pub(crate) async fn get(&self, run: RunId) -> Run {
        self.kernel.run_get(&self.me, run).await.unwrap()
    }

    pub(crate) async fn ended(&self, run: RunId) -> Run {
        self.wait_until(run, |run| run.state.status().is_ended()).await
    }

    /// Waits until `condition` returns true for the run.
    pub(crate) async fn wait_until(&self, run: RunId, condition: impl Fn(&Run) -> bool) -> Run {
        let session = SessionRef::Id(self.get(run).await.session);
        let reach = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session, None).await.unwrap();
            loop {
                let now = self.get(run).await;
                if condition(&now) {
                    return now;
                }
                events.next().await.expect("the session ended first").unwrap();
            }
        };
        with_timeout(Box::pin(reach)).await
    }

    /// Waits for `what`, and advances the clock by `step` whenever no task can run.
    pub(crate) fn advance_until<T>(
        &self,
        step: u64,
        what: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        // Boxed at once, since the futures of tests are large.
        advance_until(&self.clock, step, Box::pin(what))
    }

    pub(crate) async fn subscribe(&self, key: &str, from: Option<Position>) -> (Snapshot, Subscription) {
        let snapshot = with_timeout(self.kernel.session_snapshot(&self.me, &by_key(key))).await.unwrap();
        let from = from.unwrap_or(snapshot.position);
        let subscription =
            with_timeout(self.kernel.session_subscribe(&self.me, &by_key(key), Some(from))).await.unwrap();
        (snapshot, subscription)
    }

    /// Waits until the run asks a question. Returns the wait.
    pub(crate) async fn wait_for_question(&self, run: RunId) -> WaitId {
        let run =
            self.wait_until(run, |run| run.state.wait().is_some_and(|wait| wait.answer.is_none())).await;
        run.state.wait().unwrap().id
    }

    /// Reads all events of the session.
    pub(crate) async fn events(&self, key: &str) -> Vec<Event> {
        let mut all: Vec<Event> = vec![];
        loop {
            let after = all.last().map_or(Cursor::START, |event| event.cursor);
            let page = self.kernel.session_events(&self.me, &by_key(key), after, Some(500)).await.unwrap();
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    pub(crate) async fn path(&self, key: &str) -> Vec<Arc<Message>> {
        self.kernel.session_path(&self.me, &by_key(key), None, Some(500)).await.unwrap()
    }

    /// Reads the whole tree, page by page.
    pub(crate) async fn tree(&self, key: &str) -> MessageTree {
        let mut tree = MessageTree::default();
        loop {
            let query = TreeQuery { after: tree.next, limit: Some(200) };
            let page = self.kernel.session_tree(&self.me, &by_key(key), query).await.unwrap();
            tree.nodes.extend(page.nodes);
            tree.next = page.next;
            if tree.next.is_none() {
                return tree;
            }
        }
    }

    /// Returns the messages that are not abandoned and have a cursor, each with its cursor: the child that the path
    /// follows.
    pub(crate) async fn cursors(&self, key: &str) -> Vec<(MessageId, MessageId)> {
        let nodes = self.tree(key).await.nodes;
        let kept = nodes.iter().filter(|node| !node.abandoned);
        kept.filter_map(|node| Some((node.message.id, node.cursor?))).collect()
    }

    /// Formats the path, a line per message.
    pub(crate) async fn path_text(&self, key: &str) -> String {
        let path = self.path(key).await;
        path.iter().map(|message| message_text(message) + "\n").collect()
    }
}

pub(crate) fn by_key(key: &str) -> SessionRef {
    SessionRef::Key(key.into())
}

pub(crate) fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.kind()).collect()
}

/// Counts the events of this kind.
pub(crate) fn count(events: &[Event], kind: &str) -> usize {
    events.iter().filter(|event| event.body.kind() == kind).count()
}

/// Formats events, a line each, with the main part of their payload.
pub(crate) fn events_text(events: &[Event]) -> String {
    events.iter().map(|event| line(&event.body) + "\n").collect()
}

fn line(body: &Body) -> String {
    let about = match body {
        Body::MessageCompleted { message, .. } => message_text(message),
        Body::AttemptCreated { attempt_no, .. } => attempt_no.to_string(),
        Body::AttemptFailed { status, error, retryable } => {
            format!("{status} {} retryable={retryable}", error.code)
        }
        Body::AttemptCancelDispatch { dispatched, acknowledged } => {
            format!("dispatched={dispatched} acknowledged={acknowledged}")
        }
        Body::AttemptCancelled { proof } => format!("{proof:?}"),
        Body::RunCancellationRequested { reason } => format!("{reason:?}"),
        Body::RunCancelled { reason, .. } => format!("{reason:?}"),
        Body::RunFailed { error, .. } | Body::RunTimedOut { error, .. } | Body::RunOrphaned { error, .. } => {
            error.code.to_string()
        }
        Body::ToolFailed { outcome, .. } => format!("{outcome:?}"),
        Body::InputRequested { question, .. } | Body::ApprovalRequested { question, .. } => question.clone(),
        Body::InputProvided { input, .. } => input.as_ref().map_or("nothing".into(), ToString::to_string),
        Body::ToolsRequested { calls, .. } => {
            calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>().join(", ")
        }
        Body::ToolsProvided { results, .. } => match results {
            Some(results) => results.iter().map(|result| result.text()).collect::<Vec<_>>().join(", "),
            None => "no more".into(),
        },
        Body::ApprovalResolved { decision, .. } => format!("{decision:?}"),
        Body::UsageUpdated { usage } => format!("{} in, {} out", usage.input_tokens, usage.output_tokens),
        _ => String::new(),
    };
    format!("{} {about}", body.kind()).trim_end().to_owned()
}

/// Formats a message: role, status, content.
pub(crate) fn message_text(message: &Message) -> String {
    let blocks = message.content.iter().map(|block| match block {
        mainspring_core::Block::Text { text } => format!("{text:?}"),
        mainspring_core::Block::ToolUse { name, .. } => format!("call {name}"),
        mainspring_core::Block::ToolResult { content, is_error, .. } => {
            format!("result {:?} error={is_error}", mainspring_core::message::text_of(content))
        }
        mainspring_core::Block::Error { code, .. } => format!("error {code}"),
        other => format!("{other:?}"),
    });
    let blocks: Vec<String> = blocks.collect();
    format!("{} {} {}", message.role, message.status, blocks.join(" + "))
}

/// Builds a request with a client and request id.
pub(crate) fn named(key: &str, script: &str, client: &str, request: &str) -> RunRequest {
    RunRequest {
        name: RequestName {
            client_id: Some(client.into()),
            request_id: Some(request.into()),
            idempotency_key: None,
        },
        ..RunRequest::text(key, script)
    }
}

pub(crate) fn input(text: &str) -> Answer {
    Answer::Input { input: json!(text) }
}

pub(crate) fn allowed() -> Answer {
    Approval::Allowed.into()
}

/// Reads until an event of this kind. Returns everything read.
pub(crate) async fn read_until(events: &mut Subscription, kind: &str) -> Vec<Item> {
    let mut items = vec![];
    let read = async {
        loop {
            let item = events.next().await.expect("the session ended first").unwrap();
            let last = matches!(&item, Item::Event(event) if event.body.kind() == kind);
            items.push(item);
            if last {
                return;
            }
        }
    };
    with_timeout(read).await;
    items
}
