//! Goals of a run: a tool for each goal, and what happens when the model ends its turn with pending ones.
//!
//! The rules are those of [`mainspring_core::goal`]. The list here is the execution's copy of the run's goals: a tool
//! changes it after its record is durable, so that the end of the turn needs no further read.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::goal::{self, AfterTurn};
use mainspring_core::{DeclaredGoal, Goal, GoalId, GoalStatus, GoalType, Run};
use mainspring_kernel::adapter::{End, Record};
use parking_lot::Mutex;
use serde_json::Value;

use super::execution::Execution;
use super::{Exit, Plan};
use crate::provider::{ToolSpec, ToolUse};
use crate::tool::{Tool, ToolCall, ToolError, ToolTraits};

/// The goals of a run and the names of their tools.
#[derive(Clone, Default)]
pub(super) struct Goals {
    list: Arc<Mutex<Vec<Goal>>>,
    tools: Arc<[String]>,
    /// The tools that the agent is not offered. They can still be called: a crash may have left such a call open.
    hidden: Arc<[String]>,
}

impl Goals {
    pub(super) fn of(run: &Run) -> Self {
        let tools = goal::tool_names(&run.goals).into();
        Self { list: Arc::new(Mutex::new(run.goals.clone())), tools, hidden: Arc::default() }
    }

    /// The same goals for the next member of a network. The goals that are concluded by now are hidden from it.
    pub(super) fn of_next_member(&self) -> Self {
        let list = self.list.lock();
        let tools = list.iter().zip(self.tools.iter());
        let hidden =
            tools.filter(|(goal, _)| goal.status != GoalStatus::Pending).map(|(_, tool)| tool.clone());
        Self { hidden: hidden.collect(), ..self.clone() }
    }

    /// True unless `tool` is the tool of a hidden goal.
    pub(super) fn offers(&self, tool: &str) -> bool {
        self.hidden.iter().all(|hidden| hidden != tool)
    }

    /// Returns the instruction for the model; none if the agent has no goals.
    pub(super) fn instruction(&self) -> Option<String> {
        let lines: Vec<String> = self.lines(&self.list.lock(), |_| true);
        if lines.is_empty() {
            return None;
        }
        Some(format!(
            "This run has goals. Report the value of each goal by calling its tool, once, as soon as you have it. The run \
             fails if a goal is not reported. The goals:\n{}",
            lines.join("\n")
        ))
    }

    /// Returns the prompt that reminds the model of its pending goals.
    fn reminder(&self) -> String {
        let lines = self.lines(&self.list.lock(), |goal| goal.status == GoalStatus::Pending);
        format!(
            "You have ended your turn, but these goals are not achieved yet. Call the tool of each of them now:\n{}",
            lines.join("\n")
        )
    }

    fn lines(&self, list: &[Goal], wanted: impl Fn(&Goal) -> bool) -> Vec<String> {
        let line = |(goal, tool): (&Goal, &String)| match goal.data.is_empty() {
            true => format!("- {tool}"),
            false => format!("- {tool}: {}", Value::Object(goal.data.clone())),
        };
        let offered = list.iter().zip(self.tools.iter()).filter(|(_, tool)| self.offers(tool));
        offered.filter(|(goal, _)| wanted(goal)).map(line).collect()
    }

    /// Returns the record that a call of a goal's tool had invalid arguments; none for other tools.
    pub(super) fn rejected(&self, call: &ToolUse, reason: &ToolError) -> Option<Record> {
        let at = self.tools.iter().position(|tool| *tool == call.name)?;
        let goal = self.list.lock().get(at)?.id;
        Some(Record::GoalRejected { goal, tool_use_id: call.id.clone(), reason: reason.to_string() })
    }
}

impl Plan {
    /// Adds the tools that achieve the goals of the run.
    pub(super) fn add_goal_tools(&mut self, declared: &[DeclaredGoal]) -> Result<(), Exit> {
        let goals = self.goals.list.lock().clone();
        for ((goal, declared), name) in goals.iter().zip(declared).zip(self.goals.tools.iter()) {
            let Some(definition) = declared.definition.as_deref().cloned() else { continue };
            let tool =
                AchieveTool { name: name.clone(), goal: goal.id, definition, list: self.goals.list.clone() };
            let added = self.tools.add(Arc::new(tool));
            added.map_err(|error| Exit::failed("invalid_tool", error.to_string()))?;
        }
        Ok(())
    }
}

/// The tool that achieves one goal.
struct AchieveTool {
    name: String,
    goal: GoalId,
    definition: GoalType,
    list: Arc<Mutex<Vec<Goal>>>,
}

#[async_trait]
impl Tool for AchieveTool {
    fn spec(&self) -> ToolSpec {
        let GoalType { description, schema, .. } = &self.definition;
        let description = match description.is_empty() {
            true => "Reports the value of the goal.".to_owned(),
            false => description.clone(),
        };
        ToolSpec { name: self.name.clone(), description, schema: schema.clone() }
    }

    fn traits(&self) -> ToolTraits {
        // The value is recorded once, under the id of the call.
        ToolTraits { idempotent: true, timeout_ms: 60_000, ..ToolTraits::default() }
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        let ToolCall { id, input, context, .. } = call;
        if let Err(reason) = goal::check_value(&self.definition.schema, &input) {
            let rejected = Record::GoalRejected { goal: self.goal, tool_use_id: id, reason: reason.clone() };
            context.record(rejected).await?;
            return Err(ToolError(reason));
        }
        context.record(Record::GoalAchieved { goal: self.goal, tool_use_id: id, value: input }).await?;
        let mut list = self.list.lock();
        let achieved = list.iter_mut().filter(|goal| goal.id == self.goal);
        achieved.for_each(|goal| goal.status = GoalStatus::Achieved);
        Ok("the goal is achieved".to_owned())
    }
}

impl Execution<'_> {
    /// Reminds the model of goals that are pending when its turn ends. Returns true, with `records` committed, if the
    /// model must be called again. Fails the run if the reminders are used up.
    pub(super) async fn check_goals(&mut self, records: &mut Vec<Record>) -> Result<bool, Exit> {
        let max = self.adapter.options.goal_reminders;
        let next = goal::after_turn(&self.plan.goals.list.lock(), max);
        match next {
            AfterTurn::Done => Ok(false),
            AfterTurn::Remind => {
                records.push(Record::GoalsReminded { max });
                let reminder = self.plan.goals.reminder();
                let mut list = self.plan.goals.list.lock().clone();
                let pending = list.iter_mut().filter(|goal| goal.status == GoalStatus::Pending);
                pending.for_each(|goal| goal.reminders += 1);
                self.continue_with(reminder, std::mem::take(records)).await?;
                *self.plan.goals.list.lock() = list;
                Ok(true)
            }
            AfterTurn::GiveUp(failure) => {
                self.attempt.record_at_end(std::mem::take(records)).await?;
                Err(End::failed(failure, false).into())
            }
        }
    }
}
