//! JSONL over standard input and output: a host on the same machine, such as a desktop application, asks in lines and is
//! answered in lines. Versions 2 and 1 of the protocol that docs/jsonl.md describes.
//!
//! ```text
//!  host ──lines──▶ pipes ──▶ line ──▶ query, interrupt, warmup, … ──▶ link ──▶ whoever owns the sessions
//!   ▲                                          │                         │
//!   └──lines── pipes ◀── say ◀── tell ◀── follow (one reader per session with a live query) ◀─┘
//! ```
//!
//! It translates and decides nothing: it is a client of the HTTP API, whether the state directory is this process's own or
//! another's, so that a host is served in the same way by both.
//!
//! Invariants: a line goes out whole; a query has exactly one end, after the answer to every wish to stop it; what a host
//! does not read is not kept here.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_system::clock::Clock;
use mainspring_system::ids::Ids;
use mainspring_system::tasks::Tasks;
use tokio::sync::{Semaphore, mpsc};

mod follow;
mod image;
mod interrupt;
mod invalidate;
mod lanes;
mod line;

mod live;
mod login;
mod pipes;
mod query;
mod relay;
mod tell;
mod warmup;

use crate::link::Link;
pub(crate) use follow::said;
use line::{Bad, Echo, Envelope, Of};
use live::{Attempts, Live};
use mainspring_api::jsonl::{Code, Names, Reply, Request};
use pipes::{Got, Out};

/// The client of lines that name none.
pub const CLIENT: &str = "legacy-jsonl-client";
/// The owner of lines that name none, unless the host was started for another.
pub const OWNER: &str = "desktop-local-user";
/// The kind of surface of queries that name none.
const SURFACE: &str = "legacy_jsonl";

/// How the edge behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// For whom lines ask that name no owner; empty for whom the client's key is.
    pub owner: String,
    /// The adapter of queries that name none.
    pub adapter: String,
    /// What hosts call adapters, and what they are called here.
    pub aliases: HashMap<String, String>,
    /// The model of queries that name none.
    pub model: Option<String>,
    /// The folder of queries that name none.
    pub cwd: String,
    /// Where agents reach the tools of the host; nowhere if none.
    pub relay: Option<PathBuf>,
    /// How long an agent waits for a tool, in milliseconds.
    pub tool_timeout: u64,
    /// Bytes of a line.
    pub line_bytes: usize,
}

/// Why the host says nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It said `stop`.
    Stopped,
    /// It has closed its end.
    Closed,
    /// It does not read any more.
    Gone,
}

/// A host, and what it has asked. Cheap to clone.
#[derive(Clone)]
pub struct Jsonl(Arc<Shared>);

/// What every line reaches.
struct Shared {
    link: Link,
    out: Out,
    options: Options,
    /// Names the requests of a client that has no name of its own: they are this connection's alone.
    connection: String,
    live: Live,
    attempts: Attempts,
    lanes: lanes::Lanes,
    followers: follow::Followers,
    hints: warmup::Hints,
    logins: login::Logins,
    calls: relay::Calls,
    /// Bytes of lines that are being worked on.
    inbound: Arc<Semaphore>,
    ids: Ids,
    clock: Clock,
    tasks: Tasks,
}

/// What lines that are being worked on may take in memory.
const INBOUND: u32 = 64 << 20;
/// What a line takes besides its bytes until it is answered: the shortest are no less work.
const BESIDE: usize = 8 << 10;

impl Jsonl {
    /// Answers through `to`, and lets agents in. Nothing is said before [`Jsonl::serve`].
    pub fn start(
        link: Link,
        options: Options,
        ids: Ids,
        clock: Clock,
        to: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let edge = Self(Arc::new(Shared {
            link,
            out: Out::start(to)?,
            options,
            connection: ids.secret(),
            live: Live::default(),
            attempts: Attempts::default(),
            lanes: lanes::Lanes::default(),
            followers: follow::Followers::default(),
            hints: warmup::Hints::default(),
            logins: login::Logins::default(),
            calls: relay::Calls::default(),
            inbound: Arc::new(Semaphore::new(INBOUND as usize)),
            ids,
            clock,
            tasks: Tasks::default(),
        }));
        if let Some(path) = &edge.0.options.relay {
            relay::listen(&edge.0, path)?;
        }
        Ok(edge)
    }

    /// Says that we are ready, and answers the lines of `from` until the host says nothing more.
    pub async fn serve(&self, from: impl Read + Send + 'static) -> io::Result<Left> {
        let shared = &self.0;
        shared.say(&Reply::Init { session_id: "".into() }, &Names::default()).await;
        let lines = pipes::lines(from, shared.options.line_bytes)?;
        let left = tokio::select! {
            left = read(shared, lines) => left,
            () = shared.out.gone() => Left::Gone,
        };
        shared.calls.host_left();
        Ok(left)
    }

    /// Resolves once every query has its end.
    pub async fn answered(&self) {
        self.0.live.over().await;
    }

    /// Cancels every query that has no end, the latest first, so that none begins because another ends.
    pub async fn cancel(&self) {
        for query in self.0.live.all() {
            let Some(run) = query.run().await else { continue };
            let cancel = self.0.link.ask(&query.owner, |client| async move { client.run_cancel(run).await });
            if let Err(error) = cancel.await {
                tracing::info!(%run, %error, "a query could not be cancelled");
            }
        }
    }

    /// Tells those who still wait what is true of their queries, and returns once the host has it all.
    pub async fn finish(&self) {
        let shared = &self.0;
        shared.calls.host_left();
        shared.calls.close();
        for query in shared.live.all() {
            let message = "mainspring leaves before the query has its end; send it again under the same requestId \
                           to learn what became of it";
            shared.say(&Reply::error("shutting_down", message), &query.names(None)).await;
            shared.live.end(&query);
        }
        shared.out.flushed().await;
    }
}

/// Reads lines until there are no more.
async fn read(shared: &Arc<Shared>, mut lines: mpsc::Receiver<Got>) -> Left {
    while let Some(got) = lines.recv().await {
        let bytes = match got {
            Got::Line(bytes) => bytes,
            Got::TooLong => {
                let message = format!("a line has at most {} bytes", shared.options.line_bytes);
                shared.bad(Bad { code: "too_large", message, echo: Echo::default(), of: Of::Other }).await;
                continue;
            }
        };
        match line::read(&bytes) {
            Err(bad) => shared.bad(*bad).await,
            Ok((_, Request::Stop {})) => return Left::Stopped,
            Ok((envelope, line)) => {
                let weight = u32::try_from(bytes.len() + BESIDE).unwrap_or(INBOUND).min(INBOUND);
                drop(bytes);
                let Ok(weight) = shared.inbound.clone().acquire_many_owned(weight).await else {
                    return Left::Closed;
                };
                hear(shared, envelope, line, weight).await;
            }
        }
    }
    Left::Closed
}

/// Does what a line asks. Whatever takes time is done beside it, in the order that matters to the host.
async fn hear(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Request,
    weight: tokio::sync::OwnedSemaphorePermit,
) {
    match line {
        Request::Query(query) => query::hear(shared, &envelope, *query, weight),
        Request::Interrupt(interrupt) => interrupt::hear(shared, envelope, interrupt, weight),
        Request::InvalidateSession(invalid) => invalidate::hear(shared, envelope, invalid, weight),
        Request::Warmup(warmup) => shared.hints.hear(shared.owner(&envelope), warmup, &shared.options),
        Request::ToolResult(result) => relay::answer(shared, &envelope, result).await,
        Request::RefreshToken(_) => shared.calls.act_for(shared.owner(&envelope)),
        Request::Authenticate(line) => login::hear(shared, envelope, line, weight),
        Request::Stop {} => {}
    }
}

impl Shared {
    async fn say(&self, reply: &Reply<'_>, names: &Names) {
        self.out.line(reply.encode(names)).await;
    }

    /// Says what is wrong with a line. What is about a query that lives is not to be taken for the query's end.
    async fn bad(&self, bad: Bad) {
        let Bad { code, message, echo, of } = bad;
        match of {
            Of::Interrupt => interrupt::refuse(self, echo.into(), code, message).await,
            Of::Call(call_id) => {
                let error = Reply::Error {
                    message: (&message).into(),
                    code: Code::of(code),
                    call_id: call_id.as_deref().map(Into::into),
                };
                self.say(&error, &Names::default()).await;
            }
            Of::Other => self.say(&Reply::error(code, &message), &echo.into()).await,
        }
    }

    /// For whom a line asks.
    fn owner<'a>(&'a self, envelope: &'a Envelope) -> &'a str {
        envelope.owner.as_deref().unwrap_or(&self.options.owner)
    }
}

/// An error of the client: its stable code, and a sentence for people.
pub(crate) fn told(error: &mainspring_client::Error) -> (String, String) {
    (error.code().to_owned(), error.to_string())
}
