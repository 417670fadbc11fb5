//! A crash at each step of a network: nothing is done twice, nothing is lost, no decision is made again.

use std::sync::Arc;

use mainspring_core::{Body, Mode, Route, RunId, RunStatus};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Action, Gate, ModelServer, Reply};
use mainspring_reference_store::MemoryStore;
use serde_json::json;

use super::{as_team, leaked, setup, team};
use crate::world::{Setup, World, run_until_crash, within_timeout};

/// The replies of one run, in order: the routing model chooses the planner, the planner calls a tool, the routing model
/// chooses the writer, the writer answers with a text, and the routing model ends the network.
fn replies() -> Vec<Reply> {
    vec![
        Reply::tool("select_agent", json!({"name": "planner"})),
        Reply::tool("state_set", json!({"key": "plan", "value": "rhyme"})),
        Reply::tool("select_agent", json!({"name": "writer"})),
        Reply::text("roses"),
        Reply::tool("done", json!({})),
    ]
}

fn hybrid() -> &'static str {
    leaked(team("planner writer", "[network.router.model]"))
}

fn restarted(store: &Arc<dyn Store>, seed: u64) -> Setup {
    Setup { store: store.clone(), seed, on_orphan: OnOrphan::Retry, ..setup() }.agent(hybrid())
}

async fn send(world: &World) -> RunId {
    let mut request = RunRequest::text("s", "go");
    (request.session, request.mode) = (as_team("s"), Mode::Act);
    world.send(request).await.id
}

#[test]
fn a_crash_at_each_step_loses_and_repeats_nothing() {
    for crash_at in 0..replies().len() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let gate = Gate::default();
        let (run, before) = run_until_crash(async {
            let world = Setup { store: store.clone(), ..setup() }.agent(hybrid()).start().await;
            for (at, mut reply) in replies().into_iter().enumerate() {
                if at == crash_at {
                    reply.actions.insert(0, Action::Hold(gate.clone()));
                }
                world.server.enqueue(reply);
            }
            let run = send(&world).await;
            within_timeout(gate.reached()).await;
            let routes = world.routes(&world.get(run).await).await;
            (run, routes)
        });
        run_until_crash(async {
            let server = ModelServer::start().await.unwrap();
            replies().into_iter().skip(crash_at).for_each(|reply| {
                server.enqueue(reply);
            });
            let world = restarted(&store, 2).start_on(server).await;
            let run = world.wait_ended(run).await;
            assert_eq!(run.state.status(), RunStatus::Succeeded, "{crash_at}: {:?}", run.state);
            let after = world.routes(&run).await;
            assert_eq!(after[..before.len()], before, "{crash_at}: no decision is made again");
            assert_eq!(world.route_text(&run).await, "planner writer Some(Done)", "{crash_at}");
            let numbers: Vec<u32> = after.iter().map(|route: &Route| route.no).collect();
            assert_eq!(numbers, [1, 2, 3], "{crash_at}");
            let asked = world.server.counts().received;
            assert_eq!(asked as usize, replies().len() - crash_at, "{crash_at}: only what was not done");
            let agents: Vec<String> = world
                .steps(run.id)
                .await
                .into_iter()
                .filter(|step| step.output.is_some())
                .map(|step| step.agent)
                .collect();
            assert_eq!(agents, ["planner@1", "writer@1"], "{crash_at}: each member has one result");
            assert_eq!(world.run_state(&run).await, json!({"plan": "rhyme"}), "{crash_at}");
            let ends = world.event_bodies(run.id).await.iter().filter(|body| body.ends_run()).count();
            assert_eq!(ends, 1, "{crash_at}: exactly one terminal event");
        });
    }
}

/// The decision of a rule is stored in the commit of the previous member's result. So it survives a crash while the
/// next member works.
#[test]
fn decisions_of_rules_survive_a_crash_and_are_not_made_again() {
    let rules = "[network.router]\nrules = [{ when = \"calls == 0\", to = [\"planner\", \"writer\"] }]";
    let agent = leaked(team("planner writer", rules));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let run = run_until_crash(async {
        let world = Setup { store: store.clone(), ..setup() }.agent(agent).start().await;
        world.server.enqueue(Reply::text("a plan"));
        world.server.enqueue(Reply::default().and(Action::Hold(gate.clone())));
        let run = send(&world).await;
        within_timeout(gate.reached()).await;
        run
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("roses"));
        // The rules have changed in the meantime; the stored decisions stay valid.
        let changed = leaked(agent.replace("calls == 0", "calls < 9"));
        let setup = Setup { store: store.clone(), seed: 2, on_orphan: OnOrphan::Retry, ..setup() };
        let world = setup.agent(changed).start_on(server).await;
        world.wait_event(run, "run.routed", 3).await;
        let routed = world.routes(&world.get(run).await).await;
        assert_eq!(routed[1].next, Some(mainspring_core::Stage::One("writer".into())));
        let messages = world.messages(run).await;
        assert_eq!(messages.iter().filter(|message| message.text() == "a plan").count(), 1);
        assert_eq!(messages.iter().filter(|message| message.text() == "roses").count(), 1);
        let is_routed = |body: &&Body| matches!(body, Body::RunRouted { .. });
        assert!(world.event_bodies(run).await.iter().filter(is_routed).count() >= 3);
    });
}

/// A member waits for a person across a restart. After the answer the member continues, and then the network.
#[test]
fn a_member_that_waits_for_a_person_continues_after_a_restart() {
    let careful = "id = \"careful\"\napprove = [\"add\"]";
    let agent = leaked(team(
        "planner careful",
        "[network.router]\nsequence = [\"planner\", \"careful\", \"planner\"]",
    ));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = run_until_crash(async {
        let world = Setup { store: store.clone(), ..setup() }.agent(careful).agent(agent).start().await;
        world.server.enqueue(Reply::text("a plan")).enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        let run = send(&world).await;
        let run = world.wait_paused(run).await;
        assert_eq!(run.state.status(), RunStatus::WaitingApproval, "{:?}", run.state);
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("the end"));
        let setup = Setup { store: store.clone(), seed: 2, ..setup() };
        let world = setup.agent(careful).agent(agent).start_on(server).await;
        world.allow(run).await;
        let run = world.wait_ended(run).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        assert_eq!(world.route_text(&run).await, "planner careful planner Some(StackEmpty)");
        assert_eq!(world.tool_results(run.id).await, [("3".to_owned(), false)]);
        assert_eq!(world.server.counts().received, 1, "only the last member was called");
        assert_eq!(run.attempts, 1);
    });
}
