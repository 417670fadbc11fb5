//! A kernel on a store in memory with one agent, whose processes are real.

use std::ffi::OsString;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::process::{MARK_VARIABLE, processes_with_variable};
use mainspring_adapters::sandbox::{SandboxOptions, landlock_abi};
use mainspring_adapters::{AcpOptions, AgentOptions, KeepLog, ProcessAdapter, RelayOptions};
use mainspring_core::{
    Answer, Approval, Attempt, Binding, Block, Cursor, Event, Message, Role, Run, RunId, RunStatus,
    Supervision, WaitId,
};
use mainspring_kernel::adapter::{Adapter, Login, NewArtifact};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::Item;
use mainspring_kernel::folders::Folders;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, CancelOutcome, Retry, RunRequest, session_ref};
use mainspring_kernel::policy::Permissions;
use mainspring_kernel::{Kernel, Options};
use mainspring_reference_store::MemoryStore;
use tempfile::TempDir;

/// An image of four pixels.
pub(crate) const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x02\x08\x02\0\0\0\xfd\xd4\x9as\
    \0\0\0\x12IDATx\x9cc\xf8\xcf\xc0\xc0\0\xc2\x0c\xff\x81\0\0\x1f\xee\x05\xfb\x0b\xd9h\x8b\0\0\0\0IEND\xaeB`\x82";

/// The variable that marks the processes of one test.
const FOLDER_VARIABLE: &str = "AGENT_FOLDER";

/// The kind of agent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Acp,
    Pi,
}

/// How a world starts its kernel and its agent.
pub(crate) struct Setup {
    kind: Kind,
    /// A folder of the test.
    pub(crate) folder: PathBuf,
    pub(crate) agent: AgentOptions,
    pub(crate) acp: AcpOptions,
    pub(crate) kernel: Options,
    pub(crate) clock: Clock,
}

struct Running {
    kernel: Kernel,
    adapter: Arc<ProcessAdapter>,
}

pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) setup: Setup,
    pub(crate) me: Caller,
    store: Arc<MemoryStore>,
    running: Option<Running>,
}

impl World {
    /// Starts a kernel with one agent, whose setup `change` adapts.
    pub(crate) async fn open(kind: Kind, change: impl Fn(&mut Setup)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agent")).unwrap();
        let mut setup = Setup::new(kind, folder.path());
        change(&mut setup);
        let store = Arc::new(MemoryStore::default());
        let mut world = Self { folder, setup, me: Caller::new("ada"), store, running: None };
        world.restart().await;
        world
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.running.as_ref().unwrap().kernel
    }

    pub(crate) fn adapter(&self) -> &ProcessAdapter {
        &self.running.as_ref().unwrap().adapter
    }

    pub(crate) fn login(&self) -> &dyn Login {
        self.adapter().login().unwrap()
    }

    /// Stops the kernel and its agents, and starts the next ones on the same store.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        let (agent, clock) = (self.setup.agent.clone(), self.setup.clock.clone());
        let adapter = Arc::new(match self.setup.kind {
            Kind::Acp => ProcessAdapter::acp(agent, self.setup.acp.clone(), clock.clone()),
            Kind::Pi => ProcessAdapter::pi(agent, clock.clone()),
        });
        let adapters: Vec<Arc<dyn Adapter>> = vec![adapter.clone()];
        let (store, options) = (self.store.clone(), self.setup.kernel.clone());
        let kernel = Kernel::start(store, adapters, options, clock, Ids::system()).await.unwrap();
        self.running = Some(Running { kernel, adapter });
    }

    async fn stop(&mut self) {
        if let Some(Running { kernel, adapter }) = self.running.take() {
            with_timeout(kernel.shutdown()).await;
            with_timeout(adapter.close()).await;
        }
    }

    /// Stops the kernel and asserts that no process of its agents is left.
    pub(crate) async fn close(mut self) {
        self.stop().await;
        assert_eq!(self.processes(), 0, "processes are left");
    }

    /// The number of processes of agents, including their guards.
    pub(crate) fn processes(&self) -> usize {
        processes_with_variable(FOLDER_VARIABLE, |folder| Path::new(folder) == self.folder.path()).len()
    }

    /// The command lines of the processes of agents, including their guards.
    pub(crate) fn commands(&self) -> Vec<String> {
        let marked =
            processes_with_variable(FOLDER_VARIABLE, |folder| Path::new(folder) == self.folder.path());
        let command = |pid: rustix::process::Pid| {
            let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
            String::from_utf8_lossy(&words).replace('\0', " ")
        };
        marked.into_iter().map(command).collect()
    }

    /// Waits until there are this many processes or more. A starting process has no environment for a moment.
    pub(crate) async fn wait_for_processes(&self, processes: usize) {
        let reached = async {
            while self.processes() < processes {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(reached).await;
    }

    pub(crate) async fn wait_for_no_process(&self) {
        let ended = async {
            while self.processes() > 0 {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(ended).await;
    }

    pub(crate) async fn start_request(&self, request: RunRequest) -> RunId {
        with_timeout(self.kernel().run_create(&self.me, request)).await.unwrap().run.id
    }

    /// Starts a run in the session of this key.
    pub(crate) async fn start(&self, key: &str, prompt: &str) -> RunId {
        self.start_request(request(key, prompt)).await
    }

    /// Starts a run and waits for its end.
    pub(crate) async fn run(&self, key: &str, prompt: &str) -> Run {
        let run = self.start(key, prompt).await;
        self.wait_for_end(run).await
    }

    /// Starts a run, waits until it has succeeded, and returns the text of the answer.
    pub(crate) async fn answer_to(&self, key: &str, prompt: &str) -> String {
        let run = self.run(key, prompt).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
        self.text_of(key, run.id).await
    }

    /// The text of the messages of the agent that the run wrote.
    pub(crate) async fn text_of(&self, key: &str, run: RunId) -> String {
        let path = self.path(key).await;
        let of_run = path.iter().filter(|it| it.run == Some(run) && it.role == Role::Assistant);
        of_run.map(|message| message.text()).collect()
    }

    /// The content of the path's messages after the first `skipped`, one line each.
    pub(crate) async fn content(&self, key: &str, skipped: usize) -> String {
        let path = self.path(key).await;
        let line = |message: &Arc<Message>| {
            let mut content = message.content.clone();
            for block in &mut content {
                // Each run of a test takes another time.
                if let Block::ToolResult { runtime_ms, .. } = block {
                    *runtime_ms = None;
                }
            }
            format!("{} {}\n", message.role, serde_json::to_string(&content).unwrap())
        };
        path.iter().skip(skipped).map(line).collect()
    }

    /// A request in an existing session, with an attachment.
    pub(crate) async fn request_with_file(
        &self,
        key: &str,
        prompt: &str,
        mime_type: &str,
        bytes: &[u8],
    ) -> RunRequest {
        let new = NewArtifact { mime_type: Some(mime_type.into()), ..NewArtifact::default() };
        let (kernel, session) = (self.kernel(), session_ref(key).unwrap());
        let (artifact, _) = kernel.artifact_put(&self.me, &session, new, None, &mut { bytes }).await.unwrap();
        let mut request = request(key, prompt);
        request.prompt.push(Block::Attachment {
            artifact: artifact.id,
            mime_type: String::new(),
            name: None,
        });
        request
    }

    pub(crate) async fn wait_for_end(&self, run: RunId) -> Run {
        self.wait_until(run, |run| run.state.status().is_ended()).await
    }

    /// Waits for an event after which `holds` is true of the run.
    pub(crate) async fn wait_until(&self, run: RunId, holds: impl Fn(&Run) -> bool) -> Run {
        let kernel = self.kernel();
        let session = kernel.run_get(&self.me, run).await.unwrap().session;
        let session = session_ref(&session.to_string()).unwrap();
        let reached = async {
            let mut events = kernel.session_subscribe(&self.me, &session, None).await.unwrap();
            loop {
                let now = kernel.run_get(&self.me, run).await.unwrap();
                if holds(&now) {
                    return now;
                }
                events.next().await.unwrap().unwrap();
            }
        };
        with_timeout(reached).await
    }

    /// Waits until the current run of the session has streamed `text`.
    pub(crate) async fn wait_for_text(&self, key: &str, text: &str) {
        let kernel = self.kernel();
        let streamed = async {
            let session = session_ref(key).unwrap();
            let snapshot = kernel.session_snapshot(&self.me, &session).await.unwrap();
            let mut events =
                kernel.session_subscribe(&self.me, &session, Some(snapshot.position)).await.unwrap();
            let partial =
                snapshot.partial.iter().flat_map(|open| &open.blocks).map(|block| block.text.as_str());
            let mut so_far: String = partial.collect();
            while !so_far.contains(text) {
                if let Item::Delta(delta) = events.next().await.unwrap().unwrap() {
                    so_far.push_str(&delta.text);
                }
            }
        };
        with_timeout(streamed).await;
    }

    /// Waits until the session has an event of this type.
    pub(crate) async fn wait_for_event(&self, key: &str, event_type: &str) {
        let session = session_ref(key).unwrap();
        let happened = async {
            let mut events = self.kernel().session_subscribe(&self.me, &session, None).await.unwrap();
            while !event_types(&self.events(key).await).contains(&event_type) {
                events.next().await.unwrap().unwrap();
            }
        };
        with_timeout(happened).await;
    }

    /// Waits until the run asks a question.
    pub(crate) async fn wait_for_question(&self, run: RunId) -> (WaitId, String) {
        let is_waiting = |run: &Run| run.state.wait().is_some_and(|wait| wait.answer.is_none());
        let run = self.wait_until(run, is_waiting).await;
        let wait = run.state.wait().unwrap();
        (wait.id, wait.question.clone())
    }

    pub(crate) async fn decide(&self, run: RunId, wait: WaitId, decision: Approval) {
        let answer = Answer::from(decision);
        with_timeout(self.kernel().run_answer(&self.me, run, wait, answer)).await.unwrap();
    }

    pub(crate) async fn cancel(&self, run: RunId) -> CancelOutcome {
        with_timeout(self.kernel().run_cancel(&self.me, run)).await.unwrap()
    }

    pub(crate) async fn events(&self, key: &str) -> Vec<Event> {
        let session = session_ref(key).unwrap();
        self.kernel().session_events(&self.me, &session, Cursor::START, Some(500)).await.unwrap()
    }

    pub(crate) async fn last_message(&self, key: &str) -> Arc<Message> {
        let session = session_ref(key).unwrap();
        let path = self.kernel().session_path(&self.me, &session, None, Some(1)).await.unwrap();
        path.last().unwrap().clone()
    }

    /// The active path, root first.
    pub(crate) async fn path(&self, key: &str) -> Vec<Arc<Message>> {
        self.kernel().session_path(&self.me, &session_ref(key).unwrap(), None, None).await.unwrap()
    }

    /// The attempts of the run, oldest first.
    pub(crate) async fn attempts(&self, run: RunId) -> Vec<Attempt> {
        self.kernel().run_attempts(&self.me, run).await.unwrap().items
    }

    /// The bindings of the session, latest generation first.
    pub(crate) async fn bindings(&self, key: &str) -> Vec<Binding> {
        self.kernel().binding_list(&self.me, &session_ref(key).unwrap(), None, None).await.unwrap()
    }
}

impl Setup {
    fn new(kind: Kind, folder: &Path) -> Self {
        let name = folder.to_string_lossy().into_owned();
        let agent = AgentOptions {
            name: "agent".into(),
            guard: guard(),
            scope: name.clone(),
            command: vec![],
            env: vec![(FOLDER_VARIABLE.to_owned(), name.clone()), ("HOME".to_owned(), name)],
            pass_env: vec![],
            cwd: "/".into(),
            is_cwd_configured: true,
            folders: Folders::default(),
            max_processes: 16,
            idle: Duration::from_secs(300),
            start_timeout: Duration::from_secs(60),
            stop_grace: Duration::from_secs(2),
            permissions: Permissions::Ask,
            rules: vec![],
            keep_log: KeepLog::Failed,
            model: None,
            profiles: std::collections::BTreeMap::new(),
            sandbox: SandboxOptions {
                // The scripted agents store their sessions there.
                writable: vec![folder.join("agent")],
                landlock: landlock_abi(),
                ..SandboxOptions::default()
            },
            supervision: Supervision::Tree,
            relay: RelayOptions::default(),
        };
        let kernel = Options {
            adapter: "agent".into(),
            // The kill of an agent must be proven within this time too, even on a busy machine.
            cancel_grace_ms: 2_000,
            artifacts: Some(folder.join("artifacts")),
            retry: Retry { base_ms: 1, max_ms: 1 },
            ..Options::default()
        };
        let (folder, acp, clock) = (folder.to_owned(), AcpOptions::default(), Clock::system());
        Self { kind, folder, agent, acp, kernel, clock }
    }

    /// Makes a scripted agent of this crate's examples the agent.
    pub(crate) fn run_example(&mut self, name: &str, argument: &str) {
        let command = [example(name), self.folder.join("agent"), argument.into()];
        self.agent.command = command.map(|word| word.to_string_lossy().into_owned()).into();
    }

    /// Makes a shell script the agent.
    pub(crate) fn run_shell(&mut self, script: &str) {
        self.agent.command = ["sh", "-c", script].map(str::to_owned).into();
    }
}

/// The command of the guard.
pub(crate) fn guard() -> Vec<OsString> {
    vec![example("guard").into()]
}

/// Compiles a program in C. Some attacks need calls that a shell does not have.
pub(crate) fn compile(folder: &Path, source: &str) -> String {
    let (file, program) = (folder.join("attack.c"), folder.join("attack"));
    std::fs::write(&file, source).unwrap();
    let compiled =
        std::process::Command::new("cc").arg("-pthread").arg(&file).arg("-o").arg(&program).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program.display().to_string()
}

/// The path of an example of this crate.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(built.exists(), "{} is not built: run cargo build --examples", built.display());
    built
}

/// The failure code of a run; empty if it did not fail.
pub(crate) fn failure_code(run: &Run) -> String {
    serde_json::to_value(run).unwrap()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn request(key: &str, prompt: &str) -> RunRequest {
    RunRequest::text(key, prompt)
}

pub(crate) fn event_types(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.kind()).collect()
}

/// Fails instead of hanging, and reports which wait it was and which guarded processes there are. No test depends on how
/// long anything takes.
#[track_caller]
pub(crate) fn with_timeout<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let (waiting, future) = (Location::caller(), Box::pin(future));
    async move {
        match tokio::time::timeout(Duration::from_secs(60), future).await {
            Ok(done) => done,
            Err(_) => panic!("{waiting} timed out; guarded processes:\n{}", guarded_processes()),
        }
    }
}

/// Describes every guarded process of this machine, one line each.
fn guarded_processes() -> String {
    let mut lines = String::new();
    for pid in processes_with_variable(MARK_VARIABLE, |_| true) {
        let read = |file: &str| {
            let bytes = std::fs::read(format!("/proc/{}/{file}", pid.as_raw_pid())).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let environment = read("environ");
        let mark =
            environment.split(' ').find(|variable| variable.starts_with(MARK_VARIABLE)).unwrap_or_default();
        let stat = read("stat");
        // The name is in parentheses; the state and the parent follow.
        let state: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().take(2).collect();
        let (pid, state, wchan) = (pid.as_raw_pid(), state.join(", child of "), read("wchan"));
        lines += &format!("{pid} {state}, in {wchan}, {mark}: {}\n", read("cmdline"));
    }
    lines
}
