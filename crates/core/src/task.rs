//! Tasks: the plan that an agent keeps while it works on a run.
//!
//! The agent sends its whole plan each time. A task that is in the new plan keeps its id: it is recognised by the id,
//! or by its title if the agent gives no id. Tasks that are not in the new plan are removed.
//!
//! Invariants: positions are 0, 1, 2 …; ids are unique within a plan, and a new task gets an id greater than all ids of
//! the current plan.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{Body, MessageId};

/// Maximum number of tasks of a run, and of subtasks of a task.
pub const MAX_TASKS: usize = 100;
/// Maximum characters of a title, a description or a conclusion. Longer texts are shortened.
pub const MAX_TEXT_CHARS: usize = 2000;

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not begun.
    #[default]
    Pending,
    /// The agent works on it.
    InProgress,
    /// Done.
    Completed,
}
names!(TaskStatus { Pending => "pending", InProgress => "in_progress", Completed => "completed" });

/// A task of an agent's plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The number of the task, unique within its plan.
    #[serde(rename = "taskId")]
    pub id: u32,
    /// The place in the plan, from 0.
    pub position: u32,
    /// The title.
    pub title: String,
    /// The status.
    pub status: TaskStatus,
    /// The subject of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The conclusion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// The parts of the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subtasks: Vec<Subtask>,
    /// The message in which the agent began the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_in_message_id: Option<MessageId>,
    /// The message in which the agent completed the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_in_message_id: Option<MessageId>,
}

/// A part of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Subtask {
    /// The title.
    pub title: String,
    /// The status.
    #[serde(default)]
    pub status: SubtaskStatus,
}

/// The status of a part of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SubtaskStatus {
    /// Not done.
    #[default]
    Pending,
    /// Done.
    Done,
}

/// A task as an agent plans it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedTask {
    /// The number of a task of the current plan. None for a new task, and if the task is found by its title.
    #[serde(default)]
    pub id: Option<u32>,
    /// The title.
    pub title: String,
    /// The status.
    #[serde(default)]
    pub status: TaskStatus,
    /// The subject of the task. If not given, the earlier description stays.
    #[serde(default)]
    pub description: Option<String>,
    /// The conclusion. If not given, the earlier conclusion stays.
    #[serde(default)]
    pub conclusion: Option<String>,
    /// The parts of the task. If not given, the earlier parts stay.
    #[serde(default)]
    pub subtasks: Option<Vec<Subtask>>,
}

/// Decides the event of a new plan that replaces `current`, written in the message `at`; none if nothing changes. Tasks
/// after the first [`MAX_TASKS`] are dropped.
pub fn plan(current: &[Task], planned: Vec<PlannedTask>, at: Option<MessageId>) -> Option<Body> {
    let mut left: Vec<&Task> = current.iter().collect();
    let mut next_id = current.iter().map(|task| task.id).max().unwrap_or(0).saturating_add(1);
    let mut tasks = vec![];
    for (position, planned) in (0..).zip(planned.into_iter().take(MAX_TASKS)) {
        let by_id = left.iter().position(|task| Some(task.id) == planned.id);
        let by_title = || {
            let title = shortened(&planned.title);
            left.iter().position(|task| planned.id.is_none() && task.title == title)
        };
        let known = by_id.or_else(by_title).map(|found| left.remove(found));
        let id = known.map_or(next_id, |known| known.id);
        if known.is_none() {
            next_id = next_id.saturating_add(1);
        }
        tasks.push(task(known, planned, id, position, at));
    }
    (tasks != current).then_some(Body::TasksUpdated { tasks })
}

fn task(known: Option<&Task>, planned: PlannedTask, id: u32, position: u32, at: Option<MessageId>) -> Task {
    let (begun, done) = (planned.status != TaskStatus::Pending, planned.status == TaskStatus::Completed);
    let text = |new: Option<String>, old: Option<&String>| new.map(|new| shortened(&new)).or(old.cloned());
    let mut subtasks = planned.subtasks.or(known.map(|known| known.subtasks.clone())).unwrap_or_default();
    subtasks.truncate(MAX_TASKS);
    subtasks.iter_mut().for_each(|subtask| subtask.title = shortened(&subtask.title));
    Task {
        id,
        position,
        title: shortened(&planned.title),
        status: planned.status,
        description: text(planned.description, known.and_then(|known| known.description.as_ref())),
        conclusion: text(planned.conclusion, known.and_then(|known| known.conclusion.as_ref())),
        subtasks,
        started_in_message_id: known.and_then(|known| known.started_in_message_id).or(at).filter(|_| begun),
        completed_in_message_id: known
            .and_then(|known| known.completed_in_message_id)
            .or(at)
            .filter(|_| done),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

/// True when the plan of an imported run is valid.
pub fn is_consistent(tasks: &[Task]) -> bool {
    let mut ids: Vec<u32> = tasks.iter().map(|task| task.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let short = |text: &String| text.chars().count() <= MAX_TEXT_CHARS;
    tasks.len() <= MAX_TASKS
        && ids.len() == tasks.len()
        && tasks.iter().zip(0..).all(|(task, position)| {
            task.position == position && short(&task.title) && task.subtasks.len() <= MAX_TASKS
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(title: &str, status: TaskStatus) -> PlannedTask {
        PlannedTask { title: title.into(), status, ..PlannedTask::default() }
    }

    fn update(current: &[Task], planned: Vec<PlannedTask>, at: u8) -> Option<Vec<Task>> {
        match plan(current, planned, Some(MessageId::from_random([at; 16])))? {
            Body::TasksUpdated { tasks } => Some(tasks),
            other => panic!("{other:?}"),
        }
    }

    fn lines(tasks: &[Task]) -> Vec<String> {
        tasks
            .iter()
            .map(|task| format!("{} {} {} {}", task.position, task.id, task.title, task.status))
            .collect()
    }

    #[test]
    fn a_task_is_recognised_by_its_id_or_its_title() {
        use TaskStatus::{Completed, InProgress, Pending};
        let first = update(&[], vec![planned("read", InProgress), planned("write", Pending)], 1).unwrap();
        assert_eq!(lines(&first), ["0 1 read in_progress", "1 2 write pending"]);
        let renamed = PlannedTask { id: Some(2), ..planned("write it all", InProgress) };
        let next = vec![planned("check", Pending), renamed, planned("read", Completed)];
        let second = update(&first, next, 2).unwrap();
        assert_eq!(
            lines(&second),
            ["0 3 check pending", "1 2 write it all in_progress", "2 1 read completed"]
        );
        assert!(is_consistent(&second));
        let third = update(&second, vec![planned("read", Completed), planned("new", Pending)], 3).unwrap();
        assert_eq!(lines(&third), ["0 1 read completed", "1 4 new pending"], "a new task gets a new id");
    }

    #[test]
    fn a_task_records_the_messages_in_which_it_began_and_ended() {
        use TaskStatus::{Completed, InProgress, Pending};
        let message = |n: u8| Some(MessageId::from_random([n; 16]));
        let mut tasks = vec![];
        let mut seen = vec![];
        for (at, status) in [(1, Pending), (2, InProgress), (3, InProgress), (4, Completed), (5, Pending)] {
            let next = PlannedTask { conclusion: (at == 4).then(|| "ok".into()), ..planned("read", status) };
            tasks = update(&tasks, vec![next], at).unwrap_or(tasks);
            seen.push((tasks[0].started_in_message_id, tasks[0].completed_in_message_id));
        }
        let expected = [
            (None, None),
            (message(2), None),
            (message(2), None),
            (message(2), message(4)),
            // A task that is pending again has not begun.
            (None, None),
        ];
        assert_eq!(seen, expected);
        assert_eq!(tasks[0].conclusion.as_deref(), Some("ok"), "texts that are not given stay");
    }

    #[test]
    fn an_equal_plan_changes_nothing_and_a_long_plan_is_truncated() {
        let plan = || vec![planned("a", TaskStatus::Pending)];
        let first = update(&[], plan(), 1).unwrap();
        assert_eq!(update(&first, plan(), 2), None);
        let many = (0..150).map(|n| planned(&format!("{n}{}", "x".repeat(3000)), TaskStatus::Pending));
        let many = update(&first, many.collect(), 2).unwrap();
        assert_eq!((many.len(), many[0].title.chars().count()), (MAX_TASKS, MAX_TEXT_CHARS));
        assert_eq!(update(&many, vec![], 3), Some(vec![]), "an empty plan removes the tasks");
    }
}
