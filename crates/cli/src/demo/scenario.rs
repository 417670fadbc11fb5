//! The scenarios of the demo: one session each.

use anstyle::AnsiColor;
use mainspring_core::Body;

/// One session of the demo.
pub(super) struct Scenario {
    pub(super) key: &'static str,
    pub(super) description: &'static str,
    pub(super) prompt: &'static str,
    pub(super) colour: AnsiColor,
}

pub(super) const SCENARIOS: [Scenario; 6] = [
    Scenario {
        key: "stream",
        description: "text arrives as it is generated",
        prompt: "think I shall count.; stream 24 every 40ms tick; say and done.",
        colour: AnsiColor::Cyan,
    },
    Scenario {
        key: "tool",
        description: "a tool call, recorded before it runs",
        prompt: "say Let me add that up.; sleep 300ms; tool add {\"a\": 19, \"b\": 23}; sleep 300ms; say The answer is 42.",
        colour: AnsiColor::Blue,
    },
    Scenario {
        key: "retry",
        description: "a failure, retried as attempt 2",
        prompt: "say Calling the model.; fail once overload; say This time it worked.",
        colour: AnsiColor::Yellow,
    },
    Scenario {
        key: "cancel",
        description: "cancelled halfway; the text so far is kept",
        prompt: "stream 1000 every 30ms bla",
        colour: AnsiColor::Magenta,
    },
    Scenario {
        key: "ask",
        description: "waits for a person, then continues",
        prompt: "say I need to know one thing.; ask Tea or coffee?; say Coming up.",
        colour: AnsiColor::Green,
    },
    Scenario {
        key: "branch",
        description: "a second answer beside the first",
        prompt: "vary Here is one way to put it. | And here is another one.",
        colour: AnsiColor::Red,
    },
];

/// The scenario whose process is killed.
pub(super) const CRASH_SCENARIO: Scenario = Scenario {
    key: "crash",
    description: "killed, recovered, retried",
    prompt: "stream 30 every 40ms working; say finished.",
    colour: AnsiColor::White,
};

/// Describes an event; `None` for an event that the demo does not print.
pub(super) fn describe_event(body: &Body) -> Option<String> {
    let text = match body {
        Body::AttemptCreated { attempt_no, .. } if *attempt_no > 1 => format!("attempt {attempt_no}"),
        Body::AttemptFailed { error, retryable, .. } => {
            format!("attempt failed: {}{}", error.message, if *retryable { ", will be retried" } else { "" })
        }
        Body::ToolStarted { name, .. } => format!("tool {name} is about to run"),
        Body::ToolCompleted { name, .. } => format!("tool {name} completed"),
        Body::InputRequested { question, .. } => format!("asks: {question}"),
        Body::InputProvided { input: Some(input), .. } => {
            format!("answer: {}", input.as_str().unwrap_or_default())
        }
        Body::RunCancellationRequested { .. } => "cancellation requested".into(),
        Body::AttemptCancelDispatch { .. } => "cancellation sent to the agent".into(),
        Body::RunRouted { route } => match &route.next {
            Some(stage) => format!("routed to {}", stage.names().join(" and ")),
            None => "the network ends".into(),
        },
        Body::RunSucceeded { .. } => "succeeded".into(),
        Body::RunCancelled { .. } => "cancelled: the agent has stopped".into(),
        Body::RunOrphaned { error, .. } => format!("orphaned: {}", error.message),
        Body::RunFailed { error, .. } => format!("failed: {}", error.message),
        _ => return None,
    };
    Some(text)
}
