//! Usage: tokens and cost, with exact sums.
//!
//! A model call that was interrupted has an unknown usage. It adds nothing to a sum, but marks the sum as a lower
//! bound.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

mod sum;
pub use sum::UsageSum;

/// Tokens and cost of a step, an attempt, a run or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Cost in US dollars, exact. Null if the price of any part is unknown.
    #[serde(rename = "costUsd")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub cost: Cost,
    /// True when the usage of a part is unknown, for example of a model call that was interrupted: the numbers are the
    /// known part. Absent if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

impl Usage {
    /// An unknown amount of tokens and cost.
    pub const UNKNOWN: Self = Self {
        input_tokens: 0,
        output_tokens: 0,
        cache_read_tokens: 0,
        cache_write_tokens: 0,
        cost: Cost(0),
        at_least: true,
    };

    /// The largest token count. An agent may report any number; a larger number could be neither stored nor compared.
    pub const MAX_TOKENS: u64 = 1 << 52;

    /// Returns the usage with each token count limited to [`Self::MAX_TOKENS`].
    #[must_use]
    pub fn clamped(self) -> Self {
        self + Self::default()
    }

    /// True when all tokens and the whole cost are known.
    pub fn is_known(&self) -> bool {
        !self.at_least && self.cost.is_known()
    }

    /// The sum of all token counts.
    pub fn tokens(&self) -> u64 {
        let all = [self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// True when certainly nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Adds token counts. The sum is limited to [`Usage::MAX_TOKENS`].
fn add_tokens(one: u64, other: u64) -> u64 {
    one.saturating_add(other).min(Usage::MAX_TOKENS)
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: add_tokens(self.input_tokens, other.input_tokens),
            output_tokens: add_tokens(self.output_tokens, other.output_tokens),
            cache_read_tokens: add_tokens(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: add_tokens(self.cache_write_tokens, other.cache_write_tokens),
            cost: Cost(self.cost.0.saturating_add(other.cost.0)),
            at_least: self.at_least || other.at_least,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// When an adapter reports the usage of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UsageReports {
    /// After each model call, so that an attempt can be stopped at a limit.
    Live,
    /// Only when the attempt ends.
    AtEnd,
    /// Not at all.
    Never,
}

/// An amount in billionths of a US dollar, so that sums are exact. In JSON a decimal number of dollars.
///
/// An unknown amount is null in JSON. A sum with an unknown part is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(into = "Option<f64>")]
pub struct Cost(pub u64);

impl Cost {
    const NANOS_PER_USD: f64 = 1e9;
    /// The largest amount in JSON: the largest one that can be stored, rounded up.
    const MAX_USD: f64 = 18_446_744_074.0;

    /// The unknown amount. Compares greater than every known amount, so that it exceeds every limit.
    pub const UNKNOWN: Self = Self(u64::MAX);

    /// True when the amount is known.
    pub const fn is_known(self) -> bool {
        self.0 != Self::UNKNOWN.0
    }

    /// The amount in dollars; `None` if unknown.
    pub fn usd(self) -> Option<f64> {
        self.is_known().then_some(self.0 as f64 / Self::NANOS_PER_USD)
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.usd() {
            Some(usd) => write!(f, "${usd:.6}"),
            None => f.write_str("cost unknown"),
        }
    }
}

impl From<f64> for Cost {
    /// Rounds to the nearest billionth; negative numbers and NaN become zero.
    fn from(usd: f64) -> Self {
        Self(((usd * Self::NANOS_PER_USD).round().max(0.0) as u64).min(Self::UNKNOWN.0 - 1))
    }
}

impl From<Option<f64>> for Cost {
    fn from(usd: Option<f64>) -> Self {
        usd.map_or(Self::UNKNOWN, Self::from)
    }
}

impl<'de> Deserialize<'de> for Cost {
    /// Refuses a negative amount and an amount that cannot be stored: sending one is a mistake of the caller.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let usd = Option::<f64>::deserialize(deserializer)?;
        match usd {
            Some(usd) if !(0.0..=Self::MAX_USD).contains(&usd) => Err(serde::de::Error::custom(
                format_args!("{usd:?} is not an amount of dollars between 0 and {}", Self::MAX_USD),
            )),
            usd => Ok(usd.into()),
        }
    }
}

impl From<Cost> for Option<f64> {
    fn from(cost: Cost) -> Self {
        cost.usd()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn costs_are_added_without_rounding_errors() {
        let dime = Usage { cost: Cost::from(0.1), ..Usage::default() };
        let sum = (0..10).fold(Usage::default(), |sum, _| sum + dime);
        assert_eq!(sum.cost.usd(), Some(1.0));
    }

    #[test]
    fn a_sum_with_an_unknown_cost_is_unknown() {
        let unknown = Usage { input_tokens: 1, cost: Cost::UNKNOWN, ..Usage::default() };
        let sum = unknown + Usage { cost: Cost::from(0.5), ..Usage::default() };
        assert_eq!((sum.cost, sum.cost.to_string().as_str()), (Cost::UNKNOWN, "cost unknown"));
        let json = serde_json::to_string(&sum).unwrap();
        assert!(json.ends_with(r#""costUsd":null}"#), "{json}");
        assert_eq!(serde_json::from_str::<Usage>(&json).unwrap(), sum);
        assert_eq!(serde_json::from_str::<Usage>("{}").unwrap().cost, Cost(0), "nothing was used");
        assert_eq!(Cost::from(0.25).to_string(), "$0.250000");
        assert!(Cost::from(f64::INFINITY).is_known());
    }

    #[test]
    fn a_sum_with_an_unknown_part_is_a_lower_bound() {
        let known = Usage { input_tokens: 5, cost: Cost::from(0.5), ..Usage::default() };
        assert_eq!(known + Usage::UNKNOWN, Usage { at_least: true, ..known });
        assert!(known.is_known() && !(known + Usage::UNKNOWN).is_known() && !Usage::UNKNOWN.is_zero());
        let json = |usage: Usage| serde_json::to_value(usage).unwrap();
        assert_eq!((json(known).get("atLeast"), &json(Usage::UNKNOWN)["atLeast"]), (None, &true.into()));
    }

    #[test]
    fn an_amount_in_json_is_neither_negative_nor_too_large() {
        for (json, cost) in [("0.25", Cost(250_000_000)), ("null", Cost::UNKNOWN), ("-0.0", Cost(0))] {
            assert_eq!(serde_json::from_str::<Cost>(json).unwrap(), cost, "{json}");
        }
        let largest = serde_json::to_string(&Cost(Cost::UNKNOWN.0 - 1)).unwrap();
        assert_eq!(serde_json::from_str::<Cost>(&largest).unwrap(), Cost(Cost::UNKNOWN.0 - 1));
        for json in ["-1", "-0.000000001", "1e308", "18446744075"] {
            let refused = serde_json::from_str::<Cost>(json).unwrap_err().to_string();
            assert!(refused.contains("is not an amount of dollars between 0 and 18446744074"), "{refused}");
        }
    }

    #[test]
    fn negative_and_nan_costs_are_zero() {
        assert_eq!(Cost::from(-1.0), Cost(0));
        assert_eq!(Cost::from(f64::NAN), Cost(0));
    }

    proptest! {
        #[test]
        fn the_order_of_adding_does_not_matter(a in any::<[u64; 5]>(), b in any::<[u64; 5]>(), c in any::<[u64; 5]>()) {
            let usage = |n: [u64; 5]| Usage {
                input_tokens: n[0], output_tokens: n[1], cache_read_tokens: n[2], cache_write_tokens: n[3], cost: Cost(n[4]),
                at_least: n[0].is_multiple_of(2),
            };
            let (a, b, c) = (usage(a), usage(b), usage(c));
            prop_assert_eq!((a + b) + c, a + (b + c));
            prop_assert_eq!(a + b, b + a);
        }
    }
}
