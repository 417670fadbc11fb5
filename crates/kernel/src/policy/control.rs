//! Control tools: whether an agent may send work to other sessions, or cancel runs.
//!
//! Capability `control`; the operation is the tool. What no rule concerns is allowed: the run's own bounds hold for its
//! children anyway. A control call waits for nobody, so a rule that asks denies.

use mainspring_core::{Approval, Decider};

use super::rules::first_match;
use super::{Action, Question, Resource, Rule, Verdict, decided};
use crate::adapter::Record;

/// The capability of control tools.
const CAPABILITY: &str = "control";

/// Decides a call of a control tool on `resource`. Returns the decision, and the record of it.
pub(crate) fn decide_control(rules: &[Rule], operation: &str, resource: &str) -> (Approval, Record) {
    let action = Action {
        capability: CAPABILITY,
        operation: operation.to_owned(),
        resource: Resource::Text(resource.to_owned()),
    };
    let (decision, by) = match first_match(rules, &action) {
        Some(rule) => {
            let decision = match rule.verdict {
                Verdict::Allow => Approval::Allowed,
                Verdict::Deny | Verdict::Ask => Approval::Denied,
            };
            (decision, Decider::Rule { rule: rule.to_string() })
        }
        None => (Approval::Allowed, Decider::policy(CAPABILITY)),
    };
    let question = Question::from(format!("{operation} {resource}"));
    (decision, decided(question, decision, None, by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_decides_and_what_no_rule_concerns_is_allowed() {
        let rules = [
            "allow control cancel_agent_run run_1",
            "ask control cancel_agent_run *",
            "deny control delegate_agent *",
        ];
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let decide = |operation: &str, resource: &str| decide_control(&rules, operation, resource).0;
        assert_eq!(decide("cancel_agent_run", "run_1"), Approval::Allowed);
        assert_eq!(decide("cancel_agent_run", "run_2"), Approval::Denied);
        assert_eq!(decide("delegate_agent", "spawn"), Approval::Denied);
        assert_eq!(decide("send_agent_message", "ses_1"), Approval::Allowed);
    }
}
