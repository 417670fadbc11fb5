//! Prompts as scripts: makes the reply to a request if no reply is queued.
//!
//! A script is played in parts. Each part ends with the tools it calls; the next part follows their results.

use std::collections::HashMap;

use mainspring_core::script::{Command, parse};
use serde_json::json;

use super::reply::{Action, Fault, Reply, StopReason, Tokens};

/// The parts of a conversation that a script depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Conversation {
    /// The last text of the user: the script.
    pub(super) prompt: String,
    /// The number of tool rounds since the prompt.
    pub(super) rounds: usize,
    /// The tool results of the last round.
    pub(super) results: Vec<String>,
}

/// One entry of a request's conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A text of the user.
    Prompt(String),
    /// A tool result.
    Result(String),
    /// Output of the model.
    Model,
}

impl FromIterator<Entry> for Conversation {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut conversation = Self::default();
        let mut in_results = false;
        for entry in entries {
            match entry {
                Entry::Prompt(prompt) => {
                    conversation = Self { prompt, ..Self::default() };
                    in_results = false;
                }
                Entry::Result(result) => {
                    if !std::mem::replace(&mut in_results, true) {
                        conversation.rounds += 1;
                        conversation.results.clear();
                    }
                    conversation.results.push(result);
                }
                Entry::Model => in_results = false,
            }
        }
        conversation
    }
}

/// The word that begins a script in a system prompt.
const SYSTEM_SCRIPT: &str = "script: ";

impl Conversation {
    /// Takes the script from the last line `script: …` of the system prompt, if there is one. The agent then behaves
    /// the same for every prompt.
    pub(super) fn with_system(self, system: &str) -> Self {
        match system.lines().filter_map(|line| line.trim().strip_prefix(SYSTEM_SCRIPT)).next_back() {
            Some(script) => Self { prompt: script.to_owned(), ..self },
            None => self,
        }
    }
}

/// Remembers, from one request to the next, what `once` and `vary` commands have done in each part of a script.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<String, PartMemory>);

/// The maximum number of script parts that are remembered.
const MAX_REMEMBERED_PARTS: usize = 4096;

/// The history of one part of a script.
#[derive(Debug, Default)]
struct PartMemory {
    /// True if a `once` command failed when the part was last played.
    failed: bool,
    /// How often a `vary` command of the part was played.
    varied: usize,
}

impl Memory {
    fn part(&mut self, conversation: &Conversation) -> &mut PartMemory {
        let key = format!("{} {}", conversation.rounds, conversation.prompt);
        if self.0.len() >= MAX_REMEMBERED_PARTS && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.entry(key).or_default()
    }
}

impl PartMemory {
    /// Returns true on every other call, starting with the first.
    fn fails_now(&mut self) -> bool {
        self.failed = !self.failed;
        self.failed
    }
}

/// Makes the reply to the last prompt of `conversation`.
pub(super) fn reply(conversation: &Conversation, memory: &mut Memory) -> Reply {
    let commands = match parse(&conversation.prompt) {
        Ok(commands) => commands,
        Err(bad) => return Reply::text(&format!("I cannot follow this script: {bad}")),
    };
    if conversation.rounds == 0 && commands.iter().all(is_echo) {
        return Reply::text(&introduction(&conversation.prompt));
    }
    let Some(part) = parts(&commands).into_iter().nth(conversation.rounds) else {
        return Reply::text(&format!("The tools answered: {}", conversation.results.join(", ")));
    };
    let mut reply = Reply::default();
    for command in part {
        match command {
            Command::Fail { once: true, message, .. } => {
                if memory.part(conversation).fails_now() {
                    return fail(reply, message);
                }
            }
            Command::Fail { message, .. } => return fail(reply, message),
            Command::Crash { once: true } => {
                if memory.part(conversation).fails_now() {
                    return reply.and(Action::Disconnect);
                }
            }
            Command::Crash { once: false } => return reply.and(Action::Disconnect),
            Command::Hang => return reply.and(Action::Hang),
            Command::Vary(texts) => {
                let part = memory.part(conversation);
                let text = texts.get(part.varied % texts.len().max(1)).map(String::as_str);
                part.varied += 1;
                reply = reply.and_text(text.unwrap_or_default()).and_text("\n");
            }
            other => reply = add(reply, other),
        }
    }
    reply
}

fn add(reply: Reply, command: &Command) -> Reply {
    match command {
        Command::Say(text) => reply.and_text(text).and_text("\n"),
        Command::Stream { count, every, text } => (1..=*count).fold(reply, |reply, no| {
            let piece = if text.is_empty() { format!("{no} ") } else { format!("{text} ") };
            let reply = reply.and(Action::Text(piece));
            if *every > 0 { reply.and(Action::Pause(*every)) } else { reply }
        }),
        Command::Think(text) => {
            reply.and(Action::Think { text: text.clone(), signature: "c2NyaXB0ZWQ=".into() })
        }
        Command::Usage(usage) => reply.with_tokens(Tokens {
            input: usage.input_tokens,
            output: usage.output_tokens,
            ..Tokens::default()
        }),
        Command::Sleep(millis) => reply.and(Action::Pause(*millis)),
        Command::Tools(calls) => {
            calls.iter().fold(reply, |reply, call| reply.and_tool(&call.name, call.input.clone()))
        }
        Command::Ask(question) => reply.and_tool("ask_person", json!({"question": question})),
        Command::Approve(question) => {
            reply.and_tool("ask_person", json!({"question": question, "approval": true}))
        }
        // A model reports no progress and does not notice a cancellation.
        Command::Progress(_) | Command::IgnoreCancel => reply,
        Command::Fail { .. } | Command::Crash { .. } | Command::Hang | Command::Relay | Command::Vary(_) => {
            reply
        }
    }
}

/// Adds the failure of `fail KIND`; an unknown kind is an internal error.
fn fail(reply: Reply, message: &str) -> Reply {
    let (kind, rest) = message.split_once(' ').unwrap_or((message, ""));
    let fault = match kind {
        "rate-limit" => Fault::RateLimited { retry_after: rest.trim().parse().ok() },
        "overload" => Fault::Overloaded,
        "auth" => Fault::Unauthorized,
        "invalid" => Fault::Invalid,
        "context" => Fault::ContextTooLong,
        "refuse" => return reply.with_stop(StopReason::Refusal),
        "break" => return reply.and(Action::Disconnect),
        "garbage" => return reply.and(Action::Garbage),
        _ => Fault::Internal,
    };
    reply.and(Action::Fail(fault))
}

/// Splits the script into parts that each end with the tools they call.
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

/// True for the command that the parser makes of a line that is no command.
fn is_echo(command: &Command) -> bool {
    matches!(command, Command::Say(text) if text.starts_with("You said: "))
}

/// The reply to a prompt without any command.
fn introduction(prompt: &str) -> String {
    let prompt: String = prompt.trim().chars().take(200).collect();
    format!(
        "Hello! I am mainspring's scripted model: I follow scripts and understand nothing else. You said: {prompt}\n\
         Try: say hello; tool add {{\"a\": 1, \"b\": 2}}; fail rate-limit 1"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(entries: &[Entry]) -> String {
        let reply = reply(&entries.iter().cloned().collect(), &mut Memory::default());
        reply.actions.iter().map(|action| format!("{action:?}\n")).collect()
    }

    fn prompt(text: &str) -> Entry {
        Entry::Prompt(text.into())
    }

    #[test]
    fn a_script_continues_after_its_tool_results() {
        let script = prompt("say hi; tool add {\"a\":1}; tool echo; say done");
        insta::assert_snapshot!(actions(std::slice::from_ref(&script)), @r#"
        Text("hi")
        Text("\n")
        Tool { id: None, name: "add", input: Object {"a": Number(1)} }
        Tool { id: None, name: "echo", input: Object {} }
        "#);
        let with_results = [script, Entry::Model, Entry::Result("1".into()), Entry::Result("2".into())];
        insta::assert_snapshot!(actions(&with_results), @r#"
        Text("done")
        Text("\n")
        "#);
        let beyond = [prompt("tool add"), Entry::Model, Entry::Result("3".into())];
        assert!(actions(&beyond).contains("3"));
    }

    #[test]
    fn a_script_of_the_system_prompt_takes_the_place_of_the_prompt() {
        let conversation: Conversation = [prompt("say the prompt")].into_iter().collect();
        let of = |system: &str| reply(&conversation.clone().with_system(system), &mut Memory::default());
        assert_eq!(format!("{:?}", of("You plan.\nscript: say the plan").actions[0]), "Text(\"the \")");
        assert!(format!("{:?}", of("You plan.\nscript: say the plan").actions).contains("plan"));
        assert!(format!("{:?}", of("You plan.").actions).contains("prompt"));
    }

    #[test]
    fn only_the_last_prompt_is_the_script() {
        let entries =
            [prompt("tool add"), Entry::Model, Entry::Result("1".into()), Entry::Model, prompt("say new")];
        assert_eq!(actions(&entries), "Text(\"new\")\nText(\"\\n\")\n");
    }

    #[test]
    fn plain_text_gets_an_introduction_and_an_invalid_script_an_explanation() {
        assert!(actions(&[prompt("What is 2+2?")]).contains("scripted"));
        assert!(actions(&[prompt("stream x")]).contains("cannot"));
    }

    #[test]
    fn vary_cycles_through_its_texts_and_fail_once_fails_every_other_time() {
        let mut memory = Memory::default();
        let mut first = |script: &str| {
            let reply = reply(&[prompt(script)].into_iter().collect(), &mut memory);
            format!("{:?}", reply.actions[0])
        };
        let actions: Vec<String> = (0..3).map(|_| first("vary one | two")).collect();
        assert_eq!(actions, [r#"Text("one")"#, r#"Text("two")"#, r#"Text("one")"#]);
        let actions: Vec<String> = (0..3).map(|_| first("fail once; say ok")).collect();
        assert_eq!(actions, ["Fail(Internal)", r#"Text("ok")"#, "Fail(Internal)"]);
    }

    #[test]
    fn fail_names_the_kind_of_failure() {
        for (script, expected) in [
            ("fail rate-limit 7", "Fail(RateLimited { retry_after: Some(7) })\n"),
            ("fail overload", "Fail(Overloaded)\n"),
            ("fail auth", "Fail(Unauthorized)\n"),
            ("fail context", "Fail(ContextTooLong)\n"),
            ("fail once invalid", "Fail(Invalid)\n"),
            ("fail", "Fail(Internal)\n"),
            ("crash", "Disconnect\n"),
            ("hang", "Hang\n"),
        ] {
            assert_eq!(actions(&[prompt(script)]), expected, "{script}");
        }
    }
}
