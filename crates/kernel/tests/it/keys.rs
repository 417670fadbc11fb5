//! API keys: who may create them, and their access and lifetime.

use mainspring_core::{AccessRole, ApiKey};
use mainspring_kernel::kernel::{Caller, KeyQuery, NewKey, Secret};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use crate::world::{Disk, NOW, World, every_store, run_ready_tasks, with_timeout};

fn root() -> Caller {
    Caller::new("local").with_role(AccessRole::Admin)
}

fn new(owner: &str, org: Option<&str>) -> NewKey {
    NewKey {
        name: format!("{owner}'s"),
        owner: Some(owner.into()),
        org: org.map(Into::into),
        ..NewKey::default()
    }
}

async fn create_key(world: &World, caller: &Caller, new: NewKey) -> Result<(ApiKey, Secret), Error> {
    let (key, secret) = world.kernel.key_create(caller, new, None).await?;
    Ok((key, secret.unwrap()))
}

async fn authenticate(world: &World, secret: &Secret) -> Option<Caller> {
    world.kernel.caller_by_secret(secret.reveal()).await.unwrap()
}

#[tokio::test]
async fn only_the_secret_of_a_key_gives_its_access() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let asked = NewKey { role: AccessRole::Viewer, ..new("ada", Some("acme")) };
        let (key, secret) = create_key(&world, &root(), asked).await.unwrap();
        let ada = Caller { key: Some(key.id), folders: Some(vec![]), ..Caller::new("ada").in_org("acme") };
        assert_eq!(authenticate(&world, &secret).await, Some(ada.with_role(AccessRole::Viewer)));
        let text = secret.reveal();
        assert!(text.starts_with("msk_") && text.len() == 4 + 64, "256 bits");
        for wrong in ["", "msk_", &text[..67], &format!("{text}0"), &text.to_uppercase(), &key.id.to_string()]
        {
            assert_eq!(world.kernel.caller_by_secret(wrong).await.unwrap(), None, "{wrong}");
        }
        assert!(!format!("{secret:?} {key:?}").contains(&text[4..]), "not shown by accident");
        let (_, other) = create_key(&world, &root(), new("ada", None)).await.unwrap();
        assert_ne!(other, secret);
        let Some(file) = &world.disk.file else { continue };
        world.kernel.shutdown().await;
        let stored: Vec<u8> = ["", "-wal"]
            .iter()
            .flat_map(|end| std::fs::read(format!("{}{end}", file.display())).unwrap_or_default())
            .collect();
        let holds = |bytes: &[u8]| stored.windows(bytes.len()).any(|window| window == bytes);
        let raw: Vec<u8> =
            (4..68).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        assert!(holds(&key.hash), "the hash is stored");
        assert!(!holds(&text.as_bytes()[4..]) && !holds(&raw), "the secret is not");
    }
}

#[tokio::test]
async fn a_revoked_or_expired_key_gives_no_access() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let (kernel, now) = (&world.kernel, world.clock.now());
        let (key, secret) = create_key(&world, &root(), new("ada", None)).await.unwrap();
        // From then on the key is in memory.
        assert!(authenticate(&world, &secret).await.is_some());
        let revoked = kernel.key_revoke(&root(), key.id).await.unwrap();
        assert_eq!((revoked.revoked_at, authenticate(&world, &secret).await), (Some(now), None));
        world.clock.advance(5);
        assert_eq!(kernel.key_revoke(&root(), key.id).await.unwrap(), revoked, "again changes nothing");

        let until = NewKey { expires_at: Some(now.plus(15)), ..new("ada", None) };
        let (_, brief) = create_key(&world, &root(), until.clone()).await.unwrap();
        world.clock.advance(9);
        assert!(authenticate(&world, &brief).await.is_some());
        world.clock.advance(1);
        assert_eq!(authenticate(&world, &brief).await, None);
        let past = create_key(&world, &root(), until).await.unwrap_err();
        assert_eq!(past.code(), "invalid_request");
    }
}

#[tokio::test]
async fn a_caller_is_notified_when_its_key_ends() {
    let world = World::on(Disk::memory()).await;
    let kernel = &world.kernel;
    let until = NewKey { expires_at: Some(NOW.plus(1_000)), ..new("ada", None) };
    let (_, brief) = create_key(&world, &root(), until).await.unwrap();
    let (key, secret) = create_key(&world, &root(), new("ada", None)).await.unwrap();
    let (brief, ada) =
        (authenticate(&world, &brief).await.unwrap(), authenticate(&world, &secret).await.unwrap());
    world.advance_until(100, kernel.key_ended(&brief)).await;
    assert_eq!(world.clock.now(), NOW.plus(1_000));
    let revoke = async {
        create_key(&world, &root(), new("bob", None)).await.unwrap();
        kernel.key_revoke(&root(), key.id).await.unwrap();
    };
    with_timeout(async { tokio::join!(kernel.key_ended(&ada), revoke) }).await;
    with_timeout(kernel.key_ended(&ada)).await;
    tokio::select! {
        biased;
        () = kernel.key_ended(&world.me) => panic!("a caller without a key has no expiry"),
        () = run_ready_tasks() => {}
    }
}

#[tokio::test]
async fn only_admins_manage_the_keys_of_their_org() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let kernel = &world.kernel;
        let boss = Caller::new("boss").in_org("acme").with_role(AccessRole::Admin);
        let (theirs, _) = create_key(&world, &root(), new("eve", Some("beta"))).await.unwrap();
        let (loose, _) = create_key(&world, &root(), new("sam", None)).await.unwrap();
        let own = NewKey { role: AccessRole::Admin, org: None, ..new("ada", None) };
        let (ours, _) = create_key(&world, &boss, own).await.unwrap();
        assert_eq!(ours.org.as_deref(), Some("acme"), "an org's admin makes keys of its org");

        let listed = async |caller: &Caller| {
            let keys = kernel.key_list(caller, KeyQuery::default()).await.unwrap();
            keys.into_iter().map(|key| key.id).collect::<Vec<_>>()
        };
        assert_eq!(listed(&boss).await, [ours.id]);
        assert_eq!(listed(&root()).await.len(), 3);
        for key in [theirs.id, loose.id] {
            assert_eq!(kernel.key_revoke(&boss, key).await.unwrap_err().code(), "not_found");
        }
        kernel.key_revoke(&boss, ours.id).await.unwrap();
        kernel.key_revoke(&root(), theirs.id).await.unwrap();

        for role in [AccessRole::Member, AccessRole::Viewer] {
            for caller in [Caller::new("ada").in_org("acme"), Caller::new("local")] {
                let caller = caller.with_role(role);
                for error in [
                    kernel.key_create(&caller, new("ada", None), None).await.err(),
                    kernel.key_list(&caller, KeyQuery::default()).await.err(),
                    kernel.key_revoke(&caller, ours.id).await.err(),
                ] {
                    assert_eq!(error.unwrap().code(), "forbidden");
                }
            }
        }
        for bad in [
            NewKey { name: String::new(), ..new("ada", None) },
            new("", None),
            new("a\nb", None),
            new("ada", Some("")),
        ] {
            assert_eq!(create_key(&world, &root(), bad).await.unwrap_err().code(), "invalid_request");
        }
        assert_eq!(listed(&root()).await.len(), 3);
    }
}

/// A key gives access to everything of its owner. An admin of an org must not gain access outside the org through it.
#[tokio::test]
async fn an_admin_cannot_create_keys_for_owners_outside_the_org() {
    let options = Options { owner: Some("local".into()), ..Options::default() };
    let world = World::with(Disk::memory(), options, vec![]).await;
    let boss = Caller::new("boss").in_org("acme").with_role(AccessRole::Admin);
    world.play("private", "say secret").await;
    create_key(&world, &root(), new("eve", Some("beta"))).await.unwrap();
    create_key(&world, &root(), new("boss", None)).await.unwrap();
    for (asked, code) in [
        (new("ada", None), Some("forbidden")),
        (new("eve", None), Some("forbidden")),
        (new("local", None), Some("forbidden")),
        (new("newcomer", Some("beta")), Some("forbidden")),
        (new("newcomer", None), None),
        (new("newcomer", Some("acme")), None),
        // The caller has these rights itself.
        (new("boss", None), None),
    ] {
        let code_returned = create_key(&world, &boss, asked.clone()).await.err().map(|error| error.code());
        assert_eq!(code_returned, code, "{asked:?}");
    }
}

#[tokio::test]
async fn a_key_is_created_once_and_its_secret_returned_once() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let once = async |name: &str| {
            let asked = NewKey { name: name.into(), ..NewKey::default() };
            world.kernel.key_create(&root(), asked, Some("k")).await
        };
        let (first, secret) = once("ci").await.unwrap();
        assert!(secret.is_some());
        assert_eq!(once("ci").await.unwrap(), (first.clone(), None));
        assert_eq!(once("other").await.unwrap_err().code(), "request_conflict");
        let keys = world.kernel.key_list(&root(), KeyQuery::default()).await.unwrap();
        assert_eq!(keys, [first]);
    }
}

#[tokio::test]
async fn a_key_whose_commit_had_an_unknown_outcome_is_looked_up() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.disk.inject_fault(Fault::OutcomeUnknown);
        let (key, secret) = create_key(&world, &root(), new("ada", None)).await.unwrap();
        assert!(authenticate(&world, &secret).await.is_some());
        world.disk.inject_fault(Fault::CommitFails);
        let error = world.kernel.key_revoke(&root(), key.id).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("unavailable", true));
        assert!(authenticate(&world, &secret).await.is_some(), "the key was not revoked");
        world.disk.inject_fault(Fault::OutcomeUnknown);
        world.kernel.key_revoke(&root(), key.id).await.unwrap();
        assert_eq!(authenticate(&world, &secret).await, None);
    }
}
