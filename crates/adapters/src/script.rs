//! The script agent: deterministic, built in, needs no model. Its prompt is the script it follows.
//!
//! It is for trying things out and for driving every path of the kernel: streaming, tools, questions, failures that
//! are retried, crashes, hangs, agents that ignore a cancellation. docs/script.md describes the language.

use async_trait::async_trait;
use mainspring_core::{
    Answer, Approval, AttemptId, Block, Failure, Fidelity, Place, ToolOutcome, WaitRequest,
};
use mainspring_kernel::adapter::{
    Adapter, Ask, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Record,
    RestartBehavior,
};
use serde_json::{Value, json};

mod parse;
mod tools;
pub use parse::{BadScript, Command, parse};

/// Follows the script that is its prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptAdapter;

/// The adapter's name.
pub const NAME: &str = "script";

#[async_trait]
impl Adapter for ScriptAdapter {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adapter: NAME.into(),
            resume_fidelity: Fidelity::None,
            supports_native_resume: false,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: false,
            supports_model_switching: false,
            supports_artifact_emission: false,
            supports_tools: true,
            supports_steering: false,
            restart_behavior: RestartBehavior::AttemptsOrphaned,
            uses_bindings: false,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let script = match parse(&attempt.assignment().prompt.text()) {
            Ok(script) => script,
            Err(bad) => return End::failed(Failure::new("script_error", bad.to_string()), false),
        };
        let mut player = Player { attempt, ignores_cancel: false };
        match player.play(&script).await {
            Ok(executed) => executed,
            // Without authority nobody listens; what is returned is not applied.
            Err(Stop::Cancelled | Stop::Handle(HandleError::Revoked)) => End::stopped(),
            Err(Stop::Handle(HandleError::Kernel(error))) => {
                End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable())
            }
        }
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        // It sees the handle's own signal. It has stopped when it returns, and says nothing before.
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        // It is nothing but the future that has been dropped.
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}

enum Stop {
    Cancelled,
    Handle(HandleError),
}

impl From<HandleError> for Stop {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

struct Player {
    attempt: AttemptHandle,
    ignores_cancel: bool,
}

impl Player {
    async fn play(&mut self, script: &[Command]) -> Result<Executed, Stop> {
        let no = self.attempt.assignment().attempt.no;
        let mut from = 0;
        if let Some(answered) = self.attempt.answer() {
            from = answered.resume["next"].as_u64().and_then(|next| usize::try_from(next).ok()).unwrap_or(0);
            self.ignores_cancel = answered.resume["ignoresCancel"].as_bool().unwrap_or(false);
            let reply = reply_to(&answered.answer);
            self.attempt.delta(0, &reply)?;
        }
        for (at, command) in script.iter().enumerate().skip(from) {
            self.check_cancel()?;
            match command {
                Command::Say(text) => self.say(text)?,
                Command::Vary(texts) => self.say(self.vary(texts))?,
                Command::Stream { count, every, text } => self.stream(*count, *every, text).await?,
                Command::Think(text) => self.attempt.thought(text)?,
                Command::Progress(text) => {
                    self.attempt.record(vec![Record::Progress { text: text.clone() }]).await?;
                }
                Command::Usage(usage) => self.attempt.record(vec![Record::Usage(*usage)]).await?,
                Command::Sleep(millis) => self.sleep(*millis).await?,
                Command::Tool { name, input } => self.tool(at, name, input).await?,
                Command::Ask(question) => return self.ask(at, WaitRequest::Input, question).await,
                Command::Approve(question) => return self.ask(at, WaitRequest::Approval, question).await,
                Command::Fail { once: true, .. } | Command::Crash { once: true } if no > 1 => {}
                Command::Fail { once, retry, message } => {
                    return Ok(End::failed(Failure::new("script_failed", message), *once || *retry));
                }
                Command::Crash { .. } => panic!("the script said crash"),
                Command::Hang => self.hang().await?,
                Command::IgnoreCancel => self.ignores_cancel = true,
            }
        }
        Ok(End::succeeded())
    }

    fn check_cancel(&self) -> Result<(), Stop> {
        if self.attempt.is_cancelled() && !self.ignores_cancel { Err(Stop::Cancelled) } else { Ok(()) }
    }

    /// Streams `text` word by word, as a model would.
    fn say(&self, text: &str) -> Result<(), Stop> {
        for word in text.split_inclusive(' ') {
            self.attempt.delta(0, word)?;
        }
        self.attempt.delta(0, "\n")?;
        Ok(())
    }

    /// The first of `texts`; as another answer to the same prompt, one of the others.
    fn vary<'a>(&self, texts: &'a [String]) -> &'a str {
        let run = &self.attempt.assignment().run;
        let others = texts.len().saturating_sub(1).max(1);
        let at = match run.place {
            Place::Regenerate { .. } => 1 + usize::from(run.id.as_bytes()[15]) % others,
            _ => 0,
        };
        texts.get(at).map(String::as_str).unwrap_or_default()
    }

    async fn stream(&self, count: u64, every: u64, text: &str) -> Result<(), Stop> {
        for no in 1..=count {
            match text {
                "" => self.attempt.delta(0, &format!("{no} "))?,
                text => self.attempt.delta(0, &format!("{text} "))?,
            }
            match every {
                0 if no % 256 == 0 => tokio::task::yield_now().await,
                0 => {}
                millis => self.sleep(millis).await?,
            }
            self.check_cancel()?;
        }
        Ok(())
    }

    async fn sleep(&self, millis: u64) -> Result<(), Stop> {
        let until = self.attempt.now().plus(millis);
        if self.ignores_cancel {
            self.attempt.sleep_until(until).await;
            return Ok(());
        }
        tokio::select! {
            () = self.attempt.sleep_until(until) => Ok(()),
            () = self.attempt.cancelled() => Err(Stop::Cancelled),
        }
    }

    async fn hang(&self) -> Result<(), Stop> {
        if self.ignores_cancel {
            std::future::pending::<()>().await;
        }
        self.attempt.cancelled().await;
        Err(Stop::Cancelled)
    }

    /// One tool round: the call is durable before the tool runs, its outcome before the script goes on.
    async fn tool(&self, at: usize, name: &str, input: &Value) -> Result<(), Stop> {
        // Unique within the session, and the same again if this attempt is played again.
        let id = format!("{}.{at}", self.attempt.id());
        let call = Block::ToolUse { id: id.clone(), name: name.to_owned(), input: input.clone() };
        let intent = Record::ToolStarted { tool_use_id: id.clone(), name: name.to_owned(), input: None };
        self.attempt.record(vec![Record::Message { blocks: vec![call], usage: None }, intent]).await?;
        let outcome = tools::run(name, input);
        let is_error = outcome.is_err();
        let (text, ended) = match outcome {
            Ok(text) => (text, Record::ToolCompleted { tool_use_id: id.clone() }),
            Err(text) => {
                let error = Failure::new("tool_failed", text.clone());
                let ended =
                    Record::ToolFailed { tool_use_id: id.clone(), outcome: ToolOutcome::Failed, error };
                (text, ended)
            }
        };
        let content = vec![Block::text(text)];
        let result = Block::ToolResult { tool_use_id: id, name: name.to_owned(), content, is_error };
        self.attempt.record(vec![ended, Record::ToolResults { blocks: vec![result] }]).await?;
        Ok(())
    }

    /// Puts a question and gives the worker back; the script goes on after it once it is answered.
    async fn ask(&self, at: usize, request: WaitRequest, question: &str) -> Result<Executed, Stop> {
        self.say(question)?;
        self.attempt.record(vec![Record::Message { blocks: vec![], usage: None }]).await?;
        let resume = json!({"next": at + 1, "ignoresCancel": self.ignores_cancel});
        Ok(Executed::Waiting(Ask { request, question: question.to_owned(), expires_at: None, resume }))
    }
}

fn reply_to(answer: &Answer) -> String {
    match answer {
        Answer::Input { input: Value::String(text) } => format!("You answered: {text}\n"),
        Answer::Input { input } => format!("You answered: {input}\n"),
        Answer::Approval { decision: Approval::Allowed } => "Approved.\n".into(),
        Answer::Approval { .. } => "Denied.\n".into(),
    }
}
