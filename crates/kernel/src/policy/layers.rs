//! Layers: the rules that hold for one run, in the order in which they are tried.
//!
//! ```text
//! server ─▶ owner ─▶ adapter ─▶ agent definition ─▶ session ─▶ the adapter's permissions
//! ```
//!
//! The first rule that matches decides, so a later layer decides only actions that no earlier layer decides.
//! A delegated run has the complete lists of the runs above it as bounds: each action gets the strictest of
//! all their verdicts.

use mainspring_core::{Run, Session};

use super::pattern::MAX_PATTERN_BYTES;
use super::rules::{Action, Rule, Verdict, first_match};
use crate::error::Error;

/// The maximum number of rules of a session.
pub const MAX_SESSION_RULES: usize = 64;

/// The rules of one run, without those of its agent definition.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The rules of the server, the owner and the adapter, in this order.
    configured: Vec<Rule>,
    /// The rules of the session.
    session: Vec<Rule>,
    /// The lists of the runs above, and the list of the tools that the run's key may use.
    bounds: Vec<Vec<Rule>>,
}

/// The rules of a server that are not those of an adapter.
#[derive(Debug, Clone, Default)]
pub struct ServerRules {
    /// The rules about all agents.
    pub all: Vec<Rule>,
    /// The rules about the agents of an owner.
    pub owners: std::collections::BTreeMap<String, Vec<Rule>>,
}

impl Layers {
    /// The layers of `run`. `otherwise` are the rules that express the adapter's permissions. If one of them denies, only
    /// the denying rules of the session count.
    pub fn of(
        server: &ServerRules,
        adapter: &[Rule],
        otherwise: &[Rule],
        session: &Session,
        run: &Run,
    ) -> Self {
        let owner = server.owners.get(&session.owner).into_iter().flatten();
        let denies = otherwise.iter().any(|rule| rule.verdict == Verdict::Deny);
        let holds = |rule: &Rule| !denies || rule.verdict == Verdict::Deny;
        // Runs of earlier versions have only the denying rules of their parents (`denied`) instead of whole lists.
        let bounds = std::iter::once(&run.options.denied).chain(&run.options.bounds);
        let bounds = bounds.filter(|list| !list.is_empty());
        let mut bounds: Vec<Vec<Rule>> =
            bounds.map(|list| list.iter().map(|rule| stored(rule)).collect()).collect();
        let listed = run.options.key.as_ref().and_then(|key| key.tools.as_deref()).map(listed_tools);
        bounds.extend(listed.filter(|list| !bounds.contains(list)));
        Self {
            configured: server.all.iter().chain(owner).chain(adapter).cloned().collect(),
            session: session.rules.iter().map(|rule| stored(rule)).filter(holds).collect(),
            bounds,
        }
    }

    /// The run's own rules, with those of its agent definition.
    pub(super) fn own(&self, definition: Vec<Rule>) -> Vec<Rule> {
        let (configured, session) = (self.configured.iter().cloned(), self.session.iter().cloned());
        configured.chain(definition).chain(session).collect()
    }

    /// The lists of the runs above, and the list of the run's key.
    pub(super) fn bounds(&self) -> &[Vec<Rule>] {
        &self.bounds
    }

    /// The bounds of the run's children: the bounds of the run itself, and a list of its own rules followed by
    /// `otherwise`, the rules that express the permissions of its adapter.
    pub(crate) fn of_children(&self, definition: Vec<Rule>, otherwise: &[Rule]) -> Vec<Vec<String>> {
        let text = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut own = self.own(definition);
        own.extend(otherwise.iter().cloned());
        let mut lists: Vec<Vec<String>> = self.bounds.iter().map(|list| text(list)).collect();
        let own = text(&own);
        if !own.is_empty() && !lists.contains(&own) {
            lists.push(own);
        }
        lists
    }
}

/// The bound of a key that lists the tools its runs may call.
fn listed_tools(tools: &[String]) -> Vec<Rule> {
    let listed = tools.iter().map(|name| Rule::about_tools(Verdict::Allow, name));
    listed.chain([Rule::about_tools(Verdict::Deny, "*")]).collect()
}

/// The rules of an agent definition about its tools: the tools of `deny` may not be called, those of `approve` only if a
/// person allows it.
pub fn definition_rules(deny: &[String], approve: &[String]) -> Vec<Rule> {
    let denied = deny.iter().map(|pattern| Rule::about_tools(Verdict::Deny, pattern));
    let approved = approve.iter().map(|pattern| Rule::about_tools(Verdict::Ask, pattern));
    denied.chain(approved).collect()
}

/// Finds the rule that decides `action`: the first match of `own`, or the strictest first match of `bounds` if that is
/// stricter. A bound that allows decides nothing.
pub(super) fn deciding_rule<'a>(
    own: &'a [Rule],
    bounds: &'a [Vec<Rule>],
    action: &Action,
) -> Option<Deciding<'a>> {
    let own = first_match(own, action).map(|rule| Deciding { rule, is_bound: false });
    let bounds = bounds.iter().filter_map(|list| first_match(list, action));
    let bounds = bounds.filter(|rule| rule.verdict != Verdict::Allow);
    let bound = bounds.min_by_key(|rule| rule.verdict).map(|rule| Deciding { rule, is_bound: true });
    match (own, bound) {
        (Some(own), Some(bound)) if bound.rule.verdict < own.rule.verdict => Some(bound),
        (None, bound) => bound,
        (own, _) => own,
    }
}

/// The rule that decides an action.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deciding<'a> {
    pub(super) rule: &'a Rule,
    /// True for a rule of the bounds: of a run above, or of the run's key.
    pub(super) is_bound: bool,
}

/// Parses a stored rule. A text that is no rule, which only a damaged row holds, denies everything.
fn stored(text: &str) -> Rule {
    text.parse().unwrap_or_else(|_| Rule::everything(Verdict::Deny))
}

/// Refuses too many rules for a session, and texts that are not rules.
pub(crate) fn check_session_rules(rules: &[String]) -> Result<(), Error> {
    if rules.len() > MAX_SESSION_RULES {
        return Err(Error::Invalid(format!(
            "a session has at most {MAX_SESSION_RULES} rules of at most {MAX_PATTERN_BYTES} bytes, not {}",
            rules.len()
        )));
    }
    for rule in rules {
        rule.parse::<Rule>().map_err(|error| Error::Invalid(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Resource;
    use super::*;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn call(name: &str) -> Action {
        Action { capability: "tool", operation: "call".into(), resource: Resource::Text(name.into()) }
    }

    #[test]
    fn the_strictest_list_decides() {
        let own = rules(&["allow tool call a", "ask tool call b", "deny tool call c"]);
        let bounds = [
            rules(&["allow tool call c", "allow tool call a", "ask tool call *"]),
            rules(&["deny tool call b", "deny tool call d", "allow tool call *"]),
        ];
        let decided = |bounds: &[Vec<Rule>], name| {
            let found = deciding_rule(&own, bounds, &call(name));
            found.map(|deciding| (deciding.rule.verdict, deciding.is_bound))
        };
        for (name, alone, bounded) in [
            ("a", Some((Verdict::Allow, false)), Some((Verdict::Allow, false))),
            ("b", Some((Verdict::Ask, false)), Some((Verdict::Deny, true))),
            ("c", Some((Verdict::Deny, false)), Some((Verdict::Deny, false))),
            ("d", None, Some((Verdict::Deny, true))),
            ("e", None, Some((Verdict::Ask, true))),
        ] {
            assert_eq!(decided(&[], name), alone, "{name}");
            assert_eq!(decided(&bounds, name), bounded, "{name}");
        }
    }

    #[test]
    fn a_damaged_rule_denies_everything() {
        let own = [stored("allow everything")];
        assert_eq!(deciding_rule(&own, &[], &call("a")).unwrap().rule.verdict, Verdict::Deny);
    }

    #[test]
    fn the_rules_of_a_session_are_checked_one_by_one() {
        let refused = |rules: &[String]| check_session_rules(rules).unwrap_err().to_string();
        assert!(
            refused(&["allow fs read *".into(), "permit it".into()]).contains("\"permit it\" is no rule")
        );
        assert!(refused(&vec!["allow fs read *".to_owned(); 65]).contains("at most 64 rules"));
        check_session_rules(&vec!["allow fs read *".to_owned(); 64]).unwrap();
    }
}
