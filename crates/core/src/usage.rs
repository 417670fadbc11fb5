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
    /// Cost, exact.
    #[serde(rename = "costUsd")]
    #[cfg_attr(feature = "schema", schema(value_type = f64, minimum = 0.0))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Cost(pub u64);

impl Cost {
    const NANOS: f64 = 1e9;

    /// The amount in dollars.
    pub fn usd(self) -> f64 {
        self.0 as f64 / Self::NANOS
    }
}

impl From<f64> for Cost {
    /// Rounds to the nearest billionth; what is negative or not a number costs nothing.
    fn from(usd: f64) -> Self {
        Self((usd * Self::NANOS).round().max(0.0) as u64)
    }
}

impl From<Cost> for f64 {
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
        assert_eq!(sum.cost.usd(), 1.0);
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
