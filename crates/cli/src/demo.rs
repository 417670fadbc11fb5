//! `mainspring demo`: shows the main features on a fresh state directory. Agents run on the native loop, which calls a
//! scripted model over HTTP in this process: no API key is needed, and nothing is faked.

use std::path::Path;
use std::process::Stdio;

use anstyle::{AnsiColor, Style};
use clap::Args;
use mainspring_agent::models::{DEFAULT_PROFILE, SCRIPTED};
use mainspring_agent::{ModelsConfig, Toolbox, native};
use mainspring_core::{Answer, Body, Cursor, MessageId, Place, Role, Run, RunState, RunStatus, SessionId};
use mainspring_kernel::feed::{Delta, Item};
use mainspring_kernel::kernel::{Caller, Kernel, NewSession, RunRequest, SessionQuery};
use mainspring_kernel::store::SessionRef;
use tokio::io::AsyncReadExt;

use super::Context;
use super::fail::{Exit, Fail};
use super::output::{self, BOLD, DIM, Output, span};
use crate::picture;
use mainspring::Node;
use mainspring::config::Config;

mod tool;

/// Show what mainspring does, in a temporary folder, without any configuration
#[derive(Args)]
pub(super) struct Demo {
    /// Keep everything in this folder, to look at afterwards
    #[arg(long, value_name = "DIR")]
    keep: Option<std::path::PathBuf>,
}

/// One session of the demo.
struct Story {
    key: &'static str,
    shows: &'static str,
    prompt: &'static str,
    colour: AnsiColor,
}

const STORIES: [Story; 6] = [
    Story {
        key: "stream",
        shows: "text arrives as it is made",
        prompt: "think I shall count.; stream 24 every 40ms tick; say and done.",
        colour: AnsiColor::Cyan,
    },
    Story {
        key: "tool",
        shows: "a tool call, recorded before it runs",
        prompt: "say Let me add that up.; sleep 300ms; tool add {\"a\": 19, \"b\": 23}; sleep 300ms; say The answer is 42.",
        colour: AnsiColor::Blue,
    },
    Story {
        key: "retry",
        shows: "a failure, tried again as attempt 2",
        prompt: "say Calling the model.; fail once overload; say This time it worked.",
        colour: AnsiColor::Yellow,
    },
    Story {
        key: "cancel",
        shows: "stopped halfway; what was said is kept",
        prompt: "stream 1000 every 30ms bla",
        colour: AnsiColor::Magenta,
    },
    Story {
        key: "ask",
        shows: "waits for a person, then goes on",
        prompt: "say I need to know one thing.; ask Tea or coffee?; say Coming up.",
        colour: AnsiColor::Green,
    },
    Story {
        key: "branch",
        shows: "a second answer beside the first",
        prompt: "vary Here is one way to put it. | And here is another one.",
        colour: AnsiColor::Red,
    },
];

impl Demo {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let temporary = tempfile::tempdir()?;
        let dir = self.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
        let config = config(context, &dir)?;
        let stage = Stage { output: context.output, caller: Caller::new("demo") };
        stage.title("Six agents, side by side")?;
        stage.text(&format!(
            "{DIM}The native loop asks a scripted model, over HTTP: no key is needed.{DIM:#}"
        ))?;
        let tools = Toolbox::new().with(tool::Add).map_err(|bad| Fail::bad_request(bad.to_string()))?;
        let node = Node::builder(config.clone()).tools(tools).open().await?;
        let kernel = node.kernel();
        let [stream, tool, retry, cancel, ask, branch] = &STORIES;
        let (a, b, c, d, e, f) = tokio::join!(
            stage.play(kernel, stream),
            stage.play(kernel, tool),
            stage.play(kernel, retry),
            stage.play(kernel, cancel),
            stage.play(kernel, ask),
            stage.play_branch(kernel, branch),
        );
        let runs = [a?, b?, c?, d?, e?, f?];

        stage.title("What became of them")?;
        stage.summary(kernel, &runs).await?;
        stage.title("The tree of \"branch\": the active path is ●, the first answer is still there")?;
        let by = SessionRef::Key("branch".into());
        let nodes = kernel.session_tree(&stage.caller, &by, Default::default()).await?.nodes;
        for line in picture::text(&nodes).lines() {
            stage.text(&format!("  {line}"))?;
        }
        let before = stage.count(kernel).await?;
        node.close().await;

        stage.title("Now a process is killed in the middle of its work (kill -9)")?;
        stage.crash(&dir).await?;
        let node = Node::open(&config).await?;
        let recovered = stage.recover(node.kernel(), before).await;
        node.close().await;
        recovered?;

        stage.text("")?;
        if self.keep.is_some() {
            let dir = dir.display();
            stage.text(&format!("Kept in {dir}: mainspring --config {dir}/{FILE} session list"))?;
        }
        stage.text("Try it yourself: mainspring chat")?;
        Ok(Exit::Done)
    }
}

/// Name of the configuration file within the demo's folder.
const FILE: &str = "demo.toml";

/// Builds the demo's configuration, independent of the user's. Also written to a file, for the process that is killed
/// and for a folder that is kept.
fn config(context: &Context<'_>, dir: &Path) -> Result<Config, Fail> {
    let models = format!("[models.{DEFAULT_PROFILE}]\nprovider = \"{SCRIPTED}\"\nmodel = \"demo\"\n");
    std::fs::create_dir_all(dir)?;
    let file = format!("state_dir = \".\"\nowner = \"demo\"\nadapter = \"{}\"\n\n{models}", native::NAME);
    std::fs::write(dir.join(FILE), file)?;
    let models: ModelsConfig =
        toml::from_str(&models).map_err(|error| Fail::bad_request(error.to_string()))?;
    Ok(Config {
        retry: mainspring::config::Retry { base_ms: 400, ..context.config().retry },
        state_dir: dir.to_owned(),
        agents_dir: dir.join("agents"),
        adapter: native::NAME.into(),
        adapters: Default::default(),
        models,
        ..context.config().clone()
    })
}

struct Stage<'a> {
    output: &'a Output,
    caller: Caller,
}

impl Stage<'_> {
    /// Prints a line, unless the output is JSON.
    fn text(&self, text: &str) -> Result<(), Fail> {
        if !self.output.json {
            self.output.line(text)?;
        }
        Ok(())
    }

    fn title(&self, title: &str) -> Result<(), Fail> {
        self.text("")?;
        self.text(&format!("{BOLD}{title}{BOLD:#}"))
    }

    async fn play(&self, kernel: &Kernel, story: &Story) -> Result<Run, Fail> {
        let mut request = RunRequest::text(story.key, story.prompt);
        request.session.new = NewSession { title: Some(story.shows.into()), ..NewSession::default() };
        let accepted = kernel.run_create(&self.caller, request).await?;
        self.line(story, &format!("{DIM}accepted{DIM:#}"))?;
        self.follow(kernel, story, accepted.session.id, &accepted.run, accepted.position).await
    }

    /// Plays a first answer, then another answer to the same prompt, as a branch.
    async fn play_branch(&self, kernel: &Kernel, story: &Story) -> Result<Run, Fail> {
        let first = self.play(kernel, story).await?;
        let message_id = prompt_of(kernel, &self.caller, &first).await?;
        let mut again = RunRequest::text(story.key, "");
        again.prompt = vec![];
        again.place = Place::Regenerate { message_id };
        let accepted = kernel.run_create(&self.caller, again).await?;
        self.line(story, &format!("{DIM}accepted: another answer to the same prompt{DIM:#}"))?;
        self.follow(kernel, story, accepted.session.id, &accepted.run, accepted.position).await
    }

    /// Shows a run as it happens until it ends, and answers its questions.
    async fn follow(
        &self,
        kernel: &Kernel,
        story: &Story,
        session: SessionId,
        run: &Run,
        from: mainspring_core::Position,
    ) -> Result<Run, Fail> {
        let mut events = kernel.session_subscribe(&self.caller, &SessionRef::Id(session), Some(from)).await?;
        let mut text = String::new();
        let mut bytes = 0;
        let mut streamed = None;
        // Thoughts arrive in pieces.
        let mut thought = String::new();
        while let Some(item) = events.next().await.transpose()? {
            if let Item::Thought(more) = &item {
                thought.push_str(&more.text);
                continue;
            }
            if !thought.is_empty() {
                self.line(story, &format!("{DIM}thinks: {}{DIM:#}", std::mem::take(&mut thought)))?;
            }
            match item {
                Item::Delta(Delta { text: more, message, .. }) => {
                    streamed = Some(message);
                    bytes += more.len();
                    text.push_str(&more);
                    self.say(story, &mut text, false)?;
                    if story.key == "cancel" && bytes > 90 && bytes < 90 + more.len() + 1 {
                        kernel.run_cancel(&self.caller, run.id).await?;
                    }
                }
                Item::Event(event) if event.run == Some(run.id) => {
                    // Text that was streamed before the subscription began is taken from the completed message.
                    if let Body::MessageCompleted { message, .. } = &event.body
                        && message.role == Role::Assistant
                        && streamed != Some(message.id)
                    {
                        text.push_str(&message.text());
                    }
                    self.say(story, &mut text, !matches!(event.body, Body::UsageUpdated { .. }))?;
                    self.tell(story, &event.body)?;
                    if let Body::RunWaitingInput { wait_id } = event.body {
                        let answer = Answer::Input { input: "tea".into() };
                        kernel.run_answer(&self.caller, run.id, wait_id, answer).await?;
                    }
                    if event.body.ends_run() {
                        break;
                    }
                }
                _ => {}
            }
        }
        Ok(kernel.run_get(&self.caller, run.id).await?)
    }

    /// Prints the complete lines of the streamed text, or all of it when `all` is set.
    fn say(&self, story: &Story, text: &mut String, all: bool) -> Result<(), Fail> {
        loop {
            let end = match text.find('\n') {
                Some(end) => end,
                None if text.len() > 60 => text.rfind(' ').unwrap_or(text.len()),
                None if all && !text.is_empty() => text.len(),
                None => return Ok(()),
            };
            let rest = text.split_off(end);
            self.line(story, text)?;
            *text = rest.trim_start_matches(['\n', ' ']).to_owned();
        }
    }

    fn tell(&self, story: &Story, body: &Body) -> Result<(), Fail> {
        let text = match body {
            Body::AttemptCreated { attempt_no, .. } if *attempt_no > 1 => format!("attempt {attempt_no}"),
            Body::AttemptFailed { error, retryable, .. } => {
                format!(
                    "attempt failed: {}{}",
                    error.message,
                    if *retryable { ", will be tried again" } else { "" }
                )
            }
            Body::ToolStarted { name, .. } => format!("tool {name} is about to run"),
            Body::ToolCompleted { name, .. } => format!("tool {name} answered"),
            Body::InputRequested { question, .. } => format!("asks: {question}"),
            Body::InputProvided { input: Some(input), .. } => {
                format!("was answered: {}", input.as_str().unwrap_or_default())
            }
            Body::RunCancellationRequested { .. } => "cancellation requested".into(),
            Body::AttemptCancelDispatch { .. } => "the agent was told to stop".into(),
            Body::RunSucceeded { .. } => "succeeded".into(),
            Body::RunCancelled { .. } => "cancelled: it has stopped".into(),
            Body::RunOrphaned { error, .. } => format!("orphaned: {}", error.message),
            Body::RunFailed { error, .. } => format!("failed: {}", error.message),
            _ => return Ok(()),
        };
        self.line(story, &format!("{DIM}{text}{DIM:#}"))
    }

    fn line(&self, story: &Story, text: &str) -> Result<(), Fail> {
        let style = Style::new().fg_color(Some(story.colour.into()));
        self.text(&format!("  {style}{:>7}{style:#} {DIM}│{DIM:#} {text}", story.key))
    }

    async fn summary(&self, kernel: &Kernel, runs: &[Run]) -> Result<(), Fail> {
        if self.output.json {
            return Ok(runs.iter().try_for_each(|run| self.output.object(run))?);
        }
        let mut rows = vec![];
        for (story, run) in STORIES.iter().zip(runs) {
            let took = run.completed_at.map(|end| span(end.since(run.created_at))).unwrap_or_default();
            rows.push(vec![
                format!(" {}", story.key),
                output::status(run.state.status()),
                run.attempts.to_string(),
                kernel.run_steps(&self.caller, run.id).await?.len().to_string(),
                took,
                story.shows.into(),
            ]);
        }
        let headings = [" session", "status", "attempts", "model calls", "took", "what it shows"];
        Ok(self.output.table(&headings, rows)?)
    }

    /// Counts the events of all sessions.
    async fn count(&self, kernel: &Kernel) -> Result<usize, Fail> {
        let mut count = 0;
        for (session, _) in kernel.session_list(&self.caller, SessionQuery::default()).await? {
            let mut after = Cursor::START;
            loop {
                let page = kernel
                    .session_events(&self.caller, &SessionRef::Id(session.id), after, Some(100))
                    .await?;
                let Some(last) = page.last() else { break };
                after = last.cursor;
                count += page.len();
            }
        }
        Ok(count)
    }

    /// Starts this program as a child process on the same folder and kills it while it streams.
    async fn crash(&self, dir: &Path) -> Result<(), Fail> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?);
        child.arg("--state-dir").arg(dir).arg("--config").arg(dir.join(FILE));
        child.args([
            "--owner",
            "demo",
            "prompt",
            "--session",
            "crash",
            "--adapter",
            native::NAME,
            CRASH.prompt,
        ]);
        let mut child = child
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut shown = vec![];
        if let Some(out) = &mut child.stdout {
            let mut buffer = [0; 64];
            while shown.len() < 100 {
                match out.read(&mut buffer).await? {
                    0 => break,
                    n => shown.extend_from_slice(&buffer[..n]),
                }
            }
        }
        child.kill().await?;
        self.line(&CRASH, output::excerpt(&String::from_utf8_lossy(&shown), 60).as_str())?;
        self.line(&CRASH, &format!("{DIM}kill -9 after {} bytes of its answer{DIM:#}", shown.len()))
    }

    /// Shows that a new process finds every acknowledged event, and the interrupted run marked as such.
    async fn recover(&self, kernel: &Kernel, before: usize) -> Result<(), Fail> {
        let by = SessionRef::Key("crash".into());
        let query = mainspring_kernel::kernel::RunQuery {
            session: Some(kernel.session_get(&self.caller, &by).await?.id),
            ..Default::default()
        };
        let runs = kernel.run_list(&self.caller, query).await?;
        let Some(run) = runs.first() else {
            return Err(Fail::bad_request("the run of the crash is gone"));
        };
        let kept = kernel.session_path(&self.caller, &by, None, None).await?;
        let kept: usize = kept
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| message.text().len())
            .sum();
        if let RunState::Orphaned { error } = &run.state {
            self.line(
                &CRASH,
                &format!(
                    "{DIM}a new process finds it {}: {}; {kept} bytes of its answer were kept{DIM:#}",
                    RunStatus::Orphaned,
                    error.message
                ),
            )?;
        }
        self.line(&CRASH, &format!("{DIM}all {before} events of before are there{DIM:#}"))?;
        let now = self.count(kernel).await?;
        if now < before {
            return Err(Fail::bad_request(format!("{} events are gone", before - now)));
        }
        let snapshot = kernel.session_snapshot(&self.caller, &by).await?;
        kernel.run_retry(&self.caller, run.id).await?;
        let run = self.follow(kernel, &CRASH, run.session, run, snapshot.position).await?;
        self.line(
            &CRASH,
            &format!("retried: {} in attempt {}", output::status(run.state.status()), run.attempts),
        )
    }
}

const CRASH: Story = Story {
    key: "crash",
    shows: "killed, found, tried again",
    prompt: "stream 30 every 40ms working; say finished.",
    colour: AnsiColor::White,
};

/// Finds the user message that started `run`.
async fn prompt_of(kernel: &Kernel, caller: &Caller, run: &Run) -> Result<MessageId, Fail> {
    let path = kernel.session_path(caller, &SessionRef::Id(run.session), None, None).await?;
    let prompt = path.iter().find(|message| message.role == Role::User);
    prompt.map(|message| message.id).ok_or_else(|| Fail::bad_request("the session has no prompt"))
}
