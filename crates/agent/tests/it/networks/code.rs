//! Routers in Rust, and hybrids of rules, code and a model.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::network::{CodeRoute, NetworkRouter, RouterInput, Routers};
use mainspring_core::network::RoutedBy;
use mainspring_core::{Failure, RunStatus, Stage};
use mainspring_model_server::Reply;
use parking_lot::Mutex;
use serde_json::json;

use super::{leaked, setup, team};
use crate::world::{Setup, World};

/// Returns a list of decisions one by one, and records the stack and the last agent of each input.
struct Listed {
    routes: Mutex<Vec<Result<CodeRoute, Failure>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl NetworkRouter for Listed {
    async fn route(&self, input: &RouterInput) -> Result<CodeRoute, Failure> {
        let last = input.last.as_ref().map_or("-", |last| last.agent.as_str());
        self.seen.lock().push(format!("{} {last} {}", input.calls, json!(input.stack)));
        self.routes.lock().remove(0)
    }
}

async fn start(router: &str, routes: Vec<Result<CodeRoute, Failure>>) -> (World, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(vec![]));
    let listed = Listed { routes: Mutex::new(routes), seen: seen.clone() };
    let routers = Routers::default().with("listed", Arc::new(listed));
    let with_routers: Box<dyn FnOnce(_) -> _> =
        Box::new(|adapter: mainspring_agent::NativeAdapter| adapter.with_routers(routers));
    let setup = Setup { hooks: Some(with_routers), ..setup() };
    (setup.agent(leaked(team("planner writer", router))).start().await, seen)
}

const CODE: &str = "[network.router]\ncode = \"listed\"";

#[tokio::test]
async fn a_router_in_code_chooses_agents_and_sees_the_remaining_stack() {
    let both = CodeRoute::Agents(vec![Stage::One("planner".into()), Stage::One("writer".into())]);
    let routes = vec![Ok(both), Ok(CodeRoute::Nothing), Ok(CodeRoute::agent("planner")), Ok(CodeRoute::Done)];
    let (world, seen) = start(CODE, routes).await;
    for text in ["one", "two", "three"] {
        world.server.enqueue(Reply::text(text));
    }
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(world.route_text(&run).await, "planner writer planner Some(Done)", "{:?}", run.state);
    assert_eq!(*seen.lock(), ["0 - []", "1 planner [\"writer\"]", "2 writer []", "3 planner []"]);
    assert_eq!(world.routes(&run).await[0].by, RoutedBy::Code { name: "listed".into() });
}

#[tokio::test]
async fn rules_are_asked_first_then_code_then_the_model() {
    let hybrid = r#"
[network.router]
code = "listed"
rules = [{ when = "calls == 0", to = ["planner"] }]
[network.router.model]
"#;
    let (world, seen) = start(hybrid, vec![Ok(CodeRoute::agent("writer")), Ok(CodeRoute::Model)]).await;
    world.server.enqueue(Reply::text("one")).enqueue(Reply::text("two"));
    world.server.enqueue(Reply::tool("done", json!({"summary": "enough"})));
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let by: Vec<RoutedBy> = world.routes(&run).await.into_iter().map(|route| route.by).collect();
    assert_eq!(by, [RoutedBy::Rule { rule: 1 }, RoutedBy::Code { name: "listed".into() }, RoutedBy::Model]);
    assert_eq!(seen.lock().len(), 2, "code is not asked where a rule holds");
}

#[tokio::test]
async fn a_router_that_fails_or_chooses_an_unknown_agent_fails_the_run_once() {
    for (route, code) in [
        (Ok(CodeRoute::agent("poet")), "agent_disabled"),
        (Err(Failure::new("no_luck", "not today")), "no_luck"),
        (Ok(CodeRoute::Model), "routing_failed"),
    ] {
        let (world, _) = start(CODE, vec![route]).await;
        let run = world.run_prompt_as("team", "go").await;
        assert_eq!(run.state.error().unwrap().code.as_str(), code);
        super::assert_terminal_events(&world, &run).await;
    }
    let world = setup().agent(leaked(team("planner", CODE))).start().await;
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "router_not_found");
}
