//! Agent definitions: versions that never change.

use mainspring_client::{AgentListQuery, AgentScope};
use mainspring_core::AgentDefinition;
use serde_json::json;

use crate::world::{World, code};

fn agent(version: u32, description: &str) -> AgentDefinition {
    serde_json::from_value(json!({"id": "poet", "version": version, "description": description})).unwrap()
}

#[tokio::test]
async fn a_version_of_an_agent_is_created_once_and_read_by_name() {
    let World { client, .. } = &World::start().await;
    let first = client.agent_create(&agent(1, "Rhymes.")).await.unwrap();
    assert_eq!(
        (first.scope, client.agent_create(&agent(1, "Rhymes.")).await.unwrap()),
        (AgentScope::Owner, first.clone())
    );
    assert_eq!(code(client.agent_create(&agent(1, "Sings.")).await), "agent_taken");
    let second = client.agent_create(&agent(2, "Sings.")).await.unwrap();
    assert_eq!(client.agent_get("poet").await.unwrap(), second, "the latest");
    assert_eq!(client.agent_get("poet@1").await.unwrap(), first);
    let query = AgentListQuery { limit: Some(1), after: None };
    let page = client.agent_list(&query).await.unwrap();
    let rest = client.agent_list(&AgentListQuery { after: page.next, ..query }).await.unwrap();
    assert_eq!([page.items, rest.items].concat(), [first.clone(), second]);
    let other = client.clone().for_owner("ben");
    assert!(other.agent_get("poet").await.unwrap_err().is_not_found());
    client.agent_delete("poet@2").await.unwrap();
    assert_eq!(client.agent_get("poet").await.unwrap(), first);
    assert!(client.agent_delete("poet@2").await.unwrap_err().is_not_found());
}
