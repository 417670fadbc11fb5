//! `mainspring serve`

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::Purpose;
use super::output::DIM;
use mainspring::Node;
use mainspring::Server;
use mainspring::token;

/// Serve the HTTP API, on an address (this machine's own by default) and a Unix socket
#[derive(Args)]
pub(super) struct Serve {
    /// The address to listen on [default: 127.0.0.1:7433]; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Print the token that clients send, and exit
    #[arg(long)]
    print_token: bool,
}

impl Serve {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let config = context.config();
        if self.print_token {
            return print_token(context, &config.state_dir).await;
        }
        let address = match self.listen {
            None => config.listen.parse().map_err(|_| Fail::bad_request("listen is not an address"))?,
            Some(address) => address,
        };
        let node = Node::open(config).await?;
        let served = serve(context, &node, address).await;
        node.close().await;
        served.map(|()| Exit::Done)
    }
}

async fn serve(context: &Context<'_>, node: &Node, address: SocketAddr) -> Result<(), Fail> {
    let (config, output, kernel) = (context.config(), context.output, node.kernel());
    let server = Server::start(node, config, Some(address)).await?;
    let address = server.address().unwrap_or(address);
    output.note(format_args!("serving http://{address} and {}", server.socket().path().display()))?;
    if !address.ip().is_loopback() {
        output.note(format_args!(
            "warning: others can reach {address}, without TLS: put a proxy that speaks it in front, and name its host in allowed_hosts"
        ))?;
    }
    output.note(format_args!("{DIM}token: mainspring serve --print-token{DIM:#}"))?;
    let signal = stopped().await;
    let drain = config.drain_ms;
    output.note(format_args!("{DIM}stopping: active runs may finish for {drain} ms{DIM:#}"))?;
    server.close();
    // Streams stay open while runs finish, so that readers receive the final events.
    tokio::select! {
        () = kernel.drain() => {}
        () = kernel.sleep(Duration::from_millis(drain)) => {}
    }
    server.stop().await;
    Ok(signal?)
}

async fn print_token(context: &Context<'_>, dir: &Path) -> Result<Exit, Fail> {
    let token = match token::read(dir)? {
        Some(token) => token,
        None => {
            let home = context.home(Purpose::Records).await?;
            let token = token::read(dir)?.unwrap_or_default();
            home.leave().await?;
            token
        }
    };
    context.output.line(token)?;
    Ok(Exit::Done)
}

/// Resolves on Ctrl-C or SIGTERM.
async fn stopped() -> io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
