//! The script language: one command per line, or several on one line separated by `;`.
//!
//! The built-in script agent and the scripted model server follow scripts. docs/script.md describes the language.

use serde_json::Value;

use crate::usage::{Cost, Usage};

/// One command of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `say TEXT`: streams TEXT word by word. A line that is not a command is echoed.
    Say(String),
    /// `vary TEXT | TEXT …`: streams one of the texts, and another text when the answer is regenerated.
    Vary(Vec<String>),
    /// `stream N [every D] [TEXT]`: streams TEXT (or a running number) N times, at intervals of D.
    Stream {
        /// How many times.
        count: u64,
        /// The interval, in milliseconds.
        every: u64,
        /// The text; if empty, the running number is streamed.
        text: String,
    },
    /// `think TEXT`: streams thinking.
    Think(String),
    /// `progress TEXT`: reports progress.
    Progress(String),
    /// `usage IN OUT [USD]`: reports tokens and cost.
    Usage(Usage),
    /// `sleep D`: waits for the duration D, held in milliseconds.
    Sleep(u64),
    /// `tool NAME [JSON] [| NAME [JSON]] …`: calls tools, all in one round.
    Tools(Vec<Call>),
    /// `ask QUESTION`: asks a person for an input.
    Ask(String),
    /// `approve QUESTION`: asks a person for an approval.
    Approve(String),
    /// `fail [once|retry] [MESSAGE]`: fails. `once` fails only the first attempt; with `retry` the failure is retryable.
    Fail {
        /// Only the first attempt fails.
        once: bool,
        /// The failure is retryable.
        retry: bool,
        /// The error message.
        message: String,
    },
    /// `crash [once]`: panics.
    Crash {
        /// Only the first attempt panics.
        once: bool,
    },
    /// `relay`: streams the path of a socket on which the process that executes the script can call tools for the run.
    Relay,
    /// `hang`: does nothing until the run is cancelled.
    Hang,
    /// `ignore-cancel`: ignores cancellations from here on.
    IgnoreCancel,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub input: Value,
}

/// Why a script cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line:?}: {reason}")]
pub struct BadScript {
    line: String,
    reason: &'static str,
}

/// Parses a script.
pub fn parse(text: &str) -> Result<Vec<Command>, BadScript> {
    split(text).iter().map(|line| line.trim()).filter(|line| !line.is_empty()).map(command).collect()
}

/// Splits at line ends and at `;`. `\;` is a literal semicolon.
fn split(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match (char, chars.peek()) {
            ('\\', Some(';')) => lines.last_mut().into_iter().for_each(|line| line.extend(chars.next())),
            (';' | '\n', _) => lines.push(String::new()),
            _ => lines.last_mut().into_iter().for_each(|line| line.push(char)),
        }
    }
    lines
}

fn command(line: &str) -> Result<Command, BadScript> {
    let bad = |reason| Err(BadScript { line: line.chars().take(80).collect(), reason });
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let with_text = |make: fn(String) -> Command| match rest {
        "" => bad("needs a text"),
        text => Ok(make(text.to_owned())),
    };
    match word {
        "say" => with_text(Command::Say),
        "vary" => match rest.split('|').map(|text| text.trim().to_owned()).collect::<Vec<_>>() {
            texts if texts.len() < 2 || texts.contains(&String::new()) => bad("expected: vary TEXT | TEXT"),
            texts => Ok(Command::Vary(texts)),
        },
        "think" => with_text(Command::Think),
        "progress" => with_text(Command::Progress),
        "ask" => with_text(Command::Ask),
        "approve" => with_text(Command::Approve),
        "stream" => stream(rest)
            .ok_or(())
            .or_else(|()| bad("expected: stream N [every D] [TEXT], for example: stream 10 every 50ms")),
        "sleep" => duration(rest)
            .map(Command::Sleep)
            .ok_or(())
            .or_else(|()| bad("expected a duration such as 50ms, 2s or 1m")),
        "usage" => {
            usage(rest).map(Command::Usage).ok_or(()).or_else(|()| bad("expected: usage INPUT OUTPUT [USD]"))
        }
        "tool" => match rest.split(" | ").map(|call| tool(call.trim())).collect() {
            Ok(calls) => Ok(Command::Tools(calls)),
            Err(reason) => bad(reason),
        },
        "fail" => {
            let (first, others) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let (once, retry) = (first == "once", first == "retry");
            let message = if once || retry { others.trim() } else { rest };
            let message = if message.is_empty() { "the script said fail" } else { message };
            Ok(Command::Fail { once, retry, message: message.to_owned() })
        }
        "crash" if matches!(rest, "" | "once") => Ok(Command::Crash { once: rest == "once" }),
        "relay" if rest.is_empty() => Ok(Command::Relay),
        "hang" if rest.is_empty() => Ok(Command::Hang),
        "ignore-cancel" if rest.is_empty() => Ok(Command::IgnoreCancel),
        _ => Ok(Command::Say(format!("You said: {line}"))),
    }
}

fn tool(text: &str) -> Result<Call, &'static str> {
    let (name, input) = text.split_once(char::is_whitespace).unwrap_or((text, "{}"));
    match (name, serde_json::from_str(input)) {
        ("", _) => Err("expected: tool NAME [JSON]"),
        (name, Ok(input)) => Ok(Call { name: name.to_owned(), input }),
        (_, Err(_)) => Err("the tool's arguments are not valid JSON"),
    }
}

fn stream(rest: &str) -> Option<Command> {
    let mut words = rest.splitn(2, char::is_whitespace);
    let count = words.next()?.parse().ok()?;
    let rest = words.next().unwrap_or("").trim_start();
    let (every, text) = match rest.strip_prefix("every ") {
        Some(rest) => {
            let (every, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            (duration(every)?, text)
        }
        None => (0, rest),
    };
    Some(Command::Stream { count, every, text: text.to_owned() })
}

/// Parses a duration such as `50ms`, `2s` or `1m` into milliseconds.
fn duration(text: &str) -> Option<u64> {
    let unit = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn usage(rest: &str) -> Option<Usage> {
    let mut words = rest.split_whitespace();
    let (input_tokens, output_tokens) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let cost = words.next().map_or(Some(0.0), |usd| usd.parse::<f64>().ok())?;
    Some(Usage { input_tokens, output_tokens, cost: Cost::from(cost), ..Usage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_parsed() {
        let script = parse(
            "say hello there; think hm\nstream 3 every 50ms tick; stream 2; sleep 2s; tool add {\"a\":1,\"b\":2} | rain; tool echo\n\
             ask How old?; approve Delete it?; fail once no luck; fail; crash once; hang; ignore-cancel; usage 3 4 0.5; progress half; vary one | two",
        )
        .unwrap();
        insta::assert_snapshot!(script.iter().map(|command| format!("{command:?}\n")).collect::<String>(), @r#"
        Say("hello there")
        Think("hm")
        Stream { count: 3, every: 50, text: "tick" }
        Stream { count: 2, every: 0, text: "" }
        Sleep(2000)
        Tools([Call { name: "add", input: Object {"a": Number(1), "b": Number(2)} }, Call { name: "rain", input: Object {} }])
        Tools([Call { name: "echo", input: Object {} }])
        Ask("How old?")
        Approve("Delete it?")
        Fail { once: true, retry: false, message: "no luck" }
        Fail { once: false, retry: false, message: "the script said fail" }
        Crash { once: true }
        Hang
        IgnoreCancel
        Usage(Usage { input_tokens: 3, output_tokens: 4, cache_read_tokens: 0, cache_write_tokens: 0, cost: Cost(500000000), at_least: false })
        Progress("half")
        Vary(["one", "two"])
        "#);
    }

    #[test]
    fn a_line_that_is_not_a_command_is_echoed() {
        assert_eq!(parse("What is 2+2?").unwrap(), [Command::Say("You said: What is 2+2?".into())]);
        assert_eq!(parse("hang on a moment").unwrap(), [Command::Say("You said: hang on a moment".into())]);
        assert_eq!(parse(r"say a\; b").unwrap(), [Command::Say("a; b".into())]);
        assert_eq!(parse(" ;\n; ").unwrap(), []);
    }

    #[test]
    fn an_invalid_command_is_explained() {
        let errors: String = [
            "say",
            "vary one",
            "stream x",
            "sleep 5",
            "tool",
            "tool add {",
            "tool add | ",
            "usage 1",
            "sleep 99999999999999999999s",
        ]
        .map(|line| format!("{}\n", parse(line).unwrap_err()))
        .concat();
        insta::assert_snapshot!(errors, @r#"
        "say": needs a text
        "vary one": expected: vary TEXT | TEXT
        "stream x": expected: stream N [every D] [TEXT], for example: stream 10 every 50ms
        "sleep 5": expected a duration such as 50ms, 2s or 1m
        "tool": expected: tool NAME [JSON]
        "tool add {": the tool's arguments are not valid JSON
        "tool add |": the tool's arguments are not valid JSON
        "usage 1": expected: usage INPUT OUTPUT [USD]
        "sleep 99999999999999999999s": expected a duration such as 50ms, 2s or 1m
        "#);
    }
}
