//! `mainspring prompt`

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mainspring_agent::native;
use mainspring_client::{AcceptedRun, PromptContent, SessionTarget};
use mainspring_core::{BadId, ClientTool, Mode, Place, Policy, Position, Run, RunOptions, SessionId};
use mainspring_system::ids::Ids;
use serde::Deserialize;
use serde_json::Value;

use super::connection::{Connection, Purpose};
use super::default_model::{
    find_default_model, has_default_profile, lacks_model, no_model, print_default_model,
};
use super::error::{CliError, Exit};
use super::follow::{exit_code, follow_run, format_end};
use super::ids::{find_message, find_session, suggest_agent};
use super::limits::LimitArgs;
use super::output::DIM;
use super::{Context, attach, file, run};

/// Send a prompt and stream the answer
#[derive(Args)]
#[command(
    after_help = "Without TEXT, the prompt is read from standard input. Without --adapter and --model, and if nothing is \
configured, the prompt goes to a current model of the first provider whose key is set (see mainspring auth) or of a running \
Ollama. The script agent (--adapter script) needs no model and executes its prompt as a script, for example: say hello; \
tool add {\"a\":1,\"b\":2}; ask How are you?\n\nA client tool has a name, a description and \
an inputSchema. When the agent calls it, the run waits for `mainspring run answer --tool-result`."
)]
pub(super) struct Prompt {
    /// Text of the prompt
    text: Vec<String>,
    /// File to attach, such as an image; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "regenerate")]
    attach: Vec<PathBuf>,
    /// Session key (created if new), or id (ses_…) or its beginning [default: a new session]
    #[arg(long, short, value_name = "KEY|ID")]
    session: Option<String>,
    /// Title of a new session
    #[arg(long)]
    title: Option<String>,
    /// Adapter [default: the session's]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Mode: whether the agent may act or only answer
    #[arg(long, value_enum, default_value = "act")]
    mode: CliMode,
    /// System prompt of the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Model
    #[arg(long, conflicts_with = "profile")]
    model: Option<String>,
    /// Model profile: a name that the configuration gives to a model
    #[arg(long, alias = "model-profile", value_name = "NAME")]
    profile: Option<String>,
    /// Agent definition of a new session: ID or ID@VERSION
    #[arg(long, value_name = "AGENT")]
    agent_definition: Option<String>,
    /// JSON file with the JSON Schema of the answer
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Working directory of the agent
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Label that a server of a cluster must have to execute a new session; may be repeated
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// JSON file with one or more client tools; may be repeated
    #[arg(long, value_name = "FILE")]
    tool: Vec<PathBuf>,
    /// Policy if the session is busy
    #[arg(long, value_enum, default_value = "enqueue")]
    policy: CliPolicy,
    /// Answer this user message again, as a branch
    #[arg(long, value_name = "MSG", conflicts_with_all = ["after", "root", "text"])]
    regenerate: Option<String>,
    /// Continue after this assistant message, as a branch
    #[arg(long, value_name = "MSG", conflicts_with = "root")]
    after: Option<String>,
    /// Start a new conversation within the session
    #[arg(long)]
    root: bool,
    /// Request id: a repeated request returns the same run
    #[arg(long, value_name = "NAME")]
    request_id: Option<String>,
    /// Client id; request ids are unique per client
    #[arg(long, value_name = "NAME", default_value = "cli")]
    client_id: String,
    /// Idempotency key: a repeated request returns the same run for 24 hours
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
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let files = attach::read_files(&self.attach)?;
        let (session, regenerate, after) =
            (self.session.clone(), self.regenerate.clone(), self.after.clone());
        let mut prompt = self.prompt(context)?;
        let mut connection = context.connect(Purpose::Execute).await?;
        let exit = async {
            let names = (session.as_deref(), regenerate.as_deref(), after.as_deref());
            find_names(&mut connection, &mut prompt, names).await?;
            choose_agent(context, &mut connection, &mut prompt).await?;
            Box::pin(send(context, &mut connection, prompt, &files)).await
        };
        let exit = Box::pin(exit).await;
        connection.close().await.and(exit)
    }

    fn prompt(self, context: &Context<'_>) -> Result<mainspring_client::Prompt, CliError> {
        let schema = self.schema.as_deref().map(read_schema).transpose()?;
        let text = match self.text.join(" ") {
            text if text.is_empty() && self.regenerate.is_none() && self.attach.is_empty() => read_stdin()?,
            text => text,
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
                title: self.title,
                surface_kind: Some("cli".into()),
                cwd: context.new_session_folder(self.cwd.as_deref(), self.adapter.as_deref())?,
                agent_definition: self.agent_definition,
                labels: self.label,
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
                model_profile: self.profile,
                cwd: context.folder(self.cwd.as_deref())?,
                tools,
                output_schema: schema,
                limits: self.limits.limits(),
                ..RunOptions::default()
            },
            ignore_unused_options: false,
            place: if self.root { Place::Root } else { Place::Tip },
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

/// Resolves the session and the message that the caller names, whose ids may be shortened, and sets them in the prompt.
async fn find_names(
    connection: &mut Connection<'_>,
    prompt: &mut mainspring_client::Prompt,
    (session, regenerate, after): (Option<&str>, Option<&str>, Option<&str>),
) -> Result<(), CliError> {
    let session = match session {
        Some(name) => Some(find_session(connection, name).await?),
        None => None,
    };
    let message = regenerate.or(after);
    if let Some(text) = message {
        let message_id = match &session {
            Some(session) => find_message(connection, session, text).await?,
            None => text.parse().map_err(|bad: BadId| CliError::bad_request(bad.to_string()))?,
        };
        prompt.place = match regenerate {
            Some(_) => Place::Regenerate { message_id },
            None => Place::Edit { message_id },
        };
    }
    match session.map(|name| name.parse::<SessionId>().map_err(|_| name)) {
        Some(Ok(id)) => {
            prompt.session.session_id = Some(id);
            prompt.session.cwd = None;
        }
        Some(Err(key)) => prompt.session.key = Some(key),
        None => {}
    }
    Ok(())
}

/// Chooses the native agent and a model of an available provider if neither the caller, the session nor the
/// configuration names an agent. A repeated request makes the same choice while the same providers are available.
async fn choose_agent(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    prompt: &mut mainspring_client::Prompt,
) -> Result<(), CliError> {
    let given = prompt.adapter.as_deref();
    let names_other_adapter = given.is_some_and(|adapter| adapter != native::NAME);
    // A server at another address has its own default.
    if (names_other_adapter && prompt.session.agent_definition.is_none()) || context.config().url.is_some() {
        return Ok(());
    }
    let target = &prompt.session;
    let name = target.session_id.map(|id| id.to_string()).or_else(|| target.key.clone());
    let session = match &name {
        None => None,
        Some(name) => match connection.request(async |client| client.session_get(name).await).await {
            Ok(session) => Some(session),
            Err(error) if error.exit == Exit::NotFound => None,
            Err(error) => return Err(error),
        },
    };
    let adapter = match (&session, given) {
        (_, Some(given)) => given,
        (Some(session), None) => session.adapter.as_str(),
        (None, None) if context.names_adapter() => context.config().adapter.as_str(),
        (None, None) => native::NAME,
    };
    if let (Some(session), Some(agent)) = (&session, &target.agent_definition)
        && session.agent_definition != *agent
    {
        return Err(CliError::bad_request(format!(
            "the session follows {}: change that with mainspring session set {} --agent {agent}",
            session.agent_definition,
            session.key.clone().unwrap_or_else(|| session.id.to_string())
        )));
    }
    if adapter != native::NAME {
        let message = "agent definitions are for the native agent: add --adapter native";
        return if target.agent_definition.is_some() { Err(CliError::bad_request(message)) } else { Ok(()) };
    }
    if let (None, Some(name)) = (&session, &target.agent_definition)
        && let Err(error) = connection.request(async |client| client.agent_get(name).await).await
    {
        return Err(suggest_agent(connection, name, error).await);
    }
    prompt.adapter = Some(native::NAME.into());
    let models = connection.request(async |client| client.model_list().await).await?;
    let named = prompt.options.has_model()
        || target.agent_definition.is_some()
        || has_default_profile(&models)
        || session.as_ref().is_some_and(|session| !lacks_model(session, &models));
    if !named {
        let model = find_default_model(context, &models).await;
        let model = model.ok_or_else(|| no_model(connection, context))?;
        print_default_model(context, &model)?;
        prompt.options.model = Some(model);
    }
    Ok(())
}

/// Reads a JSON Schema.
fn read_schema(path: &Path) -> Result<Value, CliError> {
    let schema: Value = serde_json::from_slice(&file::read_file(path)?)
        .map_err(|error| CliError::bad_request(format!("{}: {error}", path.display())))?;
    match schema.is_object() {
        true => Ok(schema),
        false => Err(CliError::bad_request(format!("{}: a JSON Schema is an object", path.display()))),
    }
}

/// Reads the tools of a file: one object, or a list.
fn read_tools(path: &Path) -> Result<Vec<ClientTool>, CliError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Tools {
        One(ClientTool),
        Many(Vec<ClientTool>),
    }
    match serde_json::from_slice(&file::read_file(path)?) {
        Ok(Tools::One(tool)) => Ok(vec![tool]),
        Ok(Tools::Many(tools)) => Ok(tools),
        Err(_) => Err(CliError::bad_request(format!(
            "{}: expected a tool, {{\"name\": \"weather\", \"description\": \"…\", \"inputSchema\": {{\"type\": \
             \"object\"}}}}, or a list of tools",
            path.display()
        ))),
    }
}

/// Sends a prompt and follows its run to the end.
pub(super) async fn send_prompt(
    context: &Context<'_>,
    prompt: &mainspring_client::Prompt,
) -> Result<Exit, CliError> {
    Box::pin(send_with_files(context, prompt.clone(), &[])).await
}

async fn send_with_files(
    context: &Context<'_>,
    prompt: mainspring_client::Prompt,
    files: &[attach::Attachment],
) -> Result<Exit, CliError> {
    let mut connection = context.connect(Purpose::Execute).await?;
    let exit = Box::pin(send(context, &mut connection, prompt, files)).await;
    connection.close().await.and(exit)
}

async fn send(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    prompt: mainspring_client::Prompt,
    files: &[attach::Attachment],
) -> Result<Exit, CliError> {
    let prompt = &attach::attach_files(connection, prompt, files).await?;
    let accepted = connection.request(async |client| client.run_create(prompt).await).await?;
    print_accepted(context, connection, &accepted).await?;
    let AcceptedRun { run, position, replayed, .. } = accepted;
    match run.state.status() {
        // An ended run produces no more events: print its output.
        status if replayed && status.is_ended() => {
            print_ended_run(context, connection, &run).await.map(|()| exit_code(status))
        }
        _ => follow_run(context, connection, &run, if replayed { Position::START } else { position }).await,
    }
}

/// Prints the session and the run.
async fn print_accepted(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    accepted: &AcceptedRun,
) -> Result<(), CliError> {
    if context.output.json {
        return Ok(());
    }
    let id = accepted.run.session.to_string();
    let session = connection.request(async |client| client.session_get(&id).await).await?;
    let name = session.key.unwrap_or(id);
    let replayed = if accepted.replayed { " (repeated request: the same run)" } else { "" };
    Ok(context
        .output
        .print_note(format_args!("{DIM}· session {name}, {}{replayed}{DIM:#}", accepted.run.id))?)
}

/// Prints a run that has ended: its events as JSON, or its text.
async fn print_ended_run(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    run: &Run,
) -> Result<(), CliError> {
    if context.output.json {
        for event in run::all_events(connection, run.id).await? {
            context.output.print_json(&event)?;
        }
        return Ok(());
    }
    if let Some(text) = run.final_text.as_ref().filter(|text| !text.is_empty()) {
        context.output.print(text)?;
    }
    Ok(context.output.print_note(format_end(run.id, &run.state))?)
}

fn read_stdin() -> Result<String, CliError> {
    if std::io::stdin().is_terminal() {
        return Err(CliError::bad_request("no prompt: pass it as an argument or on standard input"));
    }
    let mut text = vec![];
    std::io::stdin().read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|_| CliError::bad_request("the prompt on standard input is not UTF-8"))
}
