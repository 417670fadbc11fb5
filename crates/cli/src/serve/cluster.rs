//! `mainspring serve` as a server of a cluster. With `cluster.spread` it serves as soon as it has joined, without
//! standing by.
//!
//! ```text
//! standing by: forwards ──lease──▶ active: serves ──SIGTERM──▶ drains (hands sessions over), releases the lease, ends
//!       ▲                              │
//!       └── executes itself again ◀────┘ the lease is lost
//! ```

use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::Duration;

use mainspring::{Forwarding, Member, Node, Server};
use mainspring_store::PostgresStore;
use tokio::net::TcpListener;

use super::Shutdown;
use crate::Context;
use crate::error::{CliError, Exit};
use crate::output::DIM;
use crate::takeover::Claim;

/// Stands by until this server is the active one, then serves until it is stopped or has lost its lease.
pub(super) async fn serve(context: &Context<'_>, address: SocketAddr) -> Result<Exit, CliError> {
    let config = context.config();
    let tcp = Server::bind(config, address)?;
    let member = Arc::new(Member::join(config).await?);
    let mut shutdown = Shutdown::register()?;
    let _claim = Claim::take(&config.state_dir)?;
    if config.cluster.spread {
        return Box::pin(work(context, tcp, member, shutdown)).await;
    }
    let forwarding = Forwarding::start(config, tcp, member.active())?;
    let scheme = if forwarding.is_tls() { "https" } else { "http" };
    let bound = forwarding.address().unwrap_or(address);
    context.output.print_note(format_args!(
        "standing by at {scheme}://{bound} and {} as {}",
        forwarding.socket().path().display(),
        member.name()
    ))?;
    let store = tokio::select! {
        store = member.lead(config) => store?,
        () = shutdown.requested() => {
            let _ = std::fs::remove_file(forwarding.socket().path());
            member.leave().await;
            return Ok(Exit::Done);
        }
    };
    let tcp = forwarding.stop().await?;
    Box::pin(serve_until_lost(context, &member, store, tcp, "active: serving", shutdown)).await
}

/// Executes sessions beside the other servers until this one is stopped or has lost its lease.
async fn work(
    context: &Context<'_>,
    tcp: TcpListener,
    member: Arc<Member>,
    mut shutdown: Shutdown,
) -> Result<Exit, CliError> {
    context.output.print_note(format_args!("joining the other servers as {}", member.name()))?;
    let store = tokio::select! {
        store = member.work(context.config()) => store?,
        () = shutdown.requested() => {
            member.leave().await;
            return Ok(Exit::Done);
        }
    };
    Box::pin(serve_until_lost(context, &member, store, tcp, "at work: serving", shutdown)).await
}

/// Serves until this server is stopped, or executes the program again when the lease is lost.
async fn serve_until_lost(
    context: &Context<'_>,
    member: &Arc<Member>,
    store: PostgresStore,
    tcp: TcpListener,
    doing: &str,
    mut shutdown: Shutdown,
) -> Result<Exit, CliError> {
    let node = Node::builder(context.config().clone()).member(Arc::clone(member), store);
    // This future is not dropped when the lease is lost: dropping the node takes time.
    let mut running =
        std::pin::pin!(async { run(context, node.open().await?, tcp, doing, &mut shutdown).await });
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = member.lost() => {
            context.output.print_note(format_args!(
                "this server has lost its lease of the database: it starts again"
            ))?;
            Err(restart().into())
        }
    };
    ended.map(|()| Exit::Done)
}

/// Serves until this server is stopped.
async fn run(
    context: &Context<'_>,
    node: Node,
    tcp: TcpListener,
    doing: &str,
    shutdown: &mut Shutdown,
) -> Result<(), CliError> {
    let (config, output) = (context.config(), context.output);
    let server = Server::start_on(&node, config, Some(tcp)).await?;
    let scheme = if server.is_tls() { "https" } else { "http" };
    if let Some(address) = server.address() {
        output.print_note(format_args!("{doing} {scheme}://{address}"))?;
    }
    shutdown.requested().await;
    let drain_ms = config.drain_ms;
    // A note that cannot be written, to a log on a full disk for instance, must not cut the runs off.
    let _ = output.print_note(format_args!("{DIM}stopping: active runs may finish for {drain_ms} ms{DIM:#}"));
    let drain_time = Duration::from_millis(drain_ms);
    match node.member().filter(|member| member.is_spread()) {
        Some(member) => {
            // The server answers requests meanwhile: those for sessions that it has handed over go to their new homes.
            member.drain(node.kernel(), drain_time).await;
            server.end_notifications().await;
            member.step_down(node.kernel()).await;
            server.close();
        }
        None => {
            server.close();
            node.kernel().drain_for(drain_time).await;
        }
    }
    server.stop().await;
    node.close().await;
    Ok(())
}

/// Executes the program again in this process, with the same arguments. That closes all files of the process, so that
/// the guards of its agents end the agents. Returns only if the execution fails.
fn restart() -> io::Error {
    match std::env::current_exe() {
        Ok(program) => std::process::Command::new(program).args(std::env::args_os().skip(1)).exec(),
        Err(error) => error,
    }
}
