//! `mainspring serve`

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::serve::ListenerExt;
use clap::Args;
use mainspring_edges::http::{self, Access, Http};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::fail::{Exit, Fail};
use super::output::DIM;
use crate::token;

/// How long connections may take to end once everything else has.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serve the HTTP API, on a loopback address and a Unix socket
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
        let dir = context.config().state_dir.clone();
        if self.print_token {
            return print_token(context, &dir).await;
        }
        let address = match self.listen {
            None => {
                context.config().listen.parse().map_err(|_| Fail::bad_request("listen is not an address"))?
            }
            Some(address) if address.ip().is_loopback() => address,
            Some(address) => {
                return Err(Fail::bad_request(format!(
                    "{address} is not a loopback address; put a proxy in front"
                )));
            }
        };
        let node = context.node().await?;
        let served = self.serve(context, &node, &dir, address).await;
        node.close().await;
        served.map(|()| Exit::Done)
    }

    async fn serve(
        &self,
        context: &Context<'_>,
        node: &crate::Node,
        dir: &Path,
        address: SocketAddr,
    ) -> Result<(), Fail> {
        let kernel = node.kernel();
        let access = Access::new(&token::token(dir)?, &context.config().owner);
        let tcp = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
        let (unix, socket) = bind_socket(dir)?;
        let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
        let limits = context.config().http;
        let router = Http::new(kernel.clone(), access, limits, stop.clone()).router();
        context.output.note(format_args!("serving http://{} and {}", tcp.local_addr()?, socket.display()))?;
        context.output.note(format_args!("{DIM}token: mainspring serve --print-token{DIM:#}"))?;

        // What is streamed goes out at once. A connection that refuses this is slower, and works.
        let tcp = tcp.tap_io(|stream| stream.set_nodelay(true).unwrap_or_default());
        let over_tcp = http::serve(tcp, router.clone(), limits, closing.clone());
        let over_unix = http::serve(unix, router, limits, closing.clone());
        let shutdown = async {
            let signal = stopped().await;
            context.output.note(format_args!(
                "{DIM}stopping: active runs may finish for {} ms{DIM:#}",
                context.config().drain_ms
            ))?;
            closing.cancel();
            // Streams stay open while runs finish, so that their readers see the end.
            tokio::select! {
                () = kernel.drain() => {}
                () = kernel.pause(Duration::from_millis(context.config().drain_ms)) => {}
            }
            kernel.shutdown().await;
            stop.cancel();
            kernel.pause(LAST_WORDS).await;
            signal
        };
        let served = async { tokio::join!(over_tcp, over_unix) };
        tokio::select! {
            _ = served => {}
            stopped = shutdown => stopped?,
        }
        // The lock tells who may serve; the socket of a server that is gone would only mislead.
        let _ = std::fs::remove_file(socket);
        Ok(())
    }
}

async fn print_token(context: &Context<'_>, dir: &Path) -> Result<Exit, Fail> {
    let token = match token::read(dir)? {
        Some(token) => token,
        None => {
            let node = context.records().await?;
            let token = token::token(dir)?;
            node.close().await;
            token
        }
    };
    context.output.line(token)?;
    Ok(Exit::Done)
}

/// Listens on the socket of the state directory. The folder is ours, so what lies there was left by the dead.
fn bind_socket(dir: &Path) -> Result<(UnixListener, PathBuf), Fail> {
    let socket = dir.join("mainspring.sock");
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(|error| cannot_listen(socket.display(), &error))?;
    Ok((listener, socket))
}

fn cannot_listen(what: impl std::fmt::Display, error: &io::Error) -> Fail {
    let message = format!("cannot listen on {what}: {error}; choose another address with --listen");
    Fail { exit: Exit::NotNow, code: "cannot_listen", message, retryable: true }
}

/// Resolves when the process is told to stop, by a person or by its supervisor.
async fn stopped() -> io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
