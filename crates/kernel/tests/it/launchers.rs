//! Agents to launch: templates of an org.

use mainspring_api::threads::{AgentVariable, AgentVariableType, CreateAgentRequest, UpdateAgentRequest};
use mainspring_core::AccessRole;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::Caller;
use serde_json::json;

use crate::world::{World, every_store};

fn new(name: &str) -> CreateAgentRequest {
    let variable = AgentVariable {
        name: "x".into(),
        kind: AgentVariableType::String,
        description: None,
        required: true,
        default: None,
        collection_content_type: None,
    };
    CreateAgentRequest {
        name: name.into(),
        description: Some("Tries.".into()),
        request_template: json!({"system_prompt": "{{x}}"}).as_object().unwrap().clone(),
        variables: vec![variable],
    }
}

fn code<T>(result: Result<T, Error>) -> &'static str {
    result.err().map_or("done", |error| error.code())
}

#[tokio::test]
async fn agents_to_launch_belong_to_an_org() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let kernel = &world.kernel;
        let (ada, ben, eve) =
            (Caller::new("ada").in_org("acme"), Caller::new("ben").in_org("acme"), Caller::new("acme"));
        let made = kernel.launcher_create(&ada, "1", new("triage")).await.unwrap();
        assert_eq!(kernel.launcher_create(&ada, "1", new("triage")).await.unwrap(), made, "sent again");
        assert_eq!(code(kernel.launcher_create(&ben, "2", new("triage")).await), "already_exists");
        assert_eq!(kernel.launcher_find(&ben, "triage").await.unwrap(), made);
        assert_eq!(code(kernel.launcher_get(&eve, &made.agent_id).await), "not_found");
        assert_eq!(code(kernel.launcher_create(&eve, "3", new("triage")).await), "done");
        let viewer = ben.clone().with_role(AccessRole::Viewer);
        assert_eq!(code(kernel.launcher_delete(&viewer, &made.agent_id).await), "forbidden");
        assert_eq!(code(kernel.launcher_create(&viewer, "4", new("other")).await), "forbidden");
        let no_variables = UpdateAgentRequest { variables: Some(vec![]), ..UpdateAgentRequest::default() };
        assert_eq!(code(kernel.launcher_update(&ben, &made.agent_id, no_variables).await), "invalid_request");
        let change = UpdateAgentRequest { description: Some(None), ..UpdateAgentRequest::default() };
        let changed = kernel.launcher_update(&ben, &made.agent_id, change).await.unwrap();
        assert_eq!((changed.description, &*changed.modified_by, &*changed.created_by), (None, "ben", "ada"));
        assert_eq!(kernel.launcher_list(&ada).await.unwrap().len(), 1);
        assert_eq!(code(kernel.launcher_delete(&ada, &made.agent_id).await), "done");
        assert_eq!(code(kernel.launcher_delete(&ada, &made.agent_id).await), "not_found");
    }
}
