//! The script agent: deterministic, built in, needs no model. Its prompt is the script it follows.
//!
//! It is for trying things out and for driving every path of the kernel: streaming, tools, questions, failures that
//! are retried, crashes, hangs, agents that ignore a cancellation. docs/script.md describes the language.

use async_trait::async_trait;
use mainspring_core::script::{Call, Command, parse};
use mainspring_core::{
    Answer, Approval, AttemptId, Block, ClientCall, ClientResult, Failure, Fidelity, Place, ToolOutcome,
    WaitRequest,
};
use mainspring_kernel::adapter::{
    Adapter, Ask, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Record,
    RestartBehavior,
};
use serde_json::{Value, json};

mod tools;

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
            supports_client_tools: true,
            supports_steering: false,
            restart_behavior: RestartBehavior::AttemptsOrphaned,
            uses_bindings: false,
            supports_authentication: false,
            keeps_limits: false,
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
            let asked = from.checked_sub(1).and_then(|at| Some((at, script.get(at)?)));
            match (&answered.answer, asked) {
                (Answer::Tools { results }, Some((at, Command::Tools(calls)))) => {
                    let blocks = self.results(at, calls, results);
                    self.attempt.record(vec![Record::ToolResults { blocks }]).await?;
                }
                (answer, _) => self.attempt.delta(0, &reply_to(answer))?,
            }
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
                Command::Tools(calls) => {
                    if let Some(waiting) = self.tools(at, calls).await? {
                        return Ok(waiting);
                    }
                }
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

    /// One tool round: the calls are durable before the tools run, their outcomes before the script goes on. Those that
    /// the caller executes come last: the run waits for them with what the others said.
    async fn tools(&self, at: usize, calls: &[Call]) -> Result<Option<Executed>, Stop> {
        let declared = &self.attempt.assignment().run.options.tools;
        let is_client = |call: &Call| declared.iter().any(|tool| tool.name == call.name);
        if let Some(taken) = calls.iter().find(|call| is_client(call) && tools::is_own(&call.name)) {
            let message = format!("the script has a tool of its own called {:?}", taken.name);
            return Ok(Some(End::failed(Failure::new("tool_name_taken", message), false)));
        }
        let blocks = self.numbered(at, calls).map(|(id, call)| Block::ToolUse {
            id,
            name: call.name.clone(),
            input: call.input.clone(),
        });
        let mut records = vec![Record::Message { blocks: blocks.collect(), usage: None }];
        let own = || self.numbered(at, calls).filter(|(_, call)| !is_client(call));
        records.extend(own().map(|(id, call)| Record::ToolStarted {
            tool_use_id: id,
            name: call.name.clone(),
            input: None,
        }));
        self.attempt.record(records).await?;
        let (mut results, mut ended) = (vec![], vec![]);
        for (tool_use_id, call) in own() {
            let outcome = tools::run(&call.name, &call.input);
            let is_error = outcome.is_err();
            let (text, record) = match outcome {
                Ok(text) => (text, Record::ToolCompleted { tool_use_id: tool_use_id.clone() }),
                Err(text) => {
                    let (tool_use_id, error) =
                        (tool_use_id.clone(), Failure::new("tool_failed", text.clone()));
                    (text, Record::ToolFailed { tool_use_id, outcome: ToolOutcome::Failed, error })
                }
            };
            results.push(ClientResult { tool_use_id, content: Value::String(text), is_error });
            ended.push(record);
        }
        let asked = self.numbered(at, calls).filter(|(_, call)| is_client(call));
        let asked: Vec<ClientCall> = asked
            .map(|(tool_use_id, call)| ClientCall {
                tool_use_id,
                name: call.name.clone(),
                input: call.input.clone(),
                answered: false,
            })
            .collect();
        if asked.is_empty() {
            ended.push(Record::ToolResults { blocks: self.results(at, calls, &results) });
            self.attempt.record(ended).await?;
            return Ok(None);
        }
        if !ended.is_empty() {
            self.attempt.record(ended).await?;
        }
        Ok(Some(Executed::Waiting(Ask { results, resume: self.resume(at), ..Ask::calls(asked) })))
    }

    /// The calls with their ids: unique within the session, and the same again if this attempt is played again.
    fn numbered<'a>(
        &self,
        at: usize,
        calls: &'a [Call],
    ) -> impl Iterator<Item = (String, &'a Call)> + use<'a> {
        let attempt = self.attempt.id();
        let only = calls.len() == 1;
        calls.iter().enumerate().map(move |(no, call)| match only {
            true => (format!("{attempt}.{at}"), call),
            false => (format!("{attempt}.{at}.{no}"), call),
        })
    }

    /// What came of the calls, in their order.
    fn results(&self, at: usize, calls: &[Call], results: &[ClientResult]) -> Vec<Block> {
        let block = |(id, call): (String, &Call)| {
            let result = results.iter().find(|result| result.tool_use_id == id)?;
            Some(Block::ToolResult {
                tool_use_id: id,
                name: call.name.clone(),
                content: vec![Block::text(result.text())],
                is_error: result.is_error,
            })
        };
        self.numbered(at, calls).filter_map(block).collect()
    }

    /// What the player wants back with an answer: where the script goes on.
    fn resume(&self, at: usize) -> Value {
        json!({"next": at + 1, "ignoresCancel": self.ignores_cancel})
    }

    /// Puts a question and gives the worker back; the script goes on after it once it is answered.
    async fn ask(&self, at: usize, request: WaitRequest, question: &str) -> Result<Executed, Stop> {
        self.say(question)?;
        self.attempt.record(vec![Record::Message { blocks: vec![], usage: None }]).await?;
        Ok(Executed::Waiting(Ask { resume: self.resume(at), ..Ask::new(request, question) }))
    }
}

fn reply_to(answer: &Answer) -> String {
    match answer {
        Answer::Input { input: Value::String(text) } => format!("You answered: {text}\n"),
        Answer::Input { input } => format!("You answered: {input}\n"),
        Answer::Approval { decision: Approval::Allowed } => "Approved.\n".into(),
        Answer::Approval { .. } => "Denied.\n".into(),
        Answer::Tools { .. } => "Your tools have answered.\n".into(),
    }
}
