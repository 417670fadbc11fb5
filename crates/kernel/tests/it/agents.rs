//! Agent definitions: those of an owner, and the shared ones.

use std::sync::Arc;

use mainspring_core::{AccessRole, AgentDefinition, AgentName, ModelList, RunOptions};
use mainspring_kernel::agents::{Catalog, RuntimeAgent};
use mainspring_kernel::kernel::{AGENTS_PER_OWNER, AgentQuery, AgentScope, Caller};
use mainspring_kernel::store::AgentRow;
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;
use serde_json::Value;

use crate::world::{Disk, NOW, World, every_store};

/// A runtime with the agents `shared@1` and `shared@3`. It refuses the system prompt "broken".
#[derive(Debug)]
struct Runtime;

impl Catalog for Runtime {
    fn shared(&self) -> Vec<AgentDefinition> {
        [1, 3].map(|version| AgentDefinition::new("shared", version)).to_vec()
    }

    fn check(&self, definition: &AgentDefinition) -> Result<(), String> {
        match definition.system.as_deref() {
            Some("broken") => Err("system: it is broken".into()),
            _ => Ok(()),
        }
    }

    fn models(&self) -> ModelList {
        ModelList::default()
    }

    fn check_options(&self, _adapter: &str, _options: &RunOptions) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self, _: &str, _: &RunOptions, _: &AgentDefinition) -> Option<RuntimeAgent> {
        None
    }

    fn check_schema(&self, _schema: &Value) -> Result<(), String> {
        Ok(())
    }

    fn check_value(&self, _schema: &Value, _value: &Value) -> Result<(), String> {
        Ok(())
    }

    fn check_agent_name(&self, _adapter: &str, _name: &str) -> Result<(), String> {
        Ok(())
    }
}

async fn world(disk: Disk) -> World {
    World::with(disk, Options { agents: Arc::new(Runtime), ..Options::default() }, vec![]).await
}

fn agent(name: &str, system: &str) -> AgentDefinition {
    let name: AgentName = name.parse().unwrap();
    AgentDefinition {
        system: Some(system.into()),
        ..AgentDefinition::new(&name.id, name.version.unwrap_or(1))
    }
}

fn code<T>(result: Result<T, Error>) -> &'static str {
    result.err().map_or("done", |error| error.code())
}

#[tokio::test]
async fn an_owner_has_its_own_and_the_shared_agents() {
    for disk in every_store() {
        let world = world(disk).await;
        let (kernel, ada, bob) = (&world.kernel, Caller::new("ada"), Caller::new("bob"));
        let name = |name: &str| name.parse::<AgentName>().unwrap();
        assert!(kernel.agent_create(&ada, agent("poet", "a")).await.unwrap().1);
        assert!(!kernel.agent_create(&ada, agent("poet", "a")).await.unwrap().1, "the same again");
        assert_eq!(code(kernel.agent_create(&ada, agent("poet", "b")).await), "agent_taken");
        assert!(kernel.agent_create(&bob, agent("poet", "b")).await.unwrap().1, "bob's is another");
        kernel.agent_create(&ada, agent("shared@2", "a")).await.unwrap();
        kernel.agent_create(&ada, agent("shared@4", "a")).await.unwrap();
        assert_eq!(code(kernel.agent_create(&ada, agent("shared@3", "a")).await), "agent_taken");
        let same = kernel.agent_create(&ada, AgentDefinition::new("shared", 3)).await.unwrap();
        assert_eq!((same.0.scope, same.1), (AgentScope::Shared, false));
        let listed = async |caller: &Caller, after: Option<&str>, limit| {
            let query = AgentQuery { after: after.map(name), limit };
            let found = kernel.agent_list(caller, query).await.unwrap();
            found.iter().map(|agent| agent.definition.name().to_string()).collect::<Vec<_>>()
        };
        let all = ["poet@1", "shared@1", "shared@2", "shared@3", "shared@4"];
        assert_eq!(listed(&ada, None, None).await, all);
        assert_eq!(listed(&ada, Some("shared@1"), Some(2)).await, ["shared@2", "shared@3"]);
        assert_eq!(listed(&bob, None, None).await, ["poet@1", "shared@1", "shared@3"]);
        let latest =
            async |caller| kernel.agent_get(caller, &name("shared")).await.unwrap().definition.version;
        assert_eq!((latest(&ada).await, latest(&bob).await), (4, 3));
        assert_eq!(code(kernel.agent_get(&bob, &name("shared@2")).await), "not_found");
        assert_eq!(code(kernel.agent_delete(&bob, &name("shared@2")).await), "not_found");
        assert_eq!(code(kernel.agent_delete(&ada, &name("shared@1")).await), "forbidden");
        assert_eq!(code(kernel.agent_delete(&ada, &name("shared")).await), "invalid_request");
        assert_eq!(code(kernel.agent_delete(&ada, &name("poet@1")).await), "done");
        assert_eq!(code(kernel.agent_get(&ada, &name("poet")).await), "not_found");
        assert_eq!(code(kernel.agent_create(&ada, agent("poet", "b")).await), "agent_taken", "for ever");
        assert_eq!(code(kernel.agent_get(&bob, &name("poet")).await), "done");
    }
}

#[tokio::test]
async fn invalid_definitions_are_refused_and_a_viewer_cannot_create_agents() {
    let world = world(Disk::memory()).await;
    let ada = Caller::new("ada");
    let create =
        async |caller: &Caller, definition| code(world.kernel.agent_create(caller, definition).await);
    assert_eq!(create(&ada, agent("a", "broken")).await, "invalid_request");
    assert_eq!(create(&ada, agent("mainspring.a", "x")).await, "invalid_request");
    assert_eq!(create(&ada, AgentDefinition::new("a b", 1)).await, "invalid_request");
    assert_eq!(create(&ada, agent("a", &"x".repeat(2 << 20))).await, "too_large");
    let viewer = ada.clone().with_role(AccessRole::Viewer);
    assert_eq!(create(&viewer, agent("a", "x")).await, "forbidden");
    let name: AgentName = "shared@1".parse().unwrap();
    assert_eq!(code(world.kernel.agent_delete(&viewer, &name).await), "forbidden");
    assert_eq!(code(world.kernel.agent_get(&viewer, &name).await), "done");
}

#[tokio::test]
async fn an_agent_whose_write_had_an_unknown_outcome_is_looked_up() {
    for disk in every_store() {
        let world = world(disk).await;
        let ada = Caller::new("ada");
        for (fault, wanted) in [(Fault::OutcomeUnknown, "done"), (Fault::CommitFails, "unavailable")] {
            let definition = agent(&format!("{fault:?}"), "x");
            let name = definition.name();
            world.disk.inject_fault(fault);
            assert_eq!(code(world.kernel.agent_create(&ada, definition.clone()).await), wanted, "{fault:?}");
            let there = world.kernel.agent_get(&ada, &name).await;
            assert_eq!(there.is_ok(), wanted == "done", "{fault:?}");
            world.kernel.agent_create(&ada, definition).await.unwrap();
            world.disk.inject_fault(fault);
            assert_eq!(code(world.kernel.agent_delete(&ada, &name).await), wanted, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn an_existing_version_is_put_again_at_the_limit_of_versions() {
    let disk = Disk::memory();
    let world = world(disk.clone()).await;
    let (kernel, ada) = (&world.kernel, Caller::new("ada"));
    kernel.agent_create(&ada, agent("poet", "a")).await.unwrap();
    for version in 1..AGENTS_PER_OWNER {
        let definition = AgentDefinition::new("other", u32::try_from(version).unwrap());
        let row = AgentRow { owner: "ada".into(), hash: [0; 32], definition, created_at: NOW };
        disk.store.agent_write(&row).await.unwrap();
    }
    assert_eq!(code(kernel.agent_create(&ada, agent("poet@2", "a")).await), "too_many");
    assert!(!kernel.agent_create(&ada, agent("poet", "a")).await.unwrap().1, "the same again");
    assert_eq!(code(kernel.agent_create(&ada, agent("poet", "b")).await), "agent_taken");
}
