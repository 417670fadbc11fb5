//! JSONL over standard input and output for a host on the same machine, such as a desktop application. Implements
//! versions 2 and 1 of the protocol in docs/jsonl.md.
//!
//! ```text
//!  host ──lines──▶ pipes ──▶ line ──▶ query, interrupt, warmup, … ──▶ link ──▶ the server that owns the sessions
//!   ▲                                          │                         │
//!   └──lines── pipes ◀── reply ◀── translate ◀── follow (one reader per session with a live query) ◀─┘
//! ```
//!
//! This module only translates. It is a client of the HTTP API, whether this process or another one owns the state
//! directory, so a host sees no difference.
//!
//! Invariants: lines are written atomically; a query has exactly one end, after the acknowledgement of every interrupt;
//! the buffer for output that a host does not read is limited.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use mainspring_system::clock::Clock;
use mainspring_system::ids::Ids;
use mainspring_system::tasks::Tasks;
use tokio::sync::{Semaphore, mpsc};

mod answer;
mod availability;
mod follow;
mod image;
mod intake;
mod interrupt;
mod invalidate;
mod line;
mod live;
mod login;
mod pipes;
mod query;
mod relay;
mod translate;
mod warmup;

use crate::link::Link;
use line::{Echo, Envelope, InvalidLine, Subject};
use live::{Attempts, Live};
pub use mainspring_api::jsonl::DEFAULT_CLIENT_ID;
use mainspring_api::jsonl::{Code, LineIds, Reply, Request};
use mainspring_core::RunStatus;
use pipes::{Input, Output};

/// The owner of lines without one, unless this process has another.
pub const DEFAULT_OWNER: &str = "desktop-local-user";
/// The surface kind of queries without one.
const DEFAULT_SURFACE_KIND: &str = "legacy_jsonl";

/// Options of the JSONL server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The owner of lines without one; if empty, the owner of the client's API key.
    pub owner: String,
    /// The adapter of queries without one.
    pub adapter: String,
    /// Adapter names by the aliases that hosts use.
    pub aliases: HashMap<String, String>,
    /// The model of queries without one.
    pub model: Option<String>,
    /// The working directory of queries without one; `None` for the adapter's default.
    pub cwd: Option<String>,
    /// Timeout of a tool call, in milliseconds.
    pub tool_timeout_ms: u64,
    /// Maximum bytes of a line.
    pub line_bytes: usize,
}

/// Why the connection to the host has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// The host sent `stop`.
    Stopped,
    /// The host closed its output.
    Closed,
    /// The host no longer reads.
    NotReading,
}

/// The connection to one host and its live queries. Cheap to clone.
#[derive(Clone)]
pub struct Jsonl(Arc<Shared>);

/// State shared by the handlers of all lines.
struct Shared {
    link: Link,
    output: Output,
    options: Options,
    /// The secret name of this host, for the calls of its tools.
    host: String,
    /// Scopes the requests of a client without an id to this connection.
    connection: String,
    live: Live,
    attempts: Attempts,
    intake: intake::Intake,
    followers: follow::Followers,
    hints: warmup::Hints,
    logins: login::Logins,
    calls: relay::Calls,
    /// Limits the bytes of lines in progress.
    inbound: Arc<Semaphore>,
    ids: Ids,
    clock: Clock,
    tasks: Tasks,
}

/// The message of a query that has not ended when the process exits.
const SHUTTING_DOWN: &str = "mainspring is shutting down before the query has ended. A run that was accepted is not \
     cancelled: it goes on where it is executed, or with the next process. Send the query again with the same requestId to \
     get its result";
/// Memory limit of lines in progress.
const INBOUND_MAX_BYTES: u32 = 64 << 20;
/// Assumed memory of a line in progress in addition to its bytes: even a short line costs a task.
const LINE_OVERHEAD_BYTES: usize = 8 << 10;

impl Jsonl {
    /// Starts the writer on `to`. Nothing is written before [`Jsonl::serve`].
    pub fn start(
        link: Link,
        options: Options,
        ids: Ids,
        clock: Clock,
        to: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let jsonl = Self(Arc::new(Shared {
            link,
            output: Output::start(to)?,
            options,
            host: ids.secret(),
            connection: ids.secret(),
            live: Live::default(),
            attempts: Attempts::default(),
            intake: intake::Intake::default(),
            followers: follow::Followers::default(),
            hints: warmup::Hints::default(),
            logins: login::Logins::default(),
            calls: relay::Calls::default(),
            inbound: Arc::new(Semaphore::new(INBOUND_MAX_BYTES as usize)),
            ids,
            clock,
            tasks: Tasks::default(),
        }));
        jsonl.0.tasks.spawn(relay::serve(Arc::downgrade(&jsonl.0)));
        jsonl.0.tasks.spawn(availability::watch(Arc::downgrade(&jsonl.0)));
        Ok(jsonl)
    }

    /// Sends `init`, then handles the lines of `from` until the host sends no more lines or no longer reads.
    pub async fn serve(&self, from: impl Read + Send + 'static) -> io::Result<Disconnect> {
        let shared = &self.0;
        shared.reply(&Reply::Init { session_id: "".into() }, &LineIds::default()).await;
        let lines = pipes::lines(from, shared.options.line_bytes)?;
        let reason = tokio::select! {
            reason = read_lines(shared, lines) => reason,
            () = shared.output.disconnected() => Disconnect::NotReading,
        };
        shared.calls.host_left();
        login::close(shared).await;
        Ok(reason)
    }

    /// Resolves once every query has ended.
    pub async fn answered(&self) {
        self.0.live.drained().await;
    }

    /// Cancels all live queries. Queued runs are cancelled before active ones: the end of an active run would start a
    /// queued run. Queries that are not accepted yet end with `shutting_down`.
    pub async fn cancel(&self) {
        let shared = &self.0;
        shared.intake.close();
        login::close(shared).await;
        let (mut queued, mut started) = (vec![], vec![]);
        for query in shared.live.all() {
            let Some(run) = query.run().await else { continue };
            let found =
                shared.link.ask(&query.owner, |client| async move { client.run_get(run).await }).await;
            let is_queued = found.is_ok_and(|run| run.state.status() == RunStatus::Queued);
            (if is_queued { &mut queued } else { &mut started }).push((query, run));
        }
        for (query, run) in queued.into_iter().chain(started) {
            let cancel = shared.link.ask(&query.owner, |client| async move { client.run_cancel(run).await });
            if let Err(error) = cancel.await {
                tracing::info!(%run, %error, "query was not cancelled");
            }
        }
    }

    /// Accepts no further query. Queries that are not accepted yet end with `shutting_down`.
    pub fn close(&self) {
        self.0.intake.close();
    }

    /// Resolves when every event that the server has sent is translated. Call it once the server is gone and no other server
    /// will follow.
    pub async fn followed(&self) {
        self.0.followers.done().await;
    }

    /// Ends the remaining queries with `shutting_down`, and returns once all output is written.
    pub async fn finish(&self) {
        let shared = &self.0;
        shared.calls.host_left();
        for query in shared.live.all() {
            if shared.live.end(&query) {
                shared.reply(&Reply::error("shutting_down", SHUTTING_DOWN), &query.line_ids(None)).await;
            }
        }
        shared.calls.answered().await;
        shared.output.flushed().await;
    }
}

/// Reads and dispatches lines until the input ends or the host sends `stop`.
async fn read_lines(shared: &Arc<Shared>, mut lines: mpsc::Receiver<Input>) -> Disconnect {
    while let Some(input) = lines.recv().await {
        let bytes = match input {
            Input::Line(bytes) => bytes,
            Input::TooLong => {
                let message = format!("a line has at most {} bytes", shared.options.line_bytes);
                shared
                    .reply_invalid(InvalidLine {
                        code: "too_large",
                        message,
                        echo: Echo::default(),
                        subject: Subject::Other,
                    })
                    .await;
                continue;
            }
        };
        match line::read(&bytes) {
            Err(invalid) => shared.reply_invalid(*invalid).await,
            Ok((_, Request::Stop {})) => return Disconnect::Stopped,
            Ok((envelope, line)) => {
                let size = u32::try_from(bytes.len() + LINE_OVERHEAD_BYTES)
                    .unwrap_or(INBOUND_MAX_BYTES)
                    .min(INBOUND_MAX_BYTES);
                drop(bytes);
                let Ok(permit) = shared.inbound.clone().acquire_many_owned(size).await else {
                    return Disconnect::Closed;
                };
                dispatch(shared, envelope, line, permit).await;
            }
        }
    }
    Disconnect::Closed
}

/// Handles a line. Slow work runs in its own task; the intake keeps the order that the host relies on.
async fn dispatch(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Request,
    permit: tokio::sync::OwnedSemaphorePermit,
) {
    match line {
        Request::Query(query) => query::handle(shared, &envelope, *query, permit),
        Request::Interrupt(interrupt) => interrupt::handle(shared, envelope, interrupt, permit),
        Request::InvalidateSession(invalid) => invalidate::handle(shared, envelope, invalid, permit),
        Request::Warmup(warmup) => shared.hints.record(shared.owner(&envelope), warmup, &shared.options),
        Request::ToolResult(result) => relay::answer(shared, &envelope, result).await,
        Request::Answer(line) => answer::handle(shared, envelope, line, permit),
        // Nothing to do: the server knows the owner of each call.
        Request::RefreshToken(_) => {}
        Request::Authenticate(line) => login::handle(shared, envelope, line, permit),
        Request::Stop {} => {}
    }
}

impl Shared {
    /// Writes a reply.
    async fn reply(&self, reply: &Reply<'_>, line_ids: &LineIds) {
        self.output.line(reply.encode(line_ids)).await;
    }

    /// Reports an invalid line, in a form that the host does not mistake for the end of a live query.
    async fn reply_invalid(&self, invalid: InvalidLine) {
        let InvalidLine { code, message, echo, subject } = invalid;
        match subject {
            Subject::Interrupt => interrupt::refuse(self, echo.into(), code, message).await,
            Subject::Call(call_id) => {
                let error = Reply::Error {
                    message: (&message).into(),
                    code: Code::new(code),
                    call_id: call_id.as_deref().map(Into::into),
                };
                self.reply(&error, &LineIds::default()).await;
            }
            Subject::Other => self.reply(&Reply::error(code, &message), &echo.into()).await,
        }
    }

    /// Returns the owner that a line acts for.
    fn owner<'a>(&'a self, envelope: &'a Envelope) -> &'a str {
        envelope.owner.as_deref().unwrap_or(&self.options.owner)
    }
}

/// Returns a client error's stable code and its message.
pub(crate) fn code_and_message(error: &mainspring_client::Error) -> (String, String) {
    (error.code().to_owned(), error.to_string())
}
