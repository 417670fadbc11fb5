//! Replies: what the server does about one request.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

/// What the server does about one request, act by act.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The acts, in order.
    pub acts: Vec<Act>,
    /// What it claims to have cost.
    pub tokens: Tokens,
    /// Why it stops; if not given, as the acts suggest.
    pub stop: Option<Stop>,
}

/// One thing the server does.
#[derive(Debug, Clone)]
pub enum Act {
    /// Says a piece of text, as one delta.
    Text(String),
    /// Thinks.
    Think {
        /// What it thinks.
        text: String,
        /// What proves it, where the protocol has such a thing.
        signature: String,
    },
    /// Calls a tool.
    Tool {
        /// The call's id; one of the server's own if not given.
        id: Option<String>,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// Stands still until the gate is opened.
    Hold(Gate),
    /// Stands still for some milliseconds, so that people can watch.
    Rest(u64),
    /// Goes wrong: as the HTTP answer if it is the first act, else in the middle of the stream.
    Fail(Fault),
    /// Breaks the connection off.
    Break,
    /// Says what is not of the protocol.
    Garbage,
    /// Says nothing more and keeps the connection.
    Hang,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Too many requests.
    RateLimited {
        /// The seconds to wait, if the server says so.
        retry_after: Option<u64>,
    },
    /// Too much to do.
    Overloaded,
    /// Something broke inside.
    Internal,
    /// The key is not right.
    Unauthorized,
    /// The request does not make sense.
    Invalid,
    /// The prompt does not fit.
    ContextTooLong,
}

/// Why an answer stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is whole.
    End,
    /// It calls tools.
    Tools,
    /// It has reached its length.
    Length,
    /// The model will not answer.
    Refusal,
}

/// What an answer cost, as a provider counts: the input without what was cached.
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
    /// Says `text`, word by word.
    pub fn say(text: &str) -> Self {
        Self::default().and_say(text)
    }

    /// Calls a tool.
    pub fn tool(name: &str, input: Value) -> Self {
        Self::default().and_tool(name, input)
    }

    /// Goes wrong at once.
    pub fn fail(fault: Fault) -> Self {
        Self::default().and(Act::Fail(fault))
    }

    /// Will not answer.
    pub fn refuse() -> Self {
        Self { stop: Some(Stop::Refusal), ..Self::default() }
    }

    /// Thinks, then goes on.
    pub fn think(text: &str, signature: &str) -> Self {
        Self::default().and(Act::Think { text: text.into(), signature: signature.into() })
    }

    /// And says `text`, word by word.
    #[must_use]
    pub fn and_say(mut self, text: &str) -> Self {
        self.acts.extend(text.split_inclusive(' ').map(|word| Act::Text(word.to_owned())));
        self
    }

    /// And calls a tool.
    #[must_use]
    pub fn and_tool(self, name: &str, input: Value) -> Self {
        self.and(Act::Tool { id: None, name: name.into(), input })
    }

    /// And does this.
    #[must_use]
    pub fn and(mut self, act: Act) -> Self {
        self.acts.push(act);
        self
    }

    /// And stops for this reason.
    #[must_use]
    pub fn and_stop(self, stop: Stop) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// At this cost.
    #[must_use]
    pub fn costing(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// Why it stops.
    pub(super) fn stops(&self) -> Stop {
        let calls = self.acts.iter().any(|act| matches!(act, Act::Tool { .. }));
        self.stop.unwrap_or(if calls { Stop::Tools } else { Stop::End })
    }
}

/// A gate that a reply stands at until a test opens it.
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
    /// Lets whoever stands there go on, now and later.
    pub fn open(&self) {
        self.0.send_modify(|state| state.open = true);
    }

    /// Returns once somebody stands there.
    pub async fn reached(&self) {
        // The sender is held by this very gate.
        let _ = self.0.subscribe().wait_for(|state| state.reached).await;
    }

    /// Stands at the gate until it is open.
    pub async fn pass(&self) {
        self.0.send_modify(|state| state.reached = true);
        let _ = self.0.subscribe().wait_for(|state| state.open).await;
    }
}
