//! Decisions: every tool call is allowed or denied exactly once, and an event names the decider.

use std::collections::{BTreeMap, HashMap};

use mainspring_agent::Toolbox;
use mainspring_core::{Approval, Block, Body, ClientTool, Decider, Role, Run, RunOptions, RunStatus};
use mainspring_kernel::kernel::{NewSession, RunRequest, SessionTarget};
use mainspring_model_server::{Gate, Protocol, Reply};
use serde_json::json;

use crate::world::{Setup, World, gated, tools, within_timeout};

const KEEPER: &str = "id = \"keeper\"\nversion = 1\ntools = [\"*_agent_*\", \"*\"]";

fn prompt(key: &str, rules: &[&str], text: &str) -> RunRequest {
    let new = NewSession {
        agent_definition: Some("keeper@1".into()),
        rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        ..NewSession::default()
    };
    let session = SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() };
    RunRequest { session, prompt: vec![Block::text(text)], ..RunRequest::default() }
}

/// The decisions on each tool call of a run, by the id of the call.
async fn decisions(world: &World, run: &Run) -> BTreeMap<String, Vec<(Approval, String)>> {
    let (mut calls, mut asked) = (BTreeMap::new(), HashMap::new());
    for message in world.messages(run.id).await.iter().filter(|message| message.role == Role::Assistant) {
        calls.extend(message.tool_calls().into_iter().map(|(id, _)| (id, vec![])));
    }
    let mut add = |id: &str, decision, by: Option<&Decider>| {
        let by = by.map(ToString::to_string).unwrap_or_default();
        calls.get_mut(id).expect("a call of a message").push((decision, by));
    };
    for body in world.event_bodies(run.id).await {
        match body {
            Body::ToolStarted { tool_use_id, decided_by: Some(by), .. } => {
                add(&tool_use_id, Approval::Allowed, Some(&by));
            }
            Body::ToolsRequested { calls, .. } => {
                for call in calls.iter().filter(|call| call.decided_by.is_some()) {
                    add(&call.tool_use_id, Approval::Allowed, call.decided_by.as_ref());
                }
            }
            Body::ApprovalRequested { wait_id, approval: Some(approval), .. } => {
                asked.extend(approval.call.and_then(|call| Some((wait_id, call.tool_use_id?))));
            }
            Body::ApprovalResolved { wait_id, decision, decided_by, .. } => {
                if let Some(id) = asked.get(&wait_id) {
                    add(id, decision, decided_by.as_deref());
                }
            }
            _ => {}
        }
    }
    calls
}

#[tokio::test]
async fn every_call_has_exactly_one_decision() {
    let tools = tools().merge(&Toolbox::built_in());
    let world = Setup { tools, ..Setup::protocol(Protocol::Anthropic) }.agent(KEEPER).start().await;
    let rules = ["allow tool call add", "deny tool call list_agent_sessions", "ask tool call long"];
    let mut request = prompt("s", &rules, "go");
    let client =
        ClientTool { name: "mine".into(), input_schema: json!({"type": "object"}), ..ClientTool::default() };
    request.options = RunOptions { tools: vec![client], ..RunOptions::default() };
    world.server.enqueue(
        Reply::tool("add", json!({"a": 1, "b": 2}))
            // The same rule decides a second call of the round.
            .and_tool("add", json!({"a": 3, "b": 4}))
            .and_tool("list_agent_sessions", json!({}))
            .and_tool("fail", json!({}))
            .and_tool("long", json!({}))
            .and_tool("mine", json!({})),
    );
    world.server.enqueue(Reply::text("done"));
    let run = world.send(request).await;
    world.wait_status(run.id, |status| status == RunStatus::WaitingApproval).await;
    world.allow(run.id).await;
    let waiting = world.wait_status(run.id, |status| status == RunStatus::WaitingInput).await;
    let wait = waiting.state.wait().unwrap();
    let result =
        json!({"kind": "tools", "results": [{"toolUseId": wait.calls[0].tool_use_id, "content": "mine"}]});
    world.answer(run.id, serde_json::from_value(result).unwrap()).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let decisions: Vec<_> = decisions(&world, &run).await.into_values().collect();
    assert!(decisions.iter().all(|decisions| decisions.len() == 1), "{decisions:?}");
    let mut found: Vec<(Approval, String)> = decisions.into_iter().flatten().collect();
    found.sort_by(|one, other| one.1.cmp(&other.1));
    let mut expected = [
        (Approval::Allowed, "the rule \"allow tool call add\""),
        (Approval::Allowed, "the rule \"allow tool call add\""),
        (Approval::Denied, "the rule \"deny tool call list_agent_sessions\""),
        (Approval::Allowed, "the policy no_rule"),
        (Approval::Allowed, world.me.owner.as_str()),
        (Approval::Allowed, "the policy no_rule"),
    ]
    .map(|(decision, by)| (decision, by.to_owned()));
    expected.sort_by(|one, other| one.1.cmp(&other.1));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_control_tool_that_a_rule_asks_about_waits_durably() {
    let gate = Gate::default();
    let tools = Toolbox::built_in().with(gated("wait", &gate)).unwrap();
    let world = Setup { tools, ..Setup::protocol(Protocol::Anthropic) }.agent(KEEPER).start().await;
    world.server.enqueue(Reply::tool("wait", json!({})));
    let other = world.send(RunRequest::text("other", "wait")).await;
    within_timeout(gate.reached()).await;
    let rules = ["ask control cancel_agent_run *"];
    for allow in [false, true] {
        world.server.enqueue(Reply::tool("cancel_agent_run", json!({"runId": other.id})));
        world.server.enqueue(Reply::text("done"));
        let run = world.send(prompt("s", &rules, "stop it")).await;
        let waiting = world.wait_status(run.id, |status| status == RunStatus::WaitingApproval).await;
        let wait = waiting.state.wait().unwrap();
        assert!(!wait.held, "only the store holds the wait");
        let action = wait.approval.as_ref().unwrap().action.clone().unwrap();
        assert_eq!((action.capability.as_str(), action.resource), ("control", other.id.to_string()));
        match allow {
            true => world.allow(run.id).await,
            false => world.deny(run.id).await,
        }
        let run = world.wait_ended(run.id).await;
        let results = world.tool_results(run.id).await;
        assert_eq!(results[0].1, !allow, "{results:?}");
        let decisions = decisions(&world, &run).await;
        let decision = if allow { Approval::Allowed } else { Approval::Denied };
        let by_person = (decision, world.me.owner.clone());
        assert!(decisions.values().all(|decisions| decisions.contains(&by_person)), "{decisions:?}");
        let status = world.get(other.id).await.state.status();
        assert_eq!(status == RunStatus::Running, !allow, "{status:?}");
    }
    assert_eq!(world.wait_ended(other.id).await.state.status(), RunStatus::Cancelled);
}
