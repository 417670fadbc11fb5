//! Parallel members: children of their own, shared limits, copies of state and reducers, crashes.

use std::sync::Arc;

use mainspring_core::{Mode, Run, RunStatus, Stage};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Action, Fault, Gate, ModelServer, Reply};
use mainspring_reference_store::MemoryStore;
use serde_json::{Value, json};

use super::{as_team, leaked, setup, team};
use crate::world::{Setup, World, gated, run_until_crash, within_timeout};

const FAN_OUT: &str = "[network.router]\nsequence = [[\"planner\", \"writer\"], \"critic\"]";

fn fan_out(reduce: &str) -> &'static str {
    let state = format!("[network]\nreduce = {reduce}\nstate = {{ notes = [\"start\"], votes = 0 }}\n");
    leaked(team("planner writer critic", FAN_OUT).replace("[network]\n", &state))
}

async fn send(world: &World) -> Run {
    let mut request = RunRequest::text("s", "go");
    (request.session, request.mode) = (as_team("s"), Mode::Act);
    world.send(request).await
}

fn set(key: &str, value: &Value) -> Reply {
    Reply::tool("state_set", json!({"key": key, "value": value}))
}

#[tokio::test]
async fn parallel_members_work_in_children_and_results_keep_the_member_order() {
    let world = setup().agent(fan_out("\"merge\"")).start().await;
    // Both children call the model at the same time, so each reply is queued twice: either child may take it.
    world.server.enqueue(set("notes", &json!(["a"]))).enqueue(set("notes", &json!(["a"])));
    world.server.enqueue(Reply::text("found")).enqueue(Reply::text("found")).enqueue(Reply::text("good"));
    let run = send(&world).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.route_text(&run).await, "planner+writer critic Some(StackEmpty)");
    let delegations = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
    assert_eq!(delegations.children.len(), 2);
    assert_eq!(
        world.run_state(&run).await,
        json!({"notes": ["a", "a"], "votes": 0}),
        "the reducer merged lists"
    );
    let messages = world.messages(run.id).await;
    let blocks: Vec<String> = messages[1]
        .content
        .iter()
        .map(|block| mainspring_core::message::text_of(std::slice::from_ref(block)))
        .collect();
    assert_eq!(blocks, ["planner: found", "writer: found"], "in the order of the members");
    let last = world.request_body(4)["messages"].clone();
    let text = last.to_string();
    assert!(text.contains("planner: found") && text.contains("writer: found"), "{text}");
    let roles: Vec<&Value> = last.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert!(roles.iter().all(|role| **role == "user"), "the results are texts of the user: {text}");
    assert!(!text.contains("Continue."), "{text}");
    let child = world.get(delegations.children[0].child_run).await;
    assert_eq!(world.run_state(&child).await["votes"], json!(0), "a child starts with a copy of the state");
    assert_eq!(world.steps(child.id).await.len(), 2);
    let route = world.kernel.run_route(&world.me, run.id).await.unwrap();
    assert_eq!(route.decisions[0].calls.len(), 2);
    assert_eq!(route.decisions[0].calls[0].child_run_id, Some(delegations.children[0].child_run));
    let members: Vec<(&str, u32, u32)> =
        route.members.iter().map(|total| (total.member.as_str(), total.calls, total.steps)).collect();
    assert_eq!(members, [("planner", 1, 2), ("writer", 1, 2), ("critic", 1, 1)]);
}

#[tokio::test]
async fn the_routing_model_sees_the_results_of_a_stage_as_texts_of_the_user() {
    let router = "[network.router]\nrules = [{ when = \"calls == 0\", to = [[\"planner\", \"writer\"]] }]\n\
                  [network.router.model]";
    let world = setup().agent(leaked(team("planner writer", router))).start().await;
    world.server.enqueue(Reply::text("found")).enqueue(Reply::text("found"));
    world.server.enqueue(Reply::tool("done", json!({})));
    let run = send(&world).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(world.route_text(&run).await, "planner+writer Some(Done)", "{:?}", run.state);
    let messages = world.request_body(2)["messages"].clone();
    let last = messages.as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "user", "{messages}");
    assert!(last.to_string().contains("writer: found"), "{messages}");
}

#[tokio::test]
async fn a_reducing_agent_is_called_right_after_the_stage() {
    let world = setup().agent(fan_out("{ agent = \"critic\" }")).start().await;
    world.server.enqueue(set("votes", &json!(2))).enqueue(set("votes", &json!(2)));
    world.server.enqueue(Reply::text("found")).enqueue(Reply::text("found"));
    world.server.enqueue(set("votes", &json!(2))).enqueue(Reply::text("good"));
    let run = send(&world).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(
        world.route_text(&run).await,
        "planner+writer critic critic Some(StackEmpty)",
        "{:?}",
        run.state
    );
    assert_eq!(world.routes(&run).await[1].by, mainspring_core::network::RoutedBy::Reducer);
    assert_eq!(world.run_state(&run).await["votes"], json!(2), "the agent made one value of the list");
    let history = world.event_bodies(run.id).await;
    let listed = history.iter().any(|body| matches!(body, mainspring_core::Body::StateChanged { value: Some(value), .. } if *value == json!([2, 2])));
    assert!(listed, "the reducer got the list of all values");
}

#[tokio::test]
async fn a_member_that_fails_leaves_the_results_of_the_others() {
    let world = setup().agent(fan_out("\"first\"")).start().await;
    world.server.enqueue(Reply::text("found")).enqueue(Reply::fail(Fault::Unauthorized));
    world.server.enqueue(Reply::text("good"));
    let run = send(&world).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let told = world.request_body(2)["messages"].to_string();
    assert!(told.contains(": found") && told.contains(" failed: "), "{told}");

    world.server.enqueue(Reply::fail(Fault::Unauthorized)).enqueue(Reply::fail(Fault::Unauthorized));
    let run = send(&world).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "members_failed", "{:?}", run.state);
    world.server.enqueue(Reply::text("found")).enqueue(Reply::text("found")).enqueue(Reply::text("good"));
    world.kernel.run_retry(&world.me, run.id, Default::default()).await.unwrap();
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "a retry creates new children: {:?}", run.state);
    let routes = world.routes(&run).await;
    assert_eq!(routes[0].next, Some(Stage::Parallel(vec!["planner".into(), "writer".into()])));
    assert_eq!(world.route_text(&run).await, "planner+writer critic Some(StackEmpty)");
}

/// The crash ends the network and its children while both work. All are continued, and no child is made twice.
#[test]
fn a_crash_in_a_parallel_stage_finds_its_children() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let agent = fan_out("\"list\"");
    let run = run_until_crash(async {
        let tools = mainspring_agent::Toolbox::built_in().with(gated("wait", &gate)).unwrap();
        let world = Setup { store: store.clone(), tools, ..setup() }.agent(agent).start().await;
        world.server.enqueue(Reply::text("found"));
        world.server.enqueue(Reply::tool("wait", json!({})));
        let run = send(&world).await;
        within_timeout(gate.reached()).await;
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        for _ in 0..3 {
            server.enqueue(Reply::text("found"));
        }
        let setup = Setup { store: store.clone(), seed: 2, on_orphan: OnOrphan::Retry, ..setup() };
        let world = setup.agent(agent).start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        assert_eq!(world.route_text(&run).await, "planner+writer critic Some(StackEmpty)");
        let delegations = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!(delegations.children.len(), 2, "no child is made twice");
        let texts: Vec<String> = world.messages(run.id).await.iter().map(|message| message.text()).collect();
        let results = texts.iter().filter(|text| text.starts_with("planner: ")).count();
        assert_eq!(results, 1, "the results are recorded once: {texts:?}");
    });
}

#[tokio::test]
async fn cancelling_the_run_cancels_its_members() {
    let world = setup().agent(fan_out("\"merge\"")).start().await;
    let gate = Gate::default();
    for _ in 0..2 {
        world.server.enqueue(Reply::default().and(Action::Hold(gate.clone())));
    }
    let run = send(&world).await;
    within_timeout(gate.reached()).await;
    world.wait_event(run.id, "delegation.created", 2).await;
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Cancelled);
    for child in world.kernel.run_delegations(&world.me, run.id).await.unwrap().children {
        assert_eq!(world.wait_ended(child.child_run).await.state.status(), RunStatus::Cancelled);
    }
}

/// The network's own run holds the only worker: its members run one after the other in its place.
#[tokio::test]
async fn members_beyond_the_cap_of_the_adapter_queue() {
    for cap in [1, 2] {
        let world = Setup { native_workers: Some(cap), ..setup() }.agent(fan_out("\"merge\"")).start().await;
        for text in ["found", "found", "good"] {
            world.server.enqueue(Reply::text(text));
        }
        let run = send(&world).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{cap}: {:?}", run.state);
        assert_eq!(world.route_text(&run).await, "planner+writer critic Some(StackEmpty)", "{cap}");
    }
}

/// Each child gets a share of what is left, so that all of them together keep to the limit of the run.
#[tokio::test]
async fn parallel_members_share_the_limits_of_the_run() {
    let world = setup().agent(fan_out("\"merge\"")).start().await;
    for text in ["found", "found", "good"] {
        world.server.enqueue(Reply::text(text));
    }
    let mut request = RunRequest::text("s", "go");
    (request.session, request.mode) = (as_team("s"), Mode::Act);
    request.options.limits.max_tokens = Some(1_000);
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let mut shares = vec![];
    for child in world.kernel.run_delegations(&world.me, run.id).await.unwrap().children {
        shares.push(world.get(child.child_run).await.options.limits.max_tokens.unwrap());
    }
    assert_eq!(shares, [500, 250]);
}
