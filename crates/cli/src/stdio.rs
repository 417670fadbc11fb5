//! `mainspring stdio`

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use mainspring_api::jsonl::{Code, LineIds, Reply};
use mainspring_core::Time;
use mainspring_host::jsonl::{self, Disconnect, Jsonl};
use mainspring_host::{Keeper, Link, Successor};
use mainspring_kernel::clock::Clock;
use mainspring_store::OmiOffer;
use mainspring_system::ids::Ids;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::follow::interrupt_signal;
use super::original::print_offer;
use mainspring::config::Config;

/// Time after which the host gets a `status` line if the process that serves the sessions does not answer.
const SILENCE_TIMEOUT_MS: u64 = 3_500;
/// Time that a host has to read the final lines.
const FINAL_LINES_TIMEOUT_MS: u64 = 5_000;

/// Serve a host program over standard input and output (JSON Lines)
#[derive(Args)]
#[command(
    after_help = "The host writes one JSON object per line and reads one per line; see docs/jsonl.md. The \
protocol versions 1 and 2 are supported. `stop` cancels the open queries and exits; at the end of the input, the command waits for the open queries and exits."
)]
pub(super) struct Stdio {
    /// Adapter of queries that name none [default: the configured one]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Model of queries that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Adapter for one of the host's adapter names; may be repeated
    #[arg(long, value_name = "NAME=ADAPTER", value_parser = parse_alias)]
    alias: Vec<(String, String)>,
}

/// Parses NAME=ADAPTER.
pub(super) fn parse_alias(text: &str) -> Result<(String, String), String> {
    let (name, adapter) = text.split_once('=').ok_or("expected NAME=ADAPTER, for example acp=claude")?;
    Ok((name.to_owned(), adapter.to_owned()))
}

/// Writes a line that belongs to no request.
fn print_line(reply: &Reply<'_>) -> std::io::Result<()> {
    std::io::stdout().write_all(&reply.encode(&LineIds::default()))
}

/// Sends the reason why the process ends as a line of the protocol: a host reads only standard output.
pub(super) fn print_end(error: &CliError) {
    let _ = print_line(&Reply::error(&error.code, &error.message));
}

impl Stdio {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        self.serve(context).await.map(|()| Exit::Done)
    }

    async fn serve(self, context: &Context<'_>) -> Result<(), CliError> {
        let clock = Clock::system();
        let mut connection = connect(context, &clock).await?;
        if let Some(offer @ OmiOffer::Elsewhere) = connection.omi_offer() {
            print_offer(context, offer, true)?;
        }
        let (link, mut keeper) = Link::new(connection.client().clone(), connection.successor());
        let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let host = match Jsonl::start(link, self.options(context), Ids::system(), clock.clone(), stdout) {
            Ok(host) => host,
            Err(error) => {
                connection.close_within(0).await;
                return Err(error.into());
            }
        };
        let served = serve_host(context, &mut connection, &mut keeper, &host, &clock).await;
        // Runs of other clients in this process get the rest of the drain time.
        let drain_ms = context.config().drain_ms;
        let spent = served.as_ref().map_or(0, |left_at| clock.now().since(*left_at));
        host.close();
        let is_owner = connection.is_owner();
        if is_owner {
            keeper.give_up();
        }
        connection.close_within(drain_ms.saturating_sub(spent)).await;
        if is_owner {
            // The runs that this process executed have ended. Their queries end with the recorded results.
            timeout(&clock, FINAL_LINES_TIMEOUT_MS, host.followed()).await;
        }
        // Open queries end with `shutting_down`, and their runs go on. The host may no longer read these lines.
        timeout(&clock, FINAL_LINES_TIMEOUT_MS, host.finish()).await;
        served.map(|_| ())
    }

    fn options(&self, context: &Context<'_>) -> jsonl::Options {
        let config = context.config();
        let is_local = config.url.is_none();
        let owner = match (context.resolved.origins.contains_key("owner"), is_local) {
            (true, _) => config.owner.clone(),
            (false, true) => jsonl::DEFAULT_OWNER.to_owned(),
            (false, false) => String::new(),
        };
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        jsonl::Options {
            owner,
            adapter: self.adapter.clone().unwrap_or_else(|| config.adapter.clone()),
            aliases: resolve_aliases(config, &self.alias),
            model: self.model.clone(),
            // A server at another address has other folders.
            cwd: is_local.then(|| home.to_string_lossy().into_owned()),
            tool_timeout_ms: config.stdio.tool_timeout_ms,
            line_bytes: config.stdio.line_bytes,
        }
    }
}

/// Connects. If the process that serves the sessions does not answer, sends a `status` line and continues to wait.
async fn connect<'a>(context: &'a Context<'a>, clock: &Clock) -> Result<Connection<'a>, CliError> {
    let opening = Box::pin(Connection::open_patiently(context, Purpose::Execute));
    tokio::pin!(opening);
    tokio::select! {
        opened = &mut opening => return opened,
        () = clock.sleep_for(SILENCE_TIMEOUT_MS) => {}
    }
    let message = "the process that serves the sessions does not answer: it is stopped or overloaded. This one is ready when \
                   it answers";
    let code = Some(Code::new("not_responding"));
    print_line(&Reply::Status { available: false, code, message: message.into() })?;
    opening.await
}

/// Maps hosts' adapter names to configured adapters. Aliases in `overrides` take precedence.
pub(super) fn resolve_aliases(config: &Config, overrides: &[(String, String)]) -> HashMap<String, String> {
    config.adapter_aliases().into_iter().chain(overrides.iter().cloned()).collect()
}

/// Serves the host until it disconnects. Then cancels its open queries after a signal, or waits for them if only the
/// input was closed. Returns the time at which the host disconnected.
async fn serve_host(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    keeper: &mut Keeper,
    host: &Jsonl,
    clock: &Clock,
) -> Result<Time, CliError> {
    let config = context.config();
    let input = async {
        tokio::select! {
            disconnect = host.serve(std::io::stdin()) => disconnect,
            signal = interrupt_signal() => signal.map(|()| Disconnect::Stopped),
        }
    };
    let disconnect = with_reconnect(connection, keeper, clock, input).await??;
    tracing::info!(?disconnect, "the host sends no more input");
    let left_at = clock.now();
    let ending = async {
        match disconnect {
            Disconnect::Stopped => {
                let grace_ms = config.cancel_grace_ms + FINAL_LINES_TIMEOUT_MS;
                let cancel = async {
                    Box::pin(host.cancel()).await;
                    host.answered().await;
                };
                timeout(clock, grace_ms, cancel).await;
            }
            Disconnect::Closed => timeout(clock, config.drain_ms, host.answered()).await,
            // The host no longer reads answers.
            Disconnect::NotReading => {}
        }
    };
    with_reconnect(connection, keeper, clock, ending).await?;
    Ok(left_at)
}

/// Awaits `future`; meanwhile reconnects whenever the connection to the process that serves the sessions is lost.
pub(super) async fn with_reconnect<T>(
    connection: &mut Connection<'_>,
    keeper: &mut Keeper,
    clock: &Clock,
    future: impl Future<Output = T>,
) -> Result<T, CliError> {
    let next = async || {
        if connection.successor() == Successor::Other {
            connection.reconnect().await?;
        }
        Ok((connection.client().clone(), connection.successor()))
    };
    keeper.renew_until(clock, future, next).await
}

/// Awaits `future` for at most `timeout_ms` milliseconds.
async fn timeout(clock: &Clock, timeout_ms: u64, future: impl Future<Output = ()>) {
    tokio::select! {
        () = future => {}
        () = clock.sleep_for(timeout_ms) => {}
    }
}
