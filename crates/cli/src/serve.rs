//! `mainspring serve`

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Context;
use super::connection::Purpose;
use super::error::{CliError, Exit};
use super::original::print_offer;
use super::output::DIM;
use super::takeover::Claim;
use mainspring::Server;
use mainspring::token;
use mainspring::{Node, NodeError};
use mainspring_kernel::clock::Clock;
use mainspring_store::StateDirError;

mod cluster;

/// Serve the HTTP API on a TCP address and a Unix socket
#[derive(Args)]
pub(super) struct Serve {
    /// Address to listen on; port 0 picks a free port [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Print the token that clients send, then exit
    #[arg(long)]
    print_token: bool,
}

impl Serve {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let config = context.config();
        if self.print_token {
            return print_token(context, &config.state_dir).await;
        }
        let address = match self.listen {
            None => config
                .listen
                .parse()
                .map_err(|_| CliError::bad_request("the setting `listen` is not an address"))?,
            Some(address) => address,
        };
        if config.cluster.is_enabled() {
            return Box::pin(cluster::serve(context, address)).await;
        }
        let opened = Node::open(config).await;
        let mut shutdown = Shutdown::register()?;
        let opened = take_over_if_busy(context, opened, &mut shutdown).await?;
        let Some((node, _claim)) = opened else { return Ok(Exit::Cancelled) };
        let served = serve(context, &node, address, &mut shutdown).await;
        node.close().await;
        served.map(|()| Exit::Done)
    }
}

/// Time between two attempts to take the state directory.
const RETRY_INTERVAL_MS: u64 = 20;

/// Returns the node that was opened. If another process owns the state directory, opens the node again until that
/// succeeds: a command hands the directory over once it has no active run, another `serve` does not. None if interrupted.
async fn take_over_if_busy(
    context: &Context<'_>,
    opened: Result<Node, NodeError>,
    shutdown: &mut Shutdown,
) -> Result<Option<(Node, Option<Claim>)>, CliError> {
    let config = context.config();
    let busy = match opened {
        Ok(node) => return Ok(Some((node, Claim::take(&config.state_dir)?))),
        Err(NodeError::StateDir(busy @ StateDirError::Busy { .. })) => busy,
        Err(error) => return Err(error.into()),
    };
    let Some(claim) = Claim::take(&config.state_dir)? else { return Err(NodeError::StateDir(busy).into()) };
    let owner = match &busy {
        StateDirError::Busy { owner: Some(owner), .. } => format!("process {}", owner.pid),
        _ => "another process".into(),
    };
    context.output.print_note(format_args!(
        "{DIM}{owner} owns the state directory; taking over once it has no active run{DIM:#}"
    ))?;
    let clock = Clock::system();
    loop {
        match Node::open(config).await {
            Ok(node) => return Ok(Some((node, Some(claim)))),
            Err(NodeError::StateDir(StateDirError::Busy { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = shutdown.requested() => return Ok(None),
            () = clock.sleep_for(RETRY_INTERVAL_MS) => {}
        }
    }
}

async fn serve(
    context: &Context<'_>,
    node: &Node,
    address: SocketAddr,
    shutdown: &mut Shutdown,
) -> Result<(), CliError> {
    let (config, output, kernel) = (context.config(), context.output, node.kernel());
    let server = Server::start(node, config, Some(address)).await?;
    let address = server.address().unwrap_or(address);
    let scheme = if server.is_tls() { "https" } else { "http" };
    output
        .print_note(format_args!("serving {scheme}://{address} and {}", server.socket().path().display()))?;
    if !address.ip().is_loopback() && !server.is_tls() {
        output.print_note(format_args!(
            "warning: other machines can reach {address} without TLS: put a TLS proxy in front and add its host to allowed_hosts"
        ))?;
    }
    output.print_note(format_args!("{DIM}token: mainspring serve --print-token{DIM:#}"))?;
    if let Some(offer) = node.omi_offer().await {
        print_offer(context, offer, true)?;
    }
    shutdown.requested().await;
    let drain_ms = config.drain_ms;
    // A note that cannot be written, to a log on a full disk for instance, must not cut the runs off.
    let _ = output.print_note(format_args!("{DIM}stopping: active runs may finish for {drain_ms} ms{DIM:#}"));
    server.close();
    // Streams stay open while runs finish, so that readers receive the final events.
    kernel.drain_for(Duration::from_millis(drain_ms)).await;
    server.stop().await;
    Ok(())
}

async fn print_token(context: &Context<'_>, dir: &Path) -> Result<Exit, CliError> {
    let token = match token::read(dir)? {
        Some(token) => token,
        None => {
            let connection = context.connect(Purpose::Records).await?;
            let token = token::read(dir)?.unwrap_or_default();
            connection.close().await?;
            token
        }
    };
    context.output.print_line(&*token)?;
    Ok(Exit::Done)
}

/// Ctrl-C and SIGTERM, received from the registration on, so that no signal is lost between two waits.
struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
}

impl Shutdown {
    fn register() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for a signal; returns at once for one that arrived since the registration or the last call.
    async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
