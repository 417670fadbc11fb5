//! Agents that speak ACP, beneath a real node: turns, permissions, cancellation, death, and nothing left behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
use mainspring::core::{
    Answer, Approval, Binding, Body, Event, Fidelity, Message, Mode, Run, RunId, RunStatus, WaitId,
};
use mainspring::{Caller, Config, Node, RunRequest, session_ref};
use mainspring_adapters::process::marked;
use tempfile::TempDir;

use crate::kill::example;

mod faults;
mod model;
mod real;
mod turns;

/// A node with a scripted agent, whose processes all carry the name of its folder.
struct World {
    folder: TempDir,
    config: Config,
    node: Option<Node>,
    me: Caller,
}

const FOLDER: &str = "AGENT_FOLDER";

impl World {
    async fn new(resumes: &str) -> Self {
        Self::with(resumes, |_| {}).await
    }

    /// A node whose agent resumes in this way, set up further by `change`.
    async fn with(resumes: &str, change: impl Fn(&mut AdapterConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agent")).unwrap();
        let config = config(folder.path(), resumes, change);
        let node = Node::open(&config).await.unwrap();
        Self { folder, config, node: Some(node), me: Caller::new("ada") }
    }

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    /// The next process on the same state directory.
    async fn reopen(&mut self) {
        if let Some(node) = self.node.take() {
            node.close().await;
        }
        self.node = Some(Node::open(&self.config).await.unwrap());
    }

    /// Ends the node and asserts that nothing of any agent is left.
    async fn close(mut self) {
        if let Some(node) = self.node.take() {
            soon(node.close()).await;
        }
        assert_eq!(self.processes(), 0, "processes are left");
    }

    /// How many processes of agents there are, guards among them.
    fn processes(&self) -> usize {
        self.agents().len()
    }

    fn agents(&self) -> Vec<rustix::process::Pid> {
        marked(FOLDER, |folder| Path::new(folder) == self.folder.path())
    }

    /// Waits until there are this many processes: one that is just being started carries no name for a moment.
    async fn grows_to(&self, processes: usize) {
        let grown = async {
            while self.processes() < processes {
                tokio::task::yield_now().await;
            }
        };
        soon(grown).await;
    }

    /// Waits until no process of an agent is left.
    async fn nothing_left(&self) {
        let none = async {
            while self.processes() > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon(none).await;
    }

    async fn send(&self, request: RunRequest) -> RunId {
        soon(self.node().kernel().run_create(&self.me, request)).await.unwrap().run.id
    }

    async fn prompt(&self, key: &str, text: &str) -> RunId {
        self.send(request(key, text)).await
    }

    async fn play(&self, key: &str, text: &str) -> Run {
        let run = self.prompt(key, text).await;
        self.ended(run).await
    }

    /// Sends a prompt and gives what was answered.
    async fn say(&self, key: &str, text: &str) -> String {
        let run = self.play(key, text).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
        self.last(key).await.text()
    }

    async fn ended(&self, run: RunId) -> Run {
        self.reaches(run, |run| run.state.status().is_ended()).await
    }

    async fn reaches(&self, run: RunId, is: impl Fn(&Run) -> bool) -> Run {
        let kernel = self.node().kernel();
        let now = kernel.run_get(&self.me, run).await.unwrap();
        let session = session_ref(&now.session.to_string()).unwrap();
        let reach = async {
            let mut events = kernel.session_subscribe(&self.me, &session, None).await.unwrap();
            loop {
                let now = kernel.run_get(&self.me, run).await.unwrap();
                if is(&now) {
                    return now;
                }
                events.next().await.unwrap().unwrap();
            }
        };
        soon(reach).await
    }

    /// Waits until the run has streamed `text`.
    async fn streams(&self, key: &str, text: &str) {
        let kernel = self.node().kernel();
        let streamed = async {
            let session = session_ref(key).unwrap();
            let snapshot = kernel.session_snapshot(&self.me, &session).await.unwrap();
            let mut events =
                kernel.session_subscribe(&self.me, &session, Some(snapshot.position)).await.unwrap();
            let partial =
                snapshot.partial.iter().flat_map(|open| &open.blocks).map(|(_, text)| text.as_str());
            let mut so_far: String = partial.collect();
            while !so_far.contains(text) {
                if let mainspring::Item::Delta(delta) = events.next().await.unwrap().unwrap() {
                    so_far.push_str(&delta.text);
                }
            }
        };
        soon(streamed).await;
    }

    async fn asked(&self, run: RunId) -> (WaitId, String) {
        let run = self.reaches(run, |run| run.state.wait().is_some_and(|wait| wait.answer.is_none())).await;
        let wait = run.state.wait().unwrap();
        (wait.id, wait.question.clone())
    }

    async fn answer(&self, run: RunId, wait: WaitId, decision: Approval) {
        let answer = Answer::Approval { decision };
        soon(self.node().kernel().run_answer(&self.me, run, wait, answer)).await.unwrap();
    }

    async fn events(&self, key: &str) -> Vec<Event> {
        let session = session_ref(key).unwrap();
        let start = mainspring::core::Cursor::START;
        self.node().kernel().session_events(&self.me, &session, start, Some(500)).await.unwrap()
    }

    async fn last(&self, key: &str) -> Arc<Message> {
        let session = session_ref(key).unwrap();
        let path = self.node().kernel().session_path(&self.me, &session, None, Some(1)).await.unwrap();
        path.last().unwrap().clone()
    }

    async fn bindings(&self, key: &str) -> Vec<Binding> {
        self.node().kernel().binding_list(&self.me, &session_ref(key).unwrap()).await.unwrap()
    }
}

fn config(folder: &Path, resumes: &str, change: impl Fn(&mut AdapterConfig)) -> Config {
    let agent = folder.join("agent").to_string_lossy().into_owned();
    let mut adapter = AdapterConfig {
        kind: Some(AdapterKind::Acp),
        command: Some(vec![example("acp_agent").to_string_lossy().into_owned(), agent, resumes.into()]),
        env: Some([(FOLDER.to_owned(), folder.to_string_lossy().into_owned())].into()),
        cwd: Some(PathBuf::from("/")),
        ..AdapterConfig::default()
    };
    change(&mut adapter);
    let mut config = Config::with_state_dir(folder.join("state"));
    config.guard = vec![env!("CARGO_BIN_EXE_mainspring").into(), "guard".into()];
    config.adapter = "agent".into();
    // Also how long a death may take to be proven, on a machine that is busy.
    config.cancel_grace_ms = 2_000;
    config.adapters = [("agent".to_owned(), adapter)].into();
    config
}

fn request(key: &str, text: &str) -> RunRequest {
    RunRequest::text(key, text)
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.kind()).collect()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let what = Box::pin(what);
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("what was awaited did not happen")
}
