//! Sums of the usage of many runs, which count the runs of unknown usage apart.

use serde::{Deserialize, Serialize};

use super::{Cost, Usage};

/// Tokens and cost of a number of runs. Unknown amounts add nothing; the runs that have them are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct UsageSum {
    /// The number of runs.
    pub runs: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// The exact sum of the known costs in US dollars.
    #[serde(rename = "knownCostUsd")]
    #[cfg_attr(feature = "schema", schema(value_type = f64, minimum = 0.0))]
    pub known_cost: Cost,
    /// The number of runs whose cost is unknown.
    pub unknown_cost_runs: u64,
    /// The number of runs whose tokens and cost are known only in part: the numbers are lower bounds.
    pub at_least_runs: u64,
}

impl UsageSum {
    /// Adds the usage of one run.
    pub fn add(&mut self, usage: Usage) {
        self.runs += 1;
        self.input_tokens = self.input_tokens.saturating_add(usage.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(usage.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(usage.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(usage.cache_write_tokens);
        match usage.cost.is_known() {
            // The sum of known costs must not reach the value that stands for an unknown cost.
            true => {
                let sum = self.known_cost.0.saturating_add(usage.cost.0);
                self.known_cost = Cost(sum.min(Cost::UNKNOWN.0 - 1));
            }
            false => self.unknown_cost_runs += 1,
        }
        self.at_least_runs += u64::from(usage.at_least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_costs_are_counted_and_never_added() {
        let known = Usage { input_tokens: 3, cost: Cost::from(0.5), ..Usage::default() };
        let mut sum = UsageSum::default();
        for usage in [known, Usage { cost: Cost::UNKNOWN, ..known }, Usage { at_least: true, ..known }] {
            sum.add(usage);
        }
        assert_eq!((sum.runs, sum.input_tokens, sum.known_cost.usd()), (3, 9, Some(1.0)));
        assert_eq!((sum.unknown_cost_runs, sum.at_least_runs), (1, 1));
        let json = serde_json::to_value(sum).unwrap();
        assert_eq!((&json["knownCostUsd"], &json["unknownCostRuns"]), (&1.0.into(), &1.into()));
    }

    #[test]
    fn a_known_sum_stays_known() {
        let mut sum = UsageSum::default();
        for _ in 0..2 {
            sum.add(Usage { cost: Cost(u64::MAX - 1), ..Usage::default() });
        }
        assert!(sum.known_cost.is_known() && sum.unknown_cost_runs == 0);
    }
}
