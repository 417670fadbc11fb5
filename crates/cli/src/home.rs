//! Where a command finds its sessions: at a server that was named, with the process that owns the state directory,
//! or here, where this process takes the directory and serves it itself.
//!
//! All three are one thing to a command: a client. A guest whose host leaves takes the directory over and goes on.

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

/// How often to look whether the owner of the state directory answers or has left, and how long.
const LOOK_MS: u64 = 20;
const LOOKS: u32 = 500;

/// What a command wants of this process, if the state directory becomes its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Work: what is queued is executed.
    Execute,
    /// Read and change records only: what is queued stays queued.
    Records,
}

/// Where the sessions are.
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
            // Its owner may be about to listen, or to leave.
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

    /// As a guest of the process that owns the state directory, and in no other way.
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

    /// Asks; if the host has left meanwhile, goes on where the sessions are now and asks again. What changes something
    /// must be nameable, so that asking twice does it once.
    pub(super) async fn ask<T>(&mut self, ask: impl AsyncFn(&Client) -> Result<T, Error>) -> Result<T, Fail> {
        match ask(&self.client).await {
            Err(error) if error.is_gone() && self.is_guest() => {
                self.renew().await?;
                Ok(ask(&self.client).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// What happens in a session after `from`, for somebody who handles the host's leaving.
    pub(super) fn events(&self, session: &str, from: Position) -> Events {
        let events = self.client.session_events(session, from);
        if self.is_guest() { events.give_up_after(1) } else { events }
    }

    /// What all sessions do, for somebody who handles the host's leaving.
    pub(super) fn feed(&self) -> Feed {
        let feed = self.client.feed();
        if self.is_guest() { feed.give_up_after(1) } else { feed }
    }

    /// Finds the sessions again after their host has left.
    pub(super) async fn renew(&mut self) -> Result<(), Fail> {
        *self = Self::find(self.context, self.purpose).await?;
        Ok(())
    }

    /// Who to ask, for somebody who handles the host's leaving.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// True for the guest of another process on this machine.
    pub(super) fn is_guest(&self) -> bool {
        self.own.is_none() && self.context.config().url.is_none()
    }

    /// Leaves. What was accepted here, from guests too, is worked off first.
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
    /// Leaves within `drain` milliseconds: what executes here may finish until then and is stopped after that, and who
    /// follows it is told how it ended.
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

    /// Leaves at once. What is being executed here is stopped and recorded so; what is queued stays queued.
    pub(super) async fn abandon(self) -> Result<(), Fail> {
        if let Some((node, server)) = self.own {
            server.stop().await;
            node.close().await;
        }
        Ok(())
    }
}

/// Why the state directory did not become ours.
enum Found {
    Busy(StateDirError),
    Fail(Fail),
}

/// The owner of the state directory, if it can be talked to.
fn guest(context: &Context<'_>) -> Result<Option<Client>, Fail> {
    let config = context.config();
    let there = token::read(&config.state_dir)?.is_some() && Socket::of(&config.state_dir).path().exists();
    match there {
        true => Ok(Some(Client::of_state_dir(&config.state_dir)?.for_owner(&config.owner))),
        false => Ok(None),
    }
}
