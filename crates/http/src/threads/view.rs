//! A session as a thread: its messages numbered from 0, its status (which side has the turn), its goals and its plan.
//!
//! ```text
//! message of a person                    ──▶ user
//! message of the agent                   ──▶ assistant
//! results of tools                       ──▶ roboto
//! results that a waiting run received    ──▶ roboto, at the end
//! text that is being streamed            ──▶ assistant, generating, at the end
//! ```

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use mainspring_api::GoalsSnapshot;
use mainspring_api::threads::{
    AgentContent, AgentErrorContent, AgentGoalStatus, AgentMessage, AgentMessageStatus, AgentRole,
    AgentSubtask, AgentSubtaskStatus, AgentTask, AgentTaskBoundary, AgentTaskStatus, AgentThreadGoalRecord,
    AgentThreadStatus, AgentToolResultContent, AgentToolUseContent, ContentType, is_client_tool_name,
};
use mainspring_core::message::result_text;
use mainspring_core::{
    Block, FailureCode, GoalStatus, Message, MessageId, MessageStatus, Point, Position, Role, Run, RunState,
    Session, SubtaskStatus, Task, TaskStatus, Wait, WaitRequest,
};
use mainspring_kernel::kernel::Transcript;
use serde_json::{Map, Value, json};

use super::path::{Numbered, Path};
use super::places::{PathPlaces, Places};
use super::token::Token;

/// A thread at one instant.
#[derive(Debug)]
pub(super) struct View {
    pub(super) session: Session,
    pub(super) active: Option<Run>,
    pub(super) queued: Vec<Run>,
    pub(super) position: Position,
    pub(super) head: Option<Point>,
    /// The stored messages.
    pub(super) path: Path,
    /// The messages after the stored ones: results that a waiting run has received, and streamed text.
    live: Vec<Numbered>,
    pub(super) status: AgentThreadStatus,
    pub(super) activity: Option<String>,
    pub(super) plan: Arc<Plan>,
    token: OnceLock<(Token, String)>,
    unchanged: OnceLock<Bytes>,
}

/// The goals and the tasks of a thread.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) goals: Vec<AgentThreadGoalRecord>,
    pub(super) tasks: Vec<AgentTask>,
    /// The snapshot that the goals and tasks were made from.
    pub(super) snapshot: GoalsSnapshot,
    places: Places,
}

impl View {
    /// Builds the thread of a session. `earlier` is the view whose path the transcript continues.
    pub(super) fn new(transcript: Transcript, snapshot: GoalsSnapshot, earlier: Option<&Self>) -> Self {
        let path = continued(&transcript, earlier);
        let earlier_places = earlier.map(|earlier| &earlier.plan.places);
        let mut places = PathPlaces::new(&path, transcript.kept, earlier_places);
        let goals = goals(&transcript, &snapshot, &mut places);
        let tasks = snapshot.tasks.iter().flatten().map(|task| of_task(&path, task, &mut places)).collect();
        let places = places.into_places();
        Self::of(transcript, path, Arc::new(Plan { goals, tasks, snapshot, places }))
    }

    /// Builds the thread of a session in which only streamed text has changed since `earlier`.
    pub(super) fn streamed(transcript: Transcript, earlier: &Self) -> Self {
        let path = continued(&transcript, Some(earlier));
        Self::of(transcript, path, earlier.plan.clone())
    }

    fn of(transcript: Transcript, path: Path, plan: Arc<Plan>) -> Self {
        let live = live(&transcript, &path);
        let (status, activity) = turn(&transcript, path.last().map(|last| &last.message));
        let Transcript { session, active, queued, position, head, .. } = transcript;
        let (token, unchanged) = (OnceLock::new(), OnceLock::new());
        Self { session, active, queued, position, head, path, live, status, activity, plan, token, unchanged }
    }

    /// The token of a client that holds all of the thread.
    pub(super) fn token(&self) -> &str {
        &self.held().1
    }

    /// The token of a client that holds all of the thread, as data and as text.
    pub(super) fn held(&self) -> &(Token, String) {
        self.token.get_or_init(|| {
            let token = Token::of(self);
            let text = token.encode();
            (token, text)
        })
    }

    /// The answer to a client that holds all of the thread, made once.
    pub(super) fn unchanged(&self, make: impl FnOnce() -> Bytes) -> Bytes {
        self.unchanged.get_or_init(make).clone()
    }

    /// The number of messages.
    pub(super) fn len(&self) -> usize {
        self.path.len() + self.live.len()
    }

    pub(super) fn get(&self, number: usize) -> Option<&Numbered> {
        match self.path.get(number) {
            Some(stored) => Some(stored),
            None => self.live.get(number.checked_sub(self.path.len())?),
        }
    }

    /// The messages from a number on.
    pub(super) fn starting_at(&self, start: usize) -> impl Iterator<Item = &Numbered> {
        let stored = self.path.starting_at(start).map(|message| &**message);
        stored.chain(self.live.iter().skip(start.saturating_sub(self.path.len())))
    }

    /// The hash of the first `count` messages; none if the thread has fewer.
    pub(super) fn prefix(&self, count: usize) -> Option<u64> {
        match count.checked_sub(1) {
            None => Some(0),
            Some(last) => self.get(last).map(|message| message.prefix),
        }
    }

    /// Returns the number of the message with this id.
    pub(super) fn number_of(&self, message: MessageId) -> Option<usize> {
        self.path.starting_at(0).position(|known| known.id == Some(message))
    }

    /// The memory that the view takes, roughly, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.path.bytes() + self.live.iter().map(|message| message.bytes).sum::<usize>()
    }

    /// The results that the active run waits for.
    pub(super) fn client_wait(&self) -> Option<(&Run, &Wait)> {
        let run = self.active.as_ref()?;
        client_wait(&run.state).map(|wait| (run, wait))
    }
}

/// Continues the path of an earlier view.
fn continued(transcript: &Transcript, earlier: Option<&View>) -> Path {
    let none = Path::default();
    earlier.map_or(&none, |earlier| &earlier.path).continued(transcript.kept, &transcript.new)
}

/// Builds the messages that are not stored yet.
fn live(transcript: &Transcript, path: &Path) -> Vec<Numbered> {
    let last = path.last().map(|last| &last.message);
    let mut messages: Vec<AgentMessage> = waiting_results(transcript, last).into_iter().collect();
    for open in &transcript.partial {
        let text: String = open.blocks.iter().map(|block| block.text.as_str()).collect();
        let mut latest = path.starting_at(path.len().saturating_sub(4));
        let is_written = latest.any(|message| message.id == Some(open.message_id));
        if !text.is_empty() && !is_written {
            let created = transcript.active.as_ref().map(|run| run.updated_at.into());
            let (role, status) = (AgentRole::Assistant, AgentMessageStatus::Generating);
            messages.push(AgentMessage { role, status, content: vec![AgentContent::text(text)], created });
        }
    }
    let mut before = path.last().map_or(0, |last| last.prefix);
    let number = |message| {
        let numbered = Numbered::live(message, before);
        before = numbered.prefix;
        numbered
    };
    messages.into_iter().map(number).collect()
}

/// The results of client tools that a run in this state waits for.
pub(super) fn client_wait(state: &RunState) -> Option<&Wait> {
    match state {
        RunState::WaitingInput { wait, .. }
            if wait.request == WaitRequest::Tools && wait.answer.is_none() =>
        {
            Some(wait)
        }
        _ => None,
    }
}

/// Decides which side has the turn after the message `last`, and which activity is shown.
fn turn(transcript: &Transcript, last: Option<&AgentMessage>) -> (AgentThreadStatus, Option<String>) {
    let work = |activity: Option<&str>| (AgentThreadStatus::RobotoTurn, activity.map(str::to_owned));
    let Some(run) = &transcript.active else {
        return match (transcript.queued.is_empty(), last) {
            (false, _) => work(Some("Waiting for a free worker")),
            (true, None) => (AgentThreadStatus::NotStarted, None),
            (true, Some(last)) if has_error(last, &FailureCode::GoalsFailed) => {
                (AgentThreadStatus::GoalsFailed, None)
            }
            (true, Some(_)) => (AgentThreadStatus::UserTurn, None),
        };
    };
    match &run.state {
        state if client_wait(state).is_some() => (AgentThreadStatus::ClientToolTurn, None),
        RunState::WaitingInput { wait, .. } if wait.request == WaitRequest::Tools => work(None),
        RunState::WaitingInput { wait, .. } => work(Some(&format!("Waiting for input: {}", wait.question))),
        RunState::WaitingApproval { wait, .. } => {
            work(Some(&format!("Waiting for an approval: {}", wait.question)))
        }
        RunState::Queued { .. } => work(Some("Waiting for a free worker")),
        RunState::Cancelling { .. } => work(Some("Cancelling")),
        _ => work(None),
    }
}

fn has_error(message: &AgentMessage, wanted: &FailureCode) -> bool {
    let is_wanted = |block: &AgentContent| match block {
        AgentContent::Error(error) => error.error_code.as_deref() == Some(wanted.as_str()),
        _ => false,
    };
    message.content.iter().any(is_wanted)
}

/// Converts a stored message.
pub(super) fn of_message(message: &Message) -> AgentMessage {
    let role = match message.role {
        Role::User if message.is_prompt() => AgentRole::User,
        Role::User => AgentRole::Roboto,
        Role::Assistant => AgentRole::Assistant,
    };
    let status = match message.status {
        MessageStatus::NotStarted => AgentMessageStatus::NotStarted,
        MessageStatus::Generating => AgentMessageStatus::Generating,
        MessageStatus::Completed => AgentMessageStatus::Completed,
        MessageStatus::Failed => AgentMessageStatus::Failed,
        MessageStatus::Cancelled => AgentMessageStatus::Cancelled,
    };
    let mut content: Vec<AgentContent> = vec![];
    for block in &message.content {
        match (of_block(block), content.last_mut()) {
            // Streamed text does not record where a block ends, so adjacent texts are joined.
            (Some(AgentContent::Text(more)), Some(AgentContent::Text(text))) => {
                text.text.push_str(&more.text);
            }
            (new, _) => content.extend(new),
        }
    }
    if role == AgentRole::Roboto {
        order_results(&mut content);
    }
    AgentMessage { role, content, status, created: Some(message.created_at.into()) }
}

/// Sorts the results of the server before those of the client. The partial results of a waiting run are then a prefix
/// of the complete message.
fn order_results(content: &mut [AgentContent]) {
    content.sort_by_key(|block| match block {
        AgentContent::ToolResult(result) => is_client_tool_name(&result.tool_name),
        _ => false,
    });
}

/// Converts a block. Thoughts and files have no form in a thread.
fn of_block(block: &Block) -> Option<AgentContent> {
    Some(match block {
        Block::Text { text } if text.is_empty() => return None,
        Block::Text { text } => AgentContent::text(text),
        Block::ToolUse { id, name, input, .. } => {
            let raw_request =
                (!input.is_object()).then(|| Map::from_iter([("input".to_owned(), input.clone())]));
            AgentContent::ToolUse(AgentToolUseContent {
                content_type: ContentType::ToolUse,
                tool_name: name.clone(),
                tool_use_id: id.clone(),
                input: input.as_object().cloned(),
                raw_request,
                answered_by_server: false,
            })
        }
        Block::ToolResult { tool_use_id, name, content, is_error, declined, runtime_ms } => {
            let status = match (declined, is_error) {
                (true, _) => "declined",
                (false, true) => "error",
                (false, false) => "success",
            };
            result(name, tool_use_id, runtime_ms.unwrap_or(0), status, &result_text(content))
        }
        Block::Error { code, message } => AgentContent::Error(AgentErrorContent {
            content_type: ContentType::Error,
            error_message: message.clone(),
            error_code: Some(code.clone()),
        }),
        Block::Thinking {} | Block::Attachment { .. } | Block::Diff { .. } => return None,
    })
}

/// Builds the result of a tool from its text. JSON is sent as JSON.
fn result(name: &str, id: &str, runtime_ms: u64, status: &str, text: &str) -> AgentContent {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let (payload, raw_response) = match parsed {
        Some(Value::Object(object)) => (Value::Object(object.clone()), object),
        Some(Value::Array(items)) => {
            let raw = Map::from_iter([("result".to_owned(), Value::Array(items.clone()))]);
            (Value::Array(items), raw)
        }
        Some(other) if !other.is_string() => (json!(text), Map::from_iter([("result".to_owned(), other)])),
        _ => (json!(text), Map::from_iter([("result".to_owned(), json!(text))])),
    };
    AgentContent::ToolResult(AgentToolResultContent {
        content_type: ContentType::ToolResult,
        tool_name: name.to_owned(),
        tool_use_id: id.to_owned(),
        runtime_ms,
        status: status.to_owned(),
        payload: Some(payload),
        raw_response: Some(raw_response),
    })
}

/// The results that a run has received while it waits for more from the client. `last` is the message with the calls.
fn waiting_results(transcript: &Transcript, last: Option<&AgentMessage>) -> Option<AgentMessage> {
    let run = transcript.active.as_ref()?;
    let RunState::WaitingInput { wait, .. } = &run.state else { return None };
    let last = last.filter(|_| wait.request == WaitRequest::Tools)?;
    let of_call = |block: &AgentContent| {
        let AgentContent::ToolUse(call) = block else { return None };
        let known = wait.results.iter().find(|result| result.tool_use_id == call.tool_use_id)?;
        let runtime_ms = known.runtime_ms.unwrap_or(0);
        Some(result(&call.tool_name, &call.tool_use_id, runtime_ms, known.status().name(), &known.text()))
    };
    let mut content: Vec<_> = last.content.iter().filter_map(of_call).collect();
    order_results(&mut content);
    let (role, status) = (AgentRole::Roboto, AgentMessageStatus::Completed);
    (!content.is_empty()).then(|| AgentMessage {
        role,
        content,
        status,
        created: Some(run.updated_at.into()),
    })
}

/// The goals of the runs on the path. A goal of a run that has not started belongs to the next message.
fn goals(
    transcript: &Transcript,
    plan: &GoalsSnapshot,
    places: &mut PathPlaces<'_>,
) -> Vec<AgentThreadGoalRecord> {
    let mut number = |goal: &mainspring_api::SessionGoal| {
        let is_queued = transcript.queued.iter().chain(&transcript.active).any(|run| run.id == goal.run_id);
        places.of_run(goal.run_id).or(is_queued.then(|| places.end()))
    };
    let all = plan.goals.iter().flatten();
    let on_path = all.filter_map(|goal| Some((number(goal)?, &goal.goal)));
    let record = |(message_sequence_num, goal): (usize, &mainspring_core::Goal)| {
        let mut goal_data = goal.data.clone();
        goal_data.insert("goal_type".into(), json!(goal.goal_type));
        AgentThreadGoalRecord {
            goal_type: goal.goal_type.clone(),
            goal_data,
            status: match goal.status {
                GoalStatus::Pending => AgentGoalStatus::Pending,
                GoalStatus::Achieved => AgentGoalStatus::Achieved,
                GoalStatus::Failed => AgentGoalStatus::Failed,
            },
            message_sequence_num,
            created: goal.created_at.into(),
            concluded_at: goal.concluded_at.map(Into::into),
            achieve_tool_use_id: goal.tool_use_id.clone(),
        }
    };
    on_path.map(record).collect()
}

fn of_task(path: &Path, task: &Task, places: &mut PathPlaces<'_>) -> AgentTask {
    let mut boundary = |message: Option<MessageId>| {
        let message_sequence_num = places.of_message(message?)?;
        let content = &path.get(message_sequence_num)?.message.content;
        let call = content.iter().position(|block| matches!(block, AgentContent::ToolUse(_)));
        Some(AgentTaskBoundary { message_sequence_num, content_sequence_num: call.unwrap_or(0) })
    };
    let subtask = |subtask: &mainspring_core::Subtask| AgentSubtask {
        title: subtask.title.clone(),
        status: match subtask.status {
            SubtaskStatus::Pending => AgentSubtaskStatus::Pending,
            SubtaskStatus::Done => AgentSubtaskStatus::Done,
        },
    };
    AgentTask {
        task_id: task.id,
        position: task.position,
        title: task.title.clone(),
        status: match task.status {
            TaskStatus::Pending => AgentTaskStatus::Pending,
            TaskStatus::InProgress => AgentTaskStatus::InProgress,
            TaskStatus::Completed => AgentTaskStatus::Completed,
        },
        description: task.description.clone(),
        conclusion: task.conclusion.clone(),
        start: boundary(task.started_in_message_id),
        end: boundary(task.completed_in_message_id),
        subtasks: task.subtasks.iter().map(subtask).collect(),
    }
}
