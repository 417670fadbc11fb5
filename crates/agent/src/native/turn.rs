//! The loop: looks at the head of the path and goes on from there, until the run ends or somebody is asked.

use std::collections::HashMap;

use mainspring_core::{
    Answer, Approval, Block, Budget, ClientResult, Failure, MessageId, MessageStatus, Role, Usage,
    WaitRequest,
};
use mainspring_kernel::adapter::{Ask, AttemptHandle, EarlierCalls, End, Executed, Record};
use serde::Deserialize;
use serde_json::Value;

use super::files::Files;
use super::resume::{About, Resume};
use super::{NativeAdapter, Plan, Stop, prompt};
use crate::hooks::{Decision, Next, Occasion};
use crate::provider::Call;

/// How often an answer that has not its form is asked for again.
const ASK_AGAIN: u32 = 3;

/// How long the MCP servers of a run may take to start, in milliseconds.
const MCP_START: u64 = 60_000;

/// One execution.
pub(super) struct Looper<'a> {
    pub(super) adapter: &'a NativeAdapter,
    pub(super) attempt: AttemptHandle,
    pub(super) plan: Plan,
    /// Model calls of the run that were answered.
    pub(super) steps: u32,
    /// What the run has used.
    pub(super) usage: Usage,
    /// What those have used, or may yet use, to whom the run has delegated.
    spent: Usage,
    /// What the provider demands back with messages of this run.
    pub(super) private: HashMap<MessageId, Value>,
    pub(super) resume: Resume,
    /// The files that its messages name.
    pub(super) files: Files,
    /// What earlier attempts left of the calls that this one takes up.
    pub(super) earlier: EarlierCalls,
}

/// What the path ends with.
enum Head {
    /// The model is to answer.
    User,
    /// Tools are to be called.
    Calls(Calls),
    /// The model has answered: its text, and what is to be recorded of it.
    Said { text: String, records: Vec<Record> },
}

/// Tool calls, and how far they are.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) calls: Vec<Call>,
    /// What was decided of the first of them.
    pub(super) decided: Vec<Decision>,
    /// Results that are known.
    pub(super) known: Vec<ClientResult>,
    /// What is to be recorded with them.
    pub(super) records: Vec<Record>,
}

impl<'a> Looper<'a> {
    pub(super) async fn run(adapter: &'a NativeAdapter, attempt: AttemptHandle) -> Result<Executed, Stop> {
        let assignment = attempt.assignment();
        let mut plan = Plan::of(adapter, &attempt).await?;
        let missing = tokio::select! {
            biased;
            () = attempt.cancelled() => return Ok(End::stopped()),
            missing = plan.add_mcp(adapter, assignment.run.mode) => missing?,
            () = attempt.sleep_until(attempt.now().plus(MCP_START)) => {
                let failure = Failure::new("mcp_unavailable", "an MCP server did not answer in time");
                return Ok(End::failed(failure, true));
            }
        };
        plan.add_client(&assignment.run.options.tools)?;
        let occasion = Occasion { session: assignment.session.id, run: assignment.run.id };
        let started = adapter.hooks.on_start(occasion, &mut plan).await;
        started.map_err(|failure| Stop::from(End::failed(failure, false)))?;
        let usage = assignment.run.usage;
        let mut looper = Self {
            adapter,
            attempt,
            plan,
            steps: 0,
            usage,
            spent: Usage::default(),
            private: HashMap::new(),
            resume: Resume::default(),
            files: Files::default(),
            earlier: EarlierCalls::default(),
        };
        if let Some(text) = missing {
            looper.attempt.record(vec![Record::Progress { text }]).await?;
        }
        looper.remember().await?;
        let mut head = looper.take_up().await?;
        loop {
            head = match head {
                Head::User => {
                    if looper.attempt.is_steered() {
                        // What was said to the run while it worked is on its path from here on.
                        looper.attempt.steer(vec![]).await?;
                    }
                    looper.count_children().await?;
                    looper.check_limits()?;
                    let context = looper.fitting().await?;
                    // To make it fit may have cost something.
                    looper.check_limits()?;
                    let stepped = looper.step(context).await?;
                    match stepped.calls.is_empty() {
                        true => Head::Said { text: stepped.text, records: stepped.records },
                        false => Head::Calls(Calls {
                            calls: stepped.calls,
                            records: stepped.records,
                            ..Calls::default()
                        }),
                    }
                }
                Head::Calls(calls) => {
                    looper.round(calls).await?;
                    looper.remember().await?;
                    Head::User
                }
                Head::Said { text, records } => match looper.said(&text, records).await? {
                    Some(executed) => return Ok(executed),
                    None => Head::User,
                },
            };
        }
    }

    pub(super) fn occasion(&self) -> Occasion {
        let assignment = self.attempt.assignment();
        Occasion { session: assignment.session.id, run: assignment.run.id }
    }

    /// Reads what the run's steps say, if it has any.
    async fn remember(&mut self) -> Result<(), Stop> {
        let first = self.attempt.assignment().attempt.no == 1 && self.attempt.answer().is_none();
        if first && self.steps == 0 {
            return Ok(());
        }
        let steps = self.attempt.steps().await?;
        self.steps = steps.iter().filter(|step| step.output.is_some()).map(|step| step.no).max().unwrap_or(0);
        let kept = steps.into_iter().filter_map(|step| Some((step.output?, step.private?)));
        self.private = kept.collect();
        Ok(())
    }

    /// Where the execution begins: at the head of the path, and with the answer it waited for.
    async fn take_up(&mut self) -> Result<Head, Stop> {
        let last = self.attempt.path(1).await?.pop();
        let (mut decided, mut known) = (vec![], vec![]);
        if let Some(answered) = self.attempt.answer().cloned() {
            let resume = Resume::deserialize(&answered.resume);
            self.resume =
                resume.map_err(|error| Stop::failed("corrupt", format!("what it waited with: {error}")))?;
            match std::mem::take(&mut self.resume.about) {
                About::Nothing => {}
                About::Limit => self.grant(&answered.answer)?,
                About::Tool { decided: before, pause } => {
                    decided = before;
                    decided.push(settle(&pause, &answered.answer));
                }
                About::Calls { decided: all } => {
                    decided = all;
                    if let Answer::Tools { results } = answered.answer {
                        known = results;
                    }
                }
            }
        }
        if self.attempt.assignment().attempt.no > 1 {
            self.earlier = self.attempt.earlier_calls().await?;
        }
        let last =
            last.filter(|last| last.role == Role::Assistant && last.status == MessageStatus::Completed);
        Ok(match last.map(|last| (prompt::calls(&last), last.text())) {
            None => Head::User,
            Some((calls, text)) if calls.is_empty() => Head::Said { text, records: vec![] },
            Some((calls, _)) => Head::Calls(Calls { calls, decided, known, records: vec![] }),
        })
    }

    /// Somebody said whether the run may use as much again.
    fn grant(&mut self, answer: &Answer) -> Result<(), Stop> {
        if matches!(answer, Answer::Approval { decision: Approval::Allowed }) {
            self.resume.granted += 1;
            return Ok(());
        }
        Err(Stop::failed("limit_reached", "the run has used up a limit, and nobody granted more"))
    }

    /// What the run may still use.
    pub(super) fn budget(&self) -> Option<Budget> {
        let run = &self.attempt.assignment().run;
        let since = run.started_at.unwrap_or(run.created_at);
        let used = self.usage + self.spent;
        Budget::of(&self.plan.limits, self.resume.granted + 1, self.steps, &used, since)
    }

    /// What was delegated is paid from the same purse.
    async fn count_children(&mut self) -> Result<(), Stop> {
        if self.plan.limits.max_tokens.is_some() || self.plan.limits.max_cost.is_some() {
            self.spent = self.attempt.spent_by_children().await?;
        }
        Ok(())
    }

    /// Before each model call: has the run used up what it may?
    fn check_limits(&self) -> Result<(), Stop> {
        let assignment = self.attempt.assignment();
        let limits = &self.plan.limits;
        let since = assignment.run.started_at.unwrap_or(assignment.run.created_at);
        let millis = self.attempt.now().since(since);
        let used = self.usage + self.spent;
        let Some(limit) = limits.limit_reached(self.resume.granted + 1, self.steps, &used, millis) else {
            return Ok(());
        };
        if limits.ask != Some(true) {
            let message = format!("the run has used up its limit of {limit}; raise it and retry");
            return Err(Stop::failed("limit_reached", message));
        }
        let question = format!("The run has used up its limit of {limit}. May it use as much again?");
        Err(self.wait(WaitRequest::Approval, question, About::Limit))
    }

    /// The execution returns until a person has answered.
    pub(super) fn wait(&self, request: WaitRequest, question: String, about: About) -> Stop {
        self.wait_for(Ask::new(request, question), about)
    }

    /// The execution returns until what it asks for is there.
    pub(super) fn wait_for(&self, ask: Ask, about: About) -> Stop {
        let resume = Resume { about, ..self.resume.clone() }.value();
        Executed::Waiting(Ask { resume, ..ask }).into()
    }

    /// The model has answered: the run ends, unless the answer has not its form or a hook wants more.
    async fn said(&mut self, text: &str, mut records: Vec<Record>) -> Result<Option<Executed>, Stop> {
        if let Some(form) = &self.plan.output {
            match form.read(text) {
                Ok(output) => records.push(Record::Output { output, error: None }),
                Err(problem) if self.resume.asked_again < ASK_AGAIN => {
                    self.resume.asked_again += 1;
                    let again = format!(
                        "Your answer does not fit: {problem}. Answer again, with the JSON value alone."
                    );
                    return self.go_on(again, records).await;
                }
                Err(problem) => {
                    let error = Failure::new("output_invalid", format!("the answer does not fit: {problem}"));
                    records.push(Record::Output { output: Value::Null, error: Some(error) });
                }
            }
        }
        let next = self.adapter.hooks.on_turn(self.occasion(), text).await;
        // Somebody who has more to say comes before what a hook has.
        if self.attempt.is_steered() && !self.attempt.steer(std::mem::take(&mut records)).await?.is_empty() {
            return Ok(None);
        }
        if let Next::Continue(more) = next {
            return self.go_on(more, records).await;
        }
        self.attempt.record_at_end(records).await?;
        self.name_session(text);
        Ok(Some(End::succeeded()))
    }

    /// The model is told `more` and goes on.
    async fn go_on(&mut self, more: String, mut records: Vec<Record>) -> Result<Option<Executed>, Stop> {
        records.push(Record::Continued { blocks: vec![Block::text(more)] });
        self.attempt.record(records).await?;
        Ok(None)
    }
}

/// What an answer makes of a call that was paused.
fn settle(pause: &Decision, answer: &Answer) -> Decision {
    use crate::hooks::ToolResult;
    let Decision::Pause { request, .. } = pause else { return pause.clone() };
    match (request, answer) {
        (WaitRequest::Approval, Answer::Approval { decision: Approval::Allowed }) => Decision::Execute,
        (WaitRequest::Approval, _) => Decision::Reject { reason: "the person you work for said no".into() },
        (WaitRequest::Input, Answer::Input { input }) => {
            let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
            Decision::Result { result: ToolResult { text, is_error: false } }
        }
        (WaitRequest::Input | WaitRequest::Tools, _) => {
            Decision::Reject { reason: "the person you work for gave no answer".into() }
        }
    }
}
