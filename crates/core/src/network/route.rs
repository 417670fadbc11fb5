//! Routes: the decisions of a network's router.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Stage;
use crate::MessageId;

/// One decision of a router. The call that it names follows; its result is on the run's path after `message`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The number of the decision within its run, from 1.
    #[serde(rename = "routeNo")]
    pub no: u32,
    /// The part of the router that decided.
    pub by: RoutedBy,
    /// The reason that the router gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The agents that the router added to the stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pushed: Vec<Stage>,
    /// The agents that were skipped because they are not enabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// The agent or agents that are called. Absent if the network ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Stage>,
    /// The rest of the stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<Stage>,
    /// The number of agent calls, including those of this decision.
    pub calls: u32,
    /// The number of the run's last model call before the decision; 0 if there is none.
    #[serde(rename = "stepNo", default)]
    pub step: u32,
    /// The run's last message before the decision.
    #[serde(rename = "messageId", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageId>,
    /// Why the network ends. Absent if it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RouteEnd>,
}

/// The part of a router that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RoutedBy {
    /// The sequence.
    Sequence,
    /// A rule.
    #[serde(rename_all = "camelCase")]
    Rule {
        /// The number of the rule, from 1.
        rule: u32,
    },
    /// The rules: none of them holds.
    Rules,
    /// Code of an embedder.
    #[serde(rename_all = "camelCase")]
    Code {
        /// The name of the code.
        name: String,
    },
    /// The routing model.
    Model,
    /// The reducer of a parallel stage, which is an agent.
    Reducer,
}

/// Why a network ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RouteEnd {
    /// The router ended the network.
    Done,
    /// The stack is empty.
    StackEmpty,
    /// The network has reached its maximum number of agent calls.
    MaxIter,
}

/// The choice of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The part of the router that decided.
    pub by: RoutedBy,
    /// The reason that the router gave.
    pub reason: Option<String>,
    /// The agents to add to the stack.
    pub push: Vec<Stage>,
    /// True to end the network, whatever the stack holds.
    pub done: bool,
}

impl Choice {
    /// Adds agents to the stack.
    pub fn push(by: RoutedBy, push: Vec<Stage>) -> Self {
        Self { by, reason: None, push, done: false }
    }

    /// Ends the network.
    pub fn done(by: RoutedBy) -> Self {
        Self { by, reason: None, push: vec![], done: true }
    }
}

/// The progress of a run when its router decides, and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The number of the last model call.
    pub step: u32,
    /// The most agent calls; 0 for no limit.
    pub max_iter: u32,
}

impl Route {
    /// Applies the choice of a router after the decision `earlier`, and finds the agents to call next. Agents that are
    /// not enabled are skipped.
    pub fn decide(
        earlier: Option<&Self>,
        choice: Choice,
        progress: Progress,
        is_enabled: impl Fn(&str) -> bool,
    ) -> Self {
        let Choice { by, reason, push, done } = choice;
        let (no, calls) = earlier.map_or((1, 0), |earlier| (earlier.no + 1, earlier.calls));
        let mut stack: VecDeque<Stage> =
            earlier.map(|earlier| earlier.stack.clone()).unwrap_or_default().into();
        match by {
            // The reducer finishes its own stage, so it is called before the later stages.
            RoutedBy::Reducer => push.iter().rev().for_each(|stage| stack.push_front(stage.clone())),
            _ => stack.extend(push.iter().cloned()),
        }
        let mut skipped = vec![];
        let mut next = None;
        while let Some(stage) = stack.front().filter(|_| !done && next.is_none()).cloned() {
            stack.pop_front();
            let (enabled, disabled): (Vec<String>, Vec<String>) =
                stage.names().iter().cloned().partition(|name| is_enabled(name));
            skipped.extend(disabled);
            next = match (enabled.len(), &stage) {
                (0, _) => None,
                (1, _) => enabled.into_iter().next().map(Stage::One),
                _ => Some(Stage::Parallel(enabled)),
            };
        }
        let wanted = next.as_ref().map_or(0, Stage::calls);
        let exceeds = progress.max_iter > 0 && calls.saturating_add(wanted) > progress.max_iter;
        let end = match &next {
            None if done => Some(RouteEnd::Done),
            None => Some(RouteEnd::StackEmpty),
            Some(_) if exceeds => Some(RouteEnd::MaxIter),
            Some(_) => None,
        };
        if end == Some(RouteEnd::MaxIter) {
            next.take().into_iter().for_each(|stage| stack.push_front(stage));
        }
        let calls = if next.is_some() { calls.saturating_add(wanted) } else { calls };
        let (step, stack) = (progress.step, stack.into());
        Self { no, by, reason, pushed: push, skipped, next, stack, calls, step, message: None, end }
    }
}
