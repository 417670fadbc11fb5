//! Prompts as scripts: what the server answers when no test has told it.
//!
//! A script is answered in parts: each part ends with the tools it calls, and the next one comes after their results.

use std::collections::HashMap;

use mainspring_adapters::script::{Command, parse};
use serde_json::json;

use super::reply::{Act, Fault, Reply, Stop, Tokens};

/// A conversation, as far as a script needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Asked {
    /// The last text of the user.
    pub(super) prompt: String,
    /// How often tools have answered since.
    pub(super) rounds: usize,
    /// What they answered last.
    pub(super) results: Vec<String>,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// The user says something.
    Prompt(String),
    /// A tool answers.
    Result(String),
    /// The model has spoken.
    Model,
}

/// What the turns come to.
pub(super) fn asked(turns: impl IntoIterator<Item = Turn>) -> Asked {
    let mut asked = Asked::default();
    let mut in_results = false;
    for turn in turns {
        match turn {
            Turn::Prompt(prompt) => {
                asked = Asked { prompt, ..Asked::default() };
                in_results = false;
            }
            Turn::Result(result) => {
                if !std::mem::replace(&mut in_results, true) {
                    asked.rounds += 1;
                    asked.results.clear();
                }
                asked.results.push(result);
            }
            Turn::Model => in_results = false,
        }
    }
    asked
}

/// What is remembered from one request to the next, of each part of a script.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<String, Met>);

/// How many parts of scripts are remembered.
const REMEMBERED: usize = 4096;

/// What became of a part of a script so far.
#[derive(Debug, Default)]
struct Met {
    /// What was to fail once has failed, and is to go well now.
    failed: bool,
    /// How often it said what varies.
    varied: usize,
}

impl Memory {
    fn of(&mut self, asked: &Asked) -> &mut Met {
        let key = format!("{} {}", asked.rounds, asked.prompt);
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.entry(key).or_default()
    }
}

impl Met {
    /// True every other time.
    fn fails(&mut self) -> bool {
        self.failed = !self.failed;
        self.failed
    }
}

/// The answer to `asked`.
pub(super) fn answer(asked: &Asked, memory: &mut Memory) -> Reply {
    let commands = match parse(&asked.prompt) {
        Ok(commands) => commands,
        Err(bad) => return Reply::say(&format!("I cannot follow this script: {bad}")),
    };
    if asked.rounds == 0 && commands.iter().all(is_plain) {
        return Reply::say(&friendly(&asked.prompt));
    }
    let Some(part) = parts(&commands).into_iter().nth(asked.rounds) else {
        return Reply::say(&format!("The tools answered: {}", asked.results.join(", ")));
    };
    let mut reply = Reply::default();
    for command in part {
        match command {
            Command::Fail { once: true, message, .. } => {
                if memory.of(asked).fails() {
                    return fail(reply, message);
                }
            }
            Command::Fail { message, .. } => return fail(reply, message),
            Command::Crash { once: true } => {
                if memory.of(asked).fails() {
                    return reply.and(Act::Break);
                }
            }
            Command::Crash { once: false } => return reply.and(Act::Break),
            Command::Hang => return reply.and(Act::Hang),
            Command::Vary(texts) => {
                let met = memory.of(asked);
                let text = texts.get(met.varied % texts.len().max(1)).map(String::as_str);
                met.varied += 1;
                reply = reply.and_say(text.unwrap_or_default()).and_say("\n");
            }
            other => reply = act(reply, other),
        }
    }
    reply
}

fn act(reply: Reply, command: &Command) -> Reply {
    match command {
        Command::Say(text) => reply.and_say(text).and_say("\n"),
        Command::Stream { count, interval_ms, text } => (1..=*count).fold(reply, |reply, no| {
            let said = if text.is_empty() { format!("{no} ") } else { format!("{text} ") };
            let reply = reply.and(Act::Text(said));
            if *interval_ms > 0 { reply.and(Act::Rest(*interval_ms)) } else { reply }
        }),
        Command::Think(text) => {
            reply.and(Act::Think { text: text.clone(), signature: "c2NyaXB0ZWQ=".into() })
        }
        Command::Usage(usage) => reply.costing(Tokens {
            input: usage.input_tokens,
            output: usage.output_tokens,
            ..Tokens::default()
        }),
        Command::Sleep(millis) => reply.and(Act::Rest(*millis)),
        Command::Tools(calls) => {
            calls.iter().fold(reply, |reply, call| reply.and_tool(&call.name, call.input.clone()))
        }
        Command::Ask(question) => reply.and_tool("ask_person", json!({"question": question})),
        Command::Approve(question) => {
            reply.and_tool("ask_person", json!({"question": question, "approval": true}))
        }
        // A model reports no progress and hears of no cancellation.
        Command::Progress(_) | Command::IgnoreCancel => reply,
        Command::Fail { .. } | Command::Crash { .. } | Command::Hang | Command::Vary(_) => reply,
    }
}

/// `fail KIND`: what goes wrong by its name, something inside the server if it has none.
fn fail(reply: Reply, message: &str) -> Reply {
    let (kind, rest) = message.split_once(' ').unwrap_or((message, ""));
    let fault = match kind {
        "rate-limit" => Fault::RateLimited { retry_after: rest.trim().parse().ok() },
        "overload" => Fault::Overloaded,
        "auth" => Fault::Unauthorized,
        "invalid" => Fault::Invalid,
        "context" => Fault::ContextTooLong,
        "refuse" => return reply.and_stop(Stop::Refusal),
        "break" => return reply.and(Act::Break),
        "garbage" => return reply.and(Act::Garbage),
        _ => Fault::Internal,
    };
    reply.and(Act::Fail(fault))
}

/// The script in parts, each ending with the tools it calls.
fn parts(commands: &[Command]) -> Vec<&[Command]> {
    let calls =
        |command: &Command| matches!(command, Command::Tools(_) | Command::Ask(_) | Command::Approve(_));
    let mut parts = vec![];
    let mut rest = commands;
    while !rest.is_empty() {
        let first = rest.iter().position(calls).unwrap_or(rest.len());
        let tools = rest[first..].iter().take_while(|command| calls(command)).count();
        let (part, others) = rest.split_at(first + tools);
        parts.push(part);
        rest = others;
    }
    parts
}

fn is_plain(command: &Command) -> bool {
    matches!(command, Command::Say(text) if text.starts_with("You said: "))
}

fn friendly(prompt: &str) -> String {
    let shown: String = prompt.trim().chars().take(200).collect();
    format!(
        "Hello! I am mainspring's scripted model: I follow scripts and understand nothing else. You said: {shown}\n\
         Try: say hello\\; tool add {{\"a\": 1, \"b\": 2}}\\; fail rate-limit 1"
    )
    .replace("\\;", ";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(turns: &[Turn]) -> String {
        let reply = answer(&asked(turns.iter().cloned()), &mut Memory::default());
        reply.acts.iter().map(|act| format!("{act:?}\n")).collect()
    }

    fn prompt(text: &str) -> Turn {
        Turn::Prompt(text.into())
    }

    #[test]
    fn a_script_goes_on_after_its_tools_have_answered() {
        let script = prompt("say hi; tool add {\"a\":1}; tool echo; say done");
        insta::assert_snapshot!(shown(std::slice::from_ref(&script)), @r#"
        Text("hi")
        Text("\n")
        Tool { id: None, name: "add", input: Object {"a": Number(1)} }
        Tool { id: None, name: "echo", input: Object {} }
        "#);
        let answered = [script, Turn::Model, Turn::Result("1".into()), Turn::Result("2".into())];
        insta::assert_snapshot!(shown(&answered), @r#"
        Text("done")
        Text("\n")
        "#);
        let beyond = [prompt("tool add"), Turn::Model, Turn::Result("3".into())];
        assert!(shown(&beyond).contains("3"));
    }

    #[test]
    fn only_the_last_prompt_is_the_script() {
        let turns =
            [prompt("tool add"), Turn::Model, Turn::Result("1".into()), Turn::Model, prompt("say new")];
        assert_eq!(shown(&turns), "Text(\"new\")\nText(\"\\n\")\n");
    }

    #[test]
    fn plain_text_gets_a_friendly_answer_and_a_bad_script_is_named() {
        assert!(shown(&[prompt("What is 2+2?")]).contains("scripted"));
        assert!(shown(&[prompt("stream x")]).contains("cannot"));
    }

    #[test]
    fn what_varies_is_another_each_time_and_what_fails_once_fails_every_other_time() {
        let mut memory = Memory::default();
        let mut first = |script: &str| {
            let reply = answer(&asked([prompt(script)]), &mut memory);
            format!("{:?}", reply.acts[0])
        };
        let said: Vec<String> = (0..3).map(|_| first("vary one | two")).collect();
        assert_eq!(said, [r#"Text("one")"#, r#"Text("two")"#, r#"Text("one")"#]);
        let said: Vec<String> = (0..3).map(|_| first("fail once; say ok")).collect();
        assert_eq!(said, ["Fail(Internal)", r#"Text("ok")"#, "Fail(Internal)"]);
    }

    #[test]
    fn failures_are_named() {
        for (script, wanted) in [
            ("fail rate-limit 7", "Fail(RateLimited { retry_after: Some(7) })\n"),
            ("fail overload", "Fail(Overloaded)\n"),
            ("fail auth", "Fail(Unauthorized)\n"),
            ("fail context", "Fail(ContextTooLong)\n"),
            ("fail once invalid", "Fail(Invalid)\n"),
            ("fail", "Fail(Internal)\n"),
            ("crash", "Break\n"),
            ("hang", "Hang\n"),
        ] {
            assert_eq!(shown(&[prompt(script)]), wanted, "{script}");
        }
    }
}
