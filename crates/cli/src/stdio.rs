//! `mainspring stdio`

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use mainspring_api::jsonl::codes::protocol_code;
use mainspring_host::jsonl::{self, Disconnect, Jsonl};
use mainspring_host::{Keeper, Link};
use mainspring_kernel::clock::Clock;
use mainspring_system::ids::Ids;
use serde_json::json;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::watch::interrupted;
use mainspring::config::Config;

/// Hosts' names for agent runtimes, and the kind of adapter that drives each.
const KINDS: [(&str, &str); 3] = [("acp", "acp"), ("acp-claude", "acp"), ("pi-mono", "pi")];
/// Time a host has to read the last lines, in milliseconds.
const LAST_WORDS: u64 = 5_000;

/// Serve a host over standard input and output: JSON lines, of the protocol's versions 2 and 1
#[derive(Args)]
#[command(
    after_help = "The host writes one JSON object per line and reads one per line; docs/jsonl.md describes them. \
`stop` cancels what it has asked and ends this; the end of its input waits for the answers, and then ends this."
)]
pub(super) struct Stdio {
    /// The agent runtime of queries that name none [default: the configuration's]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// The model of queries that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What the host calls an agent runtime, and its name here; may be repeated
    #[arg(long, value_name = "NAME=ADAPTER", value_parser = alias)]
    alias: Vec<(String, String)>,
}

/// Parses NAME=ADAPTER.
pub(super) fn alias(text: &str) -> Result<(String, String), String> {
    let (name, adapter) = text.split_once('=').ok_or("expected NAME=ADAPTER, for example acp=claude")?;
    Ok((name.to_owned(), adapter.to_owned()))
}

impl Stdio {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let served = self.serve(context).await;
        if let Err(fail) = &served {
            // The host reads only standard output.
            let (code, reason) = protocol_code(&fail.code);
            let line = json!({"type": "error", "message": fail.message, "code": code, "reason": reason});
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        served.map(|()| Exit::Done)
    }

    async fn serve(self, context: &Context<'_>) -> Result<(), Fail> {
        let mut home = context.home(Purpose::Execute).await?;
        let (link, mut keeper) = Link::new(home.client().clone(), home.is_guest());
        let clock = Clock::system();
        let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let host = match Jsonl::start(link, self.options(context), Ids::system(), clock.clone(), stdout) {
            Ok(host) => host,
            Err(error) => {
                home.leave_within(0).await;
                return Err(error.into());
            }
        };
        let served = converse(context, &mut home, &mut keeper, &host, &clock).await;
        // Stops the remaining runs and reports their end, without waiting for a host that no longer reads.
        home.leave_within(context.config().drain_ms).await;
        within(&clock, LAST_WORDS, host.finish()).await;
        served
    }

    fn options(&self, context: &Context<'_>) -> jsonl::Options {
        let config = context.config();
        let is_own = config.url.is_none();
        let owner = match (context.resolved.origins.contains_key("owner"), is_own) {
            (true, _) => config.owner.clone(),
            (false, true) => jsonl::DEFAULT_OWNER.to_owned(),
            (false, false) => String::new(),
        };
        let relay = config.relay_socket().filter(|_| is_own);
        if relay.is_none() && is_own {
            tracing::warn!(
                "the path of the state directory is too long for a socket: agents cannot reach the tools of the host"
            );
        }
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        jsonl::Options {
            owner,
            adapter: self.adapter.clone().unwrap_or_else(|| config.adapter.clone()),
            aliases: aliases(config, &self.alias),
            model: self.model.clone(),
            cwd: home.to_string_lossy().into_owned(),
            relay,
            tool_timeout_ms: config.stdio.tool_timeout_ms,
            line_bytes: config.stdio.line_bytes,
        }
    }
}

/// Maps hosts' adapter names to configured adapters: by the kind of runtime, unless an adapter is configured under that
/// name. Aliases in `given` take precedence.
pub(super) fn aliases(config: &Config, given: &[(String, String)]) -> HashMap<String, String> {
    let of_kind = |kind: &str| {
        let fits = |name: &&String| {
            config.adapters[*name].kind.is_some_and(|adapter_kind| adapter_kind.keyword() == kind)
        };
        // Of several adapters of the kind, prefer the default one.
        Some(&config.adapter)
            .filter(|name| config.adapters.contains_key(*name) && fits(name))
            .or_else(|| config.adapters.keys().find(fits))
    };
    let known = KINDS.iter().filter(|(alias, _)| !config.adapters.contains_key(*alias));
    let by_kind = known.filter_map(|(alias, kind)| Some(((*alias).to_owned(), of_kind(kind)?.clone())));
    by_kind.chain(given.iter().cloned()).collect()
}

/// Serves the host until it leaves. Then cancels its open queries after a signal, or waits for them if only the input
/// was closed.
async fn converse(
    context: &Context<'_>,
    home: &mut Home<'_>,
    keeper: &mut Keeper,
    host: &Jsonl,
    clock: &Clock,
) -> Result<(), Fail> {
    let config = context.config();
    let asks = async {
        tokio::select! {
            left = host.serve(std::io::stdin()) => left,
            signal = interrupted() => signal.map(|()| Disconnect::Stopped),
        }
    };
    let left = at(home, keeper, asks).await??;
    tracing::info!(?left, "the host asks nothing more");
    let ends = async {
        match left {
            Disconnect::Stopped => {
                let grace = config.cancel_grace_ms + LAST_WORDS;
                let stops = async {
                    host.cancel().await;
                    host.answered().await;
                };
                within(clock, grace, stops).await;
            }
            Disconnect::Closed => within(clock, config.drain_ms, host.answered()).await,
            // The host no longer reads answers.
            Disconnect::NotReading => {}
        }
    };
    at(home, keeper, ends).await
}

/// Awaits `future`; meanwhile reconnects whenever the owner of the sessions exits.
pub(super) async fn at<T>(
    home: &mut Home<'_>,
    keeper: &mut Keeper,
    future: impl Future<Output = T>,
) -> Result<T, Fail> {
    tokio::pin!(future);
    loop {
        tokio::select! {
            done = &mut future => return Ok(done),
            () = keeper.lost() => {
                if let Err(fail) = home.renew().await {
                    keeper.give_up();
                    return Err(fail);
                }
                keeper.found(home.client().clone(), home.is_guest());
            }
        }
    }
}

/// Awaits `future` for at most `millis` milliseconds.
async fn within(clock: &Clock, millis: u64, future: impl Future<Output = ()>) {
    tokio::select! {
        () = future => {}
        () = clock.sleep_until(clock.now().plus(millis)) => {}
    }
}
