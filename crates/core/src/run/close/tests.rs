//! Scripted tests of the end of a run: the input is what the run left open, the output is the messages that close the
//! run.
//!
//! A script lists what the run left open, `text hi; call t1 add; known t1 2; last user`, and how the run ends,
//! `fail code`. `known` gives a result to a call.

use super::*;
use crate::CancelReason;
use crate::event::Close;
use insta::assert_snapshot;
use serde_json::json;

fn message(n: u8) -> MessageId {
    MessageId::from_random([n; 16])
}

/// Plays a script; gives one line for each message.
fn play(script: &str) -> String {
    let mut known = vec![];
    let (mut unanswered, mut streamed, mut last_role, mut error) = (vec![], vec![], None, None);
    for line in script.split(';').map(str::trim) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["text", text] => {
                let id = message(u8::try_from(streamed.len()).unwrap() + 1);
                streamed.push(NewMessage { id, content: vec![Block::text(text)] });
            }
            ["call", id, name] => unanswered.push((id.to_owned(), name.to_owned())),
            ["known", id, text] => {
                let result = CallResult {
                    content: vec![Block::text(text)],
                    is_error: text == "error",
                    ..CallResult::default()
                };
                known.push((id.to_owned(), result));
            }
            ["last", role] => last_role = Role::from_name(role),
            ["fail", code] => error = Some(Failure::new(code, "it failed")),
            _ => panic!("what is {line:?}?"),
        }
    }
    let mut made = 100;
    let fresh = || {
        made += 1;
        message(made)
    };
    let closing = close(Open { unanswered, known: &known, last_role, streamed }, error.as_ref(), fresh);
    let lines = closing.results.iter().map(|results| ("user", results));
    let lines = lines.chain(closing.messages.iter().map(|message| ("agent", &message.content)));
    lines.map(|(role, content)| format!("{role}: {}\n", describe(content))).collect()
}

fn describe(content: &[Block]) -> String {
    let block = |block: &Block| match block {
        Block::Text { text } => text.clone(),
        Block::ToolResult { tool_use_id, name, content, is_error, .. } => {
            format!(
                "{tool_use_id} {name} = {:?}{}",
                describe(content),
                if *is_error { " (error)" } else { "" }
            )
        }
        Block::Error { code, .. } => format!("error {code}"),
        other => format!("{other:?}"),
    };
    content.iter().map(block).collect::<Vec<_>>().join(" + ")
}

#[test]
fn streamed_text_becomes_the_last_messages() {
    assert_snapshot!(play("last user; text hi"), @"agent: hi");
    assert_snapshot!(play("last user; text one; text two"), @"
    agent: one
    agent: two
    ");
}

#[test]
fn an_error_is_part_of_the_last_message() {
    assert_snapshot!(play("last user; text one; text two; fail boom"), @"
    agent: one
    agent: two + error boom
    ");
    assert_snapshot!(play("last assistant; fail boom"), @"agent: error boom");
}

#[test]
fn a_path_that_ends_with_the_agent_needs_no_other_message() {
    assert_snapshot!(play("last assistant"), @"");
}

#[test]
fn a_path_that_ends_with_the_user_gets_an_empty_answer() {
    assert_eq!(play("last user"), "agent: \n");
    let nothing =
        close(Open { unanswered: vec![], known: &[], last_role: None, streamed: vec![] }, None, || {
            message(9)
        });
    assert_eq!(nothing.messages, [NewMessage { id: message(9), content: vec![] }]);
}

#[test]
fn unanswered_tool_calls_get_results_and_an_agent_message_follows() {
    assert_snapshot!(play("last assistant; call t1 add; call t2 rm; known t1 2; fail boom"), @r#"
    user: t1 add = "2" + t2 rm = "outcome unknown: the run ended before the tool answered" (error)
    agent: error boom
    "#);
    assert_snapshot!(play("last assistant; call t1 add; known t1 error; text hm"), @r#"
    user: t1 add = "error" (error)
    agent: hm
    "#);
    assert_eq!(play("last assistant; call t1 add; known t1 2"), "user: t1 add = \"2\"\nagent: \n");
}

#[test]
fn a_call_without_a_known_result_has_an_unknown_outcome() {
    assert_snapshot!(describe(&settle(vec![("t1".into(), "add".into())], &[])),
        @r#"t1 add = "outcome unknown: the run ended before the tool answered" (error)"#);
}

#[test]
fn the_event_that_ends_a_run_decides_how_its_last_messages_end() {
    let (close, error) = (Close::default(), Failure::new("boom", "it failed"));
    let reason = CancelReason::Requested;
    let ends = [
        Body::RunSucceeded { close: close.clone() },
        Body::RunFailed { error: error.clone(), close: close.clone() },
        Body::RunTimedOut { error: error.clone(), close: close.clone() },
        Body::RunOrphaned { error, close: close.clone() },
        Body::RunCancelled { reason, close },
    ];
    let line = |body: &Body| {
        let Ending { status, error } = Ending::of(body);
        format!("{} {status} {}\n", body.kind(), error.map_or("-".into(), |error| error.code.to_string()))
    };
    assert_snapshot!(ends.iter().map(line).collect::<String>(), @"
    run.succeeded completed -
    run.failed failed boom
    run.timed_out failed boom
    run.orphaned failed boom
    run.cancelled cancelled cancelled
    ");
}

#[test]
fn every_run_moves_the_tip_except_a_branch_that_did_not_succeed() {
    let branch = Place::Edit { message_id: message(1) };
    for (place, status, expected) in [
        (Place::Tip, MessageStatus::Completed, PathEnd::Tip),
        (Place::Tip, MessageStatus::Failed, PathEnd::Tip),
        (Place::Tip, MessageStatus::Cancelled, PathEnd::Tip),
        (branch, MessageStatus::Completed, PathEnd::Tip),
        (branch, MessageStatus::Failed, PathEnd::Unmoved),
        (Place::Root, MessageStatus::Cancelled, PathEnd::Unmoved),
    ] {
        assert_eq!(path_end(place, status), expected, "{place:?} {status}");
    }
}

#[test]
fn a_message_with_a_tool_call_does_not_complete_a_turn() {
    let call = Block::tool_use("t1", "add", json!({}));
    assert!(completes_turn(&[Block::text("done")]));
    assert!(!completes_turn(&[Block::text("let me add"), call]));
}
