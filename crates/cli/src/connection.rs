//! Connects a command to the server of its sessions: the configured server, the process that owns the state directory,
//! or this process, which then takes the directory and serves it.
//!
//! A command sees a client in all three cases. A process that uses the server of the directory's owner is its
//! *guest*. When the owner exits, a guest takes the directory over and continues.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainspring_client::{Client, Error, Events, Feed, Socket};
use mainspring_core::Position;
use mainspring_host::Successor;
use mainspring_kernel::clock::Clock;
use mainspring_store::{OmiOffer, Owner, StateDir, StateDirError};
use mainspring_system::tasks::Tasks;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::Context;
use super::error::{CliError, Exit};
use super::follow::drain_accepted;
use super::original::print_offer;
use super::takeover;
use mainspring::Server;
use mainspring::token;
use mainspring::{Node, NodeError};

/// Time between two attempts to reach the owner of the state directory or to take its place.
const RETRY_INTERVAL_MS: u64 = 20;
const MAX_CONNECT_ATTEMPTS: u32 = 500;
/// Time that the owner of the state directory has to answer a command.
pub(super) const ANSWER_TIMEOUT_MS: u64 = 10_000;
/// Time between two checks whether a `serve` waits for the state directory.
const CLAIM_INTERVAL_MS: u64 = 100;

/// Work this process does if it becomes the owner of the state directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Executes queued runs.
    Execute,
    /// Reads and changes records only: queued runs stay queued.
    Records,
}

/// A command's connection to the process that serves the sessions.
pub(super) struct Connection<'a> {
    context: &'a Context<'a>,
    purpose: Purpose,
    client: Client,
    /// The node and its server, if this process owns the state directory.
    local: Option<LocalServer>,
    /// A database of the original daemon in the state directory, if this process owns the directory.
    omi_offer: Option<OmiOffer>,
}

/// A node and its server in this process, until a `serve` takes the state directory over.
struct LocalServer {
    parts: Arc<Mutex<Option<(Node, Server)>>>,
    /// Whether the node is being closed, or is closed, for a `serve`.
    handed_over: Arc<AtomicBool>,
    /// The task that hands the directory over when a `serve` waits for it.
    hand_over: Option<JoinHandle<()>>,
}

impl LocalServer {
    fn new(node: Node, server: Server, state_dir: &Path, purpose: Purpose) -> Self {
        let parts = Arc::new(Mutex::new(Some((node, server))));
        let handed_over = Arc::new(AtomicBool::new(false));
        // A command that executes no runs ends soon by itself.
        let hand_over = (purpose == Purpose::Execute).then(|| {
            let claimed = hand_over_when_claimed(parts.clone(), handed_over.clone(), state_dir.to_owned());
            Tasks::default().spawn(claimed)
        });
        Self { parts, handed_over, hand_over }
    }

    fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Takes the node and its server; none if a `serve` has taken over.
    async fn take(self) -> Option<(Node, Server)> {
        let parts = self.parts.lock().await.take();
        if let Some(hand_over) = self.hand_over {
            hand_over.abort();
        }
        parts
    }
}

/// Waits until a `serve` claims the state directory and this process has no work, then closes the node.
async fn hand_over_when_claimed(
    parts: Arc<Mutex<Option<(Node, Server)>>>,
    handed_over: Arc<AtomicBool>,
    state_dir: PathBuf,
) {
    let clock = Clock::system();
    loop {
        clock.sleep_for(CLAIM_INTERVAL_MS).await;
        if !takeover::is_claimed(&state_dir) {
            continue;
        }
        // Held until the node is closed, so that the process does not exit before that.
        let mut parts = parts.lock().await;
        let Some((node, server)) = parts.as_ref() else { return };
        let work = *node.kernel().work().borrow();
        // A run that waits for a person is neither active nor queued, but its agent's process may hold it.
        if work.active + work.queued + node.busy_agents() > 0 {
            continue;
        }
        handed_over.store(true, Ordering::Release);
        server.close();
        node.kernel().drain().await;
        if let Some((node, server)) = parts.take() {
            server.stop().await;
            node.close().await;
        }
        return;
    }
}

impl<'a> Connection<'a> {
    /// Connects. Fails if the owner of the state directory does not answer.
    pub(super) async fn open(context: &'a Context<'a>, purpose: Purpose) -> Result<Self, CliError> {
        Self::open_within(context, purpose, Some(ANSWER_TIMEOUT_MS)).await
    }

    /// Connects. Unlike [`Connection::open`], waits while the owner of the state directory does not answer or
    /// is exiting.
    pub(super) async fn open_patiently(context: &'a Context<'a>, purpose: Purpose) -> Result<Self, CliError> {
        Self::open_within(context, purpose, None).await
    }

    async fn open_within(
        context: &'a Context<'a>,
        purpose: Purpose,
        answer_timeout_ms: Option<u64>,
    ) -> Result<Self, CliError> {
        if let Some(url) = &context.config().url {
            let key = context.key.as_deref().ok_or_else(|| {
                CliError::bad_request(format!("{url} needs a key: set MAINSPRING_KEY or pass --key"))
            })?;
            let client = match &context.config().tls_ca {
                Some(ca) => Client::over_tls(url, key, ca)?,
                None => Client::over_tcp(url, key)?,
            };
            return Ok(Self { context, purpose, client, local: None, omi_offer: None });
        }
        let clock = Clock::system();
        let mut attempts = 0;
        loop {
            // A `serve` that waits for the directory comes first.
            let is_claimed = takeover::is_claimed(&context.config().state_dir);
            let busy = match is_claimed {
                true => StateDirError::Busy { path: context.config().state_dir.clone(), owner: None },
                false => match Self::become_owner(context, purpose).await {
                    Err(BecomeOwnerError::Busy(busy)) => busy,
                    Err(BecomeOwnerError::Other(error)) => return Err(error),
                    Ok(connection) => return Ok(connection),
                },
            };
            // The owner may be about to listen or to exit.
            if let Some(client) = owner_client(context)? {
                let is_serving = match answer_timeout_ms {
                    Some(timeout_ms) => is_serving_within(context, &client, timeout_ms).await?,
                    None => is_serving(&client).await,
                };
                if is_serving {
                    return Ok(Self { context, purpose, client, local: None, omi_offer: None });
                }
            }
            attempts += 1;
            if attempts >= MAX_CONNECT_ATTEMPTS && answer_timeout_ms.is_some() {
                return Err(NodeError::StateDir(busy).into());
            }
            clock.sleep_for(RETRY_INTERVAL_MS).await;
        }
    }

    /// Connects as a guest of the process that owns the state directory, and never takes the directory.
    pub(super) async fn open_as_guest(context: &'a Context<'a>) -> Result<Self, CliError> {
        let not_served =
            || CliError::bad_request("no process serves the state directory: start `mainspring serve`");
        let config = context.config();
        // The MCP server of an agent has a key of its own, and may not be able to read the state directory's token.
        let client = match &context.key {
            Some(key) => Some(Client::over_state_dir(&config.state_dir, key)?.for_owner(&config.owner)),
            None => owner_client(context)?,
        };
        let client = client.ok_or_else(not_served)?;
        client.ready().await?;
        Ok(Self { context, purpose: Purpose::Records, client, local: None, omi_offer: None })
    }

    async fn become_owner(context: &'a Context<'a>, purpose: Purpose) -> Result<Self, BecomeOwnerError> {
        let config = context.config();
        let node = match purpose {
            Purpose::Execute => Node::open(config).await,
            Purpose::Records => Node::builder(config.clone()).records_only().open().await,
        };
        let node = match node {
            Err(NodeError::StateDir(busy @ StateDirError::Busy { .. })) => {
                return Err(BecomeOwnerError::Busy(busy));
            }
            node => node.map_err(|error| BecomeOwnerError::Other(error.into()))?,
        };
        let omi_offer = node.omi_offer().await;
        // The first prompt makes this import impossible.
        if let Some(offer @ OmiOffer::Here) = omi_offer {
            let _ = print_offer(context, offer, true);
        }
        let start_server = async {
            let server = Server::start(&node, config, None).await?;
            let token = token::read_or_create(&config.state_dir)?;
            let client = Client::over_socket(server.socket().address(), &token)?.for_owner(&config.owner);
            Ok::<_, CliError>((server, client))
        };
        match start_server.await {
            Ok((server, client)) => {
                let local = Some(LocalServer::new(node, server, &config.state_dir, purpose));
                Ok(Self { context, purpose, client, local, omi_offer })
            }
            Err(error) => {
                node.close().await;
                Err(BecomeOwnerError::Other(error))
            }
        }
    }

    /// Sends a request; if the owner has exited, reconnects and sends it again. Requests that change something must be
    /// idempotent.
    pub(super) async fn request<T>(
        &mut self,
        send: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> Result<T, CliError> {
        match send(&self.client).await {
            Err(error) if error.is_gone() && self.is_guest() => {
                self.reconnect().await?;
                Ok(send(&self.client).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Subscribes to a session's events after `from`. The caller must call `reconnect` when the owner exits.
    pub(super) fn events(&self, session: &str, from: Position) -> Events {
        let events = self.client.session_events(session, from);
        if self.is_guest() { events.give_up_after(1) } else { events }
    }

    /// Subscribes to the feed of all sessions. The caller must call `reconnect` when the owner exits.
    pub(super) fn feed(&self) -> Feed {
        let feed = self.client.feed();
        if self.is_guest() { feed.give_up_after(1) } else { feed }
    }

    /// Reconnects after the owner has exited.
    pub(super) async fn reconnect(&mut self) -> Result<(), CliError> {
        *self = Self::open_patiently(self.context, self.purpose).await?;
        Ok(())
    }

    /// Returns the database of the original daemon in the state directory if it was not imported and this
    /// process owns the directory.
    pub(super) fn omi_offer(&self) -> Option<OmiOffer> {
        self.omi_offer
    }

    /// Returns the current client. The caller must call `reconnect` when the owner exits.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// True when another process on this machine owns the state directory.
    pub(super) fn is_guest(&self) -> bool {
        !self.is_owner() && self.context.config().url.is_none()
    }

    /// True when this process owns the state directory.
    pub(super) fn is_owner(&self) -> bool {
        self.local.as_ref().is_some_and(|local| !local.is_handed_over())
    }

    /// The server that follows when the connection is lost. The owner of the state directory may exit, and this process may
    /// hand the directory over to a `serve`: then another process follows.
    pub(super) fn successor(&self) -> Successor {
        if self.context.config().url.is_some() {
            Successor::Remote
        } else if self.is_owner() {
            Successor::Local
        } else {
            Successor::Other
        }
    }

    /// Disconnects. An owner first completes all accepted work, including its guests'.
    pub(super) async fn close(self) -> Result<(), CliError> {
        let Some(local) = self.local else { return Ok(()) };
        let Some((node, server)) = local.take().await else { return Ok(()) };
        let drained = match self.purpose {
            Purpose::Execute => drain_accepted(self.context, node.kernel(), || server.close()).await,
            Purpose::Records => Ok(()),
        };
        server.stop().await;
        node.close().await;
        drained
    }
}

impl Connection<'_> {
    /// Disconnects within `drain_ms` milliseconds: runs that execute here may finish until then and are stopped after
    /// that. Followers of these runs still receive the final events.
    pub(super) async fn close_within(self, drain_ms: u64) {
        let Some(local) = self.local else { return };
        let Some((node, server)) = local.take().await else { return };
        server.close();
        node.kernel().drain_for(Duration::from_millis(drain_ms)).await;
        server.stop().await;
        node.close().await;
    }

    /// Disconnects at once. Running runs are stopped and recorded as such; queued runs stay queued.
    pub(super) async fn close_now(mut self) -> Result<(), CliError> {
        self.release().await;
        Ok(())
    }

    /// Asks the person at the terminal to confirm, and fails if they do not. Does not ask without a terminal.
    pub(super) async fn confirm(&mut self, question: &str) -> Result<(), CliError> {
        let output = self.context.output;
        if !output.is_interactive() {
            return Ok(());
        }
        // An owner for records executes no runs, so other commands would wait until the person has answered.
        self.release().await;
        output.confirm(question)?;
        *self = Self::open(self.context, self.purpose).await?;
        Ok(())
    }

    /// Gives the state directory up, if this process owns it.
    async fn release(&mut self) {
        let Some(local) = self.local.take() else { return };
        if let Some((node, server)) = local.take().await {
            server.stop().await;
            node.close().await;
        }
    }
}

/// Reason why this process could not take the state directory.
enum BecomeOwnerError {
    Busy(StateDirError),
    Other(CliError),
}

/// True when the owner answers, also if it cannot accept work at the moment: its refusals say why.
async fn is_serving(client: &Client) -> bool {
    match client.ready().await {
        Ok(_) => true,
        Err(error) => matches!(error, Error::Refused(_)) && !error.is_gone(),
    }
}

/// Like [`is_serving`], but fails if the owner does not answer in time.
pub(super) async fn is_serving_within(
    context: &Context<'_>,
    client: &Client,
    timeout_ms: u64,
) -> Result<bool, CliError> {
    tokio::select! {
        is_serving = is_serving(client) => Ok(is_serving),
        () = Clock::system().sleep_for(timeout_ms) => Err(not_responding(context)),
    }
}

/// The error for an owner that does not answer.
fn not_responding(context: &Context<'_>) -> CliError {
    let message = match StateDir::peek(&context.config().state_dir) {
        Ok(Some(Owner { pid, .. })) => format!(
            "process {pid}, which serves the sessions, does not answer: continue it with `kill -CONT {pid}` if it is \
             stopped, or end it"
        ),
        _ => "the process that serves the sessions does not answer: continue it if it is stopped, or end it"
            .into(),
    };
    CliError { exit: Exit::Unavailable, code: "not_responding".into(), message, retryable: true }
}

/// Builds a client of the state directory's owner, if the owner is reachable.
pub(super) fn owner_client(context: &Context<'_>) -> Result<Option<Client>, CliError> {
    let config = context.config();
    let is_served =
        token::read(&config.state_dir)?.is_some() && Socket::in_state_dir(&config.state_dir).path().exists();
    match is_served {
        true => Ok(Some(Client::from_state_dir(&config.state_dir)?.for_owner(&config.owner))),
        false => Ok(None),
    }
}
