//! A node, its socket, and a client of it.

use std::pin::pin;

use futures_util::{Stream, StreamExt};
use mainspring_client::{AcceptedRun, Client, Error, Item, Prompt};
use mainspring_core::{Body, Run, RunId, Wait};
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, Executed};
use mainspring_test_support::{FnAgent, Listening, NodeBuilder, TOKEN, TestNode};

pub(crate) struct World {
    pub(crate) node: TestNode,
    pub(crate) client: Client,
    pub(crate) listening: Listening,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(TestNode::builder()).await
    }

    pub(crate) async fn with(builder: NodeBuilder) -> Self {
        let node = builder.start().await;
        let listening = node.listen().await;
        let client = Client::over_tcp(&listening.url(), TOKEN).unwrap();
        Self { node, client, listening }
    }

    /// Starts a node with an agent that `execute` implements and `capabilities` names.
    pub(crate) async fn with_agent<F, R>(capabilities: Capabilities, execute: F) -> Self
    where
        F: Fn(AttemptHandle) -> R + Send + Sync + 'static,
        R: Future<Output = Executed> + Send + 'static,
    {
        Self::with(TestNode::builder().adapter(FnAgent::new(capabilities, execute))).await
    }

    /// Sends a script to the session of this key.
    pub(crate) async fn prompt(&self, key: &str, script: &str) -> AcceptedRun {
        self.client.run_create(&Prompt::text(key, script)).await.unwrap()
    }

    /// Sends a prompt to the adapter `agent`.
    pub(crate) async fn prompt_agent(&self, key: &str, text: &str) -> AcceptedRun {
        let prompt = Prompt { adapter: Some("agent".into()), ..Prompt::text(key, text) };
        self.client.run_create(&prompt).await.unwrap()
    }

    /// Sends a script and waits for its end.
    pub(crate) async fn play(&self, key: &str, script: &str) -> Run {
        let run = self.prompt(key, script).await.run;
        self.ended(run.id).await
    }

    /// Waits for the end of a run on its stream.
    pub(crate) async fn ended(&self, run: RunId) -> Run {
        let mut events = self.client.run_events(run, None);
        while events.next().await.transpose().unwrap().is_some() {}
        self.client.run_get(run).await.unwrap()
    }

    /// Waits until a run asks a question.
    pub(crate) async fn question(&self, run: RunId) -> Wait {
        let mut events = self.client.run_events(run, None);
        loop {
            let item = events.next().await.expect("the run ended without a question").unwrap();
            if let Item::Event(event) = item
                && let Body::InputRequested { .. } | Body::ApprovalRequested { .. } = event.body
            {
                return self.client.run_get(run).await.unwrap().state.wait().unwrap().clone();
            }
        }
    }
}

/// Reads a streamed body.
pub(crate) async fn bytes(pieces: impl Stream<Item = Result<Vec<u8>, Error>>) -> Vec<u8> {
    let (mut pieces, mut bytes) = (pin!(pieces), vec![]);
    while let Some(piece) = pieces.next().await {
        bytes.extend(piece.unwrap());
    }
    bytes
}

/// Returns the code of a refusal.
#[track_caller]
pub(crate) fn code<T>(answer: Result<T, Error>) -> String {
    answer.err().expect("an error").code().to_owned()
}
