//! `mainspring model-server`

use std::net::SocketAddr;

use clap::Args;
use mainspring_model_server::{self as model, Protocol};
use serde_json::{Map, json};

use super::Context;
use super::error::{CliError, Exit};
use super::follow::interrupt_signal;
use super::output::{BOLD, DIM};
use mainspring::ServeError;

/// Serve a scripted model in the providers' protocols; needs no key
#[derive(Args)]
#[command(
    after_help = "The model executes its prompt as a script, for example: say hello; tool add {\"a\":1,\"b\":2}; fail \
rate-limit 2. It accepts any model name and any key."
)]
pub(super) struct ModelServer {
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7434")]
    listen: SocketAddr,
}

impl ModelServer {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
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
            context.output.print_json(&json!({"url": server.url(), "baseUrls": urls}))?;
        } else {
            print_usage(context, &server)?;
        }
        if !server.address().ip().is_loopback() {
            let address = server.address();
            context.output.print_note(format_args!(
                "warning: other machines can reach {address}, and it requires no key"
            ))?;
        }
        let mut stopped = Ok(());
        server.serve_until(async { stopped = interrupt_signal().await }).await;
        stopped?;
        Ok(Exit::Done)
    }
}

/// Prints the server's address and an example request.
fn print_usage(context: &Context<'_>, server: &model::ModelServer) -> Result<(), CliError> {
    let output = context.output;
    output.print_line(format_args!(
        "Serving a scripted model at {BOLD}{}{BOLD:#} until Ctrl-C. It needs no key.",
        server.url()
    ))?;
    output.print_line("It executes its prompt as a script and understands nothing else.\n")?;
    output.print_line(format_args!("  {DIM}kind              base_url{DIM:#}"))?;
    for protocol in Protocol::ALL {
        output.print_line(format_args!("  {:16}  {}", protocol.name(), server.base_url(protocol)))?;
    }
    output.print_line(
        "\nTo use it, add this to ~/.config/mainspring/mainspring.toml, with any of these protocols:\n",
    )?;
    output.print_line(config_example(server, Protocol::Anthropic))?;
    output
        .print_line("then: mainspring prompt --adapter native 'say hello; ask How are you?; say Good.'\n")?;
    let hint = "Without this server, --model scripted/any uses one inside the process.";
    Ok(output.print_line(format_args!("{DIM}{hint}{DIM:#}"))?)
}

fn config_example(server: &model::ModelServer, protocol: Protocol) -> String {
    format!(
        "  [providers.local]\n  kind = \"{}\"\n  base_url = \"{}\"\n\n  [models.main_reasoner]\n  \
         provider = \"local\"\n  model = \"any\"\n",
        protocol.name(),
        server.base_url(protocol)
    )
}
