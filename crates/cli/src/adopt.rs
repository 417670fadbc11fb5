//! `mainspring session adopt`

use clap::Args;
use mainspring_client::bridge::Surface;
use mainspring_client::{BindingAdoption, SessionTarget};
use mainspring_core::ExternalRef;

use super::Context;
use super::fail::Fail;
use super::home::Home;

/// Which session, and which session of the agent's own.
#[derive(Args)]
pub(super) struct Adopt {
    /// What the agent calls its own session
    native: String,
    /// The agent runtime whose session that is
    #[arg(long, value_name = "NAME")]
    adapter: String,
    #[command(flatten)]
    session: Which,
    /// The folder the agent's session was opened in [default: the session's; of one that is made, the home folder]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// The instructions it was opened with [default: the session's]
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

/// Which session.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The chat about this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// The session that stands for this, for example chat:default
    #[arg(long, value_name = "KIND:ID", value_parser = external)]
    external: Option<ExternalRef>,
    /// A key or a ses_… id
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

fn external(text: &str) -> Result<ExternalRef, String> {
    let (kind, id) = text.split_once(':').ok_or("expected KIND:ID, for example task:42")?;
    Ok(ExternalRef { kind: kind.to_owned(), id: id.to_owned() })
}

impl Which {
    fn target(self) -> SessionTarget {
        // A new session gets the working folder of queries that name none, so that the first such query continues in
        // it.
        let cwd = std::env::home_dir().map(|home| home.to_string_lossy().into_owned());
        if let Some(task) = self.task {
            return SessionTarget { cwd, ..SessionTarget::from(&Surface::task_chat(&task)) };
        }
        match self.session.map(|session| session.parse().map_err(|_| session)) {
            Some(Ok(id)) => SessionTarget { session_id: Some(id), ..SessionTarget::default() },
            Some(Err(key)) => SessionTarget { key: Some(key), ..SessionTarget::default() },
            None => SessionTarget { external_ref: self.external, cwd, ..SessionTarget::default() },
        }
    }
}

impl Adopt {
    pub(super) async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        let Self { native, adapter, session, cwd, system } = self;
        let adoption =
            BindingAdoption { adapter, adapter_native_session_id: native, cwd, system_prompt: system };
        let target = session.target();
        let done = home.ask(async |client| client.session_adopt(&target, &adoption).await).await?;
        if context.output.json {
            return Ok(context.output.object(&done)?);
        }
        let (binding, session) = (&done.binding, done.session.id);
        let native = binding.native.as_deref().unwrap_or("–");
        let what = if done.adopted { "tied" } else { "was tied before" };
        let generation = binding.generation;
        Ok(context.output.line(format_args!(
            "{session} {what} to {native} of {}, generation {generation}",
            binding.adapter
        ))?)
    }
}
