//! Tenants: the org of an owner, the owner of a native session, and the lists of a key.

use mainspring_core::{
    AccessRole, ClientTool, Cost, DelegationMode, Fidelity, RunChange, RunOptions, RunStatus, SessionId,
    UsageReports,
};
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::kernel::{
    Adopted, Caller, DelegationRequest, NewKey, NewSession, RunRequest, SessionPatch, SessionTarget,
};
use mainspring_kernel::{Error, Options};

use crate::puppet::{PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, NOW, World, by_key, every_store};

fn root() -> Caller {
    Caller::new("local").with_role(AccessRole::Admin)
}

fn admin(org: &str) -> Caller {
    Caller::new(format!("boss of {org}")).in_org(org).with_role(AccessRole::Admin)
}

fn new_key(owner: &str, org: Option<&str>) -> NewKey {
    let (owner, org) = (Some(owner.into()), org.map(Into::into));
    NewKey { name: "k".into(), owner, org, ..NewKey::default() }
}

async fn make_key(world: &World, caller: &Caller, new: NewKey) -> Result<Caller, Error> {
    let (_, secret) = world.kernel.key_create(caller, new, None).await?;
    let caller = world.kernel.caller_by_secret(secret.unwrap().reveal()).await?;
    Ok(Caller { folders: None, ..caller.unwrap() })
}

fn code<T>(result: Result<T, Error>) -> Option<&'static str> {
    result.err().map(|error| error.code())
}

#[tokio::test]
async fn an_owner_belongs_to_the_org_that_made_it_first() {
    for disk in every_store() {
        let world = World::on(disk).await;
        make_key(&world, &admin("acme"), new_key("newcomer", None)).await.unwrap();
        assert_eq!(
            code(make_key(&world, &admin("beta"), new_key("newcomer", None)).await),
            Some("forbidden")
        );
        make_key(&world, &admin("acme"), new_key("newcomer", None)).await.unwrap();
        // The org keeps the owner when its keys are gone.
        let keys = world.kernel.key_list(&admin("acme"), Default::default()).await.unwrap();
        for key in keys {
            world.kernel.key_revoke(&admin("acme"), key.id).await.unwrap();
        }
        assert_eq!(
            code(make_key(&world, &admin("beta"), new_key("newcomer", None)).await),
            Some("forbidden")
        );
        // No org can claim an owner that was claimed without an org. An admin without an org may do anything.
        make_key(&world, &root(), new_key("loner", None)).await.unwrap();
        assert_eq!(code(make_key(&world, &admin("acme"), new_key("loner", None)).await), Some("forbidden"));
        make_key(&world, &root(), new_key("loner", Some("beta"))).await.unwrap();
    }
}

#[tokio::test]
async fn two_orgs_that_make_the_same_owner_at_once_do_not_share_it() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let (acme, beta) = (admin("acme"), admin("beta"));
        let made = tokio::join!(
            make_key(&world, &acme, new_key("newcomer", None)),
            make_key(&world, &beta, new_key("newcomer", None))
        );
        let made = [code(made.0), code(made.1)];
        assert!(made.contains(&None) && made.contains(&Some("forbidden")), "{made:?}");
    }
}

#[tokio::test]
async fn a_login_concerns_everybody_and_no_org_admin_changes_it() {
    let disk = Disk::memory();
    let behavior = PuppetBehavior { has_login: true, ..PuppetBehavior::default() };
    let (adapter, _control) = puppet(&disk.store, behavior);
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let login = async |caller: &Caller| code(world.kernel.login_create(caller, "puppet", "none").await);
    assert_eq!(login(&admin("acme")).await, Some("forbidden"));
    assert_ne!(login(&root()).await, Some("forbidden"));
}

#[tokio::test]
async fn a_native_session_stays_with_its_owner_after_it_is_deleted() {
    for disk in every_store() {
        let behavior = PuppetBehavior { uses_bindings: true, ..PuppetBehavior::default() };
        let (adapter, _control) = puppet(&disk.store, behavior);
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let adopt = async |caller: &Caller, key: &str, native: &str| {
            let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
            let adopted = Adopted { native: native.into(), ..Adopted::default() };
            world.kernel.session_adopt(caller, &target, "puppet", adopted).await
        };
        let eve = Caller::new("eve");
        adopt(&world.me, "a", "n1").await.unwrap();
        assert_eq!(code(adopt(&eve, "e", "n1").await), Some("invalid_request"));
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(code(adopt(&eve, "e", "n1").await), Some("invalid_request"));
        assert_eq!(code(world.kernel.session_get(&eve, &by_key("e")).await), Some("not_found"));
        adopt(&world.me, "b", "n1").await.unwrap();
        // A path could name the native session of another owner.
        for path in ["/etc/passwd", "../other.jsonl", "a/b", "..", "~/x", "a\\b"] {
            assert_eq!(code(adopt(&eve, "e", path).await), Some("invalid_request"), "{path}");
        }
        adopt(&root(), "r", "a/b").await.unwrap();
    }
}

/// Sends a prompt for which the agent of `control` opens the native session `native`.
async fn open_native(
    world: &World,
    control: &mut PuppetControl,
    caller: &Caller,
    request: RunRequest,
    native: &str,
) {
    let run = world.kernel.run_create(caller, request).await.unwrap().run;
    let execution = control.next().await;
    let opened =
        Record::Opened { native: Some(native.into()), fidelity: Fidelity::Native, reconstructed: false };
    execution.handle.record(vec![opened]).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
}

#[tokio::test]
async fn a_native_session_is_adopted_only_by_its_owner_through_its_adapter_under_its_exact_id() {
    for disk in every_store() {
        let behavior = |name| PuppetBehavior { uses_bindings: true, name, ..PuppetBehavior::default() };
        let (first, mut control) = puppet(&disk.store, behavior("puppet"));
        let (twin, _twin) = puppet(&disk.store, behavior("twin"));
        let world = World::with(disk, Options::default(), vec![first, twin]).await;
        let ada = make_key(&world, &root(), new_key("ada", None)).await.unwrap();
        let eve = make_key(&world, &root(), new_key("eve", None)).await.unwrap();
        let boss = NewKey { role: AccessRole::Admin, ..new_key("boss", None) };
        let boss = make_key(&world, &admin("acme"), boss).await.unwrap();
        open_native(&world, &mut control, &ada, puppet_request("a", "go"), "Native-1").await;
        world.kernel.session_delete(&ada, &by_key("a")).await.unwrap();

        let adopt = async |caller: &Caller, adapter: &str, native: &str| {
            let target = SessionTarget { key: Some("x".into()), ..SessionTarget::default() };
            let adopted = Adopted { native: native.into(), ..Adopted::default() };
            world.kernel.session_adopt(caller, &target, adapter, adopted).await
        };
        let unknown = adopt(&eve, "puppet", "no-such-session").await.unwrap_err();
        for caller in [&eve, &boss] {
            for adapter in ["puppet", "twin"] {
                for native in ["Native-1", "native-1", "NATIVE1", "{Native-1}"] {
                    let refused = adopt(caller, adapter, native).await.unwrap_err();
                    assert_eq!(refused, unknown, "{adapter} {native}: as one that does not exist");
                }
                for native in [" Native-1", "Native-1\n", "Native-1\u{a0}", "Native\u{200b}-1"] {
                    let refused = adopt(caller, adapter, native).await.unwrap_err();
                    assert_eq!(refused.code(), "invalid_request", "{adapter} {native:?}");
                }
            }
            assert_eq!(code(world.kernel.session_get(caller, &by_key("x")).await), Some("not_found"));
        }
        // The operator acts for another owner, too, but takes nothing from Ada.
        let for_eve = Caller::new("eve").with_role(AccessRole::Admin);
        assert_eq!(code(adopt(&for_eve, "twin", "native-1").await), Some("invalid_request"));
        assert_eq!(code(adopt(&for_eve, "twin", "brought-in").await), None);
        // The id of a session of others says nothing about whether there is such a session.
        let ids =
            [world.kernel.session_get(&eve, &by_key("x")).await.unwrap().id, SessionId::from_random([7; 16])];
        for id in ids {
            assert_eq!(adopt(&ada, "puppet", &id.to_string()).await.unwrap_err(), unknown);
        }
        let again = adopt(&ada, "puppet", "Native-1").await.unwrap();
        assert_eq!(again.binding.native.as_deref(), Some("Native-1"));
    }
}

fn limited(new: NewKey) -> NewKey {
    NewKey { owner: Some("ada".into()), name: "limited".into(), ..new }
}

#[tokio::test]
async fn a_key_uses_only_the_adapters_and_models_on_its_lists() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let lists = NewKey {
            adapters: Some(vec!["puppet".into()]),
            models: Some(vec!["small".into()]),
            ..NewKey::default()
        };
        let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
        let ask = async |adapter: &str, model: Option<&str>| {
            let mut request = RunRequest { adapter: Some(adapter.into()), ..RunRequest::text("a", "hi") };
            request.options.model = model.map(Into::into);
            world.kernel.run_create(&ada, request).await
        };
        let refused = ask("script", Some("small")).await.unwrap_err();
        let text = r#"the list `adapters` of the key does not have "script"; it has puppet"#;
        assert_eq!(refused.to_string(), text);
        assert_eq!(refused.code(), "not_allowed_by_key");
        assert_eq!(code(ask("puppet", Some("large")).await), Some("not_allowed_by_key"));
        assert_eq!(code(ask("puppet", None).await), Some("not_allowed_by_key"), "the adapter would choose");
        let run = ask("puppet", Some("small")).await.unwrap().run;
        let execution = control.next().await;
        execution.end(End::failed(mainspring_core::Failure::new("broken", "broken"), false));
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);

        let retry = async |change| code(world.kernel.run_retry(&ada, run.id, change).await);
        let adapter = RunChange { adapter: Some("script".into()), ..RunChange::default() };
        let model = RunChange { model: Some("large".into()), ..RunChange::default() };
        assert_eq!(retry(adapter).await, Some("not_allowed_by_key"));
        assert_eq!(retry(model).await, Some("not_allowed_by_key"));

        let target =
            |key: &str, new| SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() };
        let large = NewSession {
            adapter: Some("puppet".into()),
            model: Some("large".into()),
            ..NewSession::default()
        };
        let open = async |target| code(world.kernel.session_open(&ada, &target, None).await);
        assert_eq!(open(target("s", large)).await, Some("not_allowed_by_key"));
        assert_eq!(
            open(target("s", NewSession::default())).await,
            Some("not_allowed_by_key"),
            "the adapter is script"
        );
        let patch = SessionPatch { model: Some(Some("large".into())), ..SessionPatch::default() };
        assert_eq!(
            code(world.kernel.session_patch(&ada, &by_key("a"), patch).await),
            Some("not_allowed_by_key")
        );
    }
}

#[tokio::test]
async fn a_delegated_run_has_the_lists_of_its_parent() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let lists = NewKey { adapters: Some(vec!["puppet".into()]), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
    let request = RunRequest { adapter: Some("puppet".into()), ..puppet_request("a", "hi") };
    world.kernel.run_create(&ada, request).await.unwrap();
    let parent = control.next().await;
    parent.handle.record(vec![]).await.unwrap();
    let mut work = DelegationRequest::new(DelegationMode::Spawn, "script work");
    work.adapter = Some("script".into());
    let refused = parent.handle.delegate(work).await.unwrap_err();
    assert!(refused.to_string().contains("list `adapters`"), "{refused}");
    let child =
        parent.handle.delegate(DelegationRequest::new(DelegationMode::Spawn, "puppet work")).await.unwrap();
    assert_eq!(child.run.options.key, ada.lists);
}

#[tokio::test]
async fn an_adapter_that_cannot_enforce_a_list_of_tools_is_refused() {
    let disk = Disk::memory();
    let (adapter, _control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let lists = NewKey { tools: Some(vec!["look".into()]), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
    let tool = |name: &str| ClientTool {
        name: name.into(),
        input_schema: serde_json::json!({"type": "object"}),
        ..ClientTool::default()
    };
    let ask = async |adapter: &str, tools: Vec<ClientTool>| {
        let options = RunOptions { tools, ..RunOptions::default() };
        let request =
            RunRequest { adapter: Some(adapter.into()), options, ..RunRequest::text("a", "say hi") };
        code(world.kernel.run_create(&ada, request).await)
    };
    assert_eq!(ask("script", vec![tool("delete")]).await, Some("not_allowed_by_key"));
    assert_eq!(ask("puppet", vec![]).await, Some("adapter_incompatible"), "its tools are its own");
    assert_eq!(ask("script", vec![]).await, None);
}

#[tokio::test]
async fn a_key_spends_no_more_than_its_spend_per_day() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let lists = NewKey { spend_per_day: Some(Cost::from(1.0)), ..NewKey::default() };
        let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
        let play = async |world: &World, script: &str| {
            let run = world.kernel.run_create(&ada, RunRequest::text("a", script)).await?.run;
            Ok::<_, Error>(world.ended(run.id).await)
        };
        play(&world, "usage 1 1 0.6; say one").await.unwrap();
        // A run that is stopped may have used more than it has reported.
        let stopped = play(&world, "usage 1 1 0.6; say two").await.unwrap();
        assert_eq!(stopped.state.error().unwrap().code.as_str(), "spend_limit_reached");
        let refused = play(&world, "say three").await.unwrap_err();
        assert_eq!(refused.code(), "spend_limit_reached");
        let text = "the key's runs have cost at least $1.200000 today, and its spend per day is $1.000000; \
                    try again after midnight UTC, or use another key";
        assert_eq!(refused.to_string(), text);
        // Other callers of the owner are not concerned, and a restart forgets nothing.
        world.play("other", "say hi").await;
        world.kernel.shutdown().await;
        let world = World::reboot(&world.disk).await;
        assert_eq!(code(play(&world, "say four").await), Some("spend_limit_reached"));
        world.clock.advance(24 * 60 * 60 * 1_000);
        play(&world, "say tomorrow").await.unwrap();
    }
}

#[tokio::test]
async fn a_run_is_stopped_when_its_key_has_reached_its_spend_per_day() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let lists = NewKey { spend_per_day: Some(Cost::from(1.0)), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
    let mut runs = vec![];
    for key in ["a", "b"] {
        runs.push(world.kernel.run_create(&ada, puppet_request(key, "go")).await.unwrap().run.id);
    }
    let (first, second) = (control.next().await, control.next().await);
    let usage = |usd: f64| {
        let used = mainspring_core::Usage { cost: Cost::from(usd), ..Default::default() };
        vec![Record::Usage(used)]
    };
    first.handle.record(usage(0.7)).await.unwrap();
    second.handle.record(usage(0.7)).await.unwrap();
    let stopped = world.ended(second.handle.assignment().run.id).await;
    assert_eq!(stopped.state.error().unwrap().code.as_str(), "spend_limit_reached");
    assert_eq!(world.clock.now(), NOW);
    drop(first);
}

#[tokio::test]
async fn a_spend_per_day_needs_an_adapter_that_reports_costs() {
    let disk = Disk::memory();
    let behavior = PuppetBehavior { usage_reports: UsageReports::Never, ..PuppetBehavior::default() };
    let (adapter, _control) = puppet(&disk.store, behavior);
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let lists = NewKey { spend_per_day: Some(Cost::from(1.0)), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
    assert_eq!(
        code(world.kernel.run_create(&ada, puppet_request("a", "go")).await),
        Some("adapter_incompatible")
    );
}

#[tokio::test]
async fn a_limited_admin_cannot_create_a_key_with_more_access() {
    let world = World::on(Disk::memory()).await;
    let lists =
        NewKey { role: AccessRole::Admin, adapters: Some(vec!["script".into()]), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(lists)).await.unwrap();
    let more = NewKey { adapters: Some(vec!["native".into()]), ..new_key("bob", None) };
    assert_eq!(code(make_key(&world, &ada, more).await), Some("not_allowed_by_key"));
    let same = make_key(&world, &ada, new_key("bob", None)).await.unwrap();
    assert_eq!(same.lists.unwrap().adapters, Some(vec!["script".to_owned()]));
    let spends =
        NewKey { role: AccessRole::Admin, spend_per_day: Some(Cost::from(1.0)), ..NewKey::default() };
    let ada = make_key(&world, &root(), limited(spends)).await.unwrap();
    assert_eq!(code(make_key(&world, &ada, new_key("bob", None)).await), Some("forbidden"));
}
