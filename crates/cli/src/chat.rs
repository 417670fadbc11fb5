//! `mainspring chat`: a conversation at the terminal, or line by line from a file or a pipe.
//!
//! A chat is a client like every command: of a daemon, of another command, of a remote server, or of its own process.
//! The conversation belongs to a session and continues wherever that session is opened next.

use clap::Args;
use mainspring_agent::models::{DEFAULT_PROFILE, SCRIPTED};
use mainspring_agent::{definition, native};
use mainspring_client::{Events, Prompt, PromptContent, RunListQuery, SessionTarget};
use mainspring_core::{
    KeyPresence, MessageId, Mode, ModelList, ModelProfile, Place, Position, Run, RunId, RunOptions, Session,
};
use mainspring_kernel::clock::Clock;
use mainspring_system::ids::Ids;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{BOLD, DIM, PLAIN, moment};

mod input;
mod order;
mod screen;
mod signals;
mod tree;
mod turn;
mod wrap;

use input::{Ask, Input, Read};
use order::{ORDERS, Order};
use screen::Screen;
use signals::Signals;
use turn::Turn;

/// File of the terminal's input history, within the state directory.
const HISTORY: &str = "chat_history";

/// Talk to an agent: streaming, tools, questions, branches
#[derive(Args)]
#[command(
    after_help = "Without a configured model it talks to the built-in scripted model, which needs no key. Within the \
chat, /help lists what can be done besides talking. From a pipe each line is a prompt, or the answer to a question."
)]
pub(super) struct Chat {
    /// The session: a key of your choice (made if it is new) or a ses_… id [default: a new session]
    #[arg(long, short, value_name = "KEY|ID")]
    session: Option<String>,
    /// The model, as PROVIDER/MODEL [default: the session's, or the configured one]
    #[arg(long)]
    model: Option<String>,
    /// The agent of a new session, as ID or ID@VERSION
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// The agent runtime [default: the session's; native for a new one]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Instructions for the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The folder the agent works in
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
}

impl Chat {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let mut home = context.home(Purpose::Execute).await?;
        let outcome = Box::pin(self.talk(context, &mut home)).await;
        match outcome {
            // A person who leaves a running run does not want to wait for its end.
            Ok(Turn::Left(exit)) => home.abandon().await.map(|()| exit),
            Ok(Turn::Over(exit)) => home.leave().await.map(|()| exit),
            Err(fail) => home.leave().await.and(Err(fail)),
        }
    }

    async fn talk(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<Turn, Fail> {
        let interactive = context.output.is_interactive();
        let input = Input::open(&context.config().state_dir.join(HISTORY), interactive)?;
        let mut talk = Talk {
            context,
            home,
            screen: Screen::new(context.output),
            input,
            signals: Signals::listen()?,
            interactive,
            name: name(),
            session: None,
            position: Position::START,
            models: ModelList::default(),
            model: self.model.clone(),
            profile: None,
            next: None,
            numbers: vec![],
            last: None,
            chat: self,
        };
        let turn = talk.run().await?;
        talk.farewell()?;
        Ok(turn)
    }
}

/// A conversation.
struct Talk<'a, 'h> {
    context: &'a Context<'a>,
    home: &'a mut Home<'h>,
    screen: Screen<'a>,
    input: Input,
    signals: Signals,
    interactive: bool,
    chat: Chat,
    /// Generated key for a session that was given none.
    name: String,
    /// The session's id, once the session exists.
    session: Option<String>,
    /// All events of the session up to this position were shown.
    position: Position,
    /// The models of the process that executes the runs.
    models: ModelList,
    /// The model requested by prompts.
    model: Option<String>,
    /// The model profile requested by prompts.
    profile: Option<String>,
    /// Place of the next prompt, if not the end of the active path.
    next: Option<Place>,
    /// The messages of the last drawn tree, by number.
    numbers: Vec<MessageId>,
    last: Option<RunId>,
}

impl Talk<'_, '_> {
    async fn run(&mut self) -> Result<Turn, Fail> {
        let known = self.find().await?;
        self.models = self.home.ask(async |client| client.model_list().await).await?;
        self.choose(known.as_ref());
        self.welcome(known.as_ref())?;
        if let Some(left) = self.join(known.as_ref()).await? {
            return Ok(left);
        }
        let (mut exit, mut warned) = (Exit::Done, false);
        loop {
            let ask = Ask { prompt: "› ", style: BOLD, answer: false };
            let read = tokio::select! {
                biased;
                signal = self.signals.next() => signal.into(),
                read = self.input.line(ask) => read?,
            };
            let line = match read {
                Read::Line(line) => line,
                Read::Interrupted if self.interactive && !warned => {
                    warned = true;
                    self.screen.note("Ctrl-C again leaves, and so does Ctrl-D")?;
                    continue;
                }
                Read::Interrupted if !self.interactive => return Ok(Turn::Left(Exit::Cancelled)),
                Read::Interrupted | Read::Ended => break,
            };
            warned = false;
            match self.obey(&line).await {
                Ok(None) => {}
                Ok(Some(Turn::Over(turn))) => exit = turn,
                Ok(Some(Turn::Left(Exit::Done))) => break,
                Ok(Some(left)) => return Ok(left),
                // A failed command is reported and the conversation continues.
                Err(fail) => {
                    exit = fail.exit;
                    self.complain(&fail)?;
                }
            }
            self.screen.gap()?;
        }
        Ok(Turn::Over(if self.interactive { Exit::Done } else { exit }))
    }

    /// Finds the named session, if it exists.
    async fn find(&mut self) -> Result<Option<Session>, Fail> {
        let Some(name) = self.chat.session.clone() else { return Ok(None) };
        match self.home.ask(async |client| client.session_get(&name).await).await {
            Ok(session) => {
                self.session = Some(session.id.to_string());
                Ok(Some(session))
            }
            // A free key is given to the session that the first prompt creates.
            Err(fail) if fail.exit == Exit::NotFound && !name.starts_with("ses_") => Ok(None),
            Err(fail) => Err(fail),
        }
    }

    /// Chooses the model where nothing names one: the scripted model if none is configured.
    fn choose(&mut self, known: Option<&Session>) {
        let adapter = self.chat.adapter.as_deref().or(known.map(|session| session.adapter.as_str()));
        let native = adapter.is_none_or(|adapter| adapter == native::NAME);
        let configured = self.profile_of(DEFAULT_PROFILE).is_some();
        let named = known.is_some_and(|session| {
            session.model.is_some()
                || session.model_profile.is_some()
                || session.agent_definition != definition::GENERALIST
        });
        if native && !configured && !named && self.chat.agent.is_none() && self.model.is_none() {
            self.model = Some(format!("{SCRIPTED}/any"));
        }
    }

    /// Shows the first screen: the session, the model and the commands.
    fn welcome(&mut self, known: Option<&Session>) -> Result<(), Fail> {
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
        let whose = if self.home.is_guest() { ", at the daemon of this machine" } else { "" };
        self.screen.plain(&format!("{BOLD}mainspring{BOLD:#} {DIM}· {name}{whose}{DIM:#}"), PLAIN)?;
        if self.model.as_deref().is_some_and(is_scripted) {
            self.screen.note(
                "No model is configured, so you talk to the scripted model: no key, no network, no intelligence. It \
                 follows what you say as a script.",
            )?;
            self.screen.note("Try: say Hello.; ask How are you?; say Good to know.")?;
            self.screen
                .note("A real model: /model anthropic/claude-sonnet-4-5, with its key set; docs/models.md")?;
        } else {
            let model = self.model_shown(known);
            self.screen.note(&format!("model: {model}"))?;
        }
        self.screen.note("/help lists what you can do, Ctrl-C stops an answer, Ctrl-D leaves")?;
        Ok(self.screen.gap()?)
    }

    fn profile_of(&self, name: &str) -> Option<&ModelProfile> {
        self.models.profiles.iter().find(|profile| profile.profile == name)
    }

    fn model_shown(&self, known: Option<&Session>) -> String {
        let profile = self.profile.as_deref().or(known.and_then(|known| known.model_profile.as_deref()));
        let named = known.and_then(|known| known.model.clone());
        let of_profile = self.profile_of(profile.unwrap_or(DEFAULT_PROFILE));
        let of_profile = of_profile.map(|profile| format!("{}/{}", profile.provider, profile.model));
        let model = self.model.clone().or(named).or(of_profile);
        model.unwrap_or_else(|| format!("as {} says", self.chat.agent.as_deref().unwrap_or("the server")))
    }

    /// Shows the state of an existing session and follows its active run.
    async fn join(&mut self, known: Option<&Session>) -> Result<Option<Turn>, Fail> {
        let Some(session) = known else { return Ok(None) };
        let name = session.id.to_string();
        let snapshot = self.home.ask(async |client| client.session_snapshot(&name).await).await?;
        self.position = snapshot.position;
        if !self.context.output.json && self.interactive {
            if let Some(prompt) = turn::last_prompt(&snapshot.messages) {
                let said = wrap::one_line(&prompt.text(), 400);
                self.screen.plain(&format!("› {said}"), DIM)?;
                self.screen.gap()?;
            }
            if let Some(last) = snapshot.messages.last().filter(|last| !turn::is_prompt(last)) {
                self.screen.say(&last.text())?;
                self.screen.gap()?;
            }
        }
        let Some(active) = &snapshot.active_run else { return Ok(None) };
        self.screen.note("it is at work; Ctrl-C stops that")?;
        self.show_open(&snapshot)?;
        let turn = self.follow_joined(active).await?;
        self.screen.gap()?;
        Ok(matches!(turn, Turn::Left(_)).then_some(turn))
    }

    /// Executes one input line.
    async fn obey(&mut self, line: &str) -> Result<Option<Turn>, Fail> {
        let order = Order::read(line).map_err(Fail::bad_request)?;
        let Some(order) = order else { return Ok(None) };
        match order {
            Order::Say(text) => {
                let place = self.next.unwrap_or_default();
                self.prompt(place, Some(text)).await.map(Some)
            }
            Order::Branch { at, text } => {
                let place = self.branch(at, text.is_some()).await?;
                self.prompt(place, text).await.map(Some)
            }
            Order::Retry => self.retry().await.map(Some),
            Order::Quit => Ok(Some(Turn::Left(Exit::Done))),
            Order::Help => self.help().map(|()| None),
            Order::Tree => self.tree().await.map(|()| None),
            Order::Go(no) => self.go(no).await.map(|()| None),
            Order::Undo => self.undo().await.map(|()| None),
            Order::Model(name) => self.change_model(name).map(|()| None),
        }
    }

    /// Sends a prompt, or regenerates an answer, and follows the run.
    async fn prompt(&mut self, place: Place, text: Option<String>) -> Result<Turn, Fail> {
        self.screen.gap()?;
        let session = self.open().await?;
        let id = session.parse().map_err(|_| Fail::bad_request("no such session"))?;
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
                cwd: self.chat.cwd.clone(),
                ..RunOptions::default()
            },
            place,
            // A prompt that is sent again after a broken connection must not start a second run.
            idempotency_key: Some(Ids::system().secret()),
            ..Prompt::default()
        };
        let events = self.listen(&session).await;
        let accepted = self.home.ask(async |client| client.run_create(&prompt).await).await?;
        self.next = None;
        self.follow(&accepted.run, events).await
    }

    /// Subscribes to the session's events from the current position. Connects before the prompt is sent, because
    /// thoughts reach only connected readers.
    async fn listen(&self, session: &str) -> Events {
        let mut events = self.home.events(session, self.position);
        // A failed connection is retried when the first item is read.
        let _ = events.connect().await;
        events
    }

    /// Returns the session's id and creates the session when it is first needed.
    async fn open(&mut self) -> Result<String, Fail> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let target = SessionTarget {
            // Without a key, a retried request would create a second session.
            key: Some(self.chat.session.clone().unwrap_or_else(|| self.name.clone())),
            surface_kind: Some("cli".into()),
            adapter: Some(self.chat.adapter.clone().unwrap_or_else(|| native::NAME.into())),
            agent_definition: self.chat.agent.clone(),
            cwd: self.chat.cwd.clone(),
            ..SessionTarget::default()
        };
        let opened = self.home.ask(async |client| client.session_resolve(&target, None).await).await?;
        let id = opened.session.id.to_string();
        let snapshot = self.home.ask(async |client| client.session_snapshot(&id).await).await?;
        self.position = snapshot.position;
        self.session = Some(id.clone());
        Ok(id)
    }

    async fn retry(&mut self) -> Result<Turn, Fail> {
        let session = self.session.clone().ok_or_else(|| Fail::bad_request("nothing has been said yet"))?;
        let query =
            RunListQuery { session: Some(session.clone()), limit: Some(1), ..RunListQuery::default() };
        let last = self.home.ask(async |client| client.run_list(&query).await).await?;
        let run = last.items.first().map(|run| run.id);
        let run = self.last.or(run).ok_or_else(|| Fail::bad_request("nothing has been said yet"))?;
        let run: Run = self.home.ask(async |client| client.run_retry(run).await).await?;
        self.screen.gap()?;
        let events = self.home.events(&session, self.position);
        self.follow(&run, events).await
    }

    fn help(&mut self) -> Result<(), Fail> {
        let left = ORDERS.iter().map(|(name, takes, _)| name.len() + takes.len() + 2).max().unwrap_or(0);
        for (name, takes, does) in ORDERS {
            let order = format!("/{name} {takes}");
            let room = self.screen.width().saturating_sub(left + 4);
            let mut wrap = wrap::Wrap::new(room.max(24), 0);
            let text = format!("{}{}", wrap.push(does), wrap.rest());
            for (at, line) in text.lines().enumerate() {
                let order = if at == 0 { order.as_str() } else { "" };
                self.screen.plain(&format!("  {order:left$}  {DIM}{line}{DIM:#}"), PLAIN)?;
            }
        }
        self.screen.note("a backslash at the end of a line goes on in the next one")?;
        Ok(())
    }

    fn change_model(&mut self, name: Option<String>) -> Result<(), Fail> {
        let Some(name) = name else {
            let shown = self.model_shown(None);
            self.screen.note(&format!("model: {shown}"))?;
            for ModelProfile { profile, provider, model, key, .. } in &self.models.profiles {
                let missing = if *key == KeyPresence::Missing { " (its key is missing)" } else { "" };
                self.screen.note(&format!("/model {profile}: {provider}/{model}{missing}"))?;
            }
            return Ok(self.screen.note("/model PROVIDER/MODEL asks any other, such as scripted/any")?);
        };
        (self.model, self.profile) = match self.profile_of(&name).is_some() {
            true => (None, Some(name.clone())),
            false => (Some(name.clone()), None),
        };
        Ok(self.screen.note(&format!("from now on: {name}"))?)
    }

    fn complain(&mut self, fail: &Fail) -> Result<(), Fail> {
        match self.context.output.json {
            true => self.context.output.object(&fail.json())?,
            false if fail.code == Fail::INVALID_REQUEST => self.screen.problem(&fail.message)?,
            false => self.screen.problem(&format!("{} ({})", fail.message, fail.code))?,
        }
        Ok(())
    }

    /// Shows how to resume the session.
    fn farewell(&mut self) -> Result<(), Fail> {
        self.screen.end()?;
        if self.session.is_some() && self.interactive {
            let name = self.chat.session.clone().unwrap_or_else(|| self.name.clone());
            self.screen.plain(&format!("mainspring chat -s {name} comes back here"), DIM)?;
        }
        Ok(())
    }
}

/// Generates the key of a session that was given none: its start time and a unique suffix.
fn name() -> String {
    let now = moment(Clock::system().now()).replace([' ', ':'], "-");
    let unique: String = Ids::system().secret().chars().filter(char::is_ascii_alphanumeric).take(4).collect();
    format!("chat-{now}-{}", unique.to_lowercase())
}

/// True for a model of the scripted provider.
fn is_scripted(model: &str) -> bool {
    model.split_once('/').is_some_and(|(provider, _)| provider == SCRIPTED)
}
