//! Allow-lists: what the holder of an API key may use.
//!
//! When a run is accepted, the lists of its key are copied into its options, and from there into the options of the runs
//! that it delegates. So a later change of the key does not affect the run, and its children never have more than it has.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Cost, KeyId, RunOptions, Time, Usage};

/// The adapters, models and tools that the holder of an API key may use, and the maximum cost of its runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyLists {
    /// The key, to which the cost of its runs is charged.
    pub key_id: KeyId,
    /// The adapters that runs may use; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Vec<String>>,
    /// The models and model profiles that runs may use; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The tools that agents may call; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The maximum cost of the key's runs per UTC day, in US dollars; no maximum if absent.
    #[serde(default, rename = "spendPerDayUsd", skip_serializing_if = "Option::is_none")]
    pub spend_per_day: Option<Cost>,
}

/// One of the lists of a key, by its name in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyList {
    /// The adapters.
    Adapters,
    /// The models and model profiles.
    Models,
    /// The tools.
    Tools,
}

impl fmt::Display for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adapters => "adapters",
            Self::Models => "models",
            Self::Tools => "tools",
        })
    }
}

/// The refusal of an adapter, model or tool that is not on a list of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct NotListed {
    /// The list.
    pub list: KeyList,
    /// The refused name; `None` if the run names no model.
    pub name: Option<String>,
    /// The names on the list.
    pub allowed: Vec<String>,
}

impl NotListed {
    fn text(&self) -> String {
        let Self { list, name, allowed } = self;
        let allowed = match allowed.is_empty() {
            true => "nothing".to_owned(),
            false => allowed.join(", "),
        };
        match name {
            Some(name) => format!("the list `{list}` of the key does not have {name:?}; it has {allowed}"),
            None => format!("the list `{list}` of the key is limited, so name one of them: {allowed}"),
        }
    }
}

impl KeyLists {
    /// True when nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.adapters.is_none()
            && self.models.is_none()
            && self.tools.is_none()
            && self.spend_per_day.is_none()
    }

    /// Refuses an adapter that is not on the list.
    pub fn check_adapter(&self, adapter: &str) -> Result<(), NotListed> {
        check(KeyList::Adapters, self.adapters.as_deref(), Some(adapter))
    }

    /// Refuses a model or a model profile that is not on the list. Options without a model pass here; [`Self::check_run`]
    /// refuses them.
    pub fn check_model(&self, options: &RunOptions) -> Result<(), NotListed> {
        let mut named = [&options.model, &options.model_profile].into_iter().flatten();
        named.try_for_each(|name| check(KeyList::Models, self.models.as_deref(), Some(name)))
    }

    /// Refuses a run if its adapter, its model or one of its tools is not on the lists. `options` are complete: they
    /// include all defaults. If models are limited, the run must name one, since the adapter's own choice is not known
    /// beforehand.
    pub fn check_run(&self, adapter: &str, options: &RunOptions) -> Result<(), NotListed> {
        self.check_adapter(adapter)?;
        self.check_model(options)?;
        if !options.has_model() {
            check(KeyList::Models, self.models.as_deref(), None)?;
        }
        options.tools.iter().try_for_each(|tool| self.check_tool(&tool.name))
    }

    /// Refuses a tool that is not on the list.
    pub fn check_tool(&self, tool: &str) -> Result<(), NotListed> {
        check(KeyList::Tools, self.tools.as_deref(), Some(tool))
    }

    /// Refuses `new` if one of its lists has an entry that is not on this key's list. A list that is absent in `new`
    /// passes.
    pub fn check_within(&self, new: &Self) -> Result<(), NotListed> {
        let pairs = [
            (KeyList::Adapters, &self.adapters, &new.adapters),
            (KeyList::Models, &self.models, &new.models),
            (KeyList::Tools, &self.tools, &new.tools),
        ];
        for (list, own, new) in pairs {
            let (Some(_), Some(new)) = (own, new) else { continue };
            new.iter().try_for_each(|name| check(list, own.as_deref(), Some(name)))?;
        }
        Ok(())
    }
}

fn check(list: KeyList, allowed: Option<&[String]>, name: Option<&str>) -> Result<(), NotListed> {
    let Some(allowed) = allowed else { return Ok(()) };
    if name.is_some_and(|name| allowed.iter().any(|known| known == name)) {
        return Ok(());
    }
    Err(NotListed { list, name: name.map(str::to_owned), allowed: allowed.to_vec() })
}

/// The cost of a key's runs in one day of UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spend {
    /// The known cost.
    pub cost: Cost,
    /// True when the cost of a part is unknown: the sum counts the known part.
    pub at_least: bool,
}

impl Spend {
    /// The cost of some usage. An unknown cost counts as nothing and makes every sum of it a lower bound.
    pub fn of(usage: &Usage) -> Self {
        let cost = if usage.cost.is_known() { usage.cost } else { Cost(0) };
        Self { cost, at_least: !usage.is_known() }
    }

    /// The sum of two spends.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        // The stores hold signed 64-bit integers.
        let cost = Cost(self.cost.0.saturating_add(more.cost.0).min(i64::MAX as u64));
        Self { cost, at_least: self.at_least || more.at_least }
    }
}

/// The day of UTC of a time, counted from 1970.
pub fn day_of(at: Time) -> i64 {
    at.0.div_euclid(24 * 60 * 60 * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> KeyLists {
        KeyLists {
            key_id: KeyId::from_random([1; 16]),
            adapters: Some(vec!["native".into(), "script".into()]),
            models: Some(vec!["small".into()]),
            tools: None,
            spend_per_day: Some(Cost::from(1.5)),
        }
    }

    fn model(name: Option<&str>) -> RunOptions {
        RunOptions { model: name.map(Into::into), ..RunOptions::default() }
    }

    #[test]
    fn a_run_may_use_only_listed_adapters_models_and_tools() {
        let lists = lists();
        assert_eq!(lists.check_run("native", &model(Some("small"))), Ok(()));
        let text = |refusal: Result<(), NotListed>| refusal.unwrap_err().to_string();
        insta::assert_snapshot!(text(lists.check_run("pi", &model(Some("small")))), @r#"the list `adapters` of the key does not have "pi"; it has native, script"#);
        insta::assert_snapshot!(text(lists.check_run("native", &model(Some("large")))), @r#"the list `models` of the key does not have "large"; it has small"#);
        insta::assert_snapshot!(text(lists.check_run("native", &model(None))), @"the list `models` of the key is limited, so name one of them: small");
        let profile = RunOptions { model_profile: Some("large".into()), ..RunOptions::default() };
        assert_eq!(lists.check_model(&profile).unwrap_err().list, KeyList::Models);
        let none = KeyLists { tools: Some(vec![]), ..lists };
        let tool = crate::ClientTool {
            name: "look".into(),
            input_schema: serde_json::json!({}),
            ..crate::ClientTool::default()
        };
        let asked = RunOptions { tools: vec![tool], ..model(Some("small")) };
        insta::assert_snapshot!(text(none.check_run("native", &asked)), @r#"the list `tools` of the key does not have "look"; it has nothing"#);
    }

    #[test]
    fn a_new_key_may_not_list_more_than_its_creator() {
        let own = lists();
        let fewer = KeyLists { adapters: Some(vec!["script".into()]), models: None, ..lists() };
        assert_eq!(own.check_within(&fewer), Ok(()));
        let more = KeyLists { models: Some(vec!["large".into()]), ..lists() };
        assert_eq!(own.check_within(&more).unwrap_err().list, KeyList::Models);
    }

    #[test]
    fn an_unknown_cost_makes_a_spend_a_lower_bound() {
        let known = Usage { cost: Cost::from(0.5), ..Usage::default() };
        let unknown = Usage { cost: Cost::UNKNOWN, ..Usage::default() };
        let sum = Spend::of(&known).plus(Spend::of(&known));
        assert_eq!(sum, Spend { cost: Cost::from(1.0), at_least: false });
        assert_eq!(sum.plus(Spend::of(&unknown)), Spend { at_least: true, ..sum });
        assert!(Spend::of(&Usage::UNKNOWN).at_least);
    }

    #[test]
    fn days_begin_at_midnight_utc() {
        assert_eq!([-1, 0, 86_399_999, 86_400_000].map(|at| day_of(Time(at))), [-1, 0, 0, 1]);
    }
}
