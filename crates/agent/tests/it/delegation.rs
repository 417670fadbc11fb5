//! Delegation with the tool `delegate_agent`.

use std::sync::Arc;

use mainspring_agent::Toolbox;
use mainspring_core::{Cost, RunLimits, RunStatus};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply, Tokens};
use mainspring_reference_store::MemoryStore;
use serde_json::{Value, json};

use crate::world::{Setup, gated, run_until_crash, within_timeout};

fn setup(protocol: Protocol) -> Setup {
    Setup { tools: Toolbox::built_in(), ..Setup::protocol(protocol) }
}

#[tokio::test]
async fn a_model_delegates_and_gets_the_result() {
    for protocol in Protocol::ALL {
        let world = setup(protocol).start().await;
        let work = json!({"objective": "count the files", "context": "in src", "childTitle": "Counting"});
        world.server.enqueue(Reply::tool("delegate_agent", work));
        world.server.enqueue(Reply::text("there are 3")).enqueue(Reply::text("it says 3"));
        let run = world.run_prompt("how many files are there?").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?} {:?}", run.state);
        assert_eq!(world.answer_text(run.id).await, "it says 3");
        let request = world.request_body(1).to_string();
        assert!(request.contains("count the files") && request.contains("in src"), "{protocol:?}: {request}");
        assert!(
            !request.contains("how many files"),
            "{protocol:?}: the child sees nothing else of its parent"
        );
        let result: Value = serde_json::from_str(&world.tool_results(run.id).await[0].0).unwrap();
        assert_eq!(
            (&result["terminalStatus"], &result["result"]["summary"]),
            (&json!("succeeded"), &json!("there are 3"))
        );
        let delegations = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!(
            json!(delegations.children[0].child_session),
            result["childSession"]["omiSessionId"],
            "{protocol:?}"
        );
    }
}

#[tokio::test]
async fn delegations_run_in_parallel_and_a_rejected_one_is_an_error_result() {
    let world = setup(Protocol::Anthropic).start().await;
    let call = |objective: &str| json!({"objective": objective});
    let reply = Reply::tool("delegate_agent", call("one")).and_tool("delegate_agent", call("two"));
    world.server.enqueue(reply.and_tool("delegate_agent", json!({"objective": "three", "mode": "continue"})));
    world.server.enqueue(Reply::text("done")).enqueue(Reply::text("done")).enqueue(Reply::text("both are"));
    let run = world.run_prompt("go").await;
    assert_eq!(world.answer_text(run.id).await, "both are");
    let results = world.tool_results(run.id).await;
    assert!(results[0].0.contains("\"succeeded\"") && results[1].0.contains("\"succeeded\""), "{results:?}");
    assert!(results[2].1 && results[2].0.contains("name the child's session"), "{results:?}");
}

#[tokio::test]
async fn delegated_usage_counts_against_the_parents_limits() {
    let world = setup(Protocol::Anthropic).start().await;
    world.server.enqueue(Reply::tool("delegate_agent", json!({"objective": "think hard"})));
    // A million output tokens cost ten dollars here.
    let costly = Reply::text("thought");
    let costly = Reply { tokens: Tokens { output: 100_000, ..costly.tokens }, ..costly };
    world.server.enqueue(costly).enqueue(Reply::text("never sent"));
    let mut request = RunRequest::text("s", "go");
    request.options.limits = RunLimits { max_cost: Some(Cost::from(1.0)), ..RunLimits::default() };
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.error().map(|error| error.code.as_str()), Some("limit_reached"), "{:?}", run.state);
    assert_eq!(world.server.requests().len(), 2, "the parent's model was not called again");
}

/// The crash ends parent and child. The retried parent finds the child of its first attempt.
#[test]
fn after_a_crash_the_same_child_is_used() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let tools = || Toolbox::built_in().with(gated("wait", &gate)).unwrap();
    let run = run_until_crash(async {
        let world = Setup { store: store.clone(), tools: tools(), ..Setup::default() }.start().await;
        world.server.enqueue(Reply::tool("delegate_agent", json!({"objective": "wait", "runMode": "act"})));
        world.server.enqueue(Reply::tool("wait", json!({})));
        let run = world.send_prompt("go").await;
        within_timeout(gate.reached()).await;
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        // First the child continues after its call, whose outcome is unknown; then its parent.
        server.enqueue(Reply::text("unknown")).enqueue(Reply::text("ok"));
        let setup = Setup {
            store: store.clone(),
            tools: tools(),
            seed: 2,
            on_orphan: OnOrphan::Retry,
            ..Setup::default()
        };
        let world = setup.start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        assert_eq!(world.answer_text(run.id).await, "ok");
        let delegations = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!(delegations.children.len(), 1, "the repeated call created no second child");
        let child = world.get(delegations.children[0].child_run).await;
        assert_eq!((child.state.status(), child.attempts), (RunStatus::Succeeded, 2));
        assert!(world.tool_results(run.id).await[0].0.contains("unknown"));
    });
}
