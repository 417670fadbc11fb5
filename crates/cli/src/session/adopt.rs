//! `mainspring session adopt`

use clap::Args;
use mainspring_client::bridge::Surface;
use mainspring_client::{BindingAdoption, SessionTarget};
use mainspring_core::ExternalRef;

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::ids::find_session;

#[derive(Args)]
pub(crate) struct Adopt {
    /// Id of the agent's session
    native: String,
    /// Adapter of the agent
    #[arg(long, value_name = "NAME")]
    adapter: String,
    #[command(flatten)]
    session: SessionSelector,
    /// Directory of the agent's session [default: the session's; of a new session the adapter's, or the current one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// System prompt of the agent's session [default: the session's]
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

/// Selects the session by exactly one of its names.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct SessionSelector {
    /// Select the chat of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Select the session of this external reference, for example chat:default
    #[arg(long, value_name = "KIND:ID", value_parser = parse_external_ref)]
    external: Option<ExternalRef>,
    /// Select a session by key, or id (ses_…) or its beginning
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

fn parse_external_ref(text: &str) -> Result<ExternalRef, String> {
    let (kind, id) = text.split_once(':').ok_or("expected KIND:ID, for example task:42")?;
    Ok(ExternalRef { kind: kind.to_owned(), id: id.to_owned() })
}

impl SessionSelector {
    async fn target(
        self,
        connection: &mut Connection<'_>,
        cwd: Option<String>,
    ) -> Result<SessionTarget, CliError> {
        if let Some(task) = self.task {
            return Ok(SessionTarget { cwd, ..SessionTarget::from(&Surface::task_chat(&task)) });
        }
        let Some(session) = self.session else {
            return Ok(SessionTarget { external_ref: self.external, cwd, ..SessionTarget::default() });
        };
        let name = find_session(connection, &session).await?;
        Ok(match name.parse() {
            Ok(id) => SessionTarget { session_id: Some(id), ..SessionTarget::default() },
            Err(_) => SessionTarget { key: Some(name), cwd, ..SessionTarget::default() },
        })
    }
}

impl Adopt {
    pub(super) async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<(), CliError> {
        let Self { native, adapter, session, cwd, system } = self;
        let new_folder = context.new_session_folder(cwd.as_deref(), Some(&adapter))?;
        let cwd = context.folder(cwd.as_deref())?;
        let adoption =
            BindingAdoption { adapter, adapter_native_session_id: native, cwd, system_prompt: system };
        let target = session.target(connection, new_folder).await?;
        let adopted =
            connection.request(async |client| client.session_adopt(&target, &adoption).await).await?;
        if context.output.json {
            return Ok(context.output.print_json(&adopted)?);
        }
        let (binding, session) = (&adopted.binding, adopted.session.id);
        let native = binding.native.as_deref().unwrap_or("–");
        let verb = if adopted.adopted { "bound" } else { "was already bound" };
        let generation = binding.generation;
        Ok(context.output.print_line(format_args!(
            "{session} {verb} to {native} of {}, generation {generation}",
            binding.adapter
        ))?)
    }
}
