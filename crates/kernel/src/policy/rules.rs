//! Rules: allow, deny or ask, by capability, operation and resource.
//!
//! The first rule that matches decides (`layers.rs` has the order). Without a match, the run's permissions decide. A rule
//! that allows or denies becomes a grant of the run when it is first used, so that every decision names a grant.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use mainspring_core::{
    Approval, ApprovalAnswer, Decider, Grant, GrantEffect, GrantId, GrantSource, Mode, RequestedAction,
};
use parking_lot::Mutex;

use super::layers::{Deciding, Layers, deciding_rule};
use super::pattern::{MAX_PATTERN_BYTES, matches_pattern};
use super::resource::Resource;
use super::{
    Question, ask_approval, covering_grant, decided, decided_by_grant, grant_constraints, request_permission,
};
use crate::adapter::{AttemptHandle, HandleError, Record};

/// An action that an agent asks to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Capability, for example `fs`.
    pub capability: &'static str,
    /// Operation of the capability, for example `write`.
    pub operation: String,
    /// Object of the operation, for example a path.
    pub resource: Resource,
}

impl Action {
    /// The action as part of a request to a person.
    pub fn requested(&self) -> RequestedAction {
        RequestedAction {
            capability: self.capability.to_owned(),
            operation: self.operation.clone(),
            resource: self.resource.to_string(),
        }
    }
}

/// The decision of a rule. The strictest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The action is denied.
    Deny,
    /// A person decides.
    Ask,
    /// The action is allowed.
    Allow,
}

impl Verdict {
    const ALL: [(&'static str, Self); 3] = [("allow", Self::Allow), ("deny", Self::Deny), ("ask", Self::Ask)];

    /// The decision if no person is asked: only [`Verdict::Allow`] allows.
    fn decision(self) -> Approval {
        match self {
            Self::Allow => Approval::Allowed,
            Self::Deny | Self::Ask => Approval::Denied,
        }
    }
}

/// A verdict on actions that match three patterns, in which `*` stands for any text: `allow fs read /data/*`. The kind of
/// the resource decides how the third pattern is compared: see [`Resource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The decision.
    pub verdict: Verdict,
    capability: String,
    operation: String,
    resource: String,
}

/// A text that is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no rule: write allow, deny or ask, then capability, operation and resource, such as \"allow fs read *\", \
     in at most 1024 bytes"
)]
pub struct BadRule(String);

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = || BadRule(text.chars().take(100).collect());
        if text.len() > MAX_PATTERN_BYTES {
            return Err(bad());
        }
        let mut words = text.trim().splitn(4, ' ').map(str::trim);
        let mut word = || words.next().filter(|word| !word.is_empty()).ok_or_else(bad);
        let verdict = word()?;
        let (_, verdict) = Verdict::ALL.into_iter().find(|(name, _)| *name == verdict).ok_or_else(bad)?;
        let (capability, operation, resource) = (word()?.to_owned(), word()?.to_owned(), word()?.to_owned());
        Ok(Self { verdict, capability, operation, resource })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = Verdict::ALL.into_iter().find(|(_, verdict)| *verdict == self.verdict);
        let verdict = verdict.map_or("", |(name, _)| name);
        write!(f, "{verdict} {} {} {}", self.capability, self.operation, self.resource)
    }
}

impl Rule {
    /// A rule about calls of the tools that `pattern` names.
    pub(super) fn about_tools(verdict: Verdict, pattern: &str) -> Self {
        let (capability, operation) = ("tool".to_owned(), "call".to_owned());
        Self { verdict, capability, operation, resource: pattern.to_owned() }
    }

    /// A rule about every operation of a capability.
    pub(super) fn about(verdict: Verdict, capability: &str) -> Self {
        let capability = capability.to_owned();
        Self { verdict, capability, operation: "*".to_owned(), resource: "*".to_owned() }
    }

    /// A rule about everything.
    pub(super) fn everything(verdict: Verdict) -> Self {
        Self::about(verdict, "*")
    }

    fn matches(&self, action: &Action) -> bool {
        let covers = self.covers(action.capability, &action.operation);
        covers
            && match self.verdict {
                Verdict::Allow => action.resource.is_admitted_by(&self.resource),
                Verdict::Deny | Verdict::Ask => action.resource.is_stopped_by(&self.resource),
            }
    }

    fn covers(&self, capability: &str, operation: &str) -> bool {
        matches_pattern(&self.capability, capability) && matches_pattern(&self.operation, operation)
    }
}

/// True if some rule allows an operation, or lets a person decide.
pub fn may_allow(rules: &[Rule], capability: &str, operation: &str) -> bool {
    rules.iter().any(|rule| rule.verdict != Verdict::Deny && rule.covers(capability, operation))
}

/// The first rule that matches an action.
pub(super) fn first_match<'a>(rules: &'a [Rule], action: &Action) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.matches(action))
}

/// The rules of one attempt.
#[derive(Debug, Default)]
pub struct Rules {
    own: Vec<Rule>,
    /// The lists of the runs above, and the list of the run's key.
    bounds: Vec<Vec<Rule>>,
    /// Grants made from rules, by the rule.
    grants: Mutex<HashMap<String, GrantId>>,
}

impl Rules {
    /// The rules of a run whose agent definition has the rules `definition`.
    pub fn new(layers: &Layers, definition: Vec<Rule>) -> Self {
        Self { own: layers.own(definition), bounds: layers.bounds().to_vec(), grants: Mutex::default() }
    }

    /// The rules for a run of this mode: none apply to a run that may only answer, which is denied everything.
    pub fn for_mode(layers: &Layers, mode: Mode) -> Self {
        match mode {
            Mode::Act => Self::new(layers, vec![]),
            Mode::Ask => Self::default(),
        }
    }

    /// True if the first rule that matches `action` allows it with the resource `*`, which stands for every
    /// program and variable. In each list of the bounds, the first rule that matches must be of this kind
    /// too, if there is one.
    pub fn admits_everything(&self, action: &Action) -> bool {
        let admits = |rule: &Rule| rule.verdict == Verdict::Allow && rule.resource == "*";
        first_match(&self.own, action).is_some_and(admits)
            && self.bounds.iter().all(|list| first_match(list, action).is_none_or(admits))
    }

    /// The verdict on a call of a control tool, with the record of a decision by a grant that a person gave for the session.
    /// `None` if no rule asks a person: the kernel then decides when the call is made, and records the decision.
    pub async fn control_verdict(
        &self,
        attempt: &AttemptHandle,
        action: &Action,
        question: &Question,
    ) -> Result<Option<(Verdict, Vec<Record>)>, HandleError> {
        match self.find(action) {
            Some(Deciding { rule, .. }) if rule.verdict == Verdict::Ask => {
                self.verdict(attempt, action, question).await
            }
            _ => Ok(None),
        }
    }

    /// True if some rule decides `action`.
    pub fn concern(&self, action: &Action) -> bool {
        self.find(action).is_some()
    }

    /// Decides an agent's request to do `action` by the first rule that matches, else as [`request_permission`] does. The
    /// decision is recorded before this returns.
    pub async fn request_permission(
        &self,
        attempt: &AttemptHandle,
        standing: Option<&Grant>,
        action: &Action,
        question: Question,
    ) -> Result<ApprovalAnswer, HandleError> {
        let is_denied = standing.is_some_and(|grant| grant.effect == GrantEffect::Deny);
        match self.find(action) {
            None => return request_permission(attempt, standing, question).await,
            // A rule of a run above would ask a person, but this run is denied everything that its own rules do not allow.
            Some(Deciding { rule, is_bound: true }) if rule.verdict == Verdict::Ask && is_denied => {
                return request_permission(attempt, standing, question).await;
            }
            Some(_) => {}
        }
        match Box::pin(self.verdict(attempt, action, &question)).await? {
            Some((verdict @ (Verdict::Allow | Verdict::Deny), records)) => {
                attempt.record(records).await?;
                Ok(verdict.decision().into())
            }
            Some((Verdict::Ask, _)) | None => ask_approval(attempt, question).await,
        }
    }

    /// Returns the verdict on `action` of the first rule that matches, with the records of a decision that needs no
    /// person. A person who allowed the same request for the session is not asked again; a rule whose grant was revoked
    /// asks. The caller makes the records durable before it acts.
    pub async fn verdict(
        &self,
        attempt: &AttemptHandle,
        action: &Action,
        question: &Question,
    ) -> Result<Option<(Verdict, Vec<Record>)>, HandleError> {
        let Some(Deciding { rule, .. }) = self.find(action) else { return Ok(None) };
        let asks = match rule.verdict {
            Verdict::Deny => false,
            Verdict::Ask => true,
            Verdict::Allow => self.is_revoked(attempt, rule).await?,
        };
        if asks {
            let in_force = attempt.grants_in_force().await?;
            let covering = covering_grant(attempt, &in_force, question.request.as_deref());
            let decided = covering.map(|grant| vec![decided_by_grant(question.clone(), grant)]);
            return Ok(Some(match decided {
                Some(records) => (Verdict::Allow, records),
                None => (Verdict::Ask, vec![]),
            }));
        }
        let verdict = rule.verdict;
        Ok(Some((verdict, self.records(attempt, rule, question.clone()))))
    }

    /// True if the grant that this execution or an earlier one of the run has made from `rule` is not in
    /// force any more.
    async fn is_revoked(&self, attempt: &AttemptHandle, rule: &Rule) -> Result<bool, HandleError> {
        let (run, text) = (attempt.assignment().run.id, rule.to_string());
        let known = self.grants.lock().get(&text).copied();
        let is_of_rule = |grant: &Grant| match known {
            Some(known) => grant.id == known,
            None => grant.run == Some(run) && grant.constraints.get("rule").is_some_and(|rule| *rule == text),
        };
        // A rule without a stored grant was not used yet, or its grant is about to be recorded.
        let Some(grant) = attempt.all_grants().await?.into_iter().find(is_of_rule) else { return Ok(false) };
        self.grants.lock().insert(text, grant.id);
        Ok(!attempt.is_in_force(&grant).await?)
    }

    fn find(&self, action: &Action) -> Option<Deciding<'_>> {
        deciding_rule(&self.own, &self.bounds, action)
    }

    /// Makes the records of a decision by a rule: of its grant, if the rule is used for the first time, and of the decision.
    fn records(&self, attempt: &AttemptHandle, rule: &Rule, question: Question) -> Vec<Record> {
        let mut grants = self.grants.lock();
        let (grant, granted) = match grants.get(&rule.to_string()) {
            Some(known) => (*known, None),
            None => {
                let grant = rule_grant(attempt, rule);
                grants.insert(rule.to_string(), grant.id);
                (grant.id, Some(Record::Granted(Box::new(grant))))
            }
        };
        let by = Decider::Rule { rule: rule.to_string() };
        let decision = decided(question, rule.verdict.decision(), Some(grant), by);
        granted.into_iter().chain([decision]).collect()
    }
}

/// The grant of a run that a rule gives.
fn rule_grant(attempt: &AttemptHandle, rule: &Rule) -> Grant {
    let assignment = attempt.assignment();
    Grant {
        id: attempt.new_grant(),
        session: assignment.session.id,
        run: Some(assignment.run.id),
        capability: rule.capability.clone(),
        operation: rule.operation.clone(),
        resource_pattern: rule.resource.clone(),
        effect: match rule.verdict {
            Verdict::Allow => GrantEffect::Allow,
            Verdict::Deny | Verdict::Ask => GrantEffect::Deny,
        },
        source: GrantSource::Policy,
        constraints: grant_constraints(attempt, "rule", &rule.to_string()),
        created_at: attempt.now(),
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn a_rule_parses_and_prints() {
        for text in ["allow fs read *", "deny terminal run rm *", "ask * * /a b/*.md"] {
            assert_eq!(rule(text).to_string(), text);
        }
        let long = format!("allow fs read /{}", "a".repeat(MAX_PATTERN_BYTES));
        for text in ["", "allow", "allow fs read", "permit fs read *", "allow  fs read *", &long] {
            assert!(text.parse::<Rule>().unwrap_err().to_string().contains("is no rule"), "{text:?}");
        }
    }

    #[test]
    fn a_rule_matches_by_its_three_patterns() {
        let action = |operation: &str, resource: &str| Action {
            capability: "fs",
            operation: operation.into(),
            resource: Resource::Path(resource.into()),
        };
        assert!(rule("allow fs read /data/*").matches(&action("read", "/data/a/b")));
        assert!(!rule("allow fs read /data/*").matches(&action("read", "/other")));
        assert!(!rule("allow fs read /data/*").matches(&action("write", "/data/a")));
        assert!(rule("allow * * *.md").matches(&action("write", "/x/y.md")));
        assert!(!rule("allow terminal * *").matches(&action("read", "/x")));
    }

    #[test]
    fn an_operation_that_is_only_denied_is_never_allowed() {
        let rules = [rule("deny fs write *"), rule("ask fs read /data/*")];
        assert!(may_allow(&rules, "fs", "read"));
        assert!(!may_allow(&rules, "fs", "write"));
        assert!(!may_allow(&rules, "terminal", "run"));
        assert!(may_allow(&[rule("allow * * *")], "terminal", "run"));
    }
}
