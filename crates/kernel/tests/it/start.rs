//! Starting sessions: new or loaded, and which settings apply.

use mainspring_core::{RunOptions, SessionStatus};
use mainspring_kernel::kernel::{NewSession, SessionPatch, SessionStart, Started};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use serde_json::json;

use crate::puppet::{PuppetBehavior, puppet};
use crate::world::{Disk, World, by_key, every_store};

fn like(model: Option<&str>, system: Option<&str>, seed: Option<u64>) -> NewSession {
    let text = |text: Option<&str>| text.map(str::to_owned);
    let model_options = seed.map(|seed| serde_json::Map::from_iter([("seed".to_owned(), json!(seed))]));
    NewSession { model: text(model), system_prompt: text(system), model_options, ..NewSession::default() }
}

fn new(key: &str, like: NewSession) -> SessionStart {
    SessionStart { new: Some(Some(key.into())), like, ..SessionStart::default() }
}

fn load(key: &str, like: NewSession) -> SessionStart {
    SessionStart { load: Some(by_key(key)), like, ..SessionStart::default() }
}

/// A world whose sessions have an agent that uses every option.
async fn world(disk: Disk) -> World {
    let (adapter, _) = puppet(&disk.store, PuppetBehavior::default());
    let options = Options { adapter: "puppet".into(), ..Options::default() };
    World::with(disk, options, vec![adapter]).await
}

async fn start(world: &World, start: SessionStart) -> Result<Started, Error> {
    world.kernel.session_start(&world.me, start, None).await
}

fn options_text(options: &RunOptions) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or("-".into());
    let seed = options.model_options.as_ref().map_or("-".into(), |options| options["seed"].to_string());
    format!("{} {} {seed}", text(&options.model), text(&options.system_prompt))
}

#[tokio::test]
async fn the_load_rules_apply_to_each_field() {
    for disk in every_store() {
        let world = world(disk).await;
        start(&world, new("full", like(Some("m1"), Some("kept"), Some(1)))).await.unwrap();
        start(&world, new("bare", like(None, None, None))).await.unwrap();
        // The stored settings, the settings on loading, and those the runs use.
        let table = [
            ("full", like(None, None, None), "m1 kept 1"),
            ("full", like(Some("m2"), Some("now"), Some(2)), "m1 now 2"),
            ("full", like(Some("m2"), None, Some(2)), "m1 kept 2"),
            ("bare", like(Some("m2"), Some("now"), Some(2)), "m2 now 2"),
            ("bare", like(None, None, None), "- - -"),
        ];
        for (key, said, options) in table {
            let before =
                (world.kernel.session_get(&world.me, &by_key(key)).await.unwrap(), world.events(key).await);
            let said = NewSession { title: Some("ignored".into()), ..said };
            let loaded = start(&world, SessionStart { messages: true, ..load(key, said) }).await.unwrap();
            assert_eq!(
                (options_text(&loaded.options), loaded.is_new()),
                (options.into(), false),
                "{}",
                world.disk.name
            );
            assert_eq!(loaded.session, before.0, "the stored title and messages are returned");
            assert_eq!((loaded.session, world.events(key).await), before, "loading writes nothing");
        }
    }
}

#[tokio::test]
async fn a_start_without_a_required_model_is_refused() {
    for disk in every_store() {
        let world = world(disk).await;
        start(&world, new("bare", like(None, None, None))).await.unwrap();
        let needs = |start| SessionStart { model_required: true, ..start };
        let none = || like(None, None, None);
        for missing in [needs(load("bare", none())), needs(new("other", none()))] {
            assert_eq!(start(&world, missing).await.unwrap_err().code(), "no_model");
        }
        assert!(world.kernel.session_get(&world.me, &by_key("other")).await.is_err(), "nothing was made");
        start(&world, needs(load("bare", like(Some("m"), None, None)))).await.unwrap();
        let profile = NewSession { model_profile: Some("fast".into()), ..none() };
        assert!(start(&world, needs(new("other", profile))).await.unwrap().is_new());
    }
}

#[tokio::test]
async fn a_new_session_needs_a_free_name_and_a_loaded_one_must_exist() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let none = || like(None, None, None);
        let made =
            start(&world, new("a", NewSession { title: Some("mine".into()), ..none() })).await.unwrap();
        assert_eq!((made.is_new(), made.session.title.as_deref()), (true, Some("mine")));
        let both = SessionStart { load: Some(by_key("a")), ..new("b", none()) };
        let cases = [
            (new("a", none()), "already_exists"),
            (both, "ambiguous_mode"),
            (SessionStart { messages: true, ..new("b", none()) }, "initial_messages_not_supported"),
            (SessionStart { messages: true, ..SessionStart::default() }, "initial_messages_not_supported"),
            (load("nobody", none()), "not_found"),
            (new("../b", none()), "invalid_request"),
        ];
        for (wrong, code) in cases {
            assert_eq!(start(&world, wrong).await.unwrap_err().code(), code);
        }
        // A new session needs a name. The name of a deleted session is free.
        let auto = start(&world, SessionStart::default()).await.unwrap();
        assert!(auto.is_new() && auto.session.key.is_none());
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        assert!(start(&world, new("a", none())).await.unwrap().is_new());
        // An archived session exists, and its name is not free.
        let archive = SessionPatch { status: Some(SessionStatus::Archived), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &by_key("a"), archive).await.unwrap();
        assert_eq!(start(&world, new("a", none())).await.unwrap_err().code(), "already_exists");
        let loaded = start(&world, load("a", none())).await.unwrap();
        assert_eq!(loaded.session.status, SessionStatus::Archived, "loading writes nothing");
        assert_eq!(world.kernel.session_list(&world.me, Default::default()).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn repeated_starts_under_one_key_create_one_session() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let make = async |key: &str| {
            world.kernel.session_start(&world.me, new(key, like(None, None, None)), Some("k1")).await
        };
        let (first, again) = (make("a").await.unwrap(), make("a").await.unwrap());
        assert_eq!((first.session.id, first.is_new(), again.is_new()), (again.session.id, true, false));
        assert_eq!(make("b").await.unwrap_err().code(), "request_conflict");
        let by_id = SessionStart { load: Some(SessionRef::Id(first.session.id)), ..SessionStart::default() };
        assert_eq!(start(&world, by_id).await.unwrap().session.id, first.session.id);
    }
}
