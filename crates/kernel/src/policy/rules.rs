//! Rules: what may be done without asking, what may not, and what a person decides; by capability, operation and
//! resource.
//!
//! The first rule that fits decides. Whatever none fits is decided as if there were none. A rule that allows or denies
//! becomes a grant of the run when it is first used, so that every decision names one.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use mainspring_core::{Approval, Grant, GrantEffect, GrantId, GrantSource, Mode};
use parking_lot::Mutex;

use super::{Question, ask_approval, permit};
use crate::adapter::{AttemptHandle, HandleError, Record};

/// One thing that an agent wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// What it uses, for example `fs`.
    pub capability: &'static str,
    /// Which part of it, for example `write`.
    pub operation: String,
    /// On what.
    pub resource: String,
}

/// What a rule says of what it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may be done.
    Allow,
    /// It may not.
    Deny,
    /// A person decides.
    Ask,
}

impl Verdict {
    const ALL: [(&'static str, Self); 3] = [("allow", Self::Allow), ("deny", Self::Deny), ("ask", Self::Ask)];
}

/// A verdict on all that fits three patterns, in which `*` stands for anything: `allow fs read /data/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it says.
    pub verdict: Verdict,
    capability: String,
    operation: String,
    resource: String,
}

/// A text that is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no rule: write allow, deny or ask, then capability, operation and resource, such as \"allow fs read *\""
)]
pub struct BadRule(String);

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = || BadRule(text.to_owned());
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
    fn fits(&self, act: &Act) -> bool {
        self.is_about(act.capability, &act.operation) && fits(&self.resource, &act.resource)
    }

    fn is_about(&self, capability: &str, operation: &str) -> bool {
        fits(&self.capability, capability) && fits(&self.operation, operation)
    }
}

/// True when some rule lets an operation happen at all, be it that a person is asked.
pub fn offers(rules: &[Rule], capability: &str, operation: &str) -> bool {
    rules.iter().any(|rule| rule.verdict != Verdict::Deny && rule.is_about(capability, operation))
}

/// The rules as they hold for one attempt.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// What rules have become, by their place.
    grants: Mutex<HashMap<usize, GrantId>>,
}

impl Rules {
    /// Those that hold for a run of this mode: one that may only answer is allowed nothing, whatever they say.
    pub fn of_mode(rules: &[Rule], mode: Mode) -> Self {
        let rules = match mode {
            Mode::Act => rules.to_vec(),
            Mode::Ask => vec![],
        };
        Self { rules, grants: Mutex::default() }
    }

    /// Decides whether `act` may be done: by the first rule that fits, else as [`permit`] does. Recorded before it
    /// returns.
    pub async fn permit(
        &self,
        attempt: &AttemptHandle,
        standing: Option<&Grant>,
        act: &Act,
        question: Question,
    ) -> Result<Approval, HandleError> {
        let found = self.rules.iter().enumerate().find(|(_, rule)| rule.fits(act));
        let (place, rule, effect, decision) = match found {
            None => return permit(attempt, standing, question).await,
            Some((_, Rule { verdict: Verdict::Ask, .. })) => return ask_approval(attempt, question).await,
            Some((at, rule @ Rule { verdict: Verdict::Allow, .. })) => {
                (at, rule, GrantEffect::Allow, Approval::Allowed)
            }
            Some((at, rule @ Rule { verdict: Verdict::Deny, .. })) => {
                (at, rule, GrantEffect::Deny, Approval::Denied)
            }
        };
        let known = self.grants.lock().get(&place).copied();
        let (grant, granted) = match known {
            Some(known) => (known, None),
            None => {
                let about = attempt.assignment();
                let grant = Grant {
                    id: attempt.new_grant(),
                    session: about.session.id,
                    run: Some(about.run.id),
                    capability: rule.capability.clone(),
                    operation: rule.operation.clone(),
                    resource_pattern: rule.resource.clone(),
                    effect,
                    source: GrantSource::Policy,
                    created_at: attempt.now(),
                    expires_at: None,
                };
                (grant.id, Some(Record::Granted(Box::new(grant))))
            }
        };
        let decided = Record::Decided { question: question.text, decision, grant: Some(grant) };
        attempt.record(granted.into_iter().chain([decided]).collect()).await?;
        self.grants.lock().insert(place, grant);
        Ok(decision)
    }
}

/// True when `text` fits `pattern`, in which `*` stands for anything.
pub fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let ends = (0..=text.len()).filter(|at| text.is_char_boundary(*at));
            { ends }.any(|at| fits(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn a_rule_is_what_is_written() {
        for text in ["allow fs read *", "deny terminal run rm *", "ask * * /a b/*.md"] {
            assert_eq!(rule(text).to_string(), text);
        }
        for text in ["", "allow", "allow fs read", "permit fs read *", "allow  fs read *"] {
            assert!(text.parse::<Rule>().unwrap_err().to_string().contains("is no rule"), "{text:?}");
        }
    }

    #[test]
    fn a_rule_fits_by_its_three_patterns() {
        let act = |operation: &str, resource: &str| Act {
            capability: "fs",
            operation: operation.into(),
            resource: resource.into(),
        };
        assert!(rule("allow fs read /data/*").fits(&act("read", "/data/a/b")));
        assert!(!rule("allow fs read /data/*").fits(&act("read", "/other")));
        assert!(!rule("allow fs read /data/*").fits(&act("write", "/data/a")));
        assert!(rule("allow * * *.md").fits(&act("write", "/x/y.md")));
        assert!(!rule("allow terminal * *").fits(&act("read", "/x")));
    }

    #[test]
    fn what_is_only_denied_is_not_offered() {
        let rules = [rule("deny fs write *"), rule("ask fs read /data/*")];
        assert!(offers(&rules, "fs", "read"));
        assert!(!offers(&rules, "fs", "write"));
        assert!(!offers(&rules, "terminal", "run"));
        assert!(offers(&[rule("allow * * *")], "terminal", "run"));
    }
}
