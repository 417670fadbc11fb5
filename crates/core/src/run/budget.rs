//! Budgets: the limits of a run and what remains of them.

use serde::{Deserialize, Serialize};

use crate::{Cost, RunLimits, Time, Usage};

/// The limits of a run, including extensions granted on the way, and what remains of them. An absent field means no
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Budget {
    /// Maximum number of model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Remaining model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_left: Option<u32>,
    /// Maximum number of tokens, input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Remaining tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_left: Option<u64>,
    /// Maximum cost in US dollars.
    #[serde(rename = "maxCostUsd", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub max_cost: Option<Cost>,
    /// Remaining cost in US dollars.
    #[serde(rename = "costUsdLeft", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub cost_left: Option<Cost>,
    /// When the time limit is reached.
    #[serde(rename = "endsAtMs", skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Time>,
    /// True when the run has used more tokens or money than a limit allows: its agent reported the usage too late to be
    /// stopped. Absent if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exceeded: bool,
}

impl Budget {
    /// Computes the budget of a run that started at `since` and has used `steps` and `usage`. Each limit is multiplied by
    /// `times`: 1, plus the number of extensions. `None` if nothing is limited.
    pub fn of(limits: &RunLimits, times: u32, steps: u32, usage: &Usage, since: Time) -> Option<Self> {
        let granted = |limit: u64| limit.saturating_mul(u64::from(times));
        let max_steps = limits.max_steps.map(|max| max.saturating_mul(times));
        let max_tokens = limits.max_tokens.map(granted);
        let max_cost = limits.max_cost.map(|max| Cost(granted(max.0)));
        let budget = Self {
            max_steps,
            steps_left: max_steps.map(|max| max.saturating_sub(steps)),
            max_tokens,
            tokens_left: max_tokens.map(|max| max.saturating_sub(usage.tokens())),
            max_cost,
            cost_left: max_cost.map(|max| Cost(max.0.saturating_sub(usage.cost.0))),
            ends_at: limits.max_time.map(|max| since.plus(granted(max))),
            exceeded: max_tokens.is_some_and(|max| usage.tokens() > max)
                || max_cost.is_some_and(|max| usage.cost.is_known() && usage.cost > max),
        };
        (budget != Self::default()).then_some(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_is_the_granted_limit_minus_the_usage() {
        let limits = RunLimits {
            max_steps: Some(3),
            max_tokens: Some(100),
            max_cost: Some(Cost::from(0.5)),
            max_time: Some(1_000),
            ask: Some(true),
            ..RunLimits::default()
        };
        let usage = Usage { input_tokens: 90, output_tokens: 20, cost: Cost::from(0.2), ..Usage::default() };
        let json = |times| serde_json::to_string(&Budget::of(&limits, times, 2, &usage, Time(5))).unwrap();
        insta::assert_snapshot!(json(1), @r#"{"maxSteps":3,"stepsLeft":1,"maxTokens":100,"tokensLeft":0,"maxCostUsd":0.5,"costUsdLeft":0.3,"endsAtMs":1005,"exceeded":true}"#);
        insta::assert_snapshot!(json(2), @r#"{"maxSteps":6,"stepsLeft":4,"maxTokens":200,"tokensLeft":90,"maxCostUsd":1.0,"costUsdLeft":0.8,"endsAtMs":2005}"#);
        assert_eq!(Budget::of(&RunLimits::default(), 1, 2, &usage, Time(5)), None);
    }
}
