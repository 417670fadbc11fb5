//! Grants: those of a run include the grants of its session.

use mainspring_core::*;
use mainspring_kernel::store::Row;

use crate::fixtures::*;

fn grant(no: u8, run: Option<RunId>, effect: GrantEffect) -> Grant {
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
