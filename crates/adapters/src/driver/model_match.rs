//! Finds the offered model that matches the name given by a caller.
//!
//! Agents name the same model in different ways: with or without a vendor (`anthropic/claude-x`), with or without a date
//! (`claude-x-20250929`). Two names mean the same model if they agree in all parts that both of them have.

use std::cmp::Reverse;

/// The parts of a model's name.
#[derive(Debug, PartialEq, Eq)]
struct ModelName<'a> {
    vendor: Option<&'a str>,
    base: &'a str,
    /// The date, or `latest`.
    date: Option<&'a str>,
}

impl<'a> ModelName<'a> {
    fn parse(name: &'a str) -> Self {
        let (vendor, rest) = match name.split_once('/') {
            Some((vendor, rest)) if !rest.is_empty() => (Some(vendor), rest),
            _ => (None, name),
        };
        let dated = rest.rfind(['-', '@', ':']).and_then(|at| Some((&rest[..at], is_date(&rest[at + 1..])?)));
        // A date may also be written with hyphens: 2025-09-29.
        let hyphenated = rest.len().checked_sub(11).and_then(|at| {
            let (base, date) = rest.split_at_checked(at)?;
            let date = date.strip_prefix('-')?;
            let is_valid = date.split('-').map(str::len).eq([4, 2, 2])
                && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            is_valid.then_some((base, date))
        });
        match hyphenated.or(dated).filter(|(base, _)| !base.is_empty()) {
            Some((base, date)) => Self { vendor, base, date: Some(date) },
            None => Self { vendor, base: rest, date: None },
        }
    }

    fn matches(&self, other: &Self) -> bool {
        let agree_in_date = self.date.zip(other.date).is_none_or(|(one, other)| same_date(one, other));
        let agree_in_vendor =
            self.vendor.zip(other.vendor).is_none_or(|(one, other)| one.eq_ignore_ascii_case(other));
        self.base.eq_ignore_ascii_case(other.base) && agree_in_vendor && agree_in_date
    }
}

/// The text, if it is a date of eight digits or `latest`.
fn is_date(text: &str) -> Option<&str> {
    let is_digits =
        text.len() == 8 && text.starts_with("20") && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_digits || text == "latest").then_some(text)
}

fn same_date(one: &str, other: &str) -> bool {
    one == "latest" || other == "latest" || digits(one) == digits(other)
}

fn digits(date: &str) -> String {
    date.chars().filter(|char| *char != '-').collect()
}

/// The date of a name for comparison. A name without a date counts as the latest.
fn sort_date(name: &str) -> String {
    match ModelName::parse(name).date {
        Some("latest") | None => "~".into(),
        Some(date) => digits(date),
    }
}

/// Finds the models of `offered` that match `wanted`: the model of exactly this name, else the models whose names agree
/// with it. Returns at most one model of each vendor: the one with the latest date.
pub(crate) fn find_models<'a>(wanted: &str, offered: impl Iterator<Item = &'a str> + Clone) -> Vec<&'a str> {
    if let Some(exact) = offered.clone().find(|name| *name == wanted) {
        return vec![exact];
    }
    let name = ModelName::parse(wanted);
    let mut found: Vec<&str> = offered.filter(|offered| name.matches(&ModelName::parse(offered))).collect();
    let vendor = |offered: &str| ModelName::parse(offered).vendor.map(str::to_lowercase);
    found.sort_by_key(|offered| Reverse(sort_date(offered)));
    let mut vendors = vec![];
    found.retain(|offered| {
        let vendor = vendor(offered);
        let is_first = !vendors.contains(&vendor);
        vendors.push(vendor);
        is_first
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_by_vendor_or_date_mean_the_same_model() {
        let offered = [
            "anthropic/claude-sonnet-4-5-20250929",
            "anthropic/claude-sonnet-4-5-20250514",
            "openai/gpt-5",
            "azure/gpt-5",
            "gpt-5-codex/high",
            "gemini-3-pro",
            "o4-mini-2025-04-16",
            "llama:latest",
        ];
        for (wanted, found) in [
            ("openai/gpt-5", "openai/gpt-5"),
            ("gpt-5", "openai/gpt-5 azure/gpt-5"),
            ("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5-20250929"),
            ("claude-sonnet-4-5-20250514", "anthropic/claude-sonnet-4-5-20250514"),
            ("claude-sonnet-4-5@20250514", "anthropic/claude-sonnet-4-5-20250514"),
            ("Claude-Sonnet-4-5-latest", "anthropic/claude-sonnet-4-5-20250929"),
            ("claude-sonnet-4-5-20240101", ""),
            ("google/gemini-3-pro", "gemini-3-pro"),
            ("gemini-3-pro-20260101", "gemini-3-pro"),
            ("o4-mini", "o4-mini-2025-04-16"),
            ("openai/o4-mini-20250416", "o4-mini-2025-04-16"),
            ("mistral/gpt-5", ""),
            ("claude-sonnet", ""),
            ("llama", "llama:latest"),
            ("", ""),
        ] {
            assert_eq!(find_models(wanted, offered.iter().copied()).join(" "), found, "{wanted}");
        }
    }
}
