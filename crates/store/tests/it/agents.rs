//! Agents of an owner, in versions that never change.

use mainspring_core::*;
use mainspring_kernel::store::{AgentRow, StoreError, Unique};

use crate::fixtures::*;

pub(crate) fn agent(owner: &str, id: &str, version: u32, hash: u8) -> AgentRow {
    let definition = AgentDefinition {
        description: format!("{hash}"),
        output_schema: Some(serde_json::json!({"type": "object", "default": null})),
        ..AgentDefinition::new(id, version)
    };
    AgentRow { owner: owner.into(), hash: [hash; 32], definition, created_at: NOW }
}

#[tokio::test]
async fn a_version_is_stored_once_and_never_changes() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let first = agent(OWNER, "a", 1, 1);
        assert_eq!(store.agent_write(&first).await, Ok(true), "{name}");
        assert_eq!(
            store.agent_write(&AgentRow { created_at: NOW.plus(1), ..first.clone() }).await,
            Ok(false)
        );
        let other = agent(OWNER, "a", 1, 2);
        assert_eq!(store.agent_write(&other).await, Err(StoreError::Conflict(Unique::Agent)), "{name}");
        assert_eq!(store.agent_find(OWNER, "a", Some(1)).await.unwrap(), Some(first.clone()), "{name}");
        assert_eq!(store.agent_delete(OWNER, "a", 1).await, Ok(true), "{name}");
        assert_eq!(store.agent_delete(OWNER, "a", 1).await, Ok(false), "{name}");
        assert_eq!(store.agent_find(OWNER, "a", None).await.unwrap(), None, "{name}");
        assert_eq!(store.agent_page(OWNER, None, 9).await.unwrap(), [], "{name}");
        // A deleted version cannot get other contents either.
        assert_eq!(store.agent_write(&other).await, Err(StoreError::Conflict(Unique::Agent)), "{name}");
        let again = AgentRow { created_at: NOW.plus(5), ..first };
        assert_eq!(store.agent_write(&again).await, Ok(true), "{name}");
        assert_eq!(store.agent_find(OWNER, "a", None).await.unwrap(), Some(again), "{name}");
        assert_eq!(store.agent_count(OWNER).await, Ok(1), "{name}");
    }
}

#[tokio::test]
async fn agents_are_listed_per_owner_by_id_and_version() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for (owner, id, version) in
            [(OWNER, "b", 10), (OWNER, "b", 9), (OWNER, "a", 1), ("other", "b", 11), (OWNER, "b.c", 1)]
        {
            store.agent_write(&agent(owner, id, version, 1)).await.unwrap();
        }
        let page = async |after: Option<(String, u32)>, limit| {
            let rows = store.agent_page(OWNER, after.as_ref(), limit).await.unwrap();
            rows.iter().map(|row| row.definition.name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(page(None, 9).await, ["a@1", "b@9", "b@10", "b.c@1"], "{name}");
        assert_eq!(page(Some(("b".into(), 9)), 1).await, ["b@10"], "{name}");
        assert_eq!(page(Some(("b".into(), 0)), 9).await, ["b@9", "b@10", "b.c@1"], "{name}");
        let latest = store.agent_find(OWNER, "b", None).await.unwrap().unwrap();
        assert_eq!(latest.definition.version, 10, "{name}");
        assert_eq!(store.agent_find(OWNER, "b", Some(11)).await.unwrap(), None, "{name}");
        assert_eq!(store.agent_delete(OWNER, "b", 11).await, Ok(false), "{name}: of another owner");
        assert_eq!(store.agent_count("other").await, Ok(1), "{name}");
    }
}
