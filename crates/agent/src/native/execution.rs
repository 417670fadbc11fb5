//! One execution of a run: inspects the end of the path and continues from there, until the run ends or must wait.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{
    Answer, Approval, ApprovalAnswer, Block, Budget, ClientResult, Failure, FailureCode, Limit, MessageId,
    MessageStatus, Role, Sandbox, SuppliedResult, Time, Usage, WaitRequest,
};
use mainspring_kernel::adapter::{
    Ask, AttemptHandle, EarlierCalls, End, Executed, MAX_CHECKPOINT_BYTES, Record,
};
use mainspring_kernel::clock::Moment;
use serde::Deserialize;
use serde_json::Value;

use super::files::Files;
use super::network::NetworkRun;
use super::resume::{Question, Resume};
use super::{Exit, NativeAdapter, Plan, prompt};
use crate::hooks::{AfterTurn, HookContext, PlanChanges, ToolDecision, ToolResult};
use crate::provider::ToolUse;

/// The maximum number of times that the model is asked again for an answer that violates the output schema.
const MAX_OUTPUT_RETRIES: u32 = 3;

/// How long the MCP servers of a run may take to start.
const MCP_START_TIMEOUT_MS: u64 = 60_000;

/// One execution of a run.
pub(super) struct Execution<'a> {
    pub(super) adapter: &'a NativeAdapter,
    pub(super) attempt: AttemptHandle,
    /// When the execution began: by the wall clock, and as a monotonic moment.
    begun: (Time, Moment),
    pub(super) plan: Plan,
    /// The number of the run's last model call that produced a message.
    pub(super) steps: u32,
    /// The usage of the run itself.
    pub(super) usage: Usage,
    /// The usage of delegated runs, including what they may still use.
    delegated_usage: Usage,
    /// Data that the provider requires back with messages of this run.
    pub(super) private: HashMap<MessageId, Value>,
    pub(super) resume: Resume,
    /// The files that messages of the path refer to.
    pub(super) files: Files,
    /// The checkpoint of an earlier attempt, which the run continues from.
    pub(super) checkpoint: Option<String>,
    /// The tool calls of the run before this execution; empty in the first attempt.
    pub(super) earlier: EarlierCalls,
    /// Changes of the plan that hooks have asked for.
    plan_changes: PlanChanges,
    /// The state of the network, if the definition is a network. `plan` is then the plan of the present member.
    pub(super) network: Option<NetworkRun>,
}

/// The next action of the execution.
pub(super) enum NextAction {
    /// Call the model.
    CallModel,
    /// Run the tool calls of the model's last message.
    RunTools(ToolRound),
    /// Check the model's final answer. `records` are to be committed with the outcome.
    CheckAnswer { text: String, records: Vec<Record> },
}

/// The tool calls of one message and how far they have been processed.
#[derive(Default)]
pub(super) struct ToolRound {
    pub(super) calls: Vec<ToolUse>,
    /// The decisions made so far, for the first calls in order.
    pub(super) decided: Vec<ToolDecision>,
    /// Results that are known already.
    pub(super) known: Vec<ClientResult>,
    /// When the client was asked for the known results.
    pub(super) asked_at: Option<Time>,
    /// Records to commit together with the calls.
    pub(super) records: Vec<Record>,
}

impl<'a> Execution<'a> {
    pub(super) async fn run(adapter: &'a NativeAdapter, attempt: AttemptHandle) -> Result<Executed, Exit> {
        let mut execution = Self::start(adapter, attempt).await?;
        execution.load_steps().await?;
        if execution.network.is_none() && execution.plan.is_stopped && execution.steps == 0 {
            return Ok(End::succeeded());
        }
        let mut next = match execution.network.is_some() {
            false => execution.resume_point().await?,
            true => match execution.resume_network().await? {
                Some(next) => next,
                None => match execution.advance(vec![]).await? {
                    Some(executed) => return Ok(executed),
                    None => NextAction::CallModel,
                },
            },
        };
        loop {
            next = match next {
                NextAction::CallModel => execution.call_model().await?,
                NextAction::RunTools(round) => {
                    execution.run_tools(round).await?;
                    execution.load_steps().await?;
                    if execution.is_call_complete()
                        && let Some(executed) = execution.advance(vec![]).await?
                    {
                        return Ok(executed);
                    }
                    NextAction::CallModel
                }
                NextAction::CheckAnswer { text, records } => {
                    match execution.check_answer(&text, records).await? {
                        Some(executed) => return Ok(executed),
                        None => NextAction::CallModel,
                    }
                }
            };
        }
    }

    /// Resolves the plan, starts MCP servers and calls the start hook.
    async fn start(adapter: &'a NativeAdapter, attempt: AttemptHandle) -> Result<Self, Exit> {
        let begun = (attempt.now(), attempt.moment());
        let assignment = attempt.assignment();
        let (mut plan, network) = Plan::resolve(adapter, &attempt).await?;
        // In a network, a member is prepared when it is called.
        let problems = match &network {
            None => Self::prepare(adapter, &attempt, 0, &mut plan).await?,
            Some(_) => None,
        };
        let usage = assignment.run.usage;
        // A token has about four bytes, so the checkpoint takes at most a quarter of the window.
        let max_bytes = plan.model.max_prompt_tokens().unwrap_or(u64::MAX).min(MAX_CHECKPOINT_BYTES);
        let checkpoint = attempt.checkpoint_text(max_bytes).await?;
        let execution = Self {
            adapter,
            begun,
            attempt,
            plan,
            steps: 0,
            usage,
            delegated_usage: Usage::default(),
            private: HashMap::new(),
            resume: Resume::default(),
            files: Files::default(),
            checkpoint,
            earlier: EarlierCalls::default(),
            plan_changes: PlanChanges::default(),
            network,
        };
        if execution.network.is_none() {
            execution.record_notices(problems).await?;
        }
        Ok(execution)
    }

    /// Starts the MCP servers of an agent, adds the tools of the goals and of the client, and calls the start
    /// hook with the number `steps`. Returns the problems of MCP servers that the agent can do without.
    pub(super) async fn prepare(
        adapter: &NativeAdapter,
        attempt: &AttemptHandle,
        steps: u32,
        plan: &mut Plan,
    ) -> Result<Option<String>, Exit> {
        let assignment = attempt.assignment();
        let problems = tokio::select! {
            biased;
            () = attempt.cancelled() => return Err(End::stopped().into()),
            problems = plan.add_mcp_tools(adapter, &assignment.run) => problems?,
            () = attempt.sleep_for(MCP_START_TIMEOUT_MS) => {
                let failure = Failure::new("mcp_unavailable", "an MCP server did not answer in time");
                return Err(End::failed(failure, true).into());
            }
        };
        plan.add_goal_tools(&assignment.run.options.goals)?;
        plan.add_client_tools(&assignment.run.options.tools)?;
        let started = adapter.hooks.on_start(HookContext::new(attempt, steps, None), plan).await;
        started.map_err(|failure| Exit::from(End::failed(failure, false)))?;
        Ok(problems)
    }

    /// Records the notices about the plan, and `problems`.
    pub(super) async fn record_notices(&self, problems: Option<String>) -> Result<(), Exit> {
        if let Some(note) = self.plan.unconfined.clone() {
            // The note goes into the commit that ends the attempt, so that it costs no commit of its own.
            let unconfined = Record::Confined(Sandbox::none(Some(note)));
            self.attempt.record_at_end(vec![unconfined]).await?;
        }
        let notices = self.plan.notices.iter().cloned().chain(problems);
        let notices: Vec<Record> = notices.map(|text| Record::Progress { text }).collect();
        if !notices.is_empty() {
            self.attempt.record(notices).await?;
        }
        Ok(())
    }

    pub(super) fn hook_context(&self) -> HookContext {
        let plan = Some((Arc::new(self.plan.clone()), self.plan_changes.clone()));
        HookContext::new(&self.attempt, self.steps, plan)
    }

    /// Checks the limits and makes one model call with a context that fits.
    async fn call_model(&mut self) -> Result<NextAction, Exit> {
        self.plan_changes.apply(&mut self.plan);
        if self.attempt.is_steered() {
            // Appends to the path the prompts that arrived while the run worked.
            self.attempt.steer(vec![]).await?;
        }
        self.update_delegated_usage().await?;
        self.check_limits()?;
        let context = self.fitting_context().await?;
        // Compacting the context may have used tokens.
        self.check_limits()?;
        let output = self.step(context).await?;
        Ok(if output.calls.is_empty() {
            NextAction::CheckAnswer { text: output.text, records: output.records }
        } else {
            let (calls, records) = (output.calls, output.records);
            self.note_tools(&output.text, calls.iter().map(|call| call.name.clone()).collect());
            let round = ToolRound { calls, records, ..ToolRound::default() };
            // After a member's last model call, the router decides whether a model is called again.
            NextAction::RunTools(match self.is_call_complete() {
                true => round,
                false => self.allowed_round(round).await?,
            })
        })
    }

    /// Reads the step count, the authors of messages and the provider's private data from the run's steps.
    pub(super) async fn load_steps(&mut self) -> Result<(), Exit> {
        let first = self.attempt.assignment().attempt.no == 1 && self.attempt.answer().is_none();
        let has_steps = !first || self.steps > 0;
        let steps = if has_steps { self.attempt.steps().await? } else { vec![] };
        // Without a step there may be results of a parallel stage.
        self.note_authors(&steps);
        self.steps = steps.iter().filter(|step| step.output.is_some()).map(|step| step.no).max().unwrap_or(0);
        let private = steps.into_iter().filter_map(|step| Some((step.output?, step.private?)));
        self.private = private.collect();
        Ok(())
    }

    /// Determines where to continue, from the end of the path and from the answer that the run waited for.
    pub(super) async fn resume_point(&mut self) -> Result<NextAction, Exit> {
        let last = self.attempt.path(1).await?.pop();
        let answered = self.apply_answer()?;
        if self.attempt.assignment().attempt.no > 1 {
            self.earlier = self.attempt.earlier_calls().await?;
        }
        let last =
            last.filter(|last| last.role == Role::Assistant && last.status == MessageStatus::Completed);
        Ok(match last.map(|last| (prompt::tool_uses(&last), last.text())) {
            None => NextAction::CallModel,
            Some((calls, text)) if calls.is_empty() => NextAction::CheckAnswer { text, records: vec![] },
            Some((calls, _)) => NextAction::RunTools(ToolRound { calls, ..answered }),
        })
    }

    /// Applies the answer that the run waited for, if there is one. Returns the tool decisions made so far and the
    /// client's tool results, as a round without calls.
    pub(super) fn apply_answer(&mut self) -> Result<ToolRound, Exit> {
        let mut round = ToolRound::default();
        let Some(answered) = self.attempt.answer().cloned() else { return Ok(round) };
        let resume = Resume::deserialize(&answered.resume);
        self.resume =
            resume.map_err(|error| Exit::failed("corrupt", format!("the stored resume state: {error}")))?;
        match std::mem::take(&mut self.resume.about) {
            Question::Nothing => {}
            Question::Limit => self.apply_limit_answer(&answered.answer)?,
            Question::Tool { decided, pause } => {
                round.decided = decided;
                round.decided.push(resolve_pause(&pause, &answered.answer));
            }
            Question::Calls { decided, asked_at } => {
                (round.decided, round.asked_at) = (decided, asked_at);
                if let Answer::Tools { results } = answered.answer {
                    round.known = results;
                }
            }
        }
        Ok(round)
    }

    /// Raises the run's limits by one more allowance, or fails the run if that was denied.
    fn apply_limit_answer(&mut self, answer: &Answer) -> Result<(), Exit> {
        if matches!(answer, Answer::Approval(ApprovalAnswer { decision: Approval::Allowed, .. })) {
            self.resume.granted += 1;
            return Ok(());
        }
        Err(Exit::failed(FailureCode::LimitReached, "the run has used up a limit, and nobody granted more"))
    }

    /// Returns the remaining budget of the run; `None` if the run has no limits.
    pub(super) fn budget(&self) -> Option<Budget> {
        let run = &self.attempt.assignment().run;
        let since = run.limited_since();
        let used = self.usage + self.delegated_usage;
        Budget::of(&self.plan.limits, self.resume.granted + 1, self.steps, &used, since)
    }

    /// Reads the usage of delegated runs, which counts against the limits of this run.
    pub(super) async fn update_delegated_usage(&mut self) -> Result<(), Exit> {
        if self.plan.limits.max_tokens.is_some() || self.plan.limits.max_cost.is_some() {
            self.delegated_usage = self.attempt.spent_by_children().await?;
        }
        Ok(())
    }

    /// Fails or pauses the run if it has used up a limit.
    pub(super) fn check_limits(&self) -> Result<(), Exit> {
        let assignment = self.attempt.assignment();
        let limits = &self.plan.limits;
        let before = self.begun.0.since(assignment.run.limited_since_in(&assignment.attempt));
        let millis = before.saturating_add(self.attempt.moment().since(self.begun.1));
        let used = self.usage + self.delegated_usage;
        let Some(limit) = limits.limit_reached(self.resume.granted + 1, self.steps, &used, millis) else {
            return Ok(());
        };
        Err(self.limit_reached(limit))
    }

    /// Fails or pauses the run at `limit`.
    pub(super) fn limit_reached(&self, limit: Limit) -> Exit {
        if self.plan.limits.ask != Some(true) {
            let message = format!("the run has used up its limit of {limit}; raise it and retry");
            return Exit::failed(FailureCode::LimitReached, message);
        }
        let question = format!("The run has used up its limit of {limit}. May it use as much again?");
        self.ask_person(WaitRequest::Approval, question, Question::Limit)
    }

    /// Pauses the execution until a person has answered.
    pub(super) fn ask_person(&self, request: WaitRequest, question: String, about: Question) -> Exit {
        self.wait(Ask::new(request, question), about)
    }

    /// Pauses the execution until `ask` is answered.
    pub(super) fn wait(&self, ask: Ask, about: Question) -> Exit {
        let resume = Resume { about, ..self.resume.clone() }.to_value();
        Executed::Waiting(Ask { resume, ..ask }).into()
    }

    /// Ends the run, or in a network the member's call, with the model's answer. Returns `None` if a model must be
    /// called next: goals are pending, the answer violates the output schema, a prompt has arrived, a hook continues the
    /// run, or another member works next.
    async fn check_answer(&mut self, text: &str, mut records: Vec<Record>) -> Result<Option<Executed>, Exit> {
        // In a network the next member may still achieve the pending goals.
        if self.network.is_none() && self.check_goals(&mut records).await? {
            return Ok(None);
        }
        if let Some(schema) = &self.plan.output {
            match schema.parse(text) {
                Ok(output) => records.push(Record::Output { output, error: None }),
                Err(problem) if self.resume.asked_again < MAX_OUTPUT_RETRIES => {
                    self.resume.asked_again += 1;
                    let again = format!(
                        "Your answer does not match the schema: {problem}. Answer again with only the JSON value."
                    );
                    return self.continue_with(again, records).await;
                }
                Err(problem) => {
                    let message = format!("the answer does not match the output schema: {problem}");
                    let error = Failure::new("output_invalid", message);
                    records.push(Record::Output { output: Value::Null, error: Some(error) });
                }
            }
        }
        let next = self.adapter.hooks.on_turn(self.hook_context(), text).await;
        // A prompt from a person takes precedence over a hook's.
        if self.attempt.is_steered() && !self.attempt.steer(std::mem::take(&mut records)).await?.is_empty() {
            return Ok(None);
        }
        if let AfterTurn::Continue(prompt) = next {
            return self.continue_with(prompt, records).await;
        }
        if self.network.is_some() {
            return self.member_answered(text, records).await;
        }
        self.attempt.record_at_end(records).await?;
        self.generate_title(text);
        Ok(Some(End::succeeded()))
    }

    /// Appends `prompt` as a message of the user, so that the model is called again.
    pub(super) async fn continue_with(
        &mut self,
        prompt: String,
        mut records: Vec<Record>,
    ) -> Result<Option<Executed>, Exit> {
        records.push(Record::Continued { blocks: vec![Block::text(prompt)] });
        self.attempt.record(records).await?;
        Ok(None)
    }
}

/// The reason that the model gets for a call that a person denied.
fn refusal(reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("the person you work for said no: {reason}"),
        None => "the person you work for said no".to_owned(),
    }
}

/// Turns a paused tool call and the person's answer into a final decision.
fn resolve_pause(pause: &ToolDecision, answer: &Answer) -> ToolDecision {
    let ToolDecision::Pause { request, .. } = pause else { return pause.clone() };
    match (request, answer) {
        (WaitRequest::Approval, Answer::Approval(answer)) => match (answer.decision, &answer.result) {
            (Approval::Allowed, _) => ToolDecision::Execute,
            (Approval::Supplied, Some(SuppliedResult { text, is_error })) => {
                ToolDecision::Result { result: ToolResult { text: text.clone(), is_error: *is_error } }
            }
            _ => ToolDecision::Reject { reason: refusal(answer.reason.as_deref()) },
        },
        (WaitRequest::Approval, _) => ToolDecision::Reject { reason: refusal(None) },
        (WaitRequest::Input, Answer::Input { input }) => {
            let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
            ToolDecision::Result { result: ToolResult { text, is_error: false } }
        }
        (WaitRequest::Input | WaitRequest::Tools, _) => {
            ToolDecision::Reject { reason: "the person you work for gave no answer".into() }
        }
    }
}
