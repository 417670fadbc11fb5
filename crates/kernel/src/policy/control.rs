//! Control tools: whether an agent may send work to other sessions, or cancel runs.
//!
//! Capability `control`; the operation is the tool. Calls that no rule matches are allowed: the run's own bounds hold for
//! its children anyway.

use mainspring_core::{Approval, ApprovalChoice, ApprovalRequest, Decider, Replies};

use super::layers::deciding_rule;
use super::{Action, Layers, Question, Resource, Verdict, decided};
use crate::adapter::Record;

/// The capability of control tools.
pub(crate) const CONTROL: &str = "control";

/// A call of a control tool as an action.
pub fn control_action(operation: &str, resource: &str) -> Action {
    Action {
        capability: CONTROL,
        operation: operation.to_owned(),
        resource: Resource::Text(resource.to_owned()),
    }
}

/// The verdict of the rules on a call of a control tool, and the party that decides.
pub(crate) fn control_verdict(layers: &Layers, action: &Action) -> (Verdict, Decider) {
    match deciding_rule(&layers.own(vec![]), layers.bounds(), action) {
        Some(deciding) => (deciding.rule.verdict, Decider::Rule { rule: deciding.rule.to_string() }),
        None => (Verdict::Allow, Decider::policy(CONTROL)),
    }
}

/// The question whether an agent may call a control tool.
pub fn control_question(action: &Action) -> Question {
    let request = ApprovalRequest::of(action.requested(), None).offer(&[ApprovalChoice::DenyWithReason]);
    let replies = Replies { allowed: "result".to_owned(), denied: "error".to_owned() };
    Question {
        replies: Some(replies),
        request: Some(Box::new(request)),
        ..format!("May the agent use {} on {}?", action.operation, action.resource).into()
    }
}

/// Makes the record of a decision that needed no person.
pub(crate) fn control_record(action: &Action, decision: Approval, by: Decider) -> Record {
    let question = Question::from(format!("{} {}", action.operation, action.resource));
    decided(question, decision, None, by)
}
