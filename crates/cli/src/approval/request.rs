//! An approval at the terminal: the requested call with its changes, and the answers of a person.

use mainspring_core::{
    Answer, Approval, ApprovalAnswer, ApprovalChoice, ApprovalScope, Block, OnExpiry, RequestedCall, Wait,
};
use similar::{ChangeTag, TextDiff};

use crate::output::{DIM, GREEN, RED, excerpt, format_time};

/// The maximum number of lines of a change that are shown.
const MAX_DIFF_LINES: usize = 200;
/// The maximum number of characters of an input that are shown.
const MAX_INPUT_CHARS: usize = 2_000;

/// Describes the request of an approval: the call, its input, its changes, and what happens without an answer.
pub(crate) fn request_lines(wait: &Wait) -> Vec<String> {
    let Some(approval) = &wait.approval else { return vec![] };
    let mut lines = vec![];
    if let Some(call) = &approval.call {
        lines.extend(call_lines(call));
    }
    if let Some(at) = wait.expires_at {
        let then = match wait.on_expiry {
            OnExpiry::TimeOut => "the run times out",
            OnExpiry::Continue => "the agent continues without an answer",
        };
        lines.push(format!("{DIM}· until {}, then {then}{DIM:#}", format_time(at)));
    }
    lines
}

fn call_lines(call: &RequestedCall) -> Vec<String> {
    let places = call.locations.iter().map(|at| match at.line {
        Some(line) => format!(" {}:{line}", at.path),
        None => format!(" {}", at.path),
    });
    let kind = call.kind.as_deref().map(|kind| format!("{kind}: ")).unwrap_or_default();
    let mut lines = vec![format!("{DIM}· {kind}{}{}{DIM:#}", call.name, places.collect::<String>())];
    if call.truncated {
        lines.push(format!(
            "{DIM}· input and changes are too large to be shown; see the run's messages{DIM:#}"
        ));
    }
    let has_input = !call.input.is_null() && call.input.as_object().is_none_or(|input| !input.is_empty());
    if has_input && call.diff.is_empty() {
        lines.push(format!("{DIM}· input {}{DIM:#}", excerpt(&call.input.to_string(), MAX_INPUT_CHARS)));
    }
    for block in &call.diff {
        lines.extend(diff_lines(block));
    }
    lines
}

/// Formats a change like `diff -u`.
fn diff_lines(block: &Block) -> Vec<String> {
    let Block::Diff { path, before, after, before_artifact, after_artifact } = block else { return vec![] };
    let mut lines = vec![format!("{DIM}--- {path}{DIM:#}")];
    let stored: Vec<String> = before_artifact.iter().chain(after_artifact).map(ToString::to_string).collect();
    if !stored.is_empty() {
        lines.push(format!("{DIM}the texts are long: {}{DIM:#}", stored.join(", ")));
        return lines;
    }
    let (before, after) = (before.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default());
    let diff = TextDiff::from_lines(before, after);
    for (no, group) in diff.grouped_ops(3).iter().enumerate() {
        if no > 0 {
            lines.push(format!("{DIM}…{DIM:#}"));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let text = change.value().trim_end_matches(['\n', '\r']);
            lines.push(match change.tag() {
                ChangeTag::Delete => format!("{RED}-{text}{RED:#}"),
                ChangeTag::Insert => format!("{GREEN}+{text}{GREEN:#}"),
                ChangeTag::Equal => format!(" {text}"),
            });
        }
    }
    if lines.len() > MAX_DIFF_LINES {
        let hidden = lines.len() - MAX_DIFF_LINES;
        lines.truncate(MAX_DIFF_LINES);
        lines.push(format!("{DIM}… {hidden} more lines{DIM:#}"));
    }
    lines
}

/// Names the possible answers, for a question outside a chat.
pub(crate) fn answer_hint(wait: &Wait) -> &'static str {
    match offers(wait) {
        (true, true) => "allow? [y, s for the session, n, n REASON]",
        (true, false) => "allow? [y, s for the session, n]",
        (false, true) => "allow? [y, n, n REASON]",
        (false, false) => "allow? [y/n]",
    }
}

/// Names the possible answers, for the input line of a chat.
pub(crate) fn chat_prompt(wait: &Wait) -> &'static str {
    match offers(wait) {
        (true, true) => "allow? y, s for the session, n, n REASON › ",
        (true, false) => "allow? y, s for the session, n › ",
        (false, true) => "allow? y, n, n REASON › ",
        (false, false) => "allow? y/n › ",
    }
}

/// Returns whether the request can be allowed for the session, and whether it can be denied with a reason.
fn offers(wait: &Wait) -> (bool, bool) {
    let offers = |choice| wait.approval.as_ref().is_some_and(|approval| approval.answers.contains(&choice));
    (offers(ApprovalChoice::AllowSession), offers(ApprovalChoice::DenyWithReason))
}

/// Parses the answer of a person to an approval; none if the line is no answer.
pub(crate) fn parse_answer(line: &str) -> Option<Answer> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let answer = match (word.to_lowercase().as_str(), rest) {
        ("y" | "yes", "") => Approval::Allowed.into(),
        ("s" | "session", "") => ApprovalAnswer { scope: ApprovalScope::Session, ..Approval::Allowed.into() },
        ("n" | "no", "") => Approval::Denied.into(),
        ("n" | "no", reason) => ApprovalAnswer { reason: Some(reason.to_owned()), ..Approval::Denied.into() },
        _ => return None,
    };
    Some(Answer::Approval(answer))
}

#[cfg(test)]
mod tests {
    use mainspring_core::FileLocation;
    use serde_json::json;

    use super::*;
    use crate::safe_text::safe;

    fn plain(lines: &[String]) -> String {
        let plain = |line: &String| anstream::adapter::strip_str(&safe(line)).to_string() + "\n";
        lines.iter().map(plain).collect()
    }

    #[test]
    fn a_call_is_shown_with_its_changes() {
        let call = RequestedCall {
            name: "edit_file".into(),
            kind: Some("edit".into()),
            locations: vec![FileLocation { path: "src/a.rs".into(), line: Some(2) }],
            diff: vec![Block::Diff {
                path: "src/a.rs".into(),
                before: Some("one\ntwo\nthree\n".into()),
                after: Some("one\n2\nthree\n".into()),
                before_artifact: None,
                after_artifact: None,
            }],
            ..RequestedCall::default()
        };
        insta::assert_snapshot!(plain(&call_lines(&call)), @r"
        · edit: edit_file src/a.rs:2
        --- src/a.rs
         one
        -two
        +2
         three
        ");
        let call = RequestedCall {
            name: "bash".into(),
            input: json!({"command": "ls"}),
            ..RequestedCall::default()
        };
        insta::assert_snapshot!(plain(&call_lines(&call)), @r#"
        · bash
        · input {"command":"ls"}
        "#);
    }

    #[test]
    fn a_long_change_is_cut() {
        let after = Some("x\n".repeat(500));
        let block = Block::Diff {
            path: "a".into(),
            before: None,
            after,
            before_artifact: None,
            after_artifact: None,
        };
        let lines = diff_lines(&block);
        assert_eq!(lines.len(), MAX_DIFF_LINES + 1);
        assert!(plain(&lines).ends_with("… 301 more lines\n"));
    }

    #[test]
    fn a_person_answers_with_a_word_and_perhaps_a_reason() {
        let parse = |line: &str| parse_answer(line).map(|answer| serde_json::to_string(&answer).unwrap());
        let expect = |text: &str| Some(text.to_owned());
        assert_eq!(parse(" Yes "), expect(r#"{"kind":"approval","decision":"allowed"}"#));
        assert_eq!(parse("s"), expect(r#"{"kind":"approval","decision":"allowed","scope":"session"}"#));
        assert_eq!(parse("n"), expect(r#"{"kind":"approval","decision":"denied"}"#));
        assert_eq!(
            parse("no use staging"),
            expect(r#"{"kind":"approval","decision":"denied","reason":"use staging"}"#)
        );
        for line in ["", "yes please", "maybe", "session all"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
