//! Nodes that an embedder builds: with its own store, router, permissions and configuration.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mainspring_agent::network::{CodeRoute, NetworkRouter, RouterInput};
use mainspring_core::{Failure, RunStatus};
use mainspring_kernel::kernel::{Caller, NewSession, RunRequest, SessionTarget};
use mainspring_kernel::policy::Permissions;
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_reference_store::MemoryStore;

use crate::agents::agent_options;
use crate::config::{self, AdapterConfig, AdapterKind, Config};
use crate::{Node, Server};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_store_of_the_embedder_replaces_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let (config, me) = (Config::with_state_dir(folder.path()), Caller::new("ada"));
    let store = Arc::new(MemoryStore::default());
    let node = Node::builder(config.clone()).store(store.clone()).open().await.unwrap();
    let run = node.kernel().run_create(&me, RunRequest::text("a", "say hi")).await.unwrap().run;
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert!(node.check(true).await.is_none(), "there is no database to check");
    node.close().await;
    assert!(!config.database().exists());
    let found = store.session_find("ada", &SessionRef::Key("a".into())).await.unwrap();
    assert_eq!(found.map(|session| session.id), Some(run.session));
    // The next node on the same store finds the run.
    let node = Node::builder(config.clone()).store(store).open().await.unwrap();
    assert_eq!(node.kernel().run_get(&me, run.id).await.unwrap(), run);
    node.close().await;
    // Without that store the node uses its own database, which does not have the run.
    let node = Node::open(&config).await.unwrap();
    assert_eq!(node.kernel().run_get(&me, run.id).await.unwrap_err().code(), "not_found");
    assert!(node.check(true).await.unwrap().unwrap().problems.is_empty());
    node.close().await;
}

#[cfg(feature = "postgres")]
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_node_keeps_its_data_in_the_postgresql_of_the_setting_store() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let me = Caller::new("ada");
    let config = Config::with_state_dir(folder.path()).store(Some(cluster::database()));
    let node = Node::open(&config).await.unwrap();
    let run = node.kernel().run_create(&me, RunRequest::text("a", "say hi")).await.unwrap().run;
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert!(!config.database().exists());
    // Another state directory on the same database is another server.
    let second = Config::with_state_dir(other.path()).store(config.store.clone());
    let refused = Node::open(&second).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), "store_unusable");
    assert!(
        refused.to_string().contains("another mainspring server or a copy uses this database"),
        "{refused}"
    );
    node.close().await;
    let node = Node::open(&config).await.unwrap();
    assert_eq!(node.kernel().run_get(&me, run.id).await.unwrap(), run);
    node.close().await;
}

#[tokio::test]
async fn a_node_for_records_only_accepts_runs_and_executes_none() {
    let folder = tempfile::tempdir().unwrap();
    let (config, me) = (Config::with_state_dir(folder.path()), Caller::new("ada"));
    let node = Node::builder(config.clone()).records_only().open().await.unwrap();
    let run = node.kernel().run_create(&me, RunRequest::text("a", "say hi")).await.unwrap().run;
    let waited = node.kernel().run_wait(&me, run.id, Duration::from_millis(50)).await.unwrap();
    assert_eq!((waited.state.status(), waited.attempts), (RunStatus::Queued, 0));
    node.close().await;
    let node = Node::open(&config).await.unwrap();
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1), "the next node executes it");
    node.close().await;
}

#[tokio::test]
async fn a_node_outside_a_cluster_executes_runs_with_the_settings_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let (mut config, me) = (Config::with_state_dir(folder.path()), Caller::new("ada"));
    config.cluster.spread = true;
    (config.cluster.max_workers, config.cluster.max_in_process_runs) = (4, 4);
    let node = Node::open(&config).await.unwrap();
    let run = node.kernel().run_create(&me, RunRequest::text("a", "say hi")).await.unwrap().run;
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    node.close().await;
}

/// Calls the worker once for each word of the prompt.
struct CallPerWord;

#[async_trait]
impl NetworkRouter for CallPerWord {
    async fn route(&self, input: &RouterInput) -> Result<CodeRoute, Failure> {
        let words = input.input.split_whitespace().count();
        Ok(if (input.calls as usize) < words { CodeRoute::agent("worker") } else { CodeRoute::Done })
    }
}

#[tokio::test]
async fn a_router_of_the_embedder_routes_networks_that_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let (config, me) = (Config::with_state_dir(folder.path()), Caller::new("ada"));
    std::fs::create_dir_all(&config.agents_dir).unwrap();
    for (file, text) in [
        ("worker.toml", "id = \"worker\"\nsystem = \"script: say done\"\n"),
        (
            "team.toml",
            "id = \"team\"\nmodel = \"scripted/m\"\n[network]\nmembers = [{ agent = \"worker@1\" }]\n\
             [network.router]\ncode = \"by-words\"\n",
        ),
    ] {
        std::fs::write(config.agents_dir.join(file), text).unwrap();
    }
    let request = |key: &str| {
        let (adapter, agent_definition) = (Some("native".into()), Some("team".into()));
        let new = NewSession { adapter, agent_definition, ..NewSession::default() };
        let session = SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() };
        RunRequest { session, ..RunRequest::text(key, "one two three") }
    };
    let node = Node::builder(config.clone()).router("by-words", CallPerWord).open().await.unwrap();
    let run = node.kernel().run_create(&me, request("a")).await.unwrap().run;
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let steps = node.kernel().run_steps(&me, run.id).await.unwrap();
    assert_eq!(steps.iter().map(|step| step.agent.as_str()).collect::<Vec<_>>(), ["worker@1"; 3]);
    node.close().await;
    // A node without the router names it in the error.
    let node = Node::open(&config).await.unwrap();
    let run = node.kernel().run_create(&me, request("b")).await.unwrap().run;
    let run = node.kernel().run_wait(&me, run.id, MINUTE).await.unwrap();
    let error = run.state.error().unwrap();
    assert_eq!(error.code.as_str(), "router_not_found");
    assert!(error.message.contains("by-words"), "{}", error.message);
    node.close().await;
}

#[test]
fn permissions_of_the_builder_apply_to_agents_without_a_configured_policy() {
    let config = Config::with_state_dir("/nowhere");
    let policy_of = |builder: &super::NodeBuilder, configured| {
        let adapter = AdapterConfig { permissions: configured, ..AdapterConfig::default() };
        agent_options("a", &adapter, AdapterKind::Acp, &config, builder.parts.permissions).permissions
    };
    let builder = Node::builder(config.clone());
    assert_eq!(policy_of(&builder, None), Permissions::Ask, "a person decides");
    let builder = builder.permissions(Permissions::Deny);
    assert_eq!(policy_of(&builder, None), Permissions::Deny);
    assert_eq!(policy_of(&builder, Some(config::Permissions::Legacy)), Permissions::Legacy);
}

#[tokio::test]
async fn a_configuration_is_built_by_setters() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::with_state_dir(folder.path()).owner("ada".into()).max_workers(1);
    assert_eq!((config.owner.as_str(), config.max_workers), ("ada", 1));
    assert_eq!(config.state_dir, folder.path(), "other settings stay");
    let node = Node::open(&config).await.unwrap();
    let server = Server::start(&node, &config, None).await.unwrap();
    let client = mainspring_client::Client::from_state_dir(&config.state_dir).unwrap();
    let opened = client.session_resolve(&mainspring_api::SessionTarget::key("a"), None).await.unwrap();
    assert_eq!(opened.session.owner, "ada");
    server.stop().await;
    node.close().await;
}
