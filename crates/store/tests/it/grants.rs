//! Grants: those of a run include the grants of its session.

use mainspring_core::*;
use mainspring_kernel::store::{GrantPage, Row};

use crate::fixtures::*;

pub(crate) fn grant(no: u8, run: Option<RunId>, effect: GrantEffect) -> Grant {
    Grant {
        id: GrantId::from_random([no; 16]),
        session: session_id(1),
        run,
        capability: "fs".into(),
        operation: "write".into(),
        resource_pattern: "/tmp/*".into(),
        effect,
        source: GrantSource::LegacyDefault,
        constraints: serde_json::Map::from_iter([("policy".to_owned(), "legacy".into())]),
        created_at: Time(i64::from(no)),
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
    }
}

#[tokio::test]
async fn a_run_has_its_own_grants_and_those_of_its_session() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let row = |grant: &Grant| Row::Grant(Box::new(grant.clone()));
        let (own, other) =
            (grant(1, Some(run_id(1)), GrantEffect::Deny), grant(2, Some(run_id(2)), GrantEffect::Allow));
        let shared = grant(3, None, GrantEffect::Allow);
        let rows = [&own, &other, &shared].map(row).to_vec();
        commit(store, fence, rows, vec![progress(1)]).await.unwrap();
        let read = store.grants(session_id(1), run_id(1)).await.unwrap();
        assert_eq!(read, [own.clone(), shared.clone()], "{name}");
        let own = Grant { effect: GrantEffect::Allow, expires_at: Some(Time(9)), ..own };
        commit(store, fence, vec![row(&own)], vec![progress(2)]).await.unwrap();
        assert_eq!(store.grants(session_id(1), run_id(1)).await.unwrap(), [own, shared], "{name}");
        assert_eq!(store.grants(session_id(2), run_id(1)).await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn a_revoked_grant_stays_revoked_when_it_is_recorded_again() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let granted = grant(1, None, GrantEffect::Allow);
        let row = |grant: &Grant| vec![Row::Grant(Box::new(grant.clone()))];
        commit(store, fence, row(&granted), vec![progress(1)]).await.unwrap();
        assert_eq!(store.grant_get(granted.id).await.unwrap(), Some(granted.clone()), "{name}");
        let by = Some(Box::new(Decider::Person { owner_id: OWNER.into() }));
        let revoked = Grant { revoked_at: Some(Time(50)), revoked_by: by, ..granted.clone() };
        commit(store, fence, row(&revoked), vec![progress(2)]).await.unwrap();
        commit(store, fence, row(&granted), vec![progress(3)]).await.unwrap();
        assert_eq!(store.grant_get(granted.id).await.unwrap(), Some(revoked), "{name}");
        assert_eq!(store.grant_get(GrantId::from_random([9; 16])).await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn grants_of_an_owner_are_listed_page_by_page() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let [lasting, brief, revoked] = [1, 2, 3].map(|no| grant(no, None, GrantEffect::Allow));
        let brief = Grant { expires_at: Some(Time(90)), ..brief };
        let revoked = Grant { revoked_at: Some(Time(20)), ..revoked };
        let rows = [&lasting, &brief, &revoked].map(|grant| Row::Grant(Box::new(grant.clone())));
        commit(store, fence, rows.to_vec(), vec![progress(1)]).await.unwrap();
        let page =
            GrantPage { owner: OWNER.into(), session: None, in_force_at: None, before: None, limit: 2 };
        let first = store.grant_page(&page).await.unwrap();
        assert_eq!(first, [revoked.clone(), brief.clone()], "{name}");
        let next = GrantPage { before: Some((brief.created_at, brief.id)), ..page.clone() };
        assert_eq!(store.grant_page(&next).await.unwrap(), std::slice::from_ref(&lasting), "{name}");
        let in_force = |now| GrantPage { in_force_at: Some(Time(now)), limit: 9, ..page.clone() };
        assert_eq!(store.grant_page(&in_force(80)).await.unwrap(), [brief, lasting.clone()], "{name}");
        assert_eq!(store.grant_page(&in_force(90)).await.unwrap(), [lasting], "{name}");
        let foreign = GrantPage { owner: "eve".into(), ..page.clone() };
        assert_eq!(store.grant_page(&foreign).await.unwrap(), [], "{name}");
        let elsewhere = GrantPage { session: Some(session_id(2)), ..page };
        assert_eq!(store.grant_page(&elsewhere).await.unwrap(), [], "{name}");
    }
}
