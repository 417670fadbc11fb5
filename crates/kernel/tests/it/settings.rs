//! Settings of a session: changed atomically and used by later runs. Sessions are created exactly once.

use mainspring_core::{Body, RunOptions, SessionChange, SessionStatus, Visibility};
use mainspring_kernel::Options;
use mainspring_kernel::kernel::{
    Caller, NewSession, Opening, RunRequest, SessionPatch, SessionQuery, SessionStart, SessionTarget,
};
use mainspring_kernel::store::SessionRef;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::puppet::{PuppetBehavior, puppet};
use crate::world::{Disk, World, by_key, every_store, with_timeout};

fn map(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// A world with an agent that uses every option.
async fn world(disk: Disk) -> World {
    let (adapter, _) = puppet(&disk.store, PuppetBehavior::default());
    World::with(disk, Options::default(), vec![adapter]).await
}

/// A session of the agent that uses every option.
fn on_puppet(key: &str) -> SessionTarget {
    let new = NewSession { adapter: some("puppet"), ..NewSession::default() };
    SessionTarget { key: some(key), new, ..SessionTarget::default() }
}

#[tokio::test]
async fn the_settings_of_a_session_must_be_options_of_its_adapter() {
    let world = world(Disk::memory()).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let models = || NewSession { model: some("m1"), ..NewSession::default() };
    let target = SessionTarget { key: some("a"), new: models(), ..SessionTarget::default() };
    let error = kernel.session_open(me, &target, None).await.unwrap_err();
    assert_eq!(error.code(), "option_not_used", "{error}");
    let start = SessionStart { new: Some(some("a")), like: models(), ..SessionStart::default() };
    let error = kernel.session_start(me, start, None).await.unwrap_err();
    assert_eq!(error.code(), "option_not_used", "{error}");
    assert!(kernel.session_get(me, &by_key("a")).await.is_err(), "nothing was made");
    world.play("a", "say hi").await;
    let patch = SessionPatch { system_prompt: Some(some("be kind")), ..SessionPatch::default() };
    let error = kernel.session_patch(me, &by_key("a"), patch.clone()).await.unwrap_err();
    assert_eq!(error.code(), "option_not_used", "{error}");
    // A setting can always be removed.
    let cleared = SessionPatch { system_prompt: Some(None), ..SessionPatch::default() };
    kernel.session_patch(me, &by_key("a"), cleared).await.unwrap();
    kernel.session_open(me, &on_puppet("b"), None).await.unwrap();
    kernel.session_patch(me, &by_key("b"), patch).await.unwrap();
}

#[tokio::test]
async fn a_patch_is_applied_in_one_commit_or_not_at_all() {
    for disk in every_store() {
        let mut world = world(disk).await;
        world.me = Caller::new("ada").in_org("acme");
        world.kernel.session_open(&world.me, &on_puppet("a"), None).await.unwrap();
        let patch = SessionPatch {
            title: Some(some("tea")),
            visibility: Some(Visibility::Org),
            model: Some(some("m1")),
            model_profile: Some(some("fast")),
            system_prompt: Some(some("be kind")),
            model_options: Some(Some(map(json!({"temperature": 0.5})))),
            cwd: Some(some("/home")),
            metadata: Some(json!({"a": 1})),
            status: Some(SessionStatus::Archived),
            ..SessionPatch::default()
        };
        let before = world.events("a").await.len();
        let changed = world.kernel.session_patch(&world.me, &by_key("a"), patch.clone()).await.unwrap();
        assert_eq!(world.kernel.session_get(&world.me, &by_key("a")).await.unwrap(), changed);
        assert_eq!((changed.title, changed.model), (some("tea"), some("m1")));
        let events = world.events("a").await;
        assert_eq!(events.len() - before, 9, "one event for each");
        assert!(events[before..].iter().all(|event| event.body.kind() == "session.updated"));

        world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap();
        assert_eq!(world.events("a").await.len(), events.len(), "the same again changes nothing");
        for (bad, code) in [
            (SessionPatch { model: Some(some("a\nb")), ..SessionPatch::default() }, "invalid_request"),
            (SessionPatch { cwd: Some(some("")), ..SessionPatch::default() }, "invalid_request"),
            (SessionPatch { metadata: Some(json!(1)), ..SessionPatch::default() }, "invalid_request"),
            (
                SessionPatch { status: Some(SessionStatus::Deleted), ..SessionPatch::default() },
                "invalid_request",
            ),
            (
                SessionPatch { system_prompt: Some(Some("x".repeat(2 << 20))), ..SessionPatch::default() },
                "too_large",
            ),
            (
                SessionPatch {
                    model_options: Some(Some(map(json!({"x": "x".repeat(70_000)})))),
                    ..SessionPatch::default()
                },
                "too_large",
            ),
            (SessionPatch { version: Some(1), ..SessionPatch::default() }, "version_conflict"),
        ] {
            let bad = SessionPatch { title: Some(some("never")), ..bad };
            let error = world.kernel.session_patch(&world.me, &by_key("a"), bad).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
        }
        assert_eq!(world.events("a").await.len(), events.len());

        let cleared =
            SessionPatch { model: Some(None), model_options: Some(None), ..SessionPatch::default() };
        let changed = world.kernel.session_patch(&world.me, &by_key("a"), cleared).await.unwrap();
        assert_eq!((changed.model, changed.model_options), (None, None));
        let last = world.events("a").await.pop().unwrap().body;
        assert_eq!(
            last,
            Body::SessionUpdated { change: SessionChange::ModelOptions { model_options: None } }
        );
    }
}

#[tokio::test]
async fn a_session_without_an_org_cannot_be_shared() {
    let world = World::on(Disk::memory()).await;
    world.prompt("a", "hang").await;
    let before = world.events("a").await;
    let patch = SessionPatch {
        title: Some(some("never")),
        visibility: Some(Visibility::Org),
        ..SessionPatch::default()
    };
    // The reason is the same for a busy session.
    let error = world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap_err();
    assert_eq!(error.code(), "no_org");
    let new = NewSession { visibility: Some(Visibility::Org), ..NewSession::default() };
    let target = SessionTarget { new, ..SessionTarget::default() };
    let error = world.kernel.session_open(&world.me, &target, None).await.unwrap_err();
    assert_eq!(error.code(), "no_org");
    assert_eq!(world.events("a").await, before);
}

#[tokio::test]
async fn a_run_keeps_the_settings_of_its_session_at_acceptance() {
    for disk in every_store() {
        let world = world(disk).await;
        let asked = || RunRequest {
            adapter: some("script"),
            ignore_unused_options: true,
            ..RunRequest::text("a", "say hi")
        };
        let mut request = asked();
        request.session.new = NewSession {
            adapter: some("puppet"),
            model: some("m1"),
            system_prompt: some("be kind"),
            cwd: some("/home"),
            model_options: Some(map(json!({"temperature": 1, "seed": 7}))),
            ..NewSession::default()
        };
        let first = world.send(request).await.unwrap().run;
        let all = RunOptions {
            system_prompt: some("be kind"),
            model: some("m1"),
            model_profile: None,
            cwd: some("/home"),
            model_options: Some(map(json!({"temperature": 1, "seed": 7}))),
            ..RunOptions::default()
        };
        assert_eq!(world.ended(first.id).await.options, all);
        let patch = SessionPatch { system_prompt: Some(some("be brief")), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap();
        let mut request = asked();
        request.options = RunOptions {
            model_profile: some("fast"),
            model_options: Some(map(json!({"seed": 8}))),
            ..RunOptions::default()
        };
        let second = world.send(request).await.unwrap().run;
        let merged = RunOptions {
            system_prompt: some("be brief"),
            model: None,
            model_profile: some("fast"),
            model_options: Some(map(json!({"temperature": 1, "seed": 8}))),
            ..all.clone()
        };
        assert_eq!(world.ended(second.id).await.options, merged);
        assert_eq!(world.get(first.id).await.options, all, "the request of a run never changes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_creations_under_one_key_create_one_session() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let mut asked = JoinSet::new();
        for _ in 0..50 {
            let (kernel, me) = (world.kernel.clone(), world.me.clone());
            asked.spawn(async move {
                kernel.session_open(&me, &SessionTarget::default(), Some("k")).await.unwrap()
            });
        }
        let answers = with_timeout(asked.join_all()).await;
        assert!(answers.iter().all(|(session, _)| session.id == answers[0].0.id), "{}", world.disk.name);
        assert_eq!(answers.iter().filter(|(_, opening)| *opening == Opening::Created).count(), 1);
        let listed = world.kernel.session_list(&world.me, SessionQuery::default()).await.unwrap().items;
        assert_eq!(listed.len(), 1);
    }
}

#[tokio::test]
async fn an_idempotency_key_is_valid_for_a_day() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let titled = |title: &str| SessionTarget {
            new: NewSession { title: some(title), ..NewSession::default() },
            ..SessionTarget::default()
        };
        let open = async |caller: &Caller, title: &str| {
            world.kernel.session_open(caller, &titled(title), Some("k")).await
        };
        let (first, _) = open(&world.me, "one").await.unwrap();
        assert_eq!(open(&world.me, "two").await.unwrap_err().code(), "request_conflict");
        let (theirs, made) = open(&Caller::new("eve"), "two").await.unwrap();
        assert!(made == Opening::Created && theirs.id != first.id, "a key is its owner's");
        world.clock.advance(24 * 60 * 60 * 1_000);
        assert_eq!(open(&world.me, "one").await.unwrap().0.id, first.id);
        world.clock.advance(1);
        let (second, made) = open(&world.me, "two").await.unwrap();
        assert!(made == Opening::Created && second.id != first.id);
        world.kernel.session_delete(&world.me, &SessionRef::Id(second.id)).await.unwrap();
        assert_eq!(open(&world.me, "two").await.unwrap_err().code(), "not_found");
        let bad = world.kernel.session_open(&world.me, &titled("x"), Some("")).await.unwrap_err();
        assert_eq!(bad.code(), "invalid_request");
    }
}
