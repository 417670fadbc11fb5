//! The built-in script agent: deterministic and without a model. It executes its prompt as a script.
//!
//! Demos and tests use it to drive every path of the kernel: streaming, tools, questions, retried failures, crashes,
//! hangs, ignored cancellations. docs/script.md describes the language.

use std::collections::HashSet;

use async_trait::async_trait;
use mainspring_core::script::{Call, Command, parse};
use mainspring_core::{
    Answer, Approval, ApprovalAnswer, ApprovalChoice, ApprovalRequest, AttemptId, Block, ClientCall,
    ClientResult, Failure, Place, Time, ToolOutcome, UsageReports, WaitRequest,
};
use mainspring_kernel::Error;
use mainspring_kernel::adapter::{
    Adapter, Ask, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, Record,
};
use mainspring_kernel::tasks::Tasks;
use serde_json::{Value, json};

use crate::endpoint::{Attached, Endpoint, Peers, RelayOptions};

mod tools;

/// Executes each prompt as a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptAdapter;

/// The name of the script adapter.
pub const NAME: &str = "script";

#[async_trait]
impl Adapter for ScriptAdapter {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            in_process: true,
            supports_cancellation: true,
            supports_tools: true,
            limits_tools: true,
            supports_client_tools: true,
            usage_reports: UsageReports::Live,
            ..Capabilities::minimal(NAME)
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let script = match parse(&attempt.assignment().prompt.text()) {
            Ok(script) => script,
            Err(error) => return End::failed(Failure::new("script_error", error.to_string()), false),
        };
        let mut interpreter = Interpreter { attempt, ignores_cancel: false, relay: None, pending: vec![] };
        let ran = interpreter.run(&script).await;
        let kept = interpreter.record_pending_at_end().await;
        match ran.and_then(|executed| kept.map(|()| executed)) {
            Ok(executed) => executed,
            // The kernel ignores the result of a revoked attempt.
            Err(Interrupted::Cancelled | Interrupted::Handle(HandleError::Revoked)) => End::stopped(),
            Err(Interrupted::Handle(HandleError::Kernel(error))) => {
                End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable())
            }
        }
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        // The interpreter watches the handle's cancellation itself; it confirms only by returning.
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        // The agent consists only of the future, which was dropped.
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}

/// Why a script did not run to its end.
enum Interrupted {
    Cancelled,
    Handle(HandleError),
}

impl From<HandleError> for Interrupted {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

struct Interpreter {
    attempt: AttemptHandle,
    ignores_cancel: bool,
    /// The endpoint of the run, once the script has opened it.
    relay: Option<(Attached, Endpoint)>,
    /// The records of the last round of tool calls. They are recorded before the script does anything else, or by the
    /// commit that ends the attempt. Nothing acts on the results before they are recorded.
    pending: Vec<Record>,
}

impl Interpreter {
    async fn run(&mut self, script: &[Command]) -> Result<Executed, Interrupted> {
        let attempt_no = self.attempt.assignment().attempt.no;
        let mut start = 0;
        if let Some(answered) = self.attempt.answer() {
            start = answered.resume["next"].as_u64().and_then(|next| usize::try_from(next).ok()).unwrap_or(0);
            self.ignores_cancel = answered.resume["ignoresCancel"].as_bool().unwrap_or(false);
            let waiting = start.checked_sub(1).and_then(|index| Some((index, script.get(index)?)));
            match (&answered.answer, waiting) {
                (Answer::Tools { results }, Some((index, Command::Tools(calls)))) => {
                    let asked_at = answered.resume["askedAt"].as_i64().map(Time);
                    let mut records = self.provided_records(index, calls, results, asked_at);
                    records.push(Record::ToolResults { blocks: self.result_blocks(index, calls, results) });
                    self.attempt.record(records).await?;
                }
                (answer, _) => self.attempt.delta(0, &reply_to(answer))?,
            }
        }
        for (index, command) in script.iter().enumerate().skip(start) {
            self.check_cancel()?;
            self.record_pending().await?;
            match command {
                Command::Say(text) => self.stream_words(text)?,
                Command::Vary(texts) => self.stream_words(self.pick_variant(texts))?,
                Command::Stream { count, every, text } => self.stream(*count, *every, text).await?,
                Command::Think(text) => self.attempt.thought(text)?,
                Command::Progress(text) => {
                    self.attempt.record(vec![Record::Progress { text: text.clone() }]).await?;
                }
                Command::Usage(usage) => self.attempt.record(vec![Record::Usage(*usage)]).await?,
                Command::Sleep(millis) => self.sleep(*millis).await?,
                Command::Tools(calls) => {
                    if let Some(executed) = self.run_tools(index, calls).await? {
                        return Ok(executed);
                    }
                }
                Command::Ask(question) => return self.ask(index, WaitRequest::Input, question).await,
                Command::Approve(question) => return self.ask(index, WaitRequest::Approval, question).await,
                Command::Fail { once: true, .. } | Command::Crash { once: true } if attempt_no > 1 => {}
                Command::Fail { once, retry, message } => {
                    return Ok(End::failed(Failure::new("script_failed", message), *once || *retry));
                }
                Command::Crash { .. } => panic!("the script said crash"),
                Command::Relay => self.open_relay()?,
                Command::Hang => self.hang().await?,
                Command::IgnoreCancel => self.ignores_cancel = true,
            }
        }
        Ok(End::succeeded())
    }

    /// Makes the pending records durable. If that fails, [`Self::record_pending_at_end`] records them.
    async fn record_pending(&mut self) -> Result<(), Interrupted> {
        if !self.pending.is_empty() {
            self.attempt.record(self.pending.clone()).await?;
            self.pending.clear();
        }
        Ok(())
    }

    /// Leaves the pending records to the commit that ends the attempt.
    async fn record_pending_at_end(&mut self) -> Result<(), Interrupted> {
        match std::mem::take(&mut self.pending) {
            none if none.is_empty() => Ok(()),
            pending => Ok(self.attempt.record_at_end(pending).await?),
        }
    }

    /// Opens an endpoint for this process and streams its path.
    fn open_relay(&mut self) -> Result<(), Interrupted> {
        let key = self.attempt.assignment().run.options.key.as_deref();
        // A relay serves all control tools.
        key.map_or(Ok(()), |key| key.check_tool("relay"))
            .map_err(|error| HandleError::Kernel(error.into()))?;
        let (attempt, tasks) = (&self.attempt, Tasks::default());
        let opened = Endpoint::open(NAME, Peers::Own, RelayOptions::default(), attempt, &tasks);
        let endpoint = opened.map_err(|error| HandleError::Kernel(Error::Invalid(error.to_string())))?;
        let socket = endpoint.socket();
        self.relay = Some((endpoint.attach(&self.attempt), endpoint));
        Ok(self.attempt.delta(0, &format!("{socket}\n"))?)
    }

    fn check_cancel(&self) -> Result<(), Interrupted> {
        if self.attempt.is_cancelled() && !self.ignores_cancel { Err(Interrupted::Cancelled) } else { Ok(()) }
    }

    /// Streams `text` word by word, as a model would.
    fn stream_words(&self, text: &str) -> Result<(), Interrupted> {
        for word in text.split_inclusive(' ') {
            self.attempt.delta(0, word)?;
        }
        self.attempt.delta(0, "\n")?;
        Ok(())
    }

    /// Returns the first text, or one of the others if the run regenerates an answer.
    fn pick_variant<'a>(&self, texts: &'a [String]) -> &'a str {
        let run = &self.attempt.assignment().run;
        let others = texts.len().saturating_sub(1).max(1);
        let index = match run.place {
            Place::Regenerate { .. } => 1 + usize::from(run.id.as_bytes()[15]) % others,
            _ => 0,
        };
        texts.get(index).map(String::as_str).unwrap_or_default()
    }

    async fn stream(&self, count: u64, interval_ms: u64, text: &str) -> Result<(), Interrupted> {
        for no in 1..=count {
            match text {
                "" => self.attempt.delta(0, &format!("{no} "))?,
                text => self.attempt.delta(0, &format!("{text} "))?,
            }
            match interval_ms {
                0 if no % 256 == 0 => tokio::task::yield_now().await,
                0 => {}
                millis => self.sleep(millis).await?,
            }
            self.check_cancel()?;
        }
        Ok(())
    }

    async fn sleep(&self, millis: u64) -> Result<(), Interrupted> {
        if self.ignores_cancel {
            self.attempt.sleep_for(millis).await;
            return Ok(());
        }
        tokio::select! {
            () = self.attempt.sleep_for(millis) => Ok(()),
            () = self.attempt.cancelled() => Err(Interrupted::Cancelled),
        }
    }

    async fn hang(&self) -> Result<(), Interrupted> {
        if self.ignores_cancel {
            std::future::pending::<()>().await;
        }
        self.attempt.cancelled().await;
        Err(Interrupted::Cancelled)
    }

    /// Runs one round of tool calls. The built-in tools are pure: running one again changes nothing, so a call need not be
    /// durable before it runs, and is recorded together with its outcome. Both are durable before the script does anything
    /// else. If some of the tools are the caller's, the attempt waits for their results and keeps the others.
    async fn run_tools(&mut self, index: usize, calls: &[Call]) -> Result<Option<Executed>, Interrupted> {
        let client_tools: HashSet<&str> =
            calls.iter().filter(|call| self.is_client(call)).map(|call| call.name.as_str()).collect();
        let is_client = |call: &Call| client_tools.contains(call.name.as_str());
        if let Some(taken) = calls.iter().find(|call| is_client(call) && tools::is_builtin(&call.name)) {
            let message = format!("the script has a tool of its own called {:?}", taken.name);
            return Ok(Some(End::failed(Failure::new("tool_name_taken", message), false)));
        }
        let key = self.attempt.assignment().run.options.key.as_deref();
        let listed = |call: &Call| key.map_or(Ok(()), |key| key.check_tool(&call.name));
        if let Err(refusal) = calls.iter().try_for_each(listed) {
            let error = Error::from(refusal);
            return Ok(Some(End::failed(Failure::new(error.code(), error.to_string()), false)));
        }
        let tool_use = |(id, call): (String, &Call)| Block::tool_use(id, &call.name, call.input.clone());
        let blocks = self.with_ids(index, calls).map(tool_use);
        let mut records = vec![Record::Message { blocks: blocks.collect(), usage: None }];
        let builtin: Vec<(String, &Call)> =
            self.with_ids(index, calls).filter(|(_, call)| !is_client(call)).collect();
        records.extend(builtin.iter().cloned().map(|(id, call)| Record::ToolStarted {
            tool_use_id: id,
            name: call.name.clone(),
            input: None,
            decided_by: None,
        }));
        let mut results = vec![];
        for (tool_use_id, call) in builtin {
            let outcome = tools::run(&call.name, &call.input);
            let is_error = outcome.is_err();
            let (text, record) = match outcome {
                Ok(text) => {
                    let (tool_use_id, content) = (tool_use_id.clone(), vec![Block::text(text.clone())]);
                    (text, Record::ToolCompleted { tool_use_id, content })
                }
                Err(text) => {
                    let (tool_use_id, error) =
                        (tool_use_id.clone(), Failure::new("tool_failed", text.clone()));
                    let outcome = ToolOutcome::Failed;
                    (text, Record::ToolFailed { tool_use_id, outcome, error, content: vec![] })
                }
            };
            results.push(ClientResult {
                tool_use_id,
                content: Value::String(text),
                is_error,
                ..ClientResult::default()
            });
            records.push(record);
        }
        let client_calls = self.with_ids(index, calls).filter(|(_, call)| is_client(call));
        let client_calls: Vec<ClientCall> = client_calls
            .map(|(tool_use_id, call)| ClientCall {
                tool_use_id,
                name: call.name.clone(),
                input: call.input.clone(),
                ..ClientCall::default()
            })
            .collect();
        if client_calls.is_empty() {
            records.push(Record::ToolResults { blocks: self.result_blocks(index, calls, &results) });
            self.pending = records;
            return Ok(None);
        }
        self.attempt.record(records).await?;
        let mut resume = self.resume_state(index);
        resume["askedAt"] = self.attempt.now().0.into();
        Ok(Some(Executed::Waiting(Ask { results, resume, ..Ask::calls(client_calls) })))
    }

    /// True if the caller of the run executes the call.
    fn is_client(&self, call: &Call) -> bool {
        self.attempt.assignment().run.options.tools.iter().any(|tool| tool.name == call.name)
    }

    /// Builds the records of the calls that the caller has executed.
    fn provided_records(
        &self,
        index: usize,
        calls: &[Call],
        results: &[ClientResult],
        asked_at: Option<Time>,
    ) -> Vec<Record> {
        let record = |(tool_use_id, call): (String, &Call)| {
            let result = results.iter().find(|result| result.tool_use_id == tool_use_id)?;
            let (_, result) = result.to_call_result();
            Some(Record::ToolProvided { tool_use_id, name: call.name.clone(), asked_at, result })
        };
        self.with_ids(index, calls).filter(|(_, call)| self.is_client(call)).filter_map(record).collect()
    }

    /// Pairs each call with its id, which is unique within the session and the same when this attempt is executed again.
    fn with_ids<'a>(
        &self,
        index: usize,
        calls: &'a [Call],
    ) -> impl Iterator<Item = (String, &'a Call)> + use<'a> {
        let attempt = self.attempt.id();
        let only = calls.len() == 1;
        calls.iter().enumerate().map(move |(no, call)| match only {
            true => (format!("{attempt}.{index}"), call),
            false => (format!("{attempt}.{index}.{no}"), call),
        })
    }

    /// Builds the result blocks in the order of the calls.
    fn result_blocks(&self, index: usize, calls: &[Call], results: &[ClientResult]) -> Vec<Block> {
        let block = |(id, call): (String, &Call)| {
            let result = results.iter().find(|result| result.tool_use_id == id)?;
            Some(Block::tool_result(
                id,
                call.name.clone(),
                vec![Block::text(result.text())],
                result.is_error(),
            ))
        };
        self.with_ids(index, calls).filter_map(block).collect()
    }

    /// The state that is returned with the answer: the script continues after the command at `index`.
    fn resume_state(&self, index: usize) -> Value {
        json!({"next": index + 1, "ignoresCancel": self.ignores_cancel})
    }

    /// Asks a question and returns, which frees the worker. The script continues when the answer arrives.
    async fn ask(&self, index: usize, request: WaitRequest, question: &str) -> Result<Executed, Interrupted> {
        self.stream_words(question)?;
        self.attempt.record(vec![Record::Message { blocks: vec![], usage: None }]).await?;
        let approval = ApprovalRequest::plain().offer(&[ApprovalChoice::DenyWithReason]);
        let approval = (request == WaitRequest::Approval).then(|| Box::new(approval));
        let resume = self.resume_state(index);
        Ok(Executed::Waiting(Ask { resume, approval, ..Ask::new(request, question) }))
    }
}

fn reply_to(answer: &Answer) -> String {
    match answer {
        Answer::Input { input: Value::String(text) } => format!("You answered: {text}\n"),
        Answer::Input { input } => format!("You answered: {input}\n"),
        Answer::Approval(answer) if answer.decision == Approval::Allowed => "Approved.\n".into(),
        Answer::Approval(ApprovalAnswer { reason: Some(reason), .. }) => format!("Denied: {reason}\n"),
        Answer::Approval(_) => "Denied.\n".into(),
        Answer::Tools { .. } => "Your tools have answered.\n".into(),
    }
}
