//! Endpoints: the socket through which one agent process calls control tools and tools of its host.
//!
//! ```text
//! agent ──tool_use──▶ endpoint of its process ──▶ live attempt ──▶ a control tool: answered by the kernel
//!                                                      └────────▶ any other name: a call of the run's host
//! ```
//!
//! An endpoint lies in a folder that only the user may enter, and takes connections only from the processes under the
//! guard of its agent. A call acts for the attempt that the process serves at the moment; between attempts it is refused.
//!
//! Invariant: every call gets exactly one result, at the latest on timeout or when its attempt ends.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_api::jsonl::endpoint::RunContext;
use mainspring_core::AttemptId;
use mainspring_kernel::adapter::AttemptHandle;
use mainspring_kernel::kernel::AgentToken;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod call;
mod connection;
mod peer;
pub(crate) use peer::Peers;

use crate::process::TemporaryFolder;

/// The environment variable with the path of the socket. The protocol defines its name.
pub(crate) const PIPE_VARIABLE: &str = "OMI_BRIDGE_PIPE";
/// The prefix of the variables that describe the run for which a process was started.
const CONTEXT_PREFIX: &str = "MAINSPRING_CONTEXT_";

/// How the calls of agents are answered.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Maximum bytes of a line.
    pub line_bytes: usize,
    /// Timeout of a call, in milliseconds.
    pub timeout_ms: u64,
    /// Adapter names by the aliases that agents use.
    pub aliases: Arc<HashMap<String, String>>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self { line_bytes: 32 << 20, timeout_ms: 120_000, aliases: Arc::default() }
    }
}

/// The endpoint of one agent process. Dropping it closes it.
pub struct Endpoint {
    shared: Arc<Shared>,
    socket: PathBuf,
    closed: CancellationToken,
    folder: TemporaryFolder,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("socket", &self.socket).finish_non_exhaustive()
    }
}

struct Shared {
    options: RelayOptions,
    peers: Peers,
    /// `None` once the endpoint is closed.
    token: Mutex<Option<AgentToken>>,
    /// The attempt that the process serves; `None` between attempts.
    live: watch::Sender<Option<AttemptHandle>>,
    tasks: Tasks,
}

impl Endpoint {
    /// Opens the endpoint of a process that is started for `attempt`, in a new folder of this scope.
    pub(crate) fn open(
        scope: &str,
        peers: Peers,
        options: RelayOptions,
        attempt: &AttemptHandle,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let folder = TemporaryFolder::create_for_sockets(scope)?;
        let socket = folder.path().join("relay.sock");
        let listener = UnixListener::bind(&socket)?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        let shared = Arc::new(Shared {
            options,
            peers,
            token: Mutex::new(Some(attempt.new_agent_token())),
            live: watch::Sender::new(None),
            tasks: tasks.clone(),
        });
        let closed = CancellationToken::new();
        tasks.spawn(accept(listener, shared.clone(), closed.clone()));
        Ok(Self { shared, socket, closed, folder })
    }

    /// Serves calls for `attempt` until the returned value is dropped.
    pub(crate) fn attach(&self, attempt: &AttemptHandle) -> Attached {
        self.shared.live.send_modify(|live| {
            self.shared.token.lock().iter().for_each(|token| attempt.attach_token(token));
            *live = Some(attempt.clone());
        });
        Attached { shared: self.shared.clone(), attempt: attempt.id() }
    }

    /// Closes the socket and revokes the token: the process has ended.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        *self.shared.token.lock() = None;
        self.folder.remove_now();
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> String {
        self.socket.to_string_lossy().into_owned()
    }

    /// The token with which the process calls over HTTP; empty once the endpoint is closed.
    pub(crate) fn token(&self) -> String {
        self.shared.token.lock().as_ref().map(|token| token.secret().to_owned()).unwrap_or_default()
    }

    /// The variables of the process: the socket, and the context of the attempt for which it is started.
    pub(crate) fn variables(&self, attempt: &AttemptHandle) -> Vec<(String, String)> {
        let context = context(attempt).into_iter();
        let name = |name: &str| format!("{CONTEXT_PREFIX}{name}");
        let context = context.filter_map(|(variable, value)| Some((name(variable), value?)));
        std::iter::once((PIPE_VARIABLE.to_owned(), self.socket())).chain(context).collect()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

/// An endpoint that serves an attempt. Dropping it ends the calls of the attempt.
pub(crate) struct Attached {
    shared: Arc<Shared>,
    attempt: AttemptId,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.shared.live.send_if_modified(|live| {
            // The process may serve the next attempt already.
            let is_live = live.as_ref().is_some_and(|live| live.id() == self.attempt);
            if is_live {
                self.shared.token.lock().iter().for_each(AgentToken::detach);
                *live = None;
            }
            is_live
        });
    }
}

/// The context of an attempt: variables and their values.
fn context(attempt: &AttemptHandle) -> [(&'static str, Option<String>); 6] {
    let RunContext { owner_id, session_id, run_id, attempt_id, request_id, client_id } =
        call::run_context(attempt);
    [
        ("OWNER_ID", Some(owner_id)),
        ("SESSION_ID", Some(session_id.to_string())),
        ("RUN_ID", Some(run_id.to_string())),
        ("ATTEMPT_ID", Some(attempt_id.to_string())),
        ("REQUEST_ID", request_id),
        ("CLIENT_ID", client_id),
    ]
}

/// Accepts connections until the endpoint is closed.
async fn accept(listener: UnixListener, shared: Arc<Shared>, closed: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed.cancelled() => return,
        };
        match accepted {
            Ok((agent, _)) if shared.peers.admit(&agent) => serve(&shared, agent, closed.clone()),
            Ok(_) => tracing::warn!("a process that is not the agent's tried to call tools as the agent"),
            Err(error) => tracing::warn!(%error, "agent connection was not accepted"),
        }
    }
}

/// Serves one connection in a task of its own, until the agent disconnects or the endpoint is closed.
fn serve(shared: &Arc<Shared>, agent: UnixStream, closed: CancellationToken) {
    let served = connection::serve(shared.clone(), agent);
    shared.tasks.spawn(async move {
        tokio::select! {
            () = served => {}
            () = closed.cancelled() => {}
        }
    });
}
