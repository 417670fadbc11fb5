//! Messages of other programs: appended once, at the tip of an idle session.

use std::sync::Arc;

use mainspring_api::{MessageAppend, PromptContent, ResultMessage, ResultsAppend};
use mainspring_core::{Block, Body, Cost, Message, Place, Role, Time, Usage};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{ForkRequest, NewSession, RunRequest, SessionTarget};
use mainspring_store::Fault;
use serde_json::json;

use crate::portable::{export, import};
use crate::world::{Disk, World, by_key, every_store, kinds, run_process};

async fn open(world: &World, key: &str) {
    let new = NewSession::default();
    let target = SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() };
    world.kernel.session_open(&world.me, &target, None).await.unwrap();
}

async fn say(world: &World, id: &str, text: &str) -> Result<(Arc<Message>, bool), Error> {
    world.kernel.message_append(&world.me, &by_key("a"), MessageAppend::text(id, text)).await
}

fn text(text: &str) -> ResultMessage {
    ResultMessage::new(Role::Assistant, PromptContent::Text(text.into()))
}

/// A turn of one answer.
fn turn(id: &str, answer: &str) -> ResultsAppend {
    ResultsAppend { id: id.into(), messages: vec![text(answer)], ..ResultsAppend::default() }
}

/// A turn of two agents, of which the first calls a tool.
fn long_turn(id: &str) -> ResultsAppend {
    let usage = |input_tokens| Some(Usage { input_tokens, cost: Cost(5), ..Usage::default() });
    let call =
        PromptContent::Blocks(vec![Block::text("adding"), Block::tool_use("c1", "add", json!({"a": 1}))]);
    let result = Block::tool_result("c1", "add", vec![Block::text("2")], false);
    let messages = vec![
        ResultMessage { id: Some("r1".into()), usage: usage(7), ..ResultMessage::new(Role::Assistant, call) },
        ResultMessage::new(Role::User, PromptContent::Blocks(vec![result])),
        ResultMessage { agent: Some("writer".into()), created_at: Some(Time(5)), ..text("it is 2") },
    ];
    ResultsAppend {
        id: id.into(),
        messages,
        agent: Some("adder".into()),
        usage: usage(1),
        ..Default::default()
    }
}

async fn results(world: &World, new: ResultsAppend) -> Result<(Vec<Arc<Message>>, bool), Error> {
    world.kernel.results_append(&world.me, &by_key("a"), new).await
}

#[tokio::test]
async fn a_message_is_appended_once_and_the_path_ends_with_it() {
    for disk in every_store() {
        let name = disk.name;
        let world = World::on(disk).await;
        open(&world, "a").await;
        let (message, made) = say(&world, "m1", "what is 1 + 1?").await.unwrap();
        assert!(made, "{name}");
        assert_eq!((message.external_id.as_deref(), message.run), (Some("m1"), None), "{name}");
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(session.tip_message, Some(message.id), "{name}");
        assert_eq!(session.title.as_deref(), Some("what is 1 + 1?"), "{name}");
        let before = world.events("a").await;
        assert_eq!(
            kinds(&before)[1..],
            ["session.updated", "message.completed", "session.updated"],
            "{name}"
        );
        let again = say(&world, "m1", "what is 1 + 1?").await.unwrap();
        assert_eq!(again, (message, false), "{name}");
        assert_eq!(world.events("a").await.len(), before.len(), "{name}: nothing was written");
        let other = say(&world, "m1", "something else").await.unwrap_err();
        assert_eq!(other.code(), "request_conflict", "{name}");
        assert_eq!(world.path_text("a").await.lines().count(), 1, "{name}");
    }
}

#[tokio::test]
async fn the_results_of_a_turn_are_appended_once_beneath_its_message() {
    for disk in every_store() {
        let name = disk.name;
        let world = World::on(disk).await;
        open(&world, "a").await;
        say(&world, "m1", "what is 1 + 1?").await.unwrap();
        let new = ResultsAppend { beneath: Some("m1".into()), ..long_turn("t1") };
        let (messages, made) = results(&world, new.clone()).await.unwrap();
        assert!(made, "{name}");
        let path = world.path("a").await;
        assert_eq!(path[1..], messages, "{name}");
        let told: Vec<_> = messages.iter().map(|message| (message.role, message.agent.as_deref())).collect();
        let expected = [
            (Role::Assistant, Some("adder")),
            (Role::User, Some("adder")),
            (Role::Assistant, Some("writer")),
        ];
        assert_eq!(told, expected, "{name}");
        assert_eq!(messages[0].external_id.as_deref(), Some("r1"), "{name}");
        assert_eq!(messages[2].created_at, Time(5), "{name}: as the program says");
        // The path ends elsewhere now, but the same request is answered as before.
        assert_eq!(results(&world, new.clone()).await.unwrap(), (messages, false), "{name}");
        let used = path.iter().filter_map(|message| message.usage).map(|usage| usage.input_tokens);
        assert_eq!(
            used.collect::<Vec<_>>(),
            [7, 1],
            "{name}: the usage of the turn is that of its last message"
        );
        let events = world.events("a").await;
        let used = events.iter().filter_map(|event| match &event.body {
            Body::UsageUpdated { usage } => Some((usage.input_tokens, usage.cost)),
            _ => None,
        });
        assert_eq!(used.collect::<Vec<_>>(), [(8, Cost(10))], "{name}: counted once");
        // A turn with fewer, more or other messages under the same id is another one.
        let fewer = ResultsAppend { messages: new.messages[..2].to_vec(), ..new.clone() };
        let more = ResultsAppend { messages: [&new.messages[..], &[text("more")]].concat(), ..new.clone() };
        for other in [fewer, more, ResultsAppend { id: "t1".into(), ..turn("t1", "no") }] {
            assert_eq!(results(&world, other).await.unwrap_err().code(), "request_conflict", "{name}");
        }
        assert_eq!(world.path("a").await.len(), 4, "{name}");
    }
}

#[tokio::test]
async fn results_for_a_message_that_is_not_the_last_are_refused() {
    let world = World::on(Disk::memory()).await;
    open(&world, "a").await;
    let empty = results(&world, turn("t1", "hi")).await.unwrap_err();
    assert!(empty.to_string().contains("nothing to answer"), "{empty}");
    let (first, _) = say(&world, "m1", "one").await.unwrap();
    say(&world, "m2", "two").await.unwrap();
    for beneath in ["m1".to_owned(), first.id.to_string(), "unknown".to_owned()] {
        let late = ResultsAppend { beneath: Some(beneath.clone()), ..turn("t1", "late") };
        let refused = results(&world, late).await.unwrap_err();
        assert_eq!(refused.code(), "not_at_tip", "{beneath}");
        assert!(refused.to_string().contains(&beneath), "{refused}");
    }
    results(&world, ResultsAppend { beneath: Some("m2".into()), ..turn("t1", "in time") }).await.unwrap();
    assert_eq!(world.path("a").await.len(), 3);
}

#[tokio::test]
async fn nothing_is_appended_while_a_run_is_active() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "ask Tea?; say fine").await;
    world.wait_for_question(run.id).await;
    assert_eq!(say(&world, "m1", "hi").await.unwrap_err().code(), "session_busy");
    assert_eq!(results(&world, turn("t1", "hi")).await.unwrap_err().code(), "session_busy");
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    world.ended(run.id).await;
    say(&world, "m1", "hi").await.unwrap();
    // A repeated request is answered even while a run is active.
    let run = world.prompt("a", "ask Tea?; say fine").await;
    world.wait_for_question(run.id).await;
    assert!(!say(&world, "m1", "hi").await.unwrap().1);
}

#[tokio::test]
async fn a_run_continues_after_appended_messages_and_sees_them_once() {
    for disk in every_store() {
        let name = disk.name;
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        say(&world, "m1", "say two").await.unwrap();
        // The appended message is answered without a new prompt.
        let message = world.path("a").await[2].id;
        let again = RunRequest {
            place: Place::Regenerate { message_id: message },
            prompt: vec![],
            ..RunRequest::text("a", "")
        };
        let run = world.send(again).await.unwrap().run;
        world.ended(run.id).await;
        world.play("a", "say three").await;
        let texts: Vec<_> =
            world.path("a").await.iter().map(|message| message.text().trim().to_owned()).collect();
        assert_eq!(texts, ["say one", "one", "say two", "two", "say three", "three"], "{name}");
    }
}

#[tokio::test]
async fn appended_messages_branch_where_the_path_was_moved_to() {
    for disk in every_store() {
        let name = disk.name;
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("a", "say two").await;
        let path = world.path("a").await;
        let fork = ForkRequest { message: path[1].id, key: Some("f".into()), title: None };
        world.kernel.session_fork(&world.me, &by_key("a"), fork, None).await.unwrap();
        let append = MessageAppend::text("m1", "in the fork");
        let (message, _) = world.kernel.message_append(&world.me, &by_key("f"), append).await.unwrap();
        let texts = |path: Vec<Arc<Message>>| {
            path.iter().map(|message| message.text().trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(texts(world.path("f").await), ["say one", "one", "in the fork"], "{name}");
        assert_eq!(world.path("a").await.len(), 4, "{name}: the source is unchanged");
        // The cursor leads to the new message.
        let by = by_key("f");
        world.kernel.session_navigate(&world.me, &by, Some(path[0].id), None).await.unwrap();
        let session = world.kernel.session_get(&world.me, &by).await.unwrap();
        assert_eq!(session.tip_message, Some(message.id), "{name}");
        // In the source the path moves back, and the message opens a branch there.
        let run = RunRequest {
            place: Place::Edit { message_id: path[1].id },
            ..RunRequest::text("a", "say three")
        };
        let run = world.send(run).await.unwrap().run;
        world.ended(run.id).await;
        world.kernel.session_navigate(&world.me, &by_key("a"), Some(path[3].id), None).await.unwrap();
        say(&world, "m2", "on the first branch").await.unwrap();
        assert_eq!(texts(world.path("a").await)[2..], ["say two", "two", "on the first branch"], "{name}");
    }
}

#[tokio::test]
async fn incomplete_results_and_empty_messages_are_refused() {
    let world = World::on(Disk::memory()).await;
    open(&world, "a").await;
    say(&world, "m1", "hi").await.unwrap();
    let events = world.events("a").await.len();
    let cut = ResultsAppend { messages: long_turn("t1").messages[..1].to_vec(), ..long_turn("t1") };
    let refused = results(&world, cut).await.unwrap_err();
    assert!(refused.to_string().starts_with("messages[0]: these tool calls have no result"), "{refused}");
    for (id, said) in [("m2", " "), ("", "hi"), ("a\nb", "hi")] {
        assert_eq!(say(&world, id, said).await.unwrap_err().code(), "invalid_request", "{id:?} {said:?}");
    }
    let call = MessageAppend {
        content: PromptContent::Blocks(vec![Block::tool_use("c", "add", json!({}))]),
        ..MessageAppend::text("m2", "")
    };
    let refused = world.kernel.message_append(&world.me, &by_key("a"), call).await.unwrap_err();
    assert!(refused.to_string().contains("text and attachments only"), "{refused}");
    assert_eq!(world.events("a").await.len(), events, "nothing was written");
}

#[test]
fn a_crash_keeps_appended_messages_completely_or_not_at_all() {
    for (fault, kept) in [(None, 2), (Some(Fault::CommitFails), 1)] {
        let disk = Disk::sqlite();
        run_process(async {
            let world = World::on(disk.clone()).await;
            open(&world, "a").await;
            say(&world, "m1", "one").await.unwrap();
            if let Some(fault) = fault {
                world.disk.inject_fault(fault);
            }
            assert_eq!(results(&world, turn("t1", "first")).await.is_ok(), fault.is_none());
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.path("a").await.len(), kept, "{fault:?}");
            // The program repeats the requests whose outcome it does not know.
            assert!(!say(&world, "m1", "one").await.unwrap().1, "{fault:?}");
            assert_eq!(results(&world, turn("t1", "first")).await.unwrap().1, fault.is_some(), "{fault:?}");
            assert_eq!(world.path("a").await.len(), 2, "{fault:?}");
        });
    }
}

#[tokio::test]
async fn appended_messages_are_exported_and_imported_with_their_ids() {
    let world = World::on(Disk::sqlite()).await;
    open(&world, "a").await;
    say(&world, "m1", "what is 1 + 1?").await.unwrap();
    results(&world, long_turn("t1")).await.unwrap();
    let path = world.path("a").await;
    let file = export(&world, "a").await;
    let other = World::on(Disk::sqlite()).await;
    import(&other, &file).await.unwrap();
    assert_eq!(other.path("a").await, path);
    assert!(!say(&other, "m1", "what is 1 + 1?").await.unwrap().1, "it is there already");
    let events = other.events("a").await;
    let appended = events.iter().filter(|event| matches!(event.body, Body::MessageCompleted { .. }));
    assert_eq!(appended.count(), 4);
}
