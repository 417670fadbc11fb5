//! Rules of the server, of owners, of adapters and of sessions.

use std::collections::BTreeMap;

use mainspring_core::{DelegationMode, Mode, RunChange, SessionStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::kernel::{
    DelegationRequest, ForkRequest, GrantQuery, NewSession, RunRequest, SessionPatch, SessionTarget,
};
use mainspring_kernel::policy::{Action, Permissions, Resource, Rules, ServerRules, Verdict};

use crate::portable::{export, import};
use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, World, by_key, every_store, with_timeout};

fn texts(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

fn patch(rules: &[&str]) -> SessionPatch {
    SessionPatch { rules: Some(texts(rules)), ..SessionPatch::default() }
}

/// A prompt for a session that is made with these rules.
fn prompt(key: &str, rules: &[&str]) -> RunRequest {
    let mut prompt = puppet_request(key, "go");
    prompt.session.new.rules = texts(rules);
    prompt
}

async fn world(disk: Disk, server: ServerRules, behavior: PuppetBehavior) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, PuppetBehavior { obeys: true, ..behavior });
    (World::with(disk, Options { rules: server, ..Options::default() }, vec![adapter]).await, control)
}

/// The verdict of the rules on a call of a tool.
async fn verdict(execution: &Execution, tool: &str) -> Option<Verdict> {
    let handle = &execution.handle;
    let rules = Rules::new(&handle.assignment().rules, vec![]);
    let action =
        Action { capability: "tool", operation: "call".into(), resource: Resource::Text(tool.into()) };
    let found = rules.verdict(handle, &action, &"may I?".to_owned().into()).await.unwrap();
    found.map(|(verdict, _)| verdict)
}

#[tokio::test]
async fn the_first_layer_that_decides_wins() {
    let parse = |rules: &[&str]| rules.iter().map(|rule| rule.parse().unwrap()).collect::<Vec<_>>();
    let server = ServerRules {
        all: parse(&["deny tool call a"]),
        owners: BTreeMap::from([
            ("ada".to_owned(), parse(&["allow tool call a", "ask tool call b"])),
            ("bob".to_owned(), parse(&["deny tool call *"])),
        ]),
    };
    let behavior = PuppetBehavior {
        rules: parse(&["allow tool call b", "deny tool call c"]),
        ..PuppetBehavior::default()
    };
    let (world, mut control) = world(Disk::memory(), server, behavior).await;
    let all = ["allow tool call a", "allow tool call b", "allow tool call c", "allow tool call d"];
    world.send(prompt("a", &all)).await.unwrap();
    let execution = control.next().await;
    for (tool, expected) in [
        ("a", Some(Verdict::Deny)),
        ("b", Some(Verdict::Ask)),
        ("c", Some(Verdict::Deny)),
        ("d", Some(Verdict::Allow)),
        ("e", None),
    ] {
        assert_eq!(verdict(&execution, tool).await, expected, "{tool}");
    }
}

#[tokio::test]
async fn a_session_allows_nothing_where_the_adapter_denies_everything() {
    let behavior = PuppetBehavior { otherwise: Permissions::Deny.as_rules(), ..PuppetBehavior::default() };
    let (world, mut control) = world(Disk::memory(), ServerRules::default(), behavior).await;
    world.send(prompt("a", &["allow tool call a", "ask tool call b", "deny tool call c"])).await.unwrap();
    let execution = control.next().await;
    assert_eq!(verdict(&execution, "a").await, None);
    assert_eq!(verdict(&execution, "b").await, None);
    assert_eq!(verdict(&execution, "c").await, Some(Verdict::Deny));
}

#[tokio::test]
async fn the_rules_of_a_session_are_stored_changed_and_inherited_by_forks() {
    for disk in every_store() {
        let (world, mut control) =
            world(disk.clone(), ServerRules::default(), PuppetBehavior::default()).await;
        let run = world.send(prompt("a", &["deny tool call a"])).await.unwrap().run.id;
        control.next().await.end(End::succeeded());
        let message =
            world.ended(run).await.final_message.or(world.path("a").await.last().map(|last| last.id));
        let known =
            world.kernel.session_patch(&world.me, &by_key("a"), patch(&["ask fs write *"])).await.unwrap();
        assert_eq!(known.rules, ["ask fs write *"]);
        let version = known.version;
        let same =
            world.kernel.session_patch(&world.me, &by_key("a"), patch(&["ask fs write *"])).await.unwrap();
        assert_eq!(same.version, version, "nothing changed");
        let fork = ForkRequest { message: message.unwrap(), key: Some("f".into()), title: None };
        let (fork, _) = world.kernel.session_fork(&world.me, &by_key("a"), fork, None).await.unwrap();
        assert_eq!(fork.rules, ["ask fs write *"]);
        world.kernel.session_patch(&world.me, &by_key("a"), patch(&[])).await.unwrap();
        drop(world);
        let again = World::reboot(&disk).await;
        let rules = async |key| again.kernel.session_get(&again.me, &by_key(key)).await.unwrap().rules;
        assert_eq!((rules("a").await, rules("f").await), (vec![], texts(&["ask fs write *"])));
    }
}

#[tokio::test]
async fn a_bad_rule_is_refused_by_name_and_nothing_changes() {
    let (world, mut control) = world(Disk::memory(), ServerRules::default(), PuppetBehavior::default()).await;
    let refused = world.send(prompt("a", &["deny tool call a", "permit it"])).await.unwrap_err().to_string();
    assert!(refused.contains("\"permit it\" is no rule"), "{refused}");
    world.send(prompt("a", &["deny tool call a"])).await.unwrap();
    control.next().await;
    let long = format!("deny fs read /{}", "x".repeat(2000));
    for (bad, text) in
        [(vec!["x"], "is no rule"), (vec![long.as_str()], "1024"), (vec!["deny a b c"; 65], "at most 64")]
    {
        let refused = world.kernel.session_patch(&world.me, &by_key("a"), patch(&bad)).await.unwrap_err();
        assert!(refused.code() == "invalid_request" && refused.to_string().contains(text), "{refused}");
    }
    let known = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
    assert_eq!((known.rules, known.status), (texts(&["deny tool call a"]), SessionStatus::Open));
}

#[tokio::test]
async fn rules_of_an_imported_file_deny_but_do_not_allow() {
    let (world, mut control) = world(Disk::memory(), ServerRules::default(), PuppetBehavior::default()).await;
    let rules = ["allow * * *", "deny tool call a", "ask tool call b"];
    let run = world.send(prompt("a", &rules)).await.unwrap().run.id;
    control.next().await.end(End::succeeded());
    world.ended(run).await;
    let file = export(&world, "a").await;
    let there = World::on(Disk::memory()).await;
    assert_eq!(import(&there, &file).await.unwrap().rules, rules[1..]);
    let broken = file.replacen("ask tool call b", "ask me", 1);
    let elsewhere = World::on(Disk::memory()).await;
    let refused = import(&elsewhere, &broken).await.unwrap_err().to_string();
    assert!(refused.contains("is no rule"), "{refused}");
}

#[tokio::test]
async fn a_child_stays_within_its_parents_rules_whatever_happens_to_its_session() {
    let behavior = PuppetBehavior { otherwise: Permissions::Ask.as_rules(), ..PuppetBehavior::default() };
    let disk = Disk::sqlite();
    let (asking, mut of_asking) = puppet(&disk.store, PuppetBehavior { obeys: true, ..behavior });
    let loose = PuppetBehavior {
        name: "loose",
        obeys: true,
        rules: vec!["allow * * *".parse().unwrap()],
        ..PuppetBehavior::default()
    };
    let (loose, mut of_loose) = puppet(&disk.store, loose);
    let world = World::with(disk, Options::default(), vec![asking, loose]).await;
    let session = ["deny tool call a", "allow tool call b"];
    world.send(prompt("parent", &session)).await.unwrap();
    let parent = of_asking.next().await;
    let work = |name: &str, session: SessionTarget| DelegationRequest {
        session,
        run_mode: Mode::Act,
        adapter: Some("loose".into()),
        name: mainspring_core::RequestName {
            client_id: Some("t".into()),
            request_id: Some(name.into()),
            ..Default::default()
        },
        ..DelegationRequest::new(DelegationMode::Spawn, "work")
    };
    let expected = [("a", Verdict::Deny), ("b", Verdict::Allow), ("c", Verdict::Ask)];
    let check = async |execution: &Execution, what: &str| {
        for (tool, expected) in expected {
            assert_eq!(verdict(execution, tool).await, Some(expected), "{what}: {tool}");
        }
    };

    let child = with_timeout(parent.handle.delegate(work("1", SessionTarget::default()))).await.unwrap();
    assert_eq!(child.session.rules, session, "the session that was made for the child keeps the rules");
    let execution = of_loose.next().await;
    check(&execution, "child").await;
    let here = mainspring_kernel::store::SessionRef::Id(child.session.id);
    world.kernel.session_patch(&world.me, &here, patch(&["allow * * *"])).await.unwrap();
    execution.end(End::failed(mainspring_core::Failure::new("lost", "gone"), false));
    world.ended(child.run.id).await;
    world.kernel.run_retry(&world.me, child.run.id, RunChange::default()).await.unwrap();
    let execution = of_loose.next().await;
    check(&execution, "retry after a change of the session").await;
    execution.end(End::succeeded());
    world.ended(child.run.id).await;

    // The child's session, then a fork of it, are given more work by the parent.
    let continued = |name: &str, id| DelegationRequest {
        mode: DelegationMode::Continue,
        ..work(name, SessionTarget { id: Some(id), ..SessionTarget::default() })
    };
    let again = with_timeout(parent.handle.delegate(continued("2", child.session.id))).await.unwrap();
    let execution = of_loose.next().await;
    check(&execution, "message to the child's session").await;
    execution.end(End::succeeded());
    world.ended(again.run.id).await;
    let message = world.kernel.session_path(&world.me, &here, None, None).await.unwrap().last().unwrap().id;
    let fork = ForkRequest { message, key: None, title: None };
    let (fork, _) = world.kernel.session_fork(&world.me, &here, fork, None).await.unwrap();
    with_timeout(parent.handle.delegate(continued("3", fork.id))).await.unwrap();
    let execution = of_loose.next().await;
    check(&execution, "message to a fork").await;

    // A child of the child.
    let deeper = with_timeout(execution.handle.delegate(work("4", SessionTarget::default()))).await.unwrap();
    assert_eq!(deeper.run.options.bounds.len(), 2);
    check(&of_loose.next().await, "grandchild").await;
    // An agent cannot set the rules of a session.
    let new = NewSession { rules: texts(&["allow * * *"]), ..NewSession::default() };
    let own = work("5", SessionTarget { new, ..SessionTarget::default() });
    let refused = with_timeout(parent.handle.delegate(own)).await.unwrap_err().to_string();
    assert!(refused.contains("sets no rules"), "{refused}");
}

#[tokio::test]
async fn a_revoked_grant_of_a_rule_stays_revoked_in_later_attempts_of_the_run() {
    let behavior =
        PuppetBehavior { rules: vec!["allow tool call a".parse().unwrap()], ..PuppetBehavior::default() };
    let (world, mut control) = world(Disk::sqlite(), ServerRules::default(), behavior).await;
    let run = world.send(prompt("a", &[])).await.unwrap().run.id;
    let execution = control.next().await;
    let rules = Rules::new(&execution.handle.assignment().rules, vec![]);
    let action =
        Action { capability: "tool", operation: "call".into(), resource: Resource::Text("a".into()) };
    let ask = "may I?".to_owned().into();
    let (allowed, records) = rules.verdict(&execution.handle, &action, &ask).await.unwrap().unwrap();
    assert_eq!(allowed, Verdict::Allow);
    execution.handle.record(records).await.unwrap();
    let query = GrantQuery { in_force: true, ..GrantQuery::default() };
    let [grant] = &*world.kernel.grant_list(&world.me, query).await.unwrap() else { panic!("one grant") };
    execution.end(End::failed(mainspring_core::Failure::new("lost", "gone"), false));
    world.ended(run).await;

    world.kernel.run_retry(&world.me, run, RunChange::default()).await.unwrap();
    let execution = control.next().await;
    let rules = Rules::new(&execution.handle.assignment().rules, vec![]);
    let (allowed, records) = rules.verdict(&execution.handle, &action, &ask).await.unwrap().unwrap();
    assert_eq!((allowed, records.len()), (Verdict::Allow, 1), "it is the same grant");
    world.kernel.grant_revoke(&world.me, grant.id).await.unwrap();
    execution.end(End::failed(mainspring_core::Failure::new("lost", "gone"), false));
    world.ended(run).await;

    world.kernel.run_retry(&world.me, run, RunChange::default()).await.unwrap();
    let execution = control.next().await;
    assert_eq!(verdict(&execution, "a").await, Some(Verdict::Ask));
}

#[tokio::test]
async fn a_parent_whose_grant_of_everything_was_revoked_has_children_that_ask() {
    let disk = Disk::memory();
    let trusted = PuppetBehavior {
        obeys: true,
        otherwise: Permissions::Legacy.as_rules(),
        ..PuppetBehavior::default()
    };
    let (trusted, mut of_trusted) = puppet(&disk.store, trusted);
    let loose = PuppetBehavior {
        name: "loose",
        obeys: true,
        rules: vec!["allow * * *".parse().unwrap()],
        ..PuppetBehavior::default()
    };
    let (loose, mut of_loose) = puppet(&disk.store, loose);
    let world = World::with(disk, Options::default(), vec![trusted, loose]).await;
    world.send(prompt("parent", &[])).await.unwrap();
    let parent = of_trusted.next().await;
    let standing = Permissions::Legacy.standing_grant(&parent.handle).await.unwrap().unwrap();
    parent.handle.record(vec![Record::Granted(Box::new(standing.clone()))]).await.unwrap();
    for (name, expected) in [("1", Verdict::Allow), ("2", Verdict::Ask)] {
        let work = DelegationRequest {
            run_mode: Mode::Act,
            adapter: Some("loose".into()),
            name: mainspring_core::RequestName {
                client_id: Some("t".into()),
                request_id: Some(name.into()),
                ..Default::default()
            },
            ..DelegationRequest::new(DelegationMode::Spawn, "work")
        };
        with_timeout(parent.handle.delegate(work)).await.unwrap();
        assert_eq!(verdict(&of_loose.next().await, "a").await, Some(expected));
        world.kernel.grant_revoke(&world.me, standing.id).await.unwrap();
    }
}
