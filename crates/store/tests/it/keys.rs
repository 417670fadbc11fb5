//! API keys: found by id and by hash, paged, and written together with their request.

use mainspring_core::*;
use mainspring_kernel::store::{KeyPage, KeyRef, Request, Store, StoreError, Unique};
use mainspring_store::Fault;

use crate::fixtures::*;

pub(crate) fn key(n: u64, org: Option<&str>) -> ApiKey {
    ApiKey {
        id: key_id(n),
        name: format!("key {n}"),
        owner: OWNER.into(),
        org: org.map(Into::into),
        role: AccessRole::Member,
        hash: [u8::try_from(n).unwrap(); 32],
        created_at: NOW.plus(n / 2),
        expires_at: None,
        revoked_at: None,
        folders: None,
        adapters: None,
        models: None,
        tools: None,
        spend_per_day: None,
    }
}

fn request(key: &str) -> Request {
    Request {
        owner: OWNER.into(),
        operation: "key_create".into(),
        key: key.into(),
        fingerprint: [9; 16],
        answer: key_id(1).to_string(),
        at: NOW,
    }
}

async fn get(store: &dyn Store, n: u64) -> Option<ApiKey> {
    store.key_find(&KeyRef::Id(key_id(n))).await.unwrap()
}

#[tokio::test]
async fn a_key_reads_back_as_written_and_is_found_by_its_hash() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let full = ApiKey {
            role: AccessRole::Admin,
            expires_at: Some(NOW.plus(9)),
            revoked_at: Some(NOW.plus(5)),
            folders: Some(vec!["/srv/work".into()]),
            adapters: Some(vec!["native".into()]),
            models: Some(vec![]),
            tools: Some(vec!["look".into(), "say".into()]),
            spend_per_day: Some(Cost::from(2.5)),
            ..key(1, Some("acme"))
        };
        for image in [key(1, None), full.clone()] {
            store.key_write(&image, None).await.unwrap();
            assert_eq!(get(store, 1).await, Some(image.clone()), "{name}");
            assert_eq!(store.key_find(&KeyRef::Hash(image.hash)).await.unwrap(), Some(image), "{name}");
        }
        assert_eq!(store.key_find(&KeyRef::Hash([2; 32])).await.unwrap(), None, "{name}");
        let same_secret = ApiKey { hash: full.hash, ..key(2, None) };
        let error = store.key_write(&same_secret, None).await.unwrap_err();
        assert_eq!((error, get(store, 2).await), (StoreError::Conflict(Unique::Other), None), "{name}");
    }
}

#[tokio::test]
async fn all_keys_or_those_of_an_org_are_paged_newest_first() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for n in 1..=7 {
            store.key_write(&key(n, [None, Some("acme"), Some("beta")][n as usize % 3]), None).await.unwrap();
        }
        for (org, count) in [(None, 7), (Some("acme"), 3), (Some("beta"), 2), (Some("none"), 0)] {
            let mut page = KeyPage { org: org.map(Into::into), before: None, limit: 2 };
            let mut seen = vec![];
            loop {
                let found = store.key_page(&page).await.unwrap();
                let Some(last) = found.last() else { break };
                page.before = Some((last.created_at, last.id));
                assert!(found.iter().all(|key| org.is_none() || key.org.as_deref() == org), "{name}");
                seen.extend(found.into_iter().map(|key| (key.created_at, key.id)));
            }
            assert_eq!(seen.len(), count, "{name} {org:?}");
            assert!(seen.is_sorted_by(|a, b| a > b), "{name}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_key_and_its_request_are_written_together_or_not_at_all() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        store.key_write(&key(1, None), Some(&request("k"))).await.unwrap();
        let again = store.key_write(&key(2, None), Some(&request("k"))).await.unwrap_err();
        assert_eq!(again, StoreError::Conflict(Unique::RequestKey), "{name}");
        assert_eq!(get(store, 2).await, None, "{name}");
        let known = store.request_get(OWNER, "key_create", "k").await.unwrap();
        assert_eq!(known, Some(request("k")), "{name}");
        let taken = ApiKey { hash: key(1, None).hash, ..key(3, None) };
        store.key_write(&taken, Some(&request("other"))).await.unwrap_err();
        assert_eq!(store.request_get(OWNER, "key_create", "other").await.unwrap(), None, "{name}");
        for (n, fault, is_stored) in [(4, Fault::CommitFails, false), (5, Fault::OutcomeUnknown, true)] {
            subject.inject_fault(fault);
            let error = store.key_write(&key(n, None), None).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{name}");
            assert_eq!(get(store, n).await.is_some(), is_stored, "{name}");
        }
    }
}

#[tokio::test]
async fn an_owner_with_a_key_or_session_outside_the_org_is_outside_it() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let outside = async |org| store.owner_outside_org(OWNER, org).await.unwrap();
        assert!(!outside("acme").await, "{name}");
        store.key_write(&key(1, Some("acme")), None).await.unwrap();
        let fence = lease(store, 1).await;
        let shared = Session { org: Some("acme".into()), ..session(1) };
        commit(store, fence, vec![row_session(shared)], vec![]).await.unwrap();
        assert_eq!((outside("acme").await, outside("beta").await), (false, true), "{name}");
        let fence = create_session(store, 2).await;
        assert!(outside("acme").await, "{name}: a session of no org");
        delete_session(store, fence).await;
        assert!(!outside("acme").await, "{name}");
        store.key_write(&key(2, None), None).await.unwrap();
        assert!(outside("acme").await, "{name}: a key of no org");
    }
}
