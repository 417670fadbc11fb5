//! Goals: outcomes that a run declares and that its agent reports through a typed tool.
//!
//! ```text
//! pending ──value that fits the schema──▶ achieved
//!  │ │  ▲
//!  │ └──┘ value that does not fit, reminder
//!  └──the run ends without the value──▶ failed ──the run is retried──▶ pending
//! ```
//!
//! A goal type is a name and the JSON Schema of the value. The run keeps the type as it was when the run was accepted, so
//! a later change of the type changes no run. Whether a value fits its schema is checked by the runtime of the agent,
//! which has a validator; everything else is decided here.
//!
//! Invariants: a run that succeeded has no goal that is pending or failed. A goal has an end time if and only if it is
//! achieved or failed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{Body, Failure, FailureCode, GoalId, Refusal, Run, RunStatus, Time};

mod built_in;
pub use built_in::built_in_goal_types;

/// Maximum number of goals of a run.
pub const MAX_GOALS: usize = 5;
/// Maximum bytes of the value of a goal, as JSON. The value is part of the run's row.
pub const MAX_VALUE_BYTES: usize = 256 << 10;
/// Maximum bytes of a goal type, as JSON, and of the data of a goal.
pub const MAX_TYPE_BYTES: usize = 64 << 10;
/// The default maximum number of reminders of pending goals. After them the run fails.
pub const DEFAULT_REMINDERS: u32 = 3;
/// The prefix of the names of the tools with which an agent achieves goals.
pub const TOOL_PREFIX: &str = "achieve_";

/// A kind of goal: the JSON Schema of the value that achieves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalType {
    /// The name: 1 to 48 lower-case letters, digits and underscores, starting with a letter.
    #[cfg_attr(feature = "schema", schema(pattern = "^[a-z][a-z0-9_]{0,47}$"))]
    pub name: String,
    /// The outcome to achieve. The model reads it as the description of the tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The JSON Schema of the value, which is an object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub schema: Value,
    /// The JSON Schema of the data that a run declares with the goal. Absent: any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub data_schema: Option<Value>,
}

/// A goal as a run declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeclaredGoal {
    /// The name of the goal type.
    pub goal_type: String,
    /// The caller's data for the agent, such as the object that the goal is about.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub data: Map<String, Value>,
    /// The goal type as it was when the run was accepted; the server sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub definition: Option<Box<GoalType>>,
}

/// The status of a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GoalStatus {
    /// The agent has not reported the value yet.
    Pending,
    /// The agent has reported a value that fits the schema.
    Achieved,
    /// The run ended without the value.
    Failed,
}
names!(GoalStatus { Pending => "pending", Achieved => "achieved", Failed => "failed" });

/// A goal of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    /// The goal's id.
    #[serde(rename = "goalId")]
    pub id: GoalId,
    /// The name of the goal type.
    pub goal_type: String,
    /// The data that the run declared with the goal.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub data: Map<String, Value>,
    /// The status.
    pub status: GoalStatus,
    /// When the goal was declared.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the goal was achieved or failed. Absent while it is pending.
    #[serde(rename = "concludedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub concluded_at: Option<Time>,
    /// The value that achieved the goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub value: Option<Value>,
    /// The last tool call that reported a value, whether or not the value fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// Why the goal failed, or why the last value did not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// How often the agent was reminded of the goal since the run was last started by a caller.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reminders: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Why a goal or a goal type is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGoal {
    /// The name of the type is not well-formed.
    #[error(
        "the goal type {0:?}: a name has 1 to 48 lower-case letters, digits and underscores, and starts with a letter"
    )]
    Name(String),
    /// The schema does not describe an object.
    #[error(
        "the goal type {0:?}: its schema must be a JSON Schema for an object, such as {{\"type\":\"object\"}}"
    )]
    Schema(String),
    /// The type or the data of a goal is too large.
    #[error("the goal type {name:?}: {what} has {size} bytes as JSON; at most {MAX_TYPE_BYTES} are allowed")]
    TooLarge {
        /// The name of the type.
        name: String,
        /// The part that is too large.
        what: &'static str,
        /// The size of that part in bytes.
        size: usize,
    },
    /// There are too many goals.
    #[error("there are {0} goals; at most {MAX_GOALS} are allowed")]
    TooMany(usize),
}

/// Checks the name and the size of a goal type, and that its schemas are for objects. The schemas may still be invalid.
pub fn check_goal_type(goal_type: &GoalType) -> Result<(), BadGoal> {
    let name = || goal_type.name.chars().take(80).collect::<String>();
    if !is_goal_type_name(&goal_type.name) {
        return Err(BadGoal::Name(name()));
    }
    let schemas = [Some(&goal_type.schema), goal_type.data_schema.as_ref()];
    for schema in schemas.into_iter().flatten() {
        let kind = schema.get("type");
        if !schema.is_object() || kind.is_some_and(|kind| kind != "object") {
            return Err(BadGoal::Schema(name()));
        }
    }
    check_size(&goal_type.name, "the definition", json_size(goal_type))
}

/// Checks the number of a run's goals, the names of their types, and the size of their data. The types may still be
/// unknown, and the data may not fit.
pub fn check_goals(goals: &[DeclaredGoal]) -> Result<(), BadGoal> {
    if goals.len() > MAX_GOALS {
        return Err(BadGoal::TooMany(goals.len()));
    }
    goals.iter().try_for_each(|goal| {
        if !is_goal_type_name(&goal.goal_type) {
            return Err(BadGoal::Name(goal.goal_type.chars().take(80).collect()));
        }
        check_size(&goal.goal_type, "the data", json_size(&goal.data))
    })
}

fn check_size(name: &str, what: &'static str, size: usize) -> Result<(), BadGoal> {
    match size > MAX_TYPE_BYTES {
        true => Err(BadGoal::TooLarge { name: name.to_owned(), what, size }),
        false => Ok(()),
    }
}

fn json_size(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// True when `name` is a well-formed name of a goal type.
pub fn is_goal_type_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    name.len() <= 48 && name.bytes().all(is_allowed) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// The names of the tools that achieve `goals`, in their order. All differ: from the second goal of a type on, the name
/// ends with a number that makes it no name of another type's tool.
pub fn tool_names(goals: &[Goal]) -> Vec<String> {
    let first_name = |goal: &Goal| format!("{TOOL_PREFIX}{}", goal.goal_type);
    let first_names: BTreeSet<String> = goals.iter().map(first_name).collect();
    let mut names: Vec<String> = vec![];
    for goal in goals {
        let first = first_name(goal);
        let numbered = (2..).map(|no: usize| format!("{first}_{no}"));
        let numbered = numbered.filter(|name| !first_names.contains(name));
        let name = std::iter::once(first.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(name);
    }
    names
}

/// The prompt of a run that has goals and no prompt of its own.
pub fn prompt_of(goals: &[DeclaredGoal]) -> String {
    let line = |goal: &DeclaredGoal| match goal.data.is_empty() {
        true => format!("- {}", goal.goal_type),
        false => format!("- {}: {}", goal.goal_type, Value::Object(goal.data.clone())),
    };
    let lines: Vec<String> = goals.iter().map(line).collect();
    format!("Achieve these goals:\n{}", lines.join("\n"))
}

/// Checks what a JSON Schema cannot say about `value`: its size, and that the items of an array whose schema has
/// `x-unique-by` differ in that property. Checks only arrays that are direct properties of the value.
pub fn check_value(schema: &Value, value: &Value) -> Result<(), String> {
    let size = json_size(value);
    if size > MAX_VALUE_BYTES {
        return Err(format!("the value has {size} bytes as JSON; at most {MAX_VALUE_BYTES} are allowed"));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let Some(key) = property.get("x-unique-by").and_then(Value::as_str) else { continue };
        let mut seen = BTreeSet::new();
        for item in value.get(name).and_then(Value::as_array).into_iter().flatten() {
            let part = item.get(key).unwrap_or(&Value::Null).to_string();
            if !seen.insert(part.clone()) {
                return Err(format!("/{name}: two items have the {key} {part}"));
            }
        }
    }
    Ok(())
}

/// A command to the goals of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// The agent reports a value that fits.
    Achieve {
        /// The goal.
        goal: GoalId,
        /// The tool call.
        tool_use_id: String,
        /// The value.
        value: Value,
    },
    /// The agent reports a value that does not fit.
    Reject {
        /// The goal.
        goal: GoalId,
        /// The tool call.
        tool_use_id: String,
        /// Why the value does not fit.
        reason: String,
    },
    /// The agent is reminded of the pending goals.
    Remind {
        /// The maximum number of reminders.
        max: u32,
    },
}

/// Decides the effect of `command` on the goals of a run: the events to record, or a refusal. A value that is reported
/// again by the same tool call, after a crash, changes nothing.
pub fn decide(goals: &[Goal], command: Command) -> Result<Vec<Body>, Refusal> {
    match command {
        Command::Achieve { goal, tool_use_id, value } => {
            let goal = find(goals, goal)?;
            match goal.status {
                GoalStatus::Achieved if goal.tool_use_id.as_ref() == Some(&tool_use_id) => Ok(vec![]),
                GoalStatus::Pending => Ok(vec![Body::GoalAchieved {
                    goal_id: goal.id,
                    goal_type: goal.goal_type.clone(),
                    tool_use_id,
                    value,
                }]),
                status => Err(wrong_state(status.name())),
            }
        }
        Command::Reject { goal, tool_use_id, reason } => {
            let goal = find(goals, goal)?;
            let is_new = goal.tool_use_id.as_ref() != Some(&tool_use_id);
            Ok(match goal.status {
                GoalStatus::Pending if is_new => vec![Body::GoalRejected {
                    goal_id: goal.id,
                    goal_type: goal.goal_type.clone(),
                    tool_use_id,
                    error: Failure::new("value_invalid", reason),
                }],
                _ => vec![],
            })
        }
        Command::Remind { max } => {
            let goal_ids: Vec<GoalId> = pending(goals).map(|goal| goal.id).collect();
            let reminder_no = 1 + pending(goals).map(|goal| goal.reminders).max().unwrap_or(0);
            match goal_ids.is_empty() {
                true => Ok(vec![]),
                false => Ok(vec![Body::GoalsReminded { goal_ids, reminder_no, max_reminders: max }]),
            }
        }
    }
}

fn find(goals: &[Goal], id: GoalId) -> Result<&Goal, Refusal> {
    goals.iter().find(|goal| goal.id == id).ok_or_else(|| wrong_state("unknown"))
}

fn wrong_state(status: &'static str) -> Refusal {
    Refusal::WrongState { what: "goal", status }
}

/// The goals that are not achieved and not failed.
pub fn pending(goals: &[Goal]) -> impl Iterator<Item = &Goal> {
    goals.iter().filter(|goal| goal.status == GoalStatus::Pending)
}

/// The consequence of the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterTurn {
    /// No goal is pending: the run may succeed.
    Done,
    /// The agent is reminded and goes on.
    Remind,
    /// The reminders are used up: the run fails.
    GiveUp(Failure),
}

/// Decides what follows when the agent ends its turn. The agent is reminded at most `max` times.
pub fn after_turn(goals: &[Goal], max: u32) -> AfterTurn {
    match pending(goals).map(|goal| goal.reminders).max() {
        None => AfterTurn::Done,
        Some(reminders) if reminders < max => AfterTurn::Remind,
        Some(_) => AfterTurn::GiveUp(failure(goals)),
    }
}

/// The failure of a run that ends with goals that are not achieved.
pub fn failure(goals: &[Goal]) -> Failure {
    let missing = goals.iter().filter(|goal| goal.status != GoalStatus::Achieved);
    let names: Vec<&str> = missing.map(|goal| goal.goal_type.as_str()).collect();
    Failure::new(
        FailureCode::GoalsFailed,
        format!("the agent did not achieve its goals: {}", names.join(", ")),
    )
}

/// The events that fail the pending goals of `run`, which ends with the event `end`; none if `end` does not end a run.
pub fn conclude(run: &Run, end: &Body) -> Vec<Body> {
    let error = match end {
        Body::RunFailed { error, .. } | Body::RunTimedOut { error, .. } | Body::RunOrphaned { error, .. } => {
            error.clone()
        }
        Body::RunCancelled { .. } => Failure::new("cancelled", "the run was cancelled"),
        _ => return vec![],
    };
    let failed = |goal: &Goal| Body::GoalFailed {
        goal_id: goal.id,
        goal_type: goal.goal_type.clone(),
        error: error.clone(),
    };
    pending(&run.goals).map(failed).collect()
}

/// Returns the failure of a run whose agent reports success while goals are pending; `None` if no goal is pending.
pub(crate) fn failure_if_pending(run: &Run) -> Option<Failure> {
    pending(&run.goals).next().map(|_| failure(&run.goals))
}

/// Applies an event to the goals of a run. Events about other things change nothing.
pub(crate) fn apply(goals: &mut Vec<Goal>, body: &Body, at: Time) {
    let mut change = |id: &GoalId, change: &dyn Fn(&mut Goal)| {
        goals.iter_mut().filter(|goal| goal.id == *id).for_each(change);
    };
    match body {
        Body::GoalDeclared { goal_id, goal_type, data } => goals.push(Goal {
            id: *goal_id,
            goal_type: goal_type.clone(),
            data: data.clone(),
            status: GoalStatus::Pending,
            created_at: at,
            concluded_at: None,
            value: None,
            tool_use_id: None,
            error: None,
            reminders: 0,
        }),
        Body::GoalRejected { goal_id, tool_use_id, error, .. } => change(goal_id, &|goal| {
            goal.tool_use_id = Some(tool_use_id.clone());
            goal.error = Some(error.clone());
        }),
        Body::GoalAchieved { goal_id, tool_use_id, value, .. } => change(goal_id, &|goal| {
            goal.status = GoalStatus::Achieved;
            goal.concluded_at = Some(at);
            goal.tool_use_id = Some(tool_use_id.clone());
            goal.value = Some(value.clone());
            goal.error = None;
        }),
        Body::GoalFailed { goal_id, error, .. } => change(goal_id, &|goal| {
            goal.status = GoalStatus::Failed;
            goal.concluded_at = Some(at);
            goal.error = Some(error.clone());
        }),
        Body::GoalsReminded { goal_ids, reminder_no, .. } => {
            goal_ids.iter().for_each(|id| change(id, &|goal| goal.reminders = *reminder_no));
        }
        _ => {}
    }
}

/// Makes the failed goals of a run pending again when a caller retries the run.
pub(crate) fn reopen(goals: &mut [Goal]) {
    for goal in goals.iter_mut().filter(|goal| goal.status != GoalStatus::Achieved) {
        goal.status = GoalStatus::Pending;
        goal.concluded_at = None;
        goal.reminders = 0;
        goal.error = None;
    }
}

/// True when the goals of an imported run are valid and fit its `status`.
pub fn is_consistent(goals: &[Goal], status: RunStatus) -> bool {
    let is_whole = |goal: &Goal| {
        let concluded = goal.status != GoalStatus::Pending;
        goal.concluded_at.is_some() == concluded
            && goal.value.is_some() == (goal.status == GoalStatus::Achieved)
            && is_goal_type_name(&goal.goal_type)
    };
    let all_achieved = goals.iter().all(|goal| goal.status == GoalStatus::Achieved);
    let none_pending = pending(goals).next().is_none();
    goals.len() <= MAX_GOALS
        && goals.iter().all(is_whole)
        && (status != RunStatus::Succeeded || all_achieved)
        && (!status.is_ended() || none_pending)
}

#[cfg(test)]
mod tests;
