//! `mainspring chat`: a conversation at the terminal, or line by line from a file or a pipe.
//!
//! A chat is a client like every command: of a daemon, of another command, of a remote server, or of its own process.
//! The conversation belongs to a session and continues wherever that session is opened next.

use clap::Args;
use mainspring_agent::models::{DEFAULT_PROFILE, SCRIPTED};
use mainspring_agent::{definition, native};
use mainspring_client::{Events, Prompt, PromptContent, RetryOptions, RunListQuery, SessionTarget};
use mainspring_core::{
    FailureCode, KeyPresence, MessageId, Mode, ModelList, ModelProfile, Place, Position, Run, RunId,
    RunOptions, Session,
};
use mainspring_kernel::clock::Clock;
use mainspring_system::ids::Ids;

use super::Context;
use super::connection::{Connection, Purpose};
use super::default_model::{find_default_model, unused_key};
use super::error::{CliError, Exit};
use super::ids::find_session;
use super::output::{BOLD, DIM, PLAIN, format_time};
use super::signals::Signals;

mod command;
mod input;
mod screen;
mod tree;
mod turn;
mod wrap;

use command::{ChatCommand, SLASH_COMMANDS};
use input::{Input, LineInput, LineRequest};
use screen::Screen;
use turn::TurnEnd;

/// File of the terminal's input history, within the state directory.
const HISTORY_FILE: &str = "chat_history";

/// Chat with an agent
#[derive(Args)]
#[command(
    after_help = "Without a configured model, the chat uses a current model of the first provider whose key is set (see \
mainspring auth) or of a running Ollama, else the built-in scripted model, which needs no key. In the chat, /help \
lists the commands. Input from a pipe is read line by line: each line is a prompt or the answer to a question."
)]
pub(super) struct Chat {
    /// Session key (created if new), or id (ses_…) or its beginning [default: a new session]
    #[arg(long, short, value_name = "KEY|ID")]
    session: Option<String>,
    /// Model, as PROVIDER/MODEL [default: the session's, or the configured one]
    #[arg(long)]
    model: Option<String>,
    /// Agent definition of a new session: ID or ID@VERSION
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// Adapter [default: the session's; native for a new one]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// System prompt of the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Working directory of the agent
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Label that a server of a cluster must have to execute a new session; may be repeated
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
}

impl Chat {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let mut connection = context.connect(Purpose::Execute).await?;
        let outcome = Box::pin(self.converse(context, &mut connection)).await;
        match outcome {
            // A person who leaves a running run does not want to wait for its end.
            Ok(TurnEnd::Leave(exit)) => connection.close_now().await.map(|()| exit),
            Ok(TurnEnd::RunEnded(exit)) => connection.close().await.map(|()| exit),
            Err(error) => connection.close().await.and(Err(error)),
        }
    }

    async fn converse(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<TurnEnd, CliError> {
        let interactive = context.output.is_interactive();
        let input = Input::open(&context.config().state_dir.join(HISTORY_FILE), interactive)?;
        let mut conversation = Conversation {
            context,
            connection,
            screen: Screen::new(context.output),
            input,
            signals: Signals::register()?,
            interactive,
            generated_key: generate_key(),
            session: None,
            position: Position::START,
            models: ModelList::default(),
            model: self.model.clone(),
            is_default_model: false,
            profile: None,
            next_place: None,
            tree_messages: vec![],
            last_run: None,
            chat: self,
        };
        let turn = Box::pin(conversation.run()).await?;
        conversation.print_resume_hint()?;
        Ok(turn)
    }
}

/// A conversation.
struct Conversation<'a, 'h> {
    context: &'a Context<'a>,
    connection: &'a mut Connection<'h>,
    screen: Screen<'a>,
    input: Input,
    signals: Signals,
    interactive: bool,
    chat: Chat,
    /// The generated key, used if the person names no session.
    generated_key: String,
    /// The session's id, once the session exists.
    session: Option<String>,
    /// All events of the session up to this position were shown.
    position: Position,
    /// The models of the process that executes the runs.
    models: ModelList,
    /// The model requested by prompts.
    model: Option<String>,
    /// The model was chosen because its provider is available.
    is_default_model: bool,
    /// The model profile requested by prompts.
    profile: Option<String>,
    /// Place of the next prompt, if not the end of the active path.
    next_place: Option<Place>,
    /// The messages of the last drawn tree, by number.
    tree_messages: Vec<MessageId>,
    /// The last run that ended in this chat.
    last_run: Option<RunId>,
}

impl Conversation<'_, '_> {
    async fn run(&mut self) -> Result<TurnEnd, CliError> {
        let known = self.find_session().await?;
        self.models = self.connection.request(async |client| client.model_list().await).await?;
        self.choose_model(known.as_ref()).await;
        self.print_welcome(known.as_ref())?;
        if let Some(leave) = self.resume(known.as_ref()).await? {
            return Ok(leave);
        }
        let (mut exit, mut warned) = (Exit::Done, false);
        loop {
            let request = LineRequest { prompt: "› ", style: BOLD, answer: false };
            let input = tokio::select! {
                biased;
                signal = self.signals.next() => signal.into(),
                input = self.input.read_line(request) => input?,
            };
            let line = match input {
                LineInput::Line(line) => line,
                LineInput::Interrupted if self.interactive && !warned => {
                    warned = true;
                    self.screen.print_note("press Ctrl-C again or Ctrl-D to leave")?;
                    continue;
                }
                LineInput::Interrupted if !self.interactive => return Ok(TurnEnd::Leave(Exit::Cancelled)),
                LineInput::Interrupted | LineInput::Ended => break,
            };
            warned = false;
            match Box::pin(self.execute_line(&line)).await {
                Ok(None) => {}
                Ok(Some(TurnEnd::RunEnded(turn))) => exit = turn,
                Ok(Some(TurnEnd::Leave(Exit::Done))) => break,
                Ok(Some(leave)) => return Ok(leave),
                // A failed command is reported and the conversation continues.
                Err(error) => {
                    exit = error.exit;
                    self.print_error(&error)?;
                }
            }
            self.screen.print_gap()?;
        }
        Ok(TurnEnd::RunEnded(if self.interactive { Exit::Done } else { exit }))
    }

    /// Finds the named session, if it exists.
    async fn find_session(&mut self) -> Result<Option<Session>, CliError> {
        let Some(name) = self.chat.session.clone() else { return Ok(None) };
        let name = find_session(self.connection, &name).await?;
        self.chat.session = Some(name.clone());
        match self.connection.request(async |client| client.session_get(&name).await).await {
            Ok(session) => {
                self.session = Some(session.id.to_string());
                Ok(Some(session))
            }
            // A free key is given to the session that the first prompt creates.
            Err(error) if error.exit == Exit::NotFound && !name.starts_with("ses_") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Chooses the model if nothing names one: a model of an available provider, else the scripted model.
    async fn choose_model(&mut self, known: Option<&Session>) {
        let adapter = self.chat.adapter.as_deref().or(known.map(|session| session.adapter.as_str()));
        let native = adapter.is_none_or(|adapter| adapter == native::NAME);
        let configured = self.find_profile(DEFAULT_PROFILE).is_some();
        let named = known.is_some_and(|session| {
            session.model.is_some()
                || session.model_profile.is_some()
                || session.agent_definition != definition::GENERALIST
        });
        if native && !configured && !named && self.chat.agent.is_none() && self.model.is_none() {
            let found = find_default_model(self.context, &self.models).await;
            self.is_default_model = found.is_some();
            self.model = Some(found.unwrap_or_else(|| format!("{SCRIPTED}/any")));
        }
    }

    /// Shows the first screen: the session, the model and the commands.
    fn print_welcome(&mut self, known: Option<&Session>) -> Result<(), CliError> {
        if self.context.output.json {
            return Ok(());
        }
        let name = match (known, &self.chat.session) {
            (Some(session), name) => {
                let name = name.clone().unwrap_or_else(|| session.id.to_string());
                let title = session.title.as_ref().map(|title| format!(", {title}")).unwrap_or_default();
                format!("session {name}{}", wrap::one_line(&title, 60))
            }
            (None, Some(name)) => format!("new session {name}"),
            (None, None) => "new session".into(),
        };
        let location = if self.connection.is_guest() { ", served by another process" } else { "" };
        self.screen.print_line(&format!("{BOLD}mainspring{BOLD:#} {DIM}· {name}{location}{DIM:#}"), PLAIN)?;
        if self.model.as_deref().is_some_and(is_scripted) {
            self.screen.print_note(
                "No model is configured, so the scripted model answers: no key, no network, no intelligence. It \
                 executes your prompt as a script.",
            )?;
            self.screen.print_note("Try: say Hello.; ask How are you?; say Good to know.")?;
            let hint = unused_key(self.connection, self.context);
            self.screen.print_note(&hint.unwrap_or_else(|| {
                "For a real model: `mainspring auth add anthropic`, or set ANTHROPIC_API_KEY, then start again (see \
                 docs/models.md)"
                    .into()
            }))?;
        } else {
            let model = self.model_label(known);
            let why = match self.is_default_model {
                true => ", since its provider is usable and no model is configured; /model chooses another",
                false => "",
            };
            self.screen.print_note(&format!("model: {model}{why}"))?;
        }
        self.screen.print_note("/help lists the commands, Ctrl-C cancels an answer, Ctrl-D leaves")?;
        Ok(self.screen.print_gap()?)
    }

    fn find_profile(&self, name: &str) -> Option<&ModelProfile> {
        self.models.profiles.iter().find(|profile| profile.profile == name)
    }

    /// Names the model of the next prompt. A choice in this chat takes precedence over the session's.
    fn model_label(&self, known: Option<&Session>) -> String {
        let (model, profile) = match known {
            Some(known) if self.model.is_none() && self.profile.is_none() => {
                (&known.model, &known.model_profile)
            }
            _ => (&self.model, &self.profile),
        };
        let of_profile = self.find_profile(profile.as_deref().unwrap_or(DEFAULT_PROFILE));
        let of_profile = of_profile.map(|profile| format!("{}/{}", profile.provider, profile.model));
        let model = model.clone().or(of_profile);
        model.unwrap_or_else(|| format!("chosen by {}", self.chat.agent.as_deref().unwrap_or("the server")))
    }

    /// Shows the state of an existing session and follows its active run.
    async fn resume(&mut self, known: Option<&Session>) -> Result<Option<TurnEnd>, CliError> {
        let Some(session) = known else { return Ok(None) };
        let name = session.id.to_string();
        let snapshot = self.connection.request(async |client| client.session_snapshot(&name).await).await?;
        self.position = snapshot.position;
        if !self.context.output.json && self.interactive {
            for damage in &snapshot.damaged {
                self.screen.print_note(&format!("damaged: {}", damage.message))?;
            }
            if let Some(prompt) = turn::last_prompt(&snapshot.messages) {
                let line = wrap::one_line(&prompt.text(), 400);
                self.screen.print_line(&format!("› {line}"), DIM)?;
                self.screen.print_gap()?;
            }
            if let Some(last) = snapshot.messages.last().filter(|last| !turn::is_prompt(last)) {
                self.screen.print_answer(&last.text())?;
                self.screen.print_gap()?;
            }
        }
        let Some(active) = &snapshot.active_run else { return Ok(None) };
        self.screen.print_note("a run is active; Ctrl-C cancels it")?;
        let turn = self.follow_active(active, &snapshot).await?;
        self.screen.print_gap()?;
        Ok(matches!(turn, TurnEnd::Leave(_)).then_some(turn))
    }

    /// Executes one input line.
    async fn execute_line(&mut self, line: &str) -> Result<Option<TurnEnd>, CliError> {
        let command = ChatCommand::parse(line).map_err(CliError::bad_request)?;
        let Some(command) = command else { return Ok(None) };
        match command {
            ChatCommand::Prompt(text) => {
                let place = self.next_place.unwrap_or_default();
                self.send_prompt(place, Some(text)).await.map(Some)
            }
            ChatCommand::Branch { at, text } => {
                let place = self.branch_place(at, text.is_some()).await?;
                self.send_prompt(place, text).await.map(Some)
            }
            ChatCommand::Retry => self.retry_last().await.map(Some),
            ChatCommand::Login(method) => self.login(method).await,
            ChatCommand::Quit => Ok(Some(TurnEnd::Leave(Exit::Done))),
            ChatCommand::Help => self.print_help().map(|()| None),
            ChatCommand::Tree => self.print_tree().await.map(|()| None),
            ChatCommand::Go(no) => self.navigate(no).await.map(|()| None),
            ChatCommand::Undo => self.undo().await.map(|()| None),
            ChatCommand::Model(None) => self.print_models().await.map(|()| None),
            ChatCommand::Model(Some(name)) => self.change_model(&name).map(|()| None),
        }
    }

    /// Sends a prompt, or regenerates an answer, and follows the run.
    async fn send_prompt(&mut self, place: Place, text: Option<String>) -> Result<TurnEnd, CliError> {
        self.screen.print_gap()?;
        let session = self.ensure_session().await?;
        let id = session.parse().map_err(|_| CliError::bad_request("invalid session id"))?;
        let prompt = Prompt {
            session: SessionTarget {
                session_id: Some(id),
                surface_kind: Some("cli".into()),
                ..SessionTarget::default()
            },
            prompt: text.map(PromptContent::Text),
            adapter: self.chat.adapter.clone(),
            mode: Mode::Act,
            options: RunOptions {
                system_prompt: self.chat.system.clone(),
                model: self.model.clone(),
                model_profile: self.profile.clone(),
                cwd: self.context.folder(self.chat.cwd.as_deref())?,
                ..RunOptions::default()
            },
            place,
            // A prompt that is sent again after a broken connection must not start a second run.
            idempotency_key: Some(Ids::system().secret()),
            ..Prompt::default()
        };
        let events = self.subscribe(&session).await;
        let accepted = self.connection.request(async |client| client.run_create(&prompt).await).await?;
        self.next_place = None;
        self.follow(&accepted.run, events).await
    }

    /// Subscribes to the session's events from the current position. Connects before the prompt is sent, because
    /// thoughts reach only connected readers.
    async fn subscribe(&self, session: &str) -> Events {
        let mut events = self.connection.events(session, self.position);
        // A failed connection is retried when the first item is read.
        let _ = events.connect().await;
        events
    }

    /// Returns the session's id and creates the session when it is first needed.
    async fn ensure_session(&mut self) -> Result<String, CliError> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let adapter = self.chat.adapter.clone().unwrap_or_else(|| native::NAME.into());
        let target = SessionTarget {
            // Without a key, a retried request would create a second session.
            key: Some(self.chat.session.clone().unwrap_or_else(|| self.generated_key.clone())),
            surface_kind: Some("cli".into()),
            agent_definition: self.chat.agent.clone(),
            labels: self.chat.label.clone(),
            cwd: self.context.new_session_folder(self.chat.cwd.as_deref(), Some(&adapter))?,
            adapter: Some(adapter),
            ..SessionTarget::default()
        };
        let opened =
            self.connection.request(async |client| client.session_resolve(&target, None).await).await?;
        let id = opened.session.id.to_string();
        let snapshot = self.connection.request(async |client| client.session_snapshot(&id).await).await?;
        self.position = snapshot.position;
        self.session = Some(id.clone());
        Ok(id)
    }

    /// Logs in to the agent of the last run. The run is followed if it goes on.
    async fn login(&mut self, method: Option<String>) -> Result<Option<TurnEnd>, CliError> {
        let Some(run) = self.last_run_stored().await? else {
            self.screen.print_note("send a prompt first: its agent names the login methods")?;
            return Ok(None);
        };
        let adapter = run.adapter.clone();
        let methods = self.connection.request(async |client| client.login_list(&adapter).await).await?;
        let method = match (method, &methods[..]) {
            (Some(method), _) => method,
            (None, [only]) => only.id.clone(),
            (None, methods) => {
                let ids: Vec<&str> = methods.iter().map(|method| method.id.as_str()).collect();
                let note = match &ids[..] {
                    [] => format!("{adapter} names no login method"),
                    ids => format!("/login METHOD logs in to {adapter}: {}", ids.join(", ")),
                };
                self.screen.print_note(&note)?;
                return Ok(None);
            }
        };
        self.connection.request(async |client| client.login_create(&adapter, &method).await).await?;
        self.screen.print_note(&format!("logged in to {adapter} with {method}"))?;
        let run = self.connection.request(async |client| client.run_get(run.id).await).await?;
        let wants_login = run.state.error().is_some_and(|error| error.code == FailureCode::Authentication);
        if !run.state.status().is_ended() {
            let events = self.connection.events(&run.session.to_string(), self.position);
            return self.follow(&run, events).await.map(Some);
        }
        // The run failed too long ago to continue by itself.
        if wants_login { self.retry_last().await.map(Some) } else { Ok(None) }
    }

    /// Reads the last run of the session; none before the first prompt.
    async fn last_run_stored(&mut self) -> Result<Option<Run>, CliError> {
        let Some(session) = self.session.clone() else { return Ok(None) };
        let query = RunListQuery { session: Some(session), limit: Some(1), ..RunListQuery::default() };
        let last = self.connection.request(async |client| client.run_list(&query).await).await?;
        Ok(last.items.into_iter().next())
    }

    async fn retry_last(&mut self) -> Result<TurnEnd, CliError> {
        let session =
            self.session.clone().ok_or_else(|| CliError::bad_request("the session has no messages yet"))?;
        let run = self.last_run_stored().await?.map(|run| run.id);
        let run =
            self.last_run.or(run).ok_or_else(|| CliError::bad_request("the session has no messages yet"))?;
        let run: Run = self
            .connection
            .request(async |client| client.run_retry(run, &RetryOptions::default()).await)
            .await?;
        self.screen.print_gap()?;
        let events = self.connection.events(&session, self.position);
        self.follow(&run, events).await
    }

    fn print_help(&mut self) -> Result<(), CliError> {
        let name_width = SLASH_COMMANDS
            .iter()
            .map(|(name, arguments, _)| name.len() + arguments.len() + 2)
            .max()
            .unwrap_or(0);
        for (name, arguments, description) in SLASH_COMMANDS {
            let command = format!("/{name} {arguments}");
            let columns = self.screen.width().saturating_sub(name_width + 4);
            let mut wrap = wrap::Wrap::new(columns.max(24), 0);
            let text = format!("{}{}", wrap.push(description), wrap.finish());
            for (at, line) in text.lines().enumerate() {
                let command = if at == 0 { command.as_str() } else { "" };
                self.screen.print_line(&format!("  {command:name_width$}  {DIM}{line}{DIM:#}"), PLAIN)?;
            }
        }
        self.screen.print_note("end a line with a backslash to continue it on the next line")?;
        Ok(())
    }

    /// Names the model of the next prompt and lists the profiles.
    async fn print_models(&mut self) -> Result<(), CliError> {
        let known = match self.session.clone() {
            Some(id) => Some(self.connection.request(async |client| client.session_get(&id).await).await?),
            None => None,
        };
        let label = self.model_label(known.as_ref());
        self.screen.print_note(&format!("model: {label}"))?;
        for ModelProfile { profile, provider, model, key, .. } in &self.models.profiles {
            let missing = if *key == KeyPresence::Missing { " (key missing)" } else { "" };
            self.screen.print_note(&format!("/model {profile}: {provider}/{model}{missing}"))?;
        }
        Ok(self
            .screen
            .print_note("/model PROVIDER/MODEL selects any other model, for example scripted/any")?)
    }

    fn change_model(&mut self, name: &str) -> Result<(), CliError> {
        (self.model, self.profile) = match self.find_profile(name).is_some() {
            true => (None, Some(name.to_owned())),
            false => (Some(name.to_owned()), None),
        };
        Ok(self.screen.print_note(&format!("model is now {name}"))?)
    }

    fn print_error(&mut self, error: &CliError) -> Result<(), CliError> {
        match self.context.output.json {
            true => self.context.output.print_json(&error.json())?,
            false if error.code == CliError::INVALID_REQUEST => self.screen.print_error(&error.message)?,
            false => self.screen.print_error(&format!("{} ({})", error.message, error.code))?,
        }
        Ok(())
    }

    /// Shows how to resume the session.
    fn print_resume_hint(&mut self) -> Result<(), CliError> {
        self.screen.end_text()?;
        if self.session.is_some() && self.interactive {
            let name = self.chat.session.clone().unwrap_or_else(|| self.generated_key.clone());
            self.screen.print_line(&format!("continue with: mainspring chat -s {name}"), DIM)?;
        }
        Ok(())
    }
}

/// Generates a session key: the current time and a unique suffix.
fn generate_key() -> String {
    let now = format_time(Clock::system().now()).replace([' ', ':'], "-");
    let unique: String = Ids::system().secret().chars().filter(char::is_ascii_alphanumeric).take(4).collect();
    format!("chat-{now}-{}", unique.to_lowercase())
}

/// True for a model of the scripted provider.
fn is_scripted(model: &str) -> bool {
    model.split_once('/').is_some_and(|(provider, _)| provider == SCRIPTED)
}
