//! Replies: the actions with which the server answers one request.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

/// The answer to one request.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// The token counts that the reply reports.
    pub tokens: Tokens,
    /// The stop reason; derived from the actions if not given.
    pub stop: Option<StopReason>,
}

/// One action of a reply.
#[derive(Debug, Clone)]
pub enum Action {
    /// Sends a piece of text, as one delta.
    Text(String),
    /// Sends thinking.
    Think {
        /// The text of the thinking.
        text: String,
        /// The signature of the thinking, for protocols that have one.
        signature: String,
    },
    /// Calls a tool.
    Tool {
        /// The call's id; the server makes one if not given.
        id: Option<String>,
        /// The name of the tool.
        name: String,
        /// The arguments.
        input: Value,
    },
    /// Waits until the gate is opened.
    Hold(Gate),
    /// Waits for this many milliseconds, so that people can watch.
    Pause(u64),
    /// Fails: with an HTTP error if it is the first action or the reply is not streamed, else in the middle of the
    /// stream.
    Fail(Fault),
    /// Closes the connection.
    Disconnect,
    /// Sends data that violates the protocol.
    Garbage,
    /// Sends nothing more and keeps the connection open.
    Hang,
}

/// A simulated error of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Too many requests.
    RateLimited {
        /// The seconds to wait, if the server names them.
        retry_after: Option<u64>,
    },
    /// The server is overloaded.
    Overloaded,
    /// An internal error.
    Internal,
    /// The key is wrong.
    Unauthorized,
    /// The request is invalid.
    Invalid,
    /// The prompt exceeds the model's context window.
    ContextTooLong,
}

/// Why a reply stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The reply is complete.
    End,
    /// The model calls tools.
    Tools,
    /// The reply has reached its maximum length.
    Length,
    /// The model refuses to answer.
    Refusal,
}

/// The token counts of a reply. `input` does not include cached tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { input: 10, output: 5, cache_read: 0, cache_write: 0 }
    }
}

impl Reply {
    /// A reply that sends `text`, word by word.
    pub fn text(text: &str) -> Self {
        Self::default().and_text(text)
    }

    /// A reply that calls a tool.
    pub fn tool(name: &str, input: Value) -> Self {
        Self::default().and_tool(name, input)
    }

    /// A reply that fails at once.
    pub fn fail(fault: Fault) -> Self {
        Self::default().and(Action::Fail(fault))
    }

    /// A reply that refuses to answer.
    pub fn refuse() -> Self {
        Self { stop: Some(StopReason::Refusal), ..Self::default() }
    }

    /// A reply that sends thinking.
    pub fn think(text: &str, signature: &str) -> Self {
        Self::default().and(Action::Think { text: text.into(), signature: signature.into() })
    }

    /// Adds `text`, sent word by word.
    #[must_use]
    pub fn and_text(mut self, text: &str) -> Self {
        self.actions.extend(text.split_inclusive(' ').map(|word| Action::Text(word.to_owned())));
        self
    }

    /// Adds a tool call.
    #[must_use]
    pub fn and_tool(self, name: &str, input: Value) -> Self {
        self.and(Action::Tool { id: None, name: name.into(), input })
    }

    /// Adds an action.
    #[must_use]
    pub fn and(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// Sets the stop reason.
    #[must_use]
    pub fn with_stop(self, stop: StopReason) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Sets the reported token counts.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// Returns the stop reason: the given one, else the one that the actions imply.
    pub(super) fn stop_reason(&self) -> StopReason {
        let calls = self.actions.iter().any(|action| matches!(action, Action::Tool { .. }));
        self.stop.unwrap_or(if calls { StopReason::Tools } else { StopReason::End })
    }
}

/// A gate that a reply waits at until a test opens it.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<GateState>>);

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(GateState::default())))
    }
}

impl Gate {
    /// Opens the gate for current and later waiters.
    pub fn open(&self) {
        self.0.send_modify(|state| state.open = true);
    }

    /// Waits until a reply has reached the gate.
    pub async fn reached(&self) {
        // Cannot fail: this gate holds the sender.
        let _ = self.0.subscribe().wait_for(|state| state.reached).await;
    }

    /// Marks the gate as reached, and waits until it is open.
    pub async fn pass(&self) {
        self.0.send_modify(|state| state.reached = true);
        let _ = self.0.subscribe().wait_for(|state| state.open).await;
    }
}
