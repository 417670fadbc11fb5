//! The control tools of an agent: reading other sessions, sending them messages, cancelling their runs.

use mainspring_agent::Toolbox;
use mainspring_core::{Run, RunLimits, RunStatus};
use mainspring_kernel::kernel::{RunRequest, SessionTarget};
use mainspring_model_server::{Gate, Protocol, Reply};
use serde_json::{Value, json};

use crate::world::{Setup, World, gated, within_timeout};

const KEEPER: &str = "id = \"keeper\"\nversion = 1\ntools = [\"*_agent_*\", \"*\"]";

fn setup() -> Setup {
    Setup { tools: Toolbox::built_in(), ..Setup::protocol(Protocol::Anthropic) }.agent(KEEPER)
}

/// Returns the tool results of a run, which must be JSON.
async fn answers(world: &World, run: &Run) -> Vec<(Value, bool)> {
    let results = world.tool_results(run.id).await;
    results.into_iter().map(|(text, is_error)| (serde_json::from_str(&text).unwrap(), is_error)).collect()
}

/// Returns the names of the tools in request `n` to the model.
fn offered(world: &World, n: usize) -> Vec<String> {
    let body = world.request_body(n);
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_agent_reads_other_sessions_and_sends_them_messages() {
    let world = setup().start().await;
    world.server.enqueue(Reply::text("the sky is blue"));
    let other = world.run_prompt("what is blue?").await;
    assert!(
        !offered(&world, 0).iter().any(|name| name == "list_agent_sessions"),
        "only an agent whose definition names them gets these tools"
    );
    let message = json!({"sessionId": other.session, "prompt": "and what is green?"});
    world.server.enqueue(
        Reply::tool("list_agent_sessions", json!({}))
            .and_tool("get_agent_run", json!({"runId": other.id}))
            .and_tool("send_agent_message", message),
    );
    // The other session answers first.
    world.server.enqueue(Reply::text("the grass")).enqueue(Reply::text("I know it all"));
    let run = world.run_prompt_as("keeper@1", "what is known?").await;
    assert_eq!(world.answer_text(run.id).await, "I know it all", "{:?}", run.state);
    let answers = answers(&world, &run).await;
    assert!(answers.iter().all(|(answer, is_error)| answer["ok"] == true && !is_error), "{answers:?}");
    let sessions = answers[0].0["sessions"].as_array().unwrap();
    assert!(sessions.iter().any(|listed| listed["session"]["omiSessionId"] == json!(other.session)));
    assert_eq!(answers[1].0["run"]["finalText"], "the sky is blue");
    assert_eq!(answers[2].0["text"], "the grass");
    assert_eq!(answers[2].0["run"]["clientId"], json!(run.id), "so a repeated call finds the same run");
}

#[tokio::test]
async fn an_agent_cancels_a_run_and_cannot_wait_for_itself() {
    let gate = Gate::default();
    let tools = Toolbox::built_in().with(gated("wait", &gate)).unwrap();
    let world = Setup { tools, ..setup() }.start().await;
    world.server.enqueue(Reply::text("hello"));
    let own = world.run_prompt_as("keeper@1", "hello").await.session;
    world.server.enqueue(Reply::tool("wait", json!({})));
    let other = world.send(RunRequest::text("other", "wait")).await;
    within_timeout(gate.reached()).await;
    world.server.enqueue(
        Reply::tool("cancel_agent_run", json!({"runId": other.id}))
            .and_tool("send_agent_message", json!({"sessionId": own, "prompt": "hello me"})),
    );
    world.server.enqueue(Reply::text("done"));
    let run = world.run_prompt_as("keeper@1", "stop it").await;
    let answers = answers(&world, &run).await;
    assert_eq!(answers[0].0["cancellation"]["accepted"], true, "{answers:?}");
    assert_eq!(answers[1].0["error"]["reason"], "would_deadlock", "{answers:?}");
    assert!(answers[1].1, "an error for the model too");
    assert_eq!(world.wait_ended(other.id).await.state.status(), RunStatus::Cancelled);
}

#[tokio::test]
async fn a_message_uses_the_limits_of_the_run_that_sends_it() {
    let world = setup().start().await;
    world.server.enqueue(Reply::text("hello"));
    let other = world.run_prompt("hello").await;
    let message = json!({"sessionId": other.session, "prompt": "and what is green?"});
    world.server.enqueue(Reply::tool("send_agent_message", message));
    world.server.enqueue(Reply::text("the grass")).enqueue(Reply::text("done"));
    let mut request = RunRequest::text("keeper", "ask it");
    request.session.new.agent_definition = Some("keeper@1".into());
    request.options.limits = RunLimits { max_tokens: Some(100_000), ..RunLimits::default() };
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
    let sent = world.kernel.run_get(&world.me, kin.children[0].child_run).await.unwrap();
    assert_eq!((sent.session, sent.parent), (other.session, Some(run.id)));
    assert!(sent.options.limits.max_tokens.is_some_and(|max| max < 100_000), "{:?}", sent.options.limits);
}

#[tokio::test]
async fn two_sessions_cannot_wait_for_each_others_messages() {
    let world = setup().start().await;
    world.server.enqueue(Reply::text("hello"));
    let first = world.run_prompt_as("keeper@1", "hello").await.session;
    world.server.enqueue(Reply::text("hello"));
    let mut request = RunRequest::text("second", "hello");
    request.session.new.agent_definition = Some("keeper@1".into());
    let second = world.send(request).await;
    let second = world.wait_ended(second.id).await.session;
    let to = |session| {
        let message = json!({"sessionId": session, "prompt": "hello", "mode": "act"});
        Reply::tool("send_agent_message", message)
    };
    // The first session asks the second, which asks the first: each would wait for the other.
    world.server.enqueue(to(second)).enqueue(to(first));
    world.server.enqueue(Reply::text("I could not ask back")).enqueue(Reply::text("done"));
    let mut request = RunRequest::text("first", "ask it");
    request.session = SessionTarget { id: Some(first), ..SessionTarget::default() };
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
    let asked = world.kernel.run_get(&world.me, kin.children[0].child_run).await.unwrap();
    let answers = answers(&world, &asked).await;
    assert_eq!(answers[0].0["error"]["reason"], "would_deadlock", "{answers:?}");
    assert_eq!(world.answer_text(run.id).await, "done");
}
