//! The worked examples of docs/networks.md: the definitions are read from the page.

use mainspring_core::{Block, Mode, Run, RunStatus};
use mainspring_kernel::kernel::{NewSession, RunRequest, SessionTarget};
use mainspring_model_server::Reply;
use serde_json::json;

use crate::world::{Setup, World};

const PAGE: &str = include_str!("../../../../../docs/networks.md");

/// The TOML blocks of an example, which begins with this heading.
fn definitions(heading: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(&format!("## {heading}\n")).expect("a heading of the page");
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

async fn start(heading: &str) -> World {
    let tools = mainspring_agent::Toolbox::built_in();
    let setup = Setup { tools, ..Setup::default() };
    definitions(heading).into_iter().fold(setup, Setup::agent).start().await
}

async fn run(world: &World, agent: &str, text: &str) -> Run {
    let new = NewSession { agent_definition: Some(agent.into()), ..NewSession::default() };
    let session = SessionTarget { key: Some("s".into()), new, ..SessionTarget::default() };
    let prompt = vec![Block::text(text)];
    let run = world.send(RunRequest { session, prompt, mode: Mode::Act, ..RunRequest::default() }).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    run
}

#[tokio::test]
async fn example_write_and_judge() {
    let world = start("Example: write until it is good").await;
    world.server.enqueue(Reply::text("draft")).enqueue(Reply::text("too short"));
    world.server.enqueue(Reply::text("longer draft")).enqueue(Reply::text("APPROVED"));
    let run = run(&world, "essay", "an essay").await;
    assert_eq!(world.route_text(&run).await, "writer judge writer judge Some(Done)");
}

#[tokio::test]
async fn example_parallel_research() {
    let world = start("Example: two researchers in parallel").await;
    world.server.enqueue(Reply::tool("state_set", json!({"key": "questions", "value": ["a", "b"]})));
    let note = || Reply::tool("state_set", json!({"key": "findings", "value": ["x"]}));
    world.server.enqueue(note()).enqueue(note()).enqueue(Reply::text("found")).enqueue(Reply::text("found"));
    world.server.enqueue(Reply::text("report"));
    let run = run(&world, "research", "engines").await;
    assert_eq!(world.route_text(&run).await, "planner left+right editor Some(StackEmpty)");
    assert_eq!(world.run_state(&run).await["findings"], json!(["x", "x"]));
}

#[tokio::test]
async fn example_support_desk() {
    let world = start("Example: a model at the desk").await;
    world.server.enqueue(Reply::tool("select_agent", json!({"name": "billing", "reason": "money"})));
    world
        .server
        .enqueue(Reply::text("refunded"))
        .enqueue(Reply::tool("done", json!({"summary": "refunded"})));
    let run = run(&world, "desk", "I paid twice").await;
    assert_eq!(world.route_text(&run).await, "billing Some(Done)");
}
