//! Acceptance: one run per request, however often the request is sent.

use mainspring_core::{
    Block, ExternalRef, LegacyAlias, Limits, Place, Policy, RequestName, RunChange, RunStatus, SessionId,
};
use mainspring_kernel::kernel::{
    Caller, NewSession, RunQuery, RunRequest, SessionPatch, SessionQuery, SessionTarget,
};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use serde_json::json;
use tokio::task::JoinSet;

use crate::world::{Disk, World, by_key, count, every_store, named, with_timeout};

fn target(target: SessionTarget) -> RunRequest {
    RunRequest { session: target, prompt: vec![Block::text("say hi")], ..RunRequest::default() }
}

fn external(id: &str) -> ExternalRef {
    ExternalRef { kind: "task".into(), id: id.into() }
}

fn alias(key: &str) -> LegacyAlias {
    LegacyAlias { scope: "default".into(), key: key.into() }
}

#[tokio::test]
async fn a_prompt_is_one_run_with_one_attempt() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say hello").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{}", world.disk.name);
        assert_eq!((run.no, run.attempts), (1, 1));
        let runs = world.kernel.run_list(&world.me, RunQuery::default()).await.unwrap().items;
        assert_eq!(runs.len(), 1);
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
        assert_eq!(attempts.iter().map(|attempt| attempt.no).collect::<Vec<_>>(), [1]);
        assert_eq!(attempts[0].status, RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn a_session_is_found_by_id_key_reference_or_alias_in_this_order_or_created() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let make = |wanted: SessionTarget| world.send(target(wanted));
        let of = |id, key: Option<&str>, reference: Option<&str>, old: Option<&str>| SessionTarget {
            id,
            key: key.map(Into::into),
            external_ref: reference.map(external),
            legacy_alias: old.map(alias),
            new: NewSession::default(),
        };
        let key = make(of(None, Some("k"), None, None)).await.unwrap().session.id;
        let reference = make(of(None, None, Some("r"), None)).await.unwrap().session.id;
        let old = make(of(None, None, None, Some("l"))).await.unwrap().session.id;
        let none = make(of(None, None, None, None)).await.unwrap().session.id;
        let resolved = |wanted| async move { make(wanted).await.unwrap().session.id };
        assert_eq!(resolved(of(Some(none), Some("k"), Some("r"), Some("l"))).await, none);
        assert_eq!(resolved(of(None, Some("k"), Some("r"), Some("l"))).await, key);
        assert_eq!(resolved(of(None, Some("x"), Some("r"), Some("l"))).await, reference);
        assert_eq!(resolved(of(None, Some("x"), Some("x"), Some("l"))).await, old);
        let made = make(of(None, Some("x"), Some("x"), Some("x"))).await.unwrap().session;
        assert!(![key, reference, old, none].contains(&made.id));
        assert_eq!(resolved(of(None, None, Some("x"), None)).await, made.id);
        let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
        assert_eq!(sessions.unwrap().len(), 5);
    }
}

#[tokio::test]
async fn an_id_of_another_owner_is_not_found_and_nothing_is_created() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say hi").await;
        let eve = Caller::new("eve");
        let ours = SessionTarget { id: Some(run.session), ..SessionTarget::default() };
        let refused = world.kernel.run_create(&eve, target(ours)).await.unwrap_err();
        assert_eq!(refused.code(), "not_found");
        let nobody = SessionTarget { id: Some(SessionId::from_random([9; 16])), ..SessionTarget::default() };
        assert_eq!(world.send(target(nobody)).await.unwrap_err().code(), "not_found");
        for error in [
            world.kernel.run_get(&eve, run.id).await.unwrap_err(),
            world.kernel.run_cancel(&eve, run.id).await.unwrap_err(),
            world.kernel.run_retry(&eve, run.id, RunChange::default()).await.unwrap_err(),
            world.kernel.run_attempts(&eve, run.id).await.unwrap_err(),
            world.kernel.session_subscribe(&eve, &SessionRef::Id(run.session), None).await.err().unwrap(),
            world.kernel.session_tree(&eve, &by_key("a"), Default::default()).await.unwrap_err(),
        ] {
            assert_eq!(error.code(), "not_found");
        }
        assert!(world.kernel.session_list(&eve, SessionQuery::default()).await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_sent_fifty_times_at_once_runs_once() {
    for disk in every_store() {
        let world = World::on(disk).await;
        for (no, keyed) in [(0, true), (1, false)] {
            let mut sent = JoinSet::new();
            for _ in 0..50 {
                let (kernel, me) = (world.kernel.clone(), world.me.clone());
                let mut request = named("dup", "usage 1 1; say once", "app", &format!("r{no}"));
                if !keyed {
                    request.session.key = None;
                }
                sent.spawn(async move { kernel.run_create(&me, request).await.unwrap() });
            }
            let answers = with_timeout(sent.join_all()).await;
            let first = answers[0].run.id;
            assert!(answers.iter().all(|answer| answer.run.id == first));
            assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
            let run = world.ended(first).await;
            assert_eq!((run.attempts, run.usage.input_tokens), (1, 1), "{}", world.disk.name);
        }
        let runs = world.kernel.run_list(&world.me, RunQuery::default()).await.unwrap().items;
        assert_eq!(runs.len(), 2);
        let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
        assert_eq!(sessions.unwrap().len(), 2, "no session without a run is left");
    }
}

#[tokio::test]
async fn a_request_repeated_after_its_run_ended_is_answered_with_that_run() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.send(named("a", "say hi", "app", "1")).await.unwrap().run;
        world.ended(run.id).await;
        let before = world.events("a").await.len();
        let again = world.send(named("a", "say hi", "app", "1")).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.run.id, run.id);
        assert_eq!(again.run.state.status(), RunStatus::Succeeded);
        assert_eq!(world.events("a").await.len(), before);
    }
}

#[tokio::test]
async fn two_owners_can_use_the_same_names() {
    for disk in every_store() {
        let mut world = World::on(disk).await;
        let ours = world.send(named("a", "say ours", "app", "1")).await.unwrap();
        world.me = Caller::new("eve");
        let theirs = world.send(named("a", "say theirs", "app", "1")).await.unwrap();
        assert!(!theirs.replayed);
        assert_ne!(ours.run.id, theirs.run.id);
        assert_ne!(ours.session.id, theirs.session.id);
        world.ended(theirs.run.id).await;
        assert!(world.path_text("a").await.contains("theirs"));
    }
}

#[tokio::test]
async fn a_request_name_used_for_another_body_is_a_conflict() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.send(named("a", "say one", "app", "1")).await.unwrap();
        let key = |script: &str, key: &str| RunRequest {
            name: RequestName { idempotency_key: Some("k".into()), ..RequestName::default() },
            ..RunRequest::text(key, script)
        };
        let first = world.send(key("say one", "b")).await.unwrap().run;
        world.ended(first.id).await;
        let before = world.events("b").await.len();
        let mut aliased = named("a", "say one", "app", "1");
        aliased.session.legacy_alias = Some(alias("k"));
        let mut titled = named("a", "say one", "app", "1");
        titled.session.new.title = Some("another".into());
        for request in [
            aliased,
            titled,
            named("a", "say two", "app", "1"),
            named("other", "say one", "app", "1"),
            key("say two", "b"),
            key("say one", "c"),
        ] {
            let error = world.send(request).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), ("request_conflict", false));
        }
        let again = world.send(key("say one", "b")).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.run.id, first.id);
        assert_eq!(world.events("b").await.len(), before);
        let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
        assert_eq!(sessions.unwrap().len(), 2, "a refused request makes no session");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_new_requests_and_still_answers_accepted_ones() {
    let options = Options {
        max_workers: 1,
        limits: Limits { queue_per_session: 2, queue_total: 3, ..Limits::default() },
        ..Options::default()
    };
    let world = World::with(Disk::memory(), options, vec![]).await;
    world.prompt("a", "hang").await;
    let first = world.send(named("a", "say 1", "app", "1")).await.unwrap().run;
    world.send(named("a", "say 2", "app", "2")).await.unwrap();
    let full = world.send(named("a", "say 3", "app", "3")).await.unwrap_err();
    assert_eq!((full.code(), full.is_retryable()), ("overloaded", true));
    let again = world.send(named("a", "say 1", "app", "1")).await.unwrap();
    assert_eq!((again.replayed, again.run.id), (true, first.id));
    // The limit over all sessions also counts runs of idle sessions that found no worker.
    world.prompt("b", "say 4").await;
    let full = world.send(named("c", "say 5", "app", "5")).await.unwrap_err();
    assert_eq!(full.code(), "overloaded");
    let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
    assert_eq!(sessions.unwrap().len(), 2);
    assert_eq!(count(&world.events("a").await, "run.queued"), 3);
}

#[tokio::test]
async fn bad_input_has_a_stable_code_and_changes_nothing() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say hi").await;
        let before = world.events("a").await.len();
        let text = |text: &str| RunRequest::text("a", text);
        let with = |change: fn(&mut RunRequest)| {
            let mut request = text("say hi");
            change(&mut request);
            request
        };
        let cases = [
            (text(&"x".repeat(10 << 20)), "too_large"),
            (text(""), "invalid_request"),
            (text(" \n\t"), "invalid_request"),
            (
                with(|request| {
                    request.name.request_id = Some("r".into());
                    request.name.idempotency_key = Some("k".into());
                }),
                "invalid_request",
            ),
            (with(|request| request.prompt.clear()), "invalid_request"),
            (with(|request| request.adapter = Some("nobody".into())), "adapter_not_registered"),
            (with(|request| request.session.new.adapter = Some("nobody".into())), "adapter_not_registered"),
            (with(|request| request.session.key = Some("a b".into())), "invalid_request"),
            (with(|request| request.session.key = Some("ses_x".into())), "invalid_request"),
            (with(|request| request.session.key = Some(String::new())), "invalid_request"),
            (with(|request| request.name.request_id = Some("a\u{0}b".into())), "invalid_request"),
            (with(|request| request.name.client_id = Some("a\nb".into())), "invalid_request"),
            (with(|request| request.session.new.title = Some("a\u{7}".into())), "invalid_request"),
            (with(|request| request.session.new.metadata = Some(json!([1]))), "invalid_request"),
            (with(|request| request.options.system_prompt = Some("x".repeat(10 << 20))), "too_large"),
            (
                with(|request| {
                    request.prompt = vec![Block::Error { code: "x".into(), message: "y".into() }];
                }),
                "invalid_request",
            ),
            (
                with(|request| {
                    request.session.key = Some("new".into());
                    request.place =
                        Place::Edit { message_id: mainspring_core::MessageId::from_random([1; 16]) };
                }),
                "invalid_request",
            ),
        ];
        for (request, code) in cases {
            let error = world.send(request).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), (code, false), "{error}");
        }
        let list =
            |limit| world.kernel.run_list(&world.me, RunQuery { limit: Some(limit), ..RunQuery::default() });
        for limit in [0, 501, usize::MAX] {
            assert_eq!(list(limit).await.unwrap_err().code(), "invalid_request");
        }
        for error in [
            world
                .kernel
                .session_events(&world.me, &by_key("a"), mainspring_core::Cursor::START, Some(0))
                .await
                .err(),
            world.kernel.session_path(&world.me, &by_key("a"), None, Some(501)).await.err(),
            world.kernel.run_events(&world.me, run.id, mainspring_core::Cursor::START, Some(0)).await.err(),
            world
                .kernel
                .session_patch(
                    &world.me,
                    &by_key("a"),
                    SessionPatch { title: Some(Some("x".repeat(201))), ..SessionPatch::default() },
                )
                .await
                .err(),
        ] {
            assert_eq!(error.unwrap().code(), "invalid_request");
        }
        assert_eq!(world.events("a").await.len(), before, "{}", world.disk.name);
        let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
        assert_eq!(sessions.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn steering_is_refused_if_the_adapter_does_not_support_it() {
    let world = World::on(Disk::memory()).await;
    world.prompt("a", "hang").await;
    let request = RunRequest { policy: Policy::Steer, ..RunRequest::text("a", "say hi") };
    let error = world.send(request).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[tokio::test]
async fn the_name_of_a_deleted_session_is_free_again() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = world.play("a", "say one").await;
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(world.kernel.session_get(&world.me, &by_key("a")).await.unwrap_err().code(), "not_found");
        let second = world.play("a", "say two").await;
        assert_ne!(first.session, second.session, "{}", world.disk.name);
        assert_eq!(second.no, 1);
        assert!(!world.path_text("a").await.contains("one"));
    }
}

/// Regression test: such a request was answered as `unavailable` for a day.
#[tokio::test]
async fn a_request_of_a_deleted_session_is_not_run_again() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let keyed = |script: &str| RunRequest {
            name: RequestName { idempotency_key: Some("k".into()), ..RequestName::default() },
            ..RunRequest::text("a", script)
        };
        for request in [keyed("say one"), named("b", "say one", "app", "1")] {
            let session = SessionRef::Id(world.send(request.clone()).await.unwrap().session.id);
            world.kernel.drain().await;
            world.kernel.session_delete(&world.me, &session).await.unwrap();
            // The request id is removed with the run. The idempotency key is kept for a day.
            let error = world.send(request).await.err();
            assert!(error.is_none_or(|error| error.code() == "not_found"), "{}", world.disk.name);
        }
        assert_eq!(world.send(keyed("say one")).await.unwrap_err().code(), "not_found");
        assert_eq!(world.send(keyed("say two")).await.unwrap_err().code(), "request_conflict");
        assert!(world.kernel.session_get(&world.me, &by_key("a")).await.is_err(), "nothing was created");
    }
}
