//! `mainspring model-server`

use std::net::SocketAddr;

use clap::Args;
use mainspring_model_server::{self as model, Protocol};
use serde_json::{Map, json};

use super::Context;
use super::fail::{Exit, Fail};
use super::output::{BOLD, DIM};
use super::watch::interrupted;
use mainspring::ServeError;

/// Serve a scripted model, in the protocols of the providers, to try things out without a key
#[derive(Args)]
#[command(
    after_help = "The model follows its prompt as a script, for example: say hello; tool add {\"a\":1,\"b\":2}; fail \
rate-limit 2. It takes any model's name and any key."
)]
pub(super) struct ModelServer {
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7434")]
    listen: SocketAddr,
}

impl ModelServer {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let server = model::ModelServer::listen(&self.listen.to_string()).await;
        let server = server.map_err(|source| ServeError::Listen {
            address: self.listen.to_string(),
            source,
            remedy: "choose another address with --listen",
        })?;
        if context.output.json {
            let urls =
                Protocol::ALL.map(|protocol| (protocol.name().to_owned(), json!(server.base_url(protocol))));
            let urls: Map<_, _> = urls.into_iter().collect();
            context.output.object(&json!({"url": server.url(), "baseUrls": urls}))?;
        } else {
            announce(context, &server)?;
        }
        if !server.address().ip().is_loopback() {
            let address = server.address();
            context
                .output
                .note(format_args!("warning: others can reach {address}, and it asks for no key"))?;
        }
        let mut stopped = Ok(());
        server.serve_until(async { stopped = interrupted().await }).await;
        stopped?;
        Ok(Exit::Done)
    }
}

/// Prints the server's address and an example request.
fn announce(context: &Context<'_>, server: &model::ModelServer) -> Result<(), Fail> {
    let output = context.output;
    output.line(format_args!("A model without a key, at {BOLD}{}{BOLD:#}, until Ctrl-C.", server.url()))?;
    output.line("It follows its prompt as a script, and understands nothing else.\n")?;
    output.line(format_args!("  {DIM}kind              base_url{DIM:#}"))?;
    for protocol in Protocol::ALL {
        output.line(format_args!("  {:16}  {}", protocol.name(), server.base_url(protocol)))?;
    }
    output.line("\nTo ask it, write into mainspring.toml, in any of these protocols:\n")?;
    output.line(config(server, Protocol::Anthropic))?;
    output.line("then: mainspring prompt --adapter native 'say hello; ask How are you?; say Good.'\n")?;
    let inside = "Without this server, --model scripted/any asks one inside the process.";
    Ok(output.line(format_args!("{DIM}{inside}{DIM:#}"))?)
}

fn config(server: &model::ModelServer, protocol: Protocol) -> String {
    format!(
        "  [providers.local]\n  kind = \"{}\"\n  base_url = \"{}\"\n\n  [models.main_reasoner]\n  \
         provider = \"local\"\n  model = \"any\"\n",
        protocol.name(),
        server.base_url(protocol)
    )
}
