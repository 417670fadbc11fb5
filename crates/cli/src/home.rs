//! Connects a command to its sessions: at the configured server, with the process that owns the state directory, or in
//! this process, which then takes the directory and serves it.
//!
//! A command sees a client in all three cases. When the owner of the directory exits, its guest takes the directory
//! over and continues.

use std::time::Duration;

use mainspring_client::{Client, Error, Events, Feed, Socket};
use mainspring_core::Position;
use mainspring_kernel::clock::Clock;
use mainspring_store::StateDirError;

use super::Context;
use super::fail::Fail;
use super::watch::work_off;
use mainspring::Server;
use mainspring::token;
use mainspring::{Node, NodeError};

/// Interval in milliseconds and number of attempts to reach the owner of the state directory or to take its place.
const LOOK_MS: u64 = 20;
const LOOKS: u32 = 500;

/// Work this process does if it becomes the owner of the state directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Executes queued runs.
    Execute,
    /// Reads and changes records only: queued runs stay queued.
    Records,
}

/// Connection to the sessions.
pub(super) struct Home<'a> {
    context: &'a Context<'a>,
    purpose: Purpose,
    client: Client,
    own: Option<(Node, Server)>,
}

impl<'a> Home<'a> {
    pub(super) async fn find(context: &'a Context<'a>, purpose: Purpose) -> Result<Self, Fail> {
        if let Some(url) = &context.config().url {
            let key = context.key.as_deref().ok_or_else(|| {
                Fail::bad_request(format!("{url} asks for a key: set MAINSPRING_KEY, or give --key"))
            })?;
            return Ok(Self { context, purpose, client: Client::over_tcp(url, key)?, own: None });
        }
        let clock = Clock::system();
        let mut looks = 0;
        loop {
            let busy = match Self::own(context, purpose).await {
                Err(Found::Busy(busy)) => busy,
                Err(Found::Fail(fail)) => return Err(fail),
                Ok(home) => return Ok(home),
            };
            // The owner may be about to listen or to exit.
            if let Some(client) = guest(context)?
                && client.ready().await.is_ok()
            {
                return Ok(Self { context, purpose, client, own: None });
            }
            looks += 1;
            if looks == LOOKS {
                return Err(NodeError::StateDir(busy).into());
            }
            clock.sleep_until(clock.now().plus(LOOK_MS)).await;
        }
    }

    /// Connects as a guest of the process that owns the state directory, and never takes the directory.
    pub(super) async fn visit(context: &'a Context<'a>) -> Result<Self, Fail> {
        let nobody = || Fail::bad_request("nobody serves the state directory: start `mainspring serve`");
        let client = guest(context)?.ok_or_else(nobody)?;
        client.ready().await?;
        Ok(Self { context, purpose: Purpose::Records, client, own: None })
    }

    async fn own(context: &'a Context<'a>, purpose: Purpose) -> Result<Self, Found> {
        let config = context.config();
        let node = match purpose {
            Purpose::Execute => Node::open(config).await,
            Purpose::Records => Node::builder(config.clone()).records_only().open().await,
        };
        let node = match node {
            Err(NodeError::StateDir(busy @ StateDirError::Busy { .. })) => return Err(Found::Busy(busy)),
            node => node.map_err(|error| Found::Fail(error.into()))?,
        };
        let served = async {
            let server = Server::start(&node, config, None).await?;
            let token = token::read_or_create(&config.state_dir)?;
            let client = Client::over_socket(server.socket().address(), &token)?.for_owner(&config.owner);
            Ok::<_, Fail>((server, client))
        };
        match served.await {
            Ok((server, client)) => Ok(Self { context, purpose, client, own: Some((node, server)) }),
            Err(fail) => {
                node.close().await;
                Err(Found::Fail(fail))
            }
        }
    }

    /// Sends a request; if the owner has exited, reconnects and sends it again. Requests that change something must be
    /// idempotent.
    pub(super) async fn ask<T>(&mut self, ask: impl AsyncFn(&Client) -> Result<T, Error>) -> Result<T, Fail> {
        match ask(&self.client).await {
            Err(error) if error.is_gone() && self.is_guest() => {
                self.renew().await?;
                Ok(ask(&self.client).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Subscribes to a session's events after `from`. The caller must call `renew` when the owner exits.
    pub(super) fn events(&self, session: &str, from: Position) -> Events {
        let events = self.client.session_events(session, from);
        if self.is_guest() { events.give_up_after(1) } else { events }
    }

    /// Subscribes to the feed of all sessions. The caller must call `renew` when the owner exits.
    pub(super) fn feed(&self) -> Feed {
        let feed = self.client.feed();
        if self.is_guest() { feed.give_up_after(1) } else { feed }
    }

    /// Reconnects after the owner has exited.
    pub(super) async fn renew(&mut self) -> Result<(), Fail> {
        *self = Self::find(self.context, self.purpose).await?;
        Ok(())
    }

    /// Returns the current client. The caller must call `renew` when the owner exits.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// True when another process on this machine owns the state directory.
    pub(super) fn is_guest(&self) -> bool {
        self.own.is_none() && self.context.config().url.is_none()
    }

    /// Disconnects. An owner first completes all accepted work, including its guests'.
    pub(super) async fn leave(self) -> Result<(), Fail> {
        let Some((node, server)) = self.own else {
            return Ok(());
        };
        let worked = match self.purpose {
            Purpose::Execute => work_off(self.context, node.kernel(), || server.close()).await,
            Purpose::Records => Ok(()),
        };
        server.stop().await;
        node.close().await;
        worked
    }
}

impl Home<'_> {
    /// Disconnects within `drain` milliseconds: runs that execute here may finish until then and are stopped after
    /// that. Followers of these runs still receive the final events.
    pub(super) async fn leave_within(self, drain: u64) {
        let Some((node, server)) = self.own else { return };
        server.close();
        tokio::select! {
            () = node.kernel().drain() => {}
            () = node.kernel().sleep(Duration::from_millis(drain)) => {}
        }
        server.stop().await;
        node.close().await;
    }

    /// Disconnects at once. Running runs are stopped and recorded as such; queued runs stay queued.
    pub(super) async fn abandon(self) -> Result<(), Fail> {
        if let Some((node, server)) = self.own {
            server.stop().await;
            node.close().await;
        }
        Ok(())
    }
}

/// Reason why this process could not take the state directory.
enum Found {
    Busy(StateDirError),
    Fail(Fail),
}

/// Builds a client of the state directory's owner, if the owner is reachable.
fn guest(context: &Context<'_>) -> Result<Option<Client>, Fail> {
    let config = context.config();
    let there =
        token::read(&config.state_dir)?.is_some() && Socket::in_state_dir(&config.state_dir).path().exists();
    match there {
        true => Ok(Some(Client::from_state_dir(&config.state_dir)?.for_owner(&config.owner))),
        false => Ok(None),
    }
}
