//! A server and the hosts that speak JSON lines with it through pipes, in one process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use mainspring_client::{Client, RunListQuery};
use mainspring_core::{Answer, Run, RunId};
use mainspring_host::jsonl::{DEFAULT_OWNER, Disconnect, Jsonl, Options};
use mainspring_host::{Keeper, Link, Successor};
use mainspring_system::clock::Clock;
use mainspring_system::ids::Ids;
use mainspring_test_support::jsonl::{HostPipes, RelayAgent, query};
use mainspring_test_support::{Listening, NodeBuilder, TOKEN, TestNode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// The line that marks the end of a host's output.
const END: &str = r#"{"type":"end"}"#;
/// How long a read waits for output before the test fails.
const LINE_TIMEOUT: Timespec = Timespec { tv_sec: 100, tv_nsec: 0 };

/// The output of a host. A read fails if no output arrives within [`LINE_TIMEOUT`].
pub(crate) struct Output(PipeReader);

impl Read for Output {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&LINE_TIMEOUT))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => self.0.read(into),
        }
    }
}

/// A node that listens, on a runtime of its own, because the tests read the output of hosts with blocking calls.
pub(crate) struct Server {
    pub(crate) runtime: Runtime,
    pub(crate) node: TestNode,
    listening: Listening,
}

impl Server {
    pub(crate) fn start() -> Arc<Self> {
        Self::with(|builder| builder)
    }

    /// Starts a node whose scripts sleep in real time.
    pub(crate) fn with(build: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Arc<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (node, listening) = runtime.block_on(async {
            let node = build(TestNode::builder().system_clock()).start().await;
            let listening = node.listen().await;
            (node, listening)
        });
        Arc::new(Self { runtime, node, listening })
    }

    /// A client that acts for the owner of hosts.
    pub(crate) fn client(&self) -> Client {
        self.client_of(DEFAULT_OWNER)
    }

    pub(crate) fn client_of(&self, owner: &str) -> Client {
        Client::over_tcp(&self.listening.url(), TOKEN).unwrap().for_owner(owner)
    }

    /// Lists the runs of the owner of hosts, the newest first.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let query = RunListQuery { limit: Some(500), ..RunListQuery::default() };
        self.runtime.block_on(self.client().run_list(&query)).unwrap().items
    }
}

/// A host, and the task that serves it with JSON lines.
pub(crate) struct Host {
    pub(crate) server: Arc<Server>,
    pipes: HostPipes<PipeWriter, Output>,
    served: JoinHandle<Disconnect>,
}

impl Deref for Host {
    type Target = HostPipes<PipeWriter, Output>;

    fn deref(&self) -> &Self::Target {
        &self.pipes
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.pipes
    }
}

impl Host {
    /// Starts a server with one host.
    pub(crate) fn start() -> Self {
        Self::of(&Server::start())
    }

    /// Connects a host to a server.
    pub(crate) fn of(server: &Arc<Server>) -> Self {
        Self::with(server, |_| {})
    }

    /// Connects a host to a server. As in the program, a broken connection is made again.
    pub(crate) fn with(server: &Arc<Server>, change: impl FnOnce(&mut Options)) -> Self {
        let (host, mut keeper) = Self::through(server, server.client(), change);
        let client = server.client();
        server.runtime.spawn(async move {
            let next = move || ready(Ok::<_, Infallible>((client.clone(), Successor::Other)));
            keeper.renew_until(&Clock::system(), pending::<()>(), next).await
        });
        host
    }

    /// Connects a host to a server through this client. The test supplies the next server with the keeper.
    pub(crate) fn through(
        server: &Arc<Server>,
        client: Client,
        change: impl FnOnce(&mut Options),
    ) -> (Self, Keeper) {
        let ((input, to_server), (from_server, output)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let mut options = Options {
            owner: DEFAULT_OWNER.into(),
            adapter: "script".into(),
            aliases: HashMap::new(),
            model: None,
            cwd: Some("/".into()),
            tool_timeout_ms: 120_000,
            line_bytes: 1 << 20,
        };
        change(&mut options);
        let (link, keeper) = Link::new(client, Successor::Other);
        let mut end = output.try_clone().unwrap();
        let context = server.runtime.enter();
        let jsonl = Jsonl::start(link, options, Ids::system(), Clock::system(), output).unwrap();
        drop(context);
        let served = server.runtime.spawn(async move {
            let left = jsonl.serve(input).await.unwrap();
            if left == Disconnect::Stopped {
                jsonl.cancel().await;
            }
            jsonl.answered().await;
            jsonl.finish().await;
            // Agents that are still connected keep the output open, so a line marks its end.
            writeln!(end, "{END}").unwrap();
            left
        });
        let mut host =
            Self { server: server.clone(), pipes: HostPipes::new(to_server, Output(from_server)), served };
        host.receive_init();
        (host, keeper)
    }

    /// Closes the input and returns the remaining lines.
    pub(crate) fn close(mut self) -> Vec<Value> {
        drop(self.input.take());
        let (rest, left) = self.leave();
        assert_eq!(left, Disconnect::Closed);
        rest
    }

    /// Sends `stop` and returns the remaining lines.
    pub(crate) fn stop(mut self) -> Vec<Value> {
        self.send(&serde_json::json!({"type": "stop"}));
        let (rest, left) = self.leave();
        assert_eq!(left, Disconnect::Stopped);
        rest
    }

    fn leave(mut self) -> (Vec<Value>, Disconnect) {
        let mut rest = self.receive_until(|line| line["type"] == "end");
        rest.pop();
        (rest, self.server.runtime.block_on(self.served).unwrap())
    }

    /// Sends a query whose agent opens its endpoint and hangs. Returns a line of the query, and a connection to the
    /// endpoint.
    pub(crate) fn agent(&mut self, request: &str, key: &str) -> (Value, RelayAgent) {
        self.agent_of(&query(request, key, "relay; hang"))
    }

    /// Sends a query whose agent opens its endpoint.
    pub(crate) fn agent_of(&mut self, line: &Value) -> (Value, RelayAgent) {
        self.send(line);
        let is_path = |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("relay.sock"));
        let line = self.receive_until(is_path).pop().unwrap();
        let path = line["text"].as_str().unwrap().trim().to_owned();
        (line, RelayAgent::connect(path.as_ref()))
    }

    /// Sends a query that asks a question and continues with `script` once the host has read the question. By then the
    /// run is followed, so that no thought is missed.
    pub(crate) fn query_followed(&mut self, request: &str, key: &str, script: &str) {
        self.query(request, key, &format!("ask Go?; {script}"));
        let asked =
            self.receive_until(|line| line["text"].as_str().is_some_and(|text| text.ends_with("?\n")));
        let run: RunId = asked[asked.len() - 1]["runId"].as_str().unwrap().parse().unwrap();
        let client = self.server.client();
        self.server.runtime.block_on(async {
            let mut events = client.run_events(run, None);
            let wait = loop {
                events.next().await.expect("the run has ended").unwrap();
                let state = client.run_get(run).await.unwrap().state;
                if let Some(wait) = state.wait() {
                    break wait.id;
                }
            };
            client.run_answer(run, wait, &Answer::Input { input: "go".into() }).await.unwrap();
        });
    }
}
