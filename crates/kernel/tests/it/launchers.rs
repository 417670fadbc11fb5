//! Agents to launch: templates of conversations, which belong to an org or an owner.

use mainspring_api::threads::{AgentVariable, AgentVariableType, CreateAgentRequest, UpdateAgentRequest};
use mainspring_core::AccessRole;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::{EdgeChange, EdgeRecord};
use serde_json::json;

use crate::world::{Disk, World, every_store};

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
        let (modified_by, created_by) = (&*changed.modified_by, &*changed.created_by);
        assert_eq!((&changed.description, modified_by, created_by), (&None, "ben", "ada"));
        assert_eq!(kernel.launcher_list(&ada, None, 10).await.unwrap(), (vec![changed], false));
        assert_eq!(code(kernel.launcher_delete(&ada, &made.agent_id).await), "done");
        assert_eq!(code(kernel.launcher_delete(&ada, &made.agent_id).await), "not_found");
    }
}

#[tokio::test]
async fn agents_are_listed_by_page_also_when_the_last_one_of_a_page_is_deleted() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let (kernel, ada) = (&world.kernel, Caller::new("ada"));
        let mut ids = vec![];
        for number in 0..5 {
            world.clock.advance(1);
            let made = kernel.launcher_create(&ada, &number.to_string(), new(&number.to_string())).await;
            ids.insert(0, made.unwrap().agent_id);
        }
        let (first, has_more) = kernel.launcher_list(&ada, None, 2).await.unwrap();
        assert!(has_more && first.iter().map(|agent| &agent.agent_id).eq(&ids[..2]));
        let last = first.last().unwrap();
        kernel.launcher_delete(&ada, &last.agent_id).await.unwrap();
        let after = Some((last.created, last.agent_id.as_str()));
        let (second, has_more) = kernel.launcher_list(&ada, after, 3).await.unwrap();
        assert!(!has_more && second.iter().map(|agent| &agent.agent_id).eq(&ids[2..]));
    }
}

#[tokio::test]
async fn an_agent_that_cannot_be_read_hides_no_other_and_can_be_deleted() {
    let disk = Disk::memory();
    let world = World::on(disk.clone()).await;
    let (kernel, ada) = (&world.kernel, Caller::new("ada"));
    let made = kernel.launcher_create(&ada, "1", new("good")).await.unwrap();
    let bad =
        EdgeRecord { kind: "launcher", scope: "owner:ada".into(), id: "agt_2".into(), body: json!(null) };
    disk.store.edge_write(&EdgeChange::Put(bad)).await.unwrap();
    drop(world);
    let world = World::reboot(&disk).await;
    let kernel = &world.kernel;
    assert_eq!(kernel.launcher_get(&ada, &made.agent_id).await.unwrap(), made);
    let error = kernel.launcher_list(&ada, None, 10).await.unwrap_err();
    assert!(error.code() == "corrupt" && error.to_string().contains("agt_2"), "{error}");
    assert_eq!(code(kernel.launcher_delete(&ada, "agt_2").await), "done");
    assert_eq!(kernel.launcher_list(&ada, None, 10).await.unwrap().0, [made]);
}
