//! Usage: tokens and cost, added up without losing a cent.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Tokens and cost of a step, an attempt, a run or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read by the model.
    pub input_tokens: u64,
    /// Tokens written by the model.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Cost, exact; null if the price of a part of it is not known.
    #[serde(rename = "costUsd")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub cost: Cost,
}

impl Usage {
    /// All tokens, read and written.
    pub fn tokens(&self) -> u64 {
        let all = [self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// True when nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            cost: Cost(self.cost.0.saturating_add(other.cost.0)),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Money in billionths of a US dollar, so that sums are exact; a decimal number of dollars in JSON.
///
/// What nobody knows is null in JSON, and stays so whatever is added: a sum of which a part is missing is no sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(from = "Option<f64>", into = "Option<f64>")]
pub struct Cost(pub u64);

impl Cost {
    const NANOS: f64 = 1e9;

    /// Nobody knows. More than every amount, so that no limit is passed unseen.
    pub const UNKNOWN: Self = Self(u64::MAX);

    /// True unless nobody knows.
    pub const fn is_known(self) -> bool {
        self.0 != Self::UNKNOWN.0
    }

    /// The amount in dollars; none if nobody knows.
    pub fn usd(self) -> Option<f64> {
        self.is_known().then_some(self.0 as f64 / Self::NANOS)
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
    /// Rounds to the nearest billionth; what is negative or not a number costs nothing.
    fn from(usd: f64) -> Self {
        Self(((usd * Self::NANOS).round().max(0.0) as u64).min(Self::UNKNOWN.0 - 1))
    }
}

impl From<Option<f64>> for Cost {
    fn from(usd: Option<f64>) -> Self {
        usd.map_or(Self::UNKNOWN, Self::from)
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
    fn ten_dimes_are_a_dollar() {
        let dime = Usage { cost: Cost::from(0.1), ..Usage::default() };
        let sum = (0..10).fold(Usage::default(), |sum, _| sum + dime);
        assert_eq!(sum.cost.usd(), Some(1.0));
    }

    #[test]
    fn what_is_not_known_stays_so_and_is_never_nothing() {
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
    fn nonsense_costs_nothing() {
        assert_eq!(Cost::from(-1.0), Cost(0));
        assert_eq!(Cost::from(f64::NAN), Cost(0));
    }

    proptest! {
        #[test]
        fn the_order_of_adding_does_not_matter(a in any::<[u64; 5]>(), b in any::<[u64; 5]>(), c in any::<[u64; 5]>()) {
            let usage = |n: [u64; 5]| Usage {
                input_tokens: n[0], output_tokens: n[1], cache_read_tokens: n[2], cache_write_tokens: n[3], cost: Cost(n[4]),
            };
            let (a, b, c) = (usage(a), usage(b), usage(c));
            prop_assert_eq!((a + b) + c, a + (b + c));
            prop_assert_eq!(a + b, b + a);
        }
    }
}
