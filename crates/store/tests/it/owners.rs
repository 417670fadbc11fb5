//! Owners: the org that each belongs to, the owners of native sessions, and the spending of keys.

use mainspring_core::*;
use mainspring_kernel::store::{NativeClaim, NativeOwner, Row, Store, StoreError, Unique};

use crate::fixtures::*;
use crate::keys::key;
use crate::migrations::{create_database, hex};

fn native(owner: &str, is_adopted: bool) -> Row {
    let claim = if is_adopted { NativeClaim::Adopted } else { NativeClaim::Opened };
    native_of("acp", "n1", owner, claim)
}

fn native_of(adapter: &str, native: &str, owner: &str, claim: NativeClaim) -> Row {
    let (adapter, native, owner) = (adapter.into(), native.into(), owner.into());
    Row::NativeOwner(Box::new(NativeOwner { adapter, native, owner, claim }))
}

#[tokio::test]
async fn an_owner_belongs_to_the_org_that_claims_it_first() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let claim = async |owner: &str, org: Option<&str>| store.owner_claim(owner, org, NOW).await.unwrap();
        assert!(claim("new", Some("acme")).await, "{name}");
        for (org, belongs) in [(Some("acme"), true), (Some("beta"), false), (None, false)] {
            assert_eq!(claim("new", org).await, belongs, "{name} {org:?}");
        }
        // The oldest key or session decides for an owner that no org has claimed.
        store.key_write(&key(3, Some("acme")), None).await.unwrap();
        store.key_write(&key(1, Some("beta")), None).await.unwrap();
        let org = async |owner: &str| store.owner_org(owner).await.unwrap();
        assert_eq!(org(OWNER).await.as_deref(), Some("beta"), "{name}");
        assert!(!claim(OWNER, Some("acme")).await, "{name}");
        assert!(claim(OWNER, Some("beta")).await, "{name}");
        assert_eq!(org(OWNER).await.as_deref(), Some("beta"), "{name}");
        assert_eq!((org("new").await.as_deref(), org("nobody").await), (Some("acme"), None), "{name}");
    }
}

#[tokio::test]
async fn only_one_of_two_orgs_that_claim_an_owner_at_the_same_time_gets_it() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (a, b) = tokio::join!(
            store.owner_claim("new", Some("acme"), NOW),
            store.owner_claim("new", Some("beta"), NOW)
        );
        assert_ne!(a.unwrap(), b.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn a_native_session_keeps_its_owner_after_its_session_is_gone() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        commit(store, fence, vec![native("ada", false)], vec![]).await.unwrap();
        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        let fence = create_session(store, 2).await;
        let taken = commit(store, fence, vec![native("eve", true)], vec![progress(1)]).await;
        assert_eq!(taken.unwrap_err(), StoreError::Conflict(Unique::Other), "{name}");
        assert_eq!(events(store, 2).await.len(), 0, "{name}: nothing of the commit is written");
        // An agent that gives the same id to another owner's session is trusted, and changes no owner.
        commit(store, fence, vec![native("eve", false)], vec![]).await.unwrap();
        commit(store, fence, vec![native("eve", true)], vec![]).await.unwrap_err();
        commit(store, fence, vec![native("ada", true)], vec![]).await.unwrap();
    }
}

#[tokio::test]
async fn a_native_session_has_one_owner_across_adapters_and_spellings() {
    use NativeClaim::{Adopted, AdoptedAgain, Opened};
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let claim = async |adapter: &str, native: &str, owner: &str, claim| {
            commit(store, fence, vec![native_of(adapter, native, owner, claim)], vec![]).await.is_ok()
        };
        assert!(claim("acp", "Ab-1", "ada", Opened).await, "{name}");
        for (adapter, native) in
            [("acp", "Ab-1"), ("twin", "Ab-1"), ("twin", "ab-1"), ("twin", " Ab-1\t"), ("acp", "{AB1}")]
        {
            for by in [Adopted, AdoptedAgain] {
                assert!(!claim(adapter, native, "eve", by).await, "{name} {adapter} {native:?} {by:?}");
            }
        }
        // A native session without an owner: the operator can adopt it, a guest cannot.
        assert!(!claim("acp", "fresh", "eve", AdoptedAgain).await, "{name}");
        assert!(claim("acp", "fresh", "eve", Adopted).await, "{name}");
        assert!(claim("acp", "fresh", "eve", AdoptedAgain).await, "{name}");
        assert!(claim("acp", "Ab-1", "ada", AdoptedAgain).await, "{name}");
        assert!(
            !claim("twin", "Ab-1", "ada", AdoptedAgain).await,
            "{name}: through the adapter that opened it"
        );
        assert!(claim("twin", "Ab-1", "ada", Adopted).await, "{name}");
        // An agent that gives the same id to another owner's session is trusted, and changes no owner.
        assert!(claim("acp", "Ab-1", "eve", Opened).await, "{name}");
        assert!(!claim("acp", "Ab-1", "eve", AdoptedAgain).await, "{name}");
        assert!(claim("acp", "Ab-1", "ada", AdoptedAgain).await, "{name}");
    }
}

#[tokio::test]
async fn the_spending_of_a_key_is_summed_by_day() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let spend = |usd: f64| Spend { cost: Cost::from(usd), at_least: false };
        let unknown = Spend { cost: Cost(0), at_least: true };
        let rows = vec![Row::Spend(key_id(1), 7, spend(0.25)), Row::Spend(key_id(1), 7, spend(0.5))];
        commit(store, fence, rows, vec![]).await.unwrap();
        let rows = vec![Row::Spend(key_id(1), 8, unknown), Row::Spend(key_id(2), 7, spend(9.0))];
        commit(store, fence, rows, vec![]).await.unwrap();
        assert_eq!(store.key_spend(key_id(1), 7).await.unwrap(), spend(0.75), "{name}");
        assert_eq!(store.key_spend(key_id(1), 8).await.unwrap(), unknown, "{name}");
        assert_eq!(store.key_spend(key_id(1), 9).await.unwrap(), Spend::default(), "{name}");
        let most = vec![Row::Spend(key_id(1), 7, Spend { cost: Cost(u64::MAX - 1), at_least: false })];
        commit(store, fence, most, vec![]).await.unwrap();
        assert_eq!(store.key_spend(key_id(1), 7).await.unwrap().cost, Cost(i64::MAX as u64), "{name}");
    }
}

#[tokio::test]
async fn owners_and_native_sessions_of_earlier_versions_are_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let session = |n: u64, owner: &str, org: &str, at: u64| {
        format!(
            "INSERT INTO sessions (session_id, owner_id, org_id, agent_definition_id, status, surface_kind,
               default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
             VALUES (x'{}', '{owner}', {org}, 'generalist@1', 'open', 'chat', 'native', '{{}}', 1, {at}, 1, 1);",
            hex(session_id(n).as_bytes())
        )
    };
    let key = |n: u64, owner: &str, org: &str, at: u64| {
        format!(
            "INSERT INTO api_keys (key_id, name, owner_id, org_id, role, hash, created_at_ms)
             VALUES (x'{}', 'k', '{owner}', {org}, 'member', x'{}', {at});",
            hex(key_id(n).as_bytes()),
            format!("{n:02x}").repeat(32)
        )
    };
    let binding = format!(
        "INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation,
           adapter_native_session_id, resume_fidelity, status, boot_node_id, created_at_ms, updated_at_ms)
         VALUES (x'{}', x'{}', 'acp', 1, 'n1', 'native', 'active', x'{}', 3, 4);",
        hex(binding_id(1).as_bytes()),
        hex(session_id(1).as_bytes()),
        hex(node_id(1).as_bytes()),
    );
    let fill = [
        session(1, "ada", "NULL", 5),
        key(1, "ada", "'acme'", 6),
        key(2, "bob", "'acme'", 1),
        session(2, "bob", "'beta'", 2),
        binding,
    ];
    create_database(folder.path(), crate::migrations::RELEASED, &fill.concat());
    let store = sqlite_open(folder.path());
    let claim = async |owner: &str, org: Option<&str>| store.owner_claim(owner, org, NOW).await.unwrap();
    assert!(claim("ada", None).await && !claim("ada", Some("acme")).await);
    assert!(claim("bob", Some("acme")).await && !claim("bob", Some("beta")).await);
    let fence = lease(&store, 2).await;
    commit(&store, fence, vec![native("bob", true)], vec![]).await.unwrap_err();
    let twin = native_of("twin", "N-1", "bob", NativeClaim::Adopted);
    commit(&store, fence, vec![twin], vec![]).await.unwrap_err();
    commit(&store, fence, vec![native("ada", true)], vec![]).await.unwrap();
}

#[tokio::test]
async fn a_binding_of_earlier_versions_to_a_native_session_of_another_owner_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut fill = String::new();
    let rows = [
        (1, "ada", "acp", "n1", 3),
        (2, "eve", "twin", "n1", 5),
        (3, "eve", "acp", " N1 ", 6),
        (4, "ada", "twin", "n2", 7),
        (5, "bob", "acp", "n3", 8),
    ];
    for (n, owner, adapter, native, at) in rows {
        let (session, binding) = (hex(session_id(n).as_bytes()), hex(binding_id(n).as_bytes()));
        fill += &format!(
            "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
               metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
             VALUES (x'{session}', '{owner}', 'generalist@1', 'open', 'chat', 'acp', '{{}}', 1, 1, 1, 1);
             INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation,
               adapter_native_session_id, resume_fidelity, status, boot_node_id, created_at_ms, updated_at_ms)
             VALUES (x'{binding}', x'{session}', '{adapter}', 1, '{native}', 'native', 'active', x'{node}', {at}, {at});",
            node = hex(node_id(1).as_bytes()),
        );
    }
    create_database(folder.path(), crate::migrations::RELEASED, &fill);
    let store = sqlite_open(folder.path());
    let mut statuses = vec![];
    for (n, ..) in rows {
        statuses.push(store.bindings(session_id(n), None, None, 1).await.unwrap().pop().unwrap().status);
    }
    let (active, invalid) = (BindingStatus::Active, BindingStatus::Invalid);
    assert_eq!(statuses, [active, invalid, invalid, active, active]);
}
