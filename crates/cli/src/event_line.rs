//! Events as lines for people: `run events` and `session tail`.

use mainspring_core::{Body, Event, Message, Role, SessionChange, TaskStatus, ToolOutcome};
use serde_json::Value;

use super::output::{DIM, GREEN, RED, YELLOW, excerpt, format_clock, json_value};
use super::tree::format_blocks;

/// The maximum number of characters of a text that are shown.
const TEXT_CHARS: usize = 200;

/// Formats an event on one line: its time, its type and what happened.
pub(super) fn format_event(event: &Event) -> String {
    format_line(event, &describe(&event.body))
}

/// Formats the end of a message whose text was printed while it was streamed.
pub(super) fn format_streamed(event: &Event) -> String {
    format_line(event, "as above")
}

fn format_line(event: &Event, text: &str) -> String {
    let (at, kind) = (format_clock(event.at), event.body.kind());
    let style = match &event.body {
        Body::RunSucceeded { .. } => GREEN,
        Body::RunFailed { .. } | Body::RunTimedOut { .. } | Body::RunOrphaned { .. } => RED,
        Body::AttemptFailed { .. } | Body::ToolFailed { .. } | Body::EventDamaged { .. } => RED,
        Body::InputRequested { .. } | Body::ApprovalRequested { .. } | Body::ToolsRequested { .. } => YELLOW,
        _ => super::output::PLAIN,
    };
    let line = format!("{DIM}{at}{DIM:#} {style}{kind:<22}{style:#} {text}");
    line.trim_end().to_owned()
}

fn describe(body: &Body) -> String {
    match body {
        Body::SessionCreated { key, title, adapter, .. } => {
            let name = key.as_deref().or(title.as_deref()).unwrap_or_default();
            format!("{name} on {adapter}").trim_start().to_owned()
        }
        Body::SessionUpdated { change } => describe_change(change),
        Body::RunQueued { adapter, mode, policy, .. } => {
            let policy = policy.map(|policy| format!(", {policy}")).unwrap_or_default();
            format!("on {adapter}, mode {mode}{policy}")
        }
        Body::RunMerged { into_run_id } => format!("into {into_run_id}"),
        Body::RunFailed { error, .. }
        | Body::RunTimedOut { error, .. }
        | Body::RunOrphaned { error, .. }
        | Body::AttemptFailed { error, .. } => format!("{} ({})", one_line(&error.message), error.code),
        Body::AttemptCreated { attempt_no, adapter, .. } => format!("attempt {attempt_no} on {adapter}"),
        Body::BindingCreated { adapter, generation, .. } => format!("generation {generation} of {adapter}"),
        Body::BindingStale { reason, .. } => one_line(reason),
        Body::MessageCompleted { message, .. } => describe_message(message),
        Body::EventDamaged { event_type, message, .. } => {
            format!("{} {}", event_type.as_deref().unwrap_or_default(), one_line(message))
                .trim_start()
                .to_owned()
        }
        Body::ProgressUpdated { text } | Body::ToolUpdated { text, .. } => one_line(text),
        Body::ToolStarted { name, input, .. } => {
            format!("{name} {}", input.as_ref().map(Value::to_string).unwrap_or_default())
        }
        Body::ToolCompleted { name, .. } => name.clone(),
        Body::ToolFailed { name, outcome, error, .. } => match outcome {
            ToolOutcome::Rejected => format!("{name} was rejected: {}", one_line(&error.message)),
            _ => format!("{name}: {}", one_line(&error.message)),
        },
        Body::StepCompleted { step_no, provider, model, error, .. } => {
            let error = error.as_ref().map(|error| format!(": {}", one_line(&error.message)));
            format!("model call {step_no} on {provider}/{model}{}", error.unwrap_or_default())
        }
        Body::FeedbackGiven { feedback } => format!("{} on {}", feedback.sentiment, feedback.message),
        Body::GoalDeclared { goal_type, .. } | Body::GoalAchieved { goal_type, .. } => goal_type.clone(),
        Body::GoalRejected { goal_type, error, .. } | Body::GoalFailed { goal_type, error, .. } => {
            format!("{goal_type}: {}", one_line(&error.message))
        }
        Body::GoalsReminded { reminder_no, max_reminders, .. } => format!("{reminder_no} of {max_reminders}"),
        Body::TasksUpdated { tasks } => {
            let done = tasks.iter().filter(|task| task.status == TaskStatus::Completed).count();
            format!("{done} of {} tasks done", tasks.len())
        }
        Body::InputRequested { question, .. } | Body::ApprovalRequested { question, .. } => {
            one_line(question)
        }
        Body::InputProvided { input, .. } => input.as_ref().map(Value::to_string).unwrap_or_default(),
        Body::ToolsRequested { calls, .. } => {
            calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>().join(", ")
        }
        Body::ArtifactCreated { name, kind, size_bytes, .. } => {
            let size = size_bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
            format!("{}{size}", name.as_deref().unwrap_or(kind))
        }
        Body::StateChanged { key, deleted, .. } => match deleted {
            true => format!("{key} was deleted"),
            false => key.clone(),
        },
        Body::UsageUpdated { usage } => {
            format!("{} tokens in, {} out, {}", usage.input_tokens, usage.output_tokens, usage.cost)
        }
        Body::DelegationCreated { mode, objective, child_run_id, .. } => {
            format!("{} {child_run_id}: {}", mode.name(), one_line(objective))
        }
        Body::DelegationCompleted { status, .. } => status.name().to_owned(),
        // The text of an ended run is in the messages.
        Body::RunSucceeded { .. } => String::new(),
        body => plain_fields(body),
    }
}

fn describe_message(message: &Message) -> String {
    let author = match message.role {
        Role::User => "user",
        Role::Assistant => "agent",
    };
    format!("{author}: {}", one_line(&format_blocks(&message.content).join(" ")))
}

fn describe_change(change: &SessionChange) -> String {
    let json = json_value(change);
    let fields = json.as_object().into_iter().flatten();
    fields.map(|(name, value)| format!("{name} {}", one_line(&text_of(value)))).collect::<Vec<_>>().join(", ")
}

/// Lists the simple fields of an event without ids.
fn plain_fields(body: &Body) -> String {
    let json = json_value(body);
    let fields = json["payload"].as_object().into_iter().flatten();
    let simple = fields.filter(|(name, value)| {
        !name.ends_with("Id") && !value.is_object() && !value.is_array() && !value.is_null()
    });
    simple.map(|(name, value)| format!("{name} {}", one_line(&text_of(value)))).collect::<Vec<_>>().join(", ")
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn one_line(text: &str) -> String {
    excerpt(&text.split_whitespace().collect::<Vec<_>>().join(" "), TEXT_CHARS)
}
