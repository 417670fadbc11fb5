//! The tool with which an agent keeps a plan.

use std::sync::Arc;

use mainspring_core::task::MAX_TASKS;
use mainspring_core::{PlannedTask, Subtask, SubtaskStatus, TaskStatus};
use mainspring_kernel::adapter::Record;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, ToolCall, ToolError, function};

/// Returns the tool.
pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Sets your plan for this run: all tasks in order, with their status. Send the whole plan each time; \
                       tasks that you leave out are removed. The person you work for sees it.";
    Arc::new(function("plan_update", description, update).idempotent())
}

#[derive(Deserialize, JsonSchema)]
struct Plan {
    /// All tasks of the plan, in order.
    tasks: Vec<PlanTask>,
}

#[derive(Deserialize, JsonSchema)]
struct PlanTask {
    /// The number of a task of the present plan, to rename it. Otherwise a task is recognised by its title.
    id: Option<u32>,
    /// The title.
    title: String,
    /// `pending`, `in_progress` or `completed`; `pending` if not given.
    status: Option<PlanStatus>,
    /// The subject of the task.
    description: Option<String>,
    /// The conclusion.
    conclusion: Option<String>,
    /// The parts of the task.
    subtasks: Option<Vec<PlanSubtask>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PlanStatus {
    Pending,
    InProgress,
    Completed,
}

#[derive(Deserialize, JsonSchema)]
struct PlanSubtask {
    /// The title.
    title: String,
    /// True when it is done.
    done: Option<bool>,
}

async fn update(call: ToolCall, plan: Plan) -> Result<String, ToolError> {
    if plan.tasks.len() > MAX_TASKS {
        return Err(ToolError(format!("a plan has at most {MAX_TASKS} tasks")));
    }
    let count = plan.tasks.len();
    let tasks = plan.tasks.into_iter().map(planned).collect();
    call.context.record(Record::Tasks { tasks }).await?;
    Ok(format!("the plan has {count} tasks"))
}

fn planned(task: PlanTask) -> PlannedTask {
    let status = match task.status {
        None | Some(PlanStatus::Pending) => TaskStatus::Pending,
        Some(PlanStatus::InProgress) => TaskStatus::InProgress,
        Some(PlanStatus::Completed) => TaskStatus::Completed,
    };
    let subtask = |PlanSubtask { title, done }| Subtask {
        title,
        status: if done == Some(true) { SubtaskStatus::Done } else { SubtaskStatus::Pending },
    };
    PlannedTask {
        id: task.id,
        title: task.title,
        status,
        description: task.description,
        conclusion: task.conclusion,
        subtasks: task.subtasks.map(|subtasks| subtasks.into_iter().map(subtask).collect()),
    }
}
