//! Delegation: a model hands work to another, and reads what came of it.

use std::sync::Arc;

use mainspring_agent::Toolbox;
use mainspring_core::{Cost, RunLimits, RunStatus};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply, Tokens};
use mainspring_store::MemoryStore;
use serde_json::{Value, json};

use crate::world::{Setup, gated, live, soon};

fn setup(protocol: Protocol) -> Setup {
    Setup { tools: Toolbox::built_in(), ..Setup::protocol(protocol) }
}

#[tokio::test]
async fn a_model_delegates_and_reads_what_came_of_it() {
    for protocol in Protocol::ALL {
        let world = setup(protocol).start().await;
        let work = json!({"objective": "count the files", "context": "in src", "title": "Counting"});
        world.server.enqueue(Reply::tool("delegate_agent", work));
        world.server.enqueue(Reply::text("there are 3")).enqueue(Reply::text("it says 3"));
        let run = world.play("how many files are there?").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?} {:?}", run.state);
        assert_eq!(world.said(run.id).await, "it says 3");
        let asked = world.asked(1).to_string();
        assert!(asked.contains("count the files") && asked.contains("in src"), "{protocol:?}: {asked}");
        assert!(!asked.contains("how many files"), "{protocol:?}: it sees nothing else of its parent");
        let result: Value = serde_json::from_str(&world.results(run.id).await[0].0).unwrap();
        assert_eq!(
            (&result["status"], &result["result"]["summary"]),
            (&json!("succeeded"), &json!("there are 3"))
        );
        let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!(json!(kin.children[0].child_session), result["delegated"]["session_id"], "{protocol:?}");
    }
}

#[tokio::test]
async fn several_work_side_by_side_and_one_that_is_refused_is_told() {
    let world = setup(Protocol::Anthropic).start().await;
    let call = |objective: &str| json!({"objective": objective});
    let reply = Reply::tool("delegate_agent", call("one")).and_tool("delegate_agent", call("two"));
    world.server.enqueue(reply.and_tool("delegate_agent", json!({"objective": "three", "mode": "continue"})));
    world.server.enqueue(Reply::text("done")).enqueue(Reply::text("done")).enqueue(Reply::text("both are"));
    let run = world.play("go").await;
    assert_eq!(world.said(run.id).await, "both are");
    let results = world.results(run.id).await;
    assert!(results[0].0.contains("\"succeeded\"") && results[1].0.contains("\"succeeded\""), "{results:?}");
    assert!(results[2].1 && results[2].0.contains("name the child's session"), "{results:?}");
}

#[tokio::test]
async fn what_was_delegated_is_paid_from_the_same_purse() {
    let world = setup(Protocol::Anthropic).start().await;
    world.server.enqueue(Reply::tool("delegate_agent", json!({"objective": "think hard"})));
    // A million tokens cost ten dollars here.
    let costly = Reply::text("thought");
    let costly = Reply { tokens: Tokens { output: 100_000, ..costly.tokens }, ..costly };
    world.server.enqueue(costly).enqueue(Reply::text("never said"));
    let mut request = RunRequest::text("s", "go");
    request.options.limits = RunLimits { max_cost: Some(Cost::from(1.0)), ..RunLimits::default() };
    let run = world.send(request).await;
    let run = world.ended(run.id).await;
    assert_eq!(run.state.error().map(|error| &*error.code), Some("limit_reached"), "{:?}", run.state);
    assert_eq!(world.server.requests().len(), 2, "the parent's model was not asked again");
}

/// The crash takes both; the parent, tried again, finds the very child it had called.
#[test]
fn after_a_crash_the_child_is_found_again() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let tools = || Toolbox::built_in().with(gated("wait", &gate)).unwrap();
    let run = live(async {
        let world = Setup { store: store.clone(), tools: tools(), ..Setup::default() }.start().await;
        world.server.enqueue(Reply::tool("delegate_agent", json!({"objective": "wait", "may_act": true})));
        world.server.enqueue(Reply::tool("wait", json!({})));
        let run = world.prompt("go").await;
        soon(gate.reached()).await;
        run.id
    });
    live(async {
        let server = ModelServer::start().await.unwrap();
        // The child goes on from its call, whose outcome nobody knows; then its parent.
        server.enqueue(Reply::text("there is no telling")).enqueue(Reply::text("ok"));
        let setup = Setup {
            store: store.clone(),
            tools: tools(),
            seed: 2,
            on_orphan: OnOrphan::Retry,
            ..Setup::default()
        };
        let world = setup.start_on(server).await;
        let run = world.ended(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        assert_eq!(world.said(run.id).await, "ok");
        let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!(kin.children.len(), 1, "one child, however often it is called");
        let child = world.get(kin.children[0].child_run).await;
        assert_eq!((child.state.status(), child.attempts), (RunStatus::Succeeded, 2));
        assert!(world.results(run.id).await[0].0.contains("there is no telling"));
    });
}
