//! A session as a thread: its messages numbered from 0, whose turn it is, its goals and its plan.
//!
//! ```text
//! message of a person                    ──▶ user
//! message of the agent                   ──▶ assistant
//! results of tools                       ──▶ roboto
//! results that a run waits with          ──▶ roboto, at the end
//! text that is being streamed            ──▶ assistant, generating, at the end
//! ```

use std::sync::{Arc, OnceLock};

use mainspring_api::GoalsSnapshot;
use mainspring_api::threads::{
    AgentContent, AgentErrorContent, AgentGoalStatus, AgentMessage, AgentMessageStatus, AgentRole,
    AgentSubtask, AgentSubtaskStatus, AgentTask, AgentTaskBoundary, AgentTaskStatus, AgentThreadGoalRecord,
    AgentThreadStatus, AgentToolResultContent, AgentToolUseContent, ContentType, is_client_tool_name,
};
use mainspring_core::message::result_text;
use mainspring_core::{
    Block, GoalStatus, Message, MessageId, MessageStatus, Role, Run, RunState, SubtaskStatus, Task,
    TaskStatus, Wait, WaitRequest,
};
use mainspring_kernel::kernel::Transcript;
use serde_json::{Map, Value, json};

use super::token::{Token, chain, digest};

/// A message with the hash of its content.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) message: AgentMessage,
    /// The hash of the role and the content, by which messages of a token are recognised.
    pub(super) digest: u64,
}

impl Numbered {
    fn new(message: AgentMessage) -> Arc<Self> {
        let digest = digest(&message);
        Arc::new(Self { message, digest })
    }
}

/// A thread at one instant.
#[derive(Debug)]
pub(super) struct View {
    pub(super) transcript: Transcript,
    pub(super) messages: Vec<Arc<Numbered>>,
    pub(super) status: AgentThreadStatus,
    pub(super) activity: Option<String>,
    pub(super) goals: Vec<AgentThreadGoalRecord>,
    pub(super) tasks: Vec<AgentTask>,
    /// The hash of every prefix of the messages, the empty one first.
    pub(super) chain: Vec<u64>,
    token: OnceLock<String>,
}

impl View {
    /// The token of a client that holds all of the thread.
    pub(super) fn token(&self) -> String {
        self.token.get_or_init(|| Token::of(self).encode()).clone()
    }

    /// Builds the thread of a session. `earlier` is an earlier view of it, whose messages are used again.
    pub(super) fn new(transcript: Transcript, plan: &GoalsSnapshot, earlier: Option<&Self>) -> Self {
        let messages = messages(&transcript, earlier);
        let goals = goals(&transcript, plan);
        let tasks = plan.tasks.iter().flatten().map(|task| of_task(&transcript, task)).collect();
        Self::of(transcript, messages, goals, tasks)
    }

    /// Builds the thread of a session in which only streamed text has changed since `earlier`.
    pub(super) fn with_plan_of(transcript: Transcript, earlier: &Self) -> Self {
        let messages = messages(&transcript, Some(earlier));
        Self::of(transcript, messages, earlier.goals.clone(), earlier.tasks.clone())
    }

    fn of(
        transcript: Transcript,
        messages: Vec<Arc<Numbered>>,
        goals: Vec<AgentThreadGoalRecord>,
        tasks: Vec<AgentTask>,
    ) -> Self {
        let (status, activity) = turn(&transcript);
        let chain = chain(messages.iter().map(|message| message.digest));
        Self { transcript, messages, status, activity, goals, tasks, chain, token: OnceLock::new() }
    }

    /// Returns the number of the message with this id.
    pub(super) fn number_of(&self, message: MessageId) -> Option<usize> {
        number_of(&self.transcript, message)
    }

    /// The results that the active run waits for.
    pub(super) fn client_wait(&self) -> Option<(&Run, &Wait)> {
        client_wait(&self.transcript)
    }
}

/// Builds the messages of a thread.
fn messages(transcript: &Transcript, earlier: Option<&View>) -> Vec<Arc<Numbered>> {
    let known = |index: usize, message: &Arc<Message>| {
        let earlier = earlier?;
        let same = Arc::ptr_eq(earlier.transcript.path.get(index)?, message);
        same.then(|| earlier.messages.get(index).cloned()).flatten()
    };
    let path = transcript.path.iter().enumerate();
    let mut messages: Vec<_> = path
        .map(|(index, message)| known(index, message).unwrap_or_else(|| Numbered::new(of_message(message))))
        .collect();
    if let Some(results) = waiting_results(transcript) {
        messages.push(Numbered::new(results));
    }
    for open in &transcript.partial {
        let text: String = open.blocks.iter().map(|block| block.text.as_str()).collect();
        let is_written = transcript.path.iter().rev().take(4).any(|message| message.id == open.message_id);
        if !text.is_empty() && !is_written {
            let created = transcript.active.as_ref().map(|run| run.updated_at.into());
            let (role, status) = (AgentRole::Assistant, AgentMessageStatus::Generating);
            let message = AgentMessage { role, status, content: vec![AgentContent::text(text)], created };
            messages.push(Numbered::new(message));
        }
    }
    messages
}

fn number_of(transcript: &Transcript, message: MessageId) -> Option<usize> {
    transcript.path.iter().position(|known| known.id == message)
}

fn client_wait(transcript: &Transcript) -> Option<(&Run, &Wait)> {
    let run = transcript.active.as_ref()?;
    match &run.state {
        RunState::WaitingInput { wait, .. }
            if wait.request == WaitRequest::Tools && wait.answer.is_none() =>
        {
            Some((run, wait))
        }
        _ => None,
    }
}

/// Decides whose turn it is, and what people read beside it.
fn turn(transcript: &Transcript) -> (AgentThreadStatus, Option<String>) {
    let work = |activity: Option<&str>| (AgentThreadStatus::RobotoTurn, activity.map(str::to_owned));
    let Some(run) = &transcript.active else {
        return match (transcript.queued.is_empty(), transcript.path.last()) {
            (false, _) => work(Some("Waiting for a free worker")),
            (true, None) => (AgentThreadStatus::NotStarted, None),
            (true, Some(last)) if has_error(last, "goals_failed") => (AgentThreadStatus::GoalsFailed, None),
            (true, Some(_)) => (AgentThreadStatus::UserTurn, None),
        };
    };
    match &run.state {
        _ if client_wait(transcript).is_some() => (AgentThreadStatus::ClientToolTurn, None),
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

fn has_error(message: &Message, wanted: &str) -> bool {
    message.content.iter().any(|block| matches!(block, Block::Error { code, .. } if code == wanted))
}

fn of_message(message: &Message) -> AgentMessage {
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
            // Streamed text has no borders of blocks.
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

/// Sorts the results of the server before those of the client: so the results of a run that still waits for some of the
/// client's are the first ones of the complete message.
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

/// Builds the result of a tool of its text. JSON is sent as such.
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

/// The results that a run has while it waits for further ones of the client.
fn waiting_results(transcript: &Transcript) -> Option<AgentMessage> {
    let run = transcript.active.as_ref()?;
    let RunState::WaitingInput { wait, .. } = &run.state else { return None };
    let last = transcript.path.last().filter(|_| wait.request == WaitRequest::Tools)?;
    let calls = last.tool_calls();
    let of_call = |(id, name): &(String, String)| {
        let known = wait.results.iter().find(|result| result.tool_use_id == *id)?;
        Some(result(name, id, known.runtime_ms.unwrap_or(0), known.status().name(), &known.text()))
    };
    let mut content: Vec<_> = calls.iter().filter_map(of_call).collect();
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
fn goals(transcript: &Transcript, plan: &GoalsSnapshot) -> Vec<AgentThreadGoalRecord> {
    let number = |goal: &mainspring_api::SessionGoal| {
        let on_path = transcript.path.iter().position(|message| message.run == Some(goal.run_id));
        let is_queued = transcript.queued.iter().chain(&transcript.active).any(|run| run.id == goal.run_id);
        on_path.or(is_queued.then_some(transcript.path.len()))
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

fn of_task(transcript: &Transcript, task: &Task) -> AgentTask {
    let boundary = |message: Option<MessageId>| {
        let message_sequence_num = number_of(transcript, message?)?;
        let content = &transcript.path[message_sequence_num].content;
        let call = content.iter().position(|block| matches!(block, Block::ToolUse { .. }));
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
