//! Token prices. The built-in prices are those of the providers for short prompts on [`PRICES_AS_OF`], from a
//! public list. They are never updated at run time. Configured prices take precedence.

use std::collections::BTreeMap;

use mainspring_core::{Cost, ModelPrice, Usage};
use serde::Deserialize;

/// A price in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Input tokens read from the cache; if not given, the price of input.
    pub cache_read: Option<f64>,
    /// Input tokens written to the cache; if not given, the price of input.
    pub cache_write: Option<f64>,
}

impl Price {
    /// Returns the cost of `usage`.
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

/// The date of the built-in prices.
pub const PRICES_AS_OF: &str = "2026-08-08";

/// The built-in prices: name, input, output, cache read, cache write. A model with only a similar name has no price: a
/// guess would be reported as if it were known.
const BUILT_IN_PRICES: [(&str, f64, f64, f64, f64); 55] = [
    ("claude-fable-5", 10.0, 50.0, 1.0, 12.5),
    ("claude-opus-5", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4-8", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4-7", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4-6", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4-5", 5.0, 25.0, 0.5, 6.25),
    ("claude-opus-4-1", 15.0, 75.0, 1.5, 18.75),
    ("claude-opus-4", 15.0, 75.0, 1.5, 18.75),
    ("claude-sonnet-5", 2.0, 10.0, 0.2, 2.5),
    ("claude-sonnet-4-6", 3.0, 15.0, 0.3, 3.75),
    ("claude-sonnet-4-5", 3.0, 15.0, 0.3, 3.75),
    ("claude-sonnet-4", 3.0, 15.0, 0.3, 3.75),
    ("claude-haiku-4-5", 1.0, 5.0, 0.1, 1.25),
    ("gpt-5.6", 5.0, 30.0, 0.5, 6.25),
    ("gpt-5.6-luna", 0.2, 1.2, 0.02, 0.25),
    ("gpt-5.6-sol", 5.0, 30.0, 0.5, 6.25),
    ("gpt-5.6-terra", 2.0, 12.0, 0.2, 2.5),
    ("gpt-5.5", 5.0, 30.0, 0.5, 5.0),
    ("gpt-5.5-pro", 30.0, 180.0, 3.0, 30.0),
    ("gpt-5.4", 2.5, 15.0, 0.25, 2.5),
    ("gpt-5.4-mini", 0.75, 4.5, 0.075, 0.75),
    ("gpt-5.4-nano", 0.2, 1.25, 0.02, 0.2),
    ("gpt-5.4-pro", 30.0, 180.0, 3.0, 30.0),
    ("gpt-5.3-codex", 1.75, 14.0, 0.175, 1.75),
    ("gpt-5.2", 1.75, 14.0, 0.175, 1.75),
    ("gpt-5.2-codex", 1.75, 14.0, 0.175, 1.75),
    ("gpt-5.2-pro", 21.0, 168.0, 21.0, 21.0),
    ("gpt-5.1", 1.25, 10.0, 0.125, 1.25),
    ("gpt-5.1-codex", 1.25, 10.0, 0.125, 1.25),
    ("gpt-5.1-codex-max", 1.25, 10.0, 0.125, 1.25),
    ("gpt-5.1-codex-mini", 0.25, 2.0, 0.025, 0.25),
    ("gpt-5", 1.25, 10.0, 0.125, 1.25),
    ("gpt-5-codex", 1.25, 10.0, 0.125, 1.25),
    ("gpt-5-mini", 0.25, 2.0, 0.025, 0.25),
    ("gpt-5-nano", 0.05, 0.4, 0.005, 0.05),
    ("gpt-5-pro", 15.0, 120.0, 15.0, 15.0),
    ("gpt-4.1", 2.0, 8.0, 0.5, 2.0),
    ("gpt-4.1-mini", 0.4, 1.6, 0.1, 0.4),
    ("gpt-4.1-nano", 0.1, 0.4, 0.025, 0.1),
    ("gpt-4o", 2.5, 10.0, 1.25, 2.5),
    ("gpt-4o-mini", 0.15, 0.6, 0.075, 0.15),
    ("o4-mini", 1.1, 4.4, 0.275, 1.1),
    ("o3", 2.0, 8.0, 0.5, 2.0),
    ("o3-mini", 1.1, 4.4, 0.55, 1.1),
    ("o1", 15.0, 60.0, 7.5, 15.0),
    ("gemini-3.6-flash", 1.5, 7.5, 0.15, 1.5),
    ("gemini-3.5-flash", 1.5, 9.0, 0.15, 1.5),
    ("gemini-3.5-flash-lite", 0.3, 2.5, 0.03, 0.3),
    ("gemini-3.1-pro-preview", 2.0, 12.0, 0.2, 2.0),
    ("gemini-3.1-flash-lite", 0.25, 1.5, 0.025, 0.25),
    ("gemini-3-pro-preview", 2.0, 12.0, 0.2, 2.0),
    ("gemini-3-flash-preview", 0.5, 3.0, 0.05, 0.5),
    ("gemini-2.5-pro", 1.25, 10.0, 0.125, 1.25),
    ("gemini-2.5-flash", 0.3, 2.5, 0.03, 0.3),
    ("gemini-2.5-flash-lite", 0.1, 0.4, 0.01, 0.1),
];

/// The configured prices, which take precedence over the built-in ones.
#[derive(Debug, Clone, Default)]
pub struct Prices {
    configured: BTreeMap<String, Price>,
}

impl Prices {
    /// Combines the built-in prices with the `configured` ones.
    pub fn new(configured: &BTreeMap<String, Price>) -> Self {
        Self { configured: configured.clone() }
    }

    /// Returns the price of a model: the configured one with the longest matching prefix of `PROVIDER/MODEL` or of the
    /// model's name, else zero for a local provider, else the built-in price of this model or of the model that it is
    /// a dated version of.
    pub fn get(&self, provider: &str, model: &str) -> Option<Price> {
        self.configured(provider, model).or_else(|| built_in(model))
    }

    /// Returns the price that [`Self::get`] returns, in its public form.
    pub fn describe(&self, provider: &str, model: &str) -> Option<ModelPrice> {
        let configured = self.configured(provider, model);
        let as_of = configured.is_none().then(|| PRICES_AS_OF.to_owned());
        let price = configured.or_else(|| built_in(model))?;
        Some(ModelPrice {
            input: price.input,
            output: price.output,
            cache_read: price.cache_read.unwrap_or(price.input),
            cache_write: price.cache_write.unwrap_or(price.input),
            as_of,
        })
    }

    /// Returns the configured price of a model, else zero if the provider is local.
    fn configured(&self, provider: &str, model: &str) -> Option<Price> {
        let full_name = format!("{provider}/{model}");
        let matches = |prefix: &str| full_name.starts_with(prefix) || model.starts_with(prefix);
        let configured = self.configured.iter().filter(|(prefix, _)| matches(prefix));
        let longest = configured.max_by_key(|(prefix, _)| prefix.len());
        // Models on the user's own machine are free.
        let local = ["ollama", crate::models::SCRIPTED].contains(&provider).then(Price::default);
        longest.map(|(_, price)| *price).or(local)
    }
}

/// Returns the built-in price of `model`, or of the model that it is a dated version of.
fn built_in(model: &str) -> Option<Price> {
    let found =
        BUILT_IN_PRICES.iter().find(|(name, ..)| model.strip_prefix(name).is_some_and(is_version_suffix));
    found.map(|(_, input, output, read, write)| Price {
        input: *input,
        output: *output,
        cache_read: Some(*read),
        cache_write: Some(*write),
    })
}

/// Returns true for the suffix of a version of the same model: empty, a date, or `-latest`.
fn is_version_suffix(rest: &str) -> bool {
    let date = |text: &str| {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        digits >= 4 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    rest.is_empty() || rest == "-latest" || rest.strip_prefix('-').is_some_and(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_and_configured_prices_take_precedence() {
        let configured = BTreeMap::from([
            ("acme/".to_owned(), Price { input: 1.0, output: 2.0, ..Price::default() }),
            ("gpt-5".to_owned(), Price { input: 9.0, output: 9.0, ..Price::default() }),
        ]);
        let prices = Prices::new(&configured);
        let input = |provider, model| prices.get(provider, model).map(|price| price.input);
        assert_eq!(input("acme", "anything"), Some(1.0));
        assert_eq!(input("openai", "gpt-5-mini-2026"), Some(9.0));
        assert_eq!(input("openai", "gpt-4o-mini"), Some(0.15));
        assert_eq!(input("openai", "gpt-4o-mini-2024-07-18"), Some(0.15));
        assert_eq!(input("anthropic", "claude-sonnet-4-20250514"), Some(3.0));
        assert_eq!(input("anthropic", "claude-opus-4-5"), Some(5.0));
        assert_eq!(input("anthropic", "claude-opus-4-1-20250805"), Some(15.0));
        for similar in ["gpt-4o-mini-x", "gpt-4.1-pro", "claude-opus-4-99", "claude-opus-5-mini", "o3-pro"] {
            assert_eq!(input("any", similar), None, "{similar} only resembles a known name");
        }
        assert_eq!(input("ollama", "qwen"), Some(0.0));
        assert_eq!(input("other", "unknown"), None);
    }

    #[test]
    fn a_built_in_price_has_its_date_and_a_configured_one_has_none() {
        let configured =
            BTreeMap::from([("m-1".to_owned(), Price { input: 1.0, output: 2.0, ..Price::default() })]);
        let prices = Prices::new(&configured);
        let price = prices.describe("acme", "m-1").unwrap();
        assert_eq!((price.cache_read, price.as_of), (1.0, None));
        let price = prices.describe("openai", "gpt-4o").unwrap();
        assert_eq!((price.cache_read, price.as_of.as_deref()), (1.25, Some(PRICES_AS_OF)));
        assert_eq!(prices.describe("acme", "m-2"), None);
        assert_eq!(prices.describe("ollama", "qwen").unwrap().output, 0.0);
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
