//! The option `--limit`: limits of a run on the command line.

use clap::Args;
use mainspring_core::{Cost, RunLimits};

/// Limits of a run.
#[derive(Args, Clone, Default)]
pub(crate) struct LimitArgs {
    /// Limit of the run, repeatable: steps=N, tokens=N, cost=USD, depth=N or time=N with ms, s, m or h
    #[arg(long = "limit", value_name = "KEY=VALUE", value_parser = parse_limit)]
    limits: Vec<RunLimits>,
    /// Accept limits that the adapter cannot enforce; the run reports afterwards if one was exceeded
    #[arg(long)]
    best_effort: bool,
}

impl LimitArgs {
    /// Returns the limits together. The last value of a limit counts.
    pub(crate) fn limits(&self) -> RunLimits {
        let best_effort = self.best_effort.then_some(true);
        let limits = RunLimits { best_effort, ..RunLimits::default() };
        self.limits.iter().rev().fold(limits, |all, limit| all.or(*limit))
    }
}

/// Parses one limit, such as `tokens=5000`.
fn parse_limit(text: &str) -> Result<RunLimits, String> {
    let expected = || "one of steps=N, tokens=N, cost=USD, depth=N, time=N with ms, s, m or h".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    let mut limits = RunLimits::default();
    let is_known = match key {
        "steps" => parse_into(&mut limits.max_steps, value.parse().ok()),
        "tokens" => parse_into(&mut limits.max_tokens, value.parse().ok()),
        "cost" => {
            let usd: Option<f64> = value.parse().ok().filter(|usd: &f64| usd.is_finite() && *usd >= 0.0);
            parse_into(&mut limits.max_cost, usd.map(Cost::from))
        }
        "depth" => parse_into(&mut limits.max_depth, value.parse().ok()),
        "time" => parse_into(&mut limits.max_time, parse_millis(value)),
        _ => false,
    };
    if is_known { Ok(limits) } else { Err(expected()) }
}

fn parse_into<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    *slot = value;
    slot.is_some()
}

/// Parses a duration with its unit into milliseconds.
pub(crate) fn parse_millis(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_limits_are_parsed_and_invalid_ones_refused() {
        let parsed = |texts: &[&str]| {
            let limits = texts.iter().map(|text| parse_limit(text)).collect::<Result<_, _>>();
            limits.map(|limits| LimitArgs { limits, best_effort: false }.limits())
        };
        let all = parsed(&["steps=3", "tokens=50", "cost=0.5", "depth=0", "time=2m", "tokens=60"]).unwrap();
        let expected = RunLimits {
            max_steps: Some(3),
            max_tokens: Some(60),
            max_cost: Some(Cost::from(0.5)),
            max_time: Some(120_000),
            max_depth: Some(0),
            ..RunLimits::default()
        };
        assert_eq!(all, expected);
        for wrong in
            ["tokens", "tokens=", "tokens=-1", "cost=x", "cost=-1", "cost=inf", "time=5", "time=5d", "x=1"]
        {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
