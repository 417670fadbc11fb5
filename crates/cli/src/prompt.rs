//! `mainspring prompt`

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mainspring_client::{AcceptedRun, PromptContent, SessionTarget};
use mainspring_core::{
    Body, ClientTool, MessageId, Mode, Place, Policy, Position, Run, RunOptions, SessionId,
};
use mainspring_system::ids::Ids;
use serde::Deserialize;

use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::DIM;
use super::watch::{ended, exit_of, watch};
use super::{Context, attach, file, run};

/// Send a prompt and stream the answer
#[derive(Args)]
#[command(
    after_help = "Without a text, the prompt is read from standard input. The built-in script agent follows its \
prompt as a script, for example: say hello; tool add {\"a\":1,\"b\":2}; ask How are you?"
)]
pub(super) struct Prompt {
    /// The prompt
    text: Vec<String>,
    /// A file to go with the prompt, such as an image; may be given more than once
    #[arg(long, value_name = "FILE", conflicts_with = "regenerate")]
    attach: Vec<PathBuf>,
    /// The session: a key of your choice (made if it is new) or a ses_… id [default: a new session]
    #[arg(long, short, value_name = "KEY|ID")]
    session: Option<String>,
    /// A title for a new session
    #[arg(long)]
    title: Option<String>,
    /// The agent runtime [default: the session's]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Whether the agent may act or only answer
    #[arg(long, value_enum, default_value = "act")]
    mode: CliMode,
    /// Instructions for the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The model
    #[arg(long)]
    model: Option<String>,
    /// The folder the agent works in
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// A tool that you execute, or several, as JSON: name, description, inputSchema; may be given more than once. When
    /// the agent calls it, the run waits for `mainspring run answer --tool-result`
    #[arg(long, value_name = "FILE")]
    tool: Vec<PathBuf>,
    /// What to do if the session is busy
    #[arg(long, value_enum, default_value = "enqueue")]
    policy: CliPolicy,
    /// Answer this user message again, as a branch
    #[arg(long, value_name = "MSG", conflicts_with_all = ["after", "root", "text"])]
    regenerate: Option<MessageId>,
    /// Continue after this assistant message, as a branch
    #[arg(long, value_name = "MSG", conflicts_with = "root")]
    after: Option<MessageId>,
    /// Begin a new conversation within the session
    #[arg(long)]
    root: bool,
    /// Your name for this request: sent again, it gives the same run
    #[arg(long, value_name = "NAME")]
    request_id: Option<String>,
    /// Your own name; request ids are yours alone
    #[arg(long, value_name = "NAME", default_value = "cli")]
    client_id: String,
    /// A key under which the same request gives the same run for 24 hours
    #[arg(long, value_name = "KEY", conflicts_with = "request_id")]
    idempotency_key: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum CliMode {
    Ask,
    Act,
}

#[derive(Clone, Copy, ValueEnum)]
enum CliPolicy {
    Enqueue,
    Steer,
    Replace,
    Interrupt,
    Reject,
}

impl Prompt {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let files = attach::read(&self.attach)?;
        send(context, self.prompt()?, &files).await
    }

    fn prompt(self) -> Result<mainspring_client::Prompt, Fail> {
        let place = match (self.regenerate, self.after, self.root) {
            (Some(message_id), ..) => Place::Regenerate { message_id },
            (_, Some(message_id), _) => Place::Edit { message_id },
            (_, _, true) => Place::Root,
            _ => Place::Tip,
        };
        let text = match self.text.join(" ") {
            text if text.is_empty() && self.regenerate.is_none() && self.attach.is_empty() => {
                standard_input()?
            }
            text => text,
        };
        let (id, key) = match self.session {
            Some(name) if name.starts_with("ses_") => {
                let id = name.parse::<SessionId>().map_err(|bad| Fail::bad_request(bad.to_string()))?;
                (Some(id), None)
            }
            key => (None, key),
        };
        let idempotency_key = match self.request_id {
            Some(_) => None,
            // A prompt that is sent again after a broken connection must not start a second run, so every prompt has a
            // key.
            None => Some(self.idempotency_key.unwrap_or_else(|| Ids::system().secret())),
        };
        let mut tools = vec![];
        for path in &self.tool {
            tools.extend(read_tools(path)?);
        }
        Ok(mainspring_client::Prompt {
            session: SessionTarget {
                session_id: id,
                key,
                title: self.title,
                surface_kind: Some("cli".into()),
                ..SessionTarget::default()
            },
            prompt: match text.is_empty() && (self.regenerate.is_some() || !self.attach.is_empty()) {
                true => None,
                false => Some(PromptContent::Text(text)),
            },
            adapter: self.adapter,
            mode: match self.mode {
                CliMode::Ask => Mode::Ask,
                CliMode::Act => Mode::Act,
            },
            options: RunOptions {
                system_prompt: self.system,
                model: self.model,
                model_profile: None,
                cwd: self.cwd,
                tools,
                ..RunOptions::default()
            },
            place,
            policy: match self.policy {
                CliPolicy::Enqueue => Policy::Enqueue,
                CliPolicy::Steer => Policy::Steer,
                CliPolicy::Replace => Policy::Replace,
                CliPolicy::Interrupt => Policy::Interrupt,
                CliPolicy::Reject => Policy::Reject,
            },
            client_id: self.request_id.is_some().then_some(self.client_id),
            request_id: self.request_id,
            idempotency_key,
        })
    }
}

/// Reads the tools of a file: one object, or a list.
fn read_tools(path: &Path) -> Result<Vec<ClientTool>, Fail> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Tools {
        One(ClientTool),
        Many(Vec<ClientTool>),
    }
    match serde_json::from_slice(&file::read(path)?) {
        Ok(Tools::One(tool)) => Ok(vec![tool]),
        Ok(Tools::Many(tools)) => Ok(tools),
        Err(_) => Err(Fail::bad_request(format!(
            "{}: expected a tool, {{\"name\": \"weather\", \"description\": \"…\", \"inputSchema\": {{\"type\": \
             \"object\"}}}}, or a list of tools",
            path.display()
        ))),
    }
}

/// Sends a prompt and follows its run to the end.
pub(super) async fn deliver(context: &Context<'_>, prompt: &mainspring_client::Prompt) -> Result<Exit, Fail> {
    send(context, prompt.clone(), &[]).await
}

async fn send(
    context: &Context<'_>,
    prompt: mainspring_client::Prompt,
    files: &[attach::File],
) -> Result<Exit, Fail> {
    let mut home = context.home(Purpose::Execute).await?;
    let exit = async {
        let prompt = &attach::attach(&mut home, prompt, files).await?;
        let accepted = home.ask(async |client| client.run_create(prompt).await).await?;
        announce(context, &mut home, &accepted).await?;
        let AcceptedRun { run, position, replayed, .. } = accepted;
        match run.state.status() {
            // An ended run produces no more events: show its output.
            status if replayed && status.is_ended() => {
                replay(context, &mut home, &run).await.map(|()| exit_of(status))
            }
            _ => watch(context, &mut home, &run, if replayed { Position::START } else { position }).await,
        }
    };
    let exit = exit.await;
    home.leave().await.and(exit)
}

/// Prints the session and the run.
async fn announce(context: &Context<'_>, home: &mut Home<'_>, accepted: &AcceptedRun) -> Result<(), Fail> {
    if context.output.json {
        return Ok(());
    }
    let id = accepted.run.session.to_string();
    let session = home.ask(async |client| client.session_get(&id).await).await?;
    let name = session.key.unwrap_or(id);
    let again = if accepted.replayed { " (sent before: the same run)" } else { "" };
    Ok(context.output.note(format_args!("{DIM}· session {name}, {}{again}{DIM:#}", accepted.run.id))?)
}

/// Shows a run that has ended: its events as JSON, or its last message.
async fn replay(context: &Context<'_>, home: &mut Home<'_>, run: &Run) -> Result<(), Fail> {
    for event in run::all_events(home, run.id).await? {
        match &event.body {
            _ if context.output.json => context.output.object(&event)?,
            Body::MessageCompleted { message, .. } if Some(message.id) == run.final_message => {
                context.output.part(&message.text())?;
            }
            _ => {}
        }
    }
    if !context.output.json {
        context.output.note(ended(run.id, &run.state))?;
    }
    Ok(())
}

fn standard_input() -> Result<String, Fail> {
    if std::io::stdin().is_terminal() {
        return Err(Fail::bad_request("no prompt: give it as an argument, or through standard input"));
    }
    let mut text = vec![];
    std::io::stdin().read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|_| Fail::bad_request("the prompt on standard input is not UTF-8"))
}
