//! Prices: what tokens cost, by the beginning of a model's name. Those that are built in are what providers asked when
//! this was written; what the user writes wins.

use std::collections::BTreeMap;

use mainspring_core::{Cost, Usage};
use serde::Deserialize;

/// US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Read by the model.
    pub input: f64,
    /// Written by the model.
    pub output: f64,
    /// Read from the cache; if not given, as other input.
    pub cache_read: Option<f64>,
    /// Written to the cache; if not given, as other input.
    pub cache_write: Option<f64>,
}

impl Price {
    /// What `usage` costs.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let read = self.cache_read.unwrap_or(self.input);
        let write = self.cache_write.unwrap_or(self.input);
        let usd = usage.input_tokens as f64 * self.input
            + usage.output_tokens as f64 * self.output
            + usage.cache_read_tokens as f64 * read
            + usage.cache_write_tokens as f64 * write;
        Cost::from(usd / 1e6)
    }
}

/// The built-in prices: beginning of the name, input, output, cache read, cache write.
const BUILT_IN: [(&str, f64, f64, f64, f64); 17] = [
    ("claude-opus-4-5", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4", 15.0, 75.0, 1.5, 18.75),
    ("claude-sonnet-4", 3.0, 15.0, 0.3, 3.75),
    ("claude-haiku-4", 1.0, 5.0, 0.1, 1.25),
    ("claude-3-5-haiku", 0.8, 4.0, 0.08, 1.0),
    ("gpt-5-nano", 0.05, 0.4, 0.005, 0.05),
    ("gpt-5-mini", 0.25, 2.0, 0.025, 0.25),
    ("gpt-5", 1.25, 10.0, 0.125, 1.25),
    ("gpt-4.1-nano", 0.1, 0.4, 0.025, 0.1),
    ("gpt-4.1-mini", 0.4, 1.6, 0.1, 0.4),
    ("gpt-4.1", 2.0, 8.0, 0.5, 2.0),
    ("gpt-4o-mini", 0.15, 0.6, 0.075, 0.15),
    ("gpt-4o", 2.5, 10.0, 1.25, 2.5),
    ("o4-mini", 1.1, 4.4, 0.275, 1.1),
    ("gemini-2.5-flash-lite", 0.1, 0.4, 0.01, 0.1),
    ("gemini-2.5-flash", 0.3, 2.5, 0.03, 0.3),
    ("gemini-2.5-pro", 1.25, 10.0, 0.125, 1.25),
];

/// Every price that is known.
#[derive(Debug, Clone, Default)]
pub struct Prices {
    given: BTreeMap<String, Price>,
}

impl Prices {
    /// The built-in prices, and those that are `given`.
    pub fn new(given: &BTreeMap<String, Price>) -> Self {
        Self { given: given.clone() }
    }

    /// The price of a model: the longest beginning of `PROVIDER/MODEL` or of the model's name that is known.
    pub fn of(&self, provider: &str, model: &str) -> Option<Price> {
        let whole = format!("{provider}/{model}");
        let fits = |name: &str| whole.starts_with(name) || model.starts_with(name);
        let given = self.given.iter().filter(|(name, _)| fits(name)).max_by_key(|(name, _)| name.len());
        // Who runs a model on their own machine pays nobody by the token.
        let local = (provider == "ollama").then(Price::default);
        given.map(|(_, price)| *price).or(local).or_else(|| {
            let known = BUILT_IN.iter().filter(|(name, ..)| model.starts_with(name));
            known.max_by_key(|(name, ..)| name.len()).map(|(_, input, output, read, write)| Price {
                input: *input,
                output: *output,
                cache_read: Some(*read),
                cache_write: Some(*write),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_wins_and_the_users_prices_before_ours() {
        let given = BTreeMap::from([
            ("acme/".to_owned(), Price { input: 1.0, output: 2.0, ..Price::default() }),
            ("gpt-5".to_owned(), Price { input: 9.0, output: 9.0, ..Price::default() }),
        ]);
        let prices = Prices::new(&given);
        let input = |provider, model| prices.of(provider, model).map(|price| price.input);
        assert_eq!(input("acme", "anything"), Some(1.0));
        assert_eq!(input("openai", "gpt-5-mini-2026"), Some(9.0));
        assert_eq!(input("openai", "gpt-4o-mini"), Some(0.15));
        assert_eq!(input("ollama", "qwen"), Some(0.0));
        assert_eq!(input("other", "unheard-of"), None);
    }

    #[test]
    fn cached_tokens_have_their_own_price() {
        let price = Price { input: 3.0, output: 15.0, cache_read: Some(0.3), cache_write: None };
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_tokens: 1_000_000,
            cache_write_tokens: 1_000_000,
            ..Usage::default()
        };
        assert_eq!(price.cost(&usage), Cost::from(3.0 + 1.5 + 0.3 + 3.0));
    }
}
