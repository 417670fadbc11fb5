//! Steering: a prompt that arrives while a run works reaches the model at the next step.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{AfterTurn, HookContext, Hooks};
use mainspring_core::{Policy, Role, RunStatus};
use mainspring_kernel::kernel::RunRequest;
use mainspring_model_server::{Action, Gate, Protocol, Reply};
use parking_lot::Mutex;
use serde_json::json;

use crate::world::{Setup, gated, tools, within_timeout};

fn steer(text: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..RunRequest::text("s", text) }
}

#[tokio::test]
async fn a_steering_prompt_joins_the_run_before_the_next_model_call() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let tools = tools().with(gated("dig", &gate)).unwrap();
        let world = Setup { tools, ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(Reply::tool("dig", json!({}))).enqueue(Reply::text("a blue hole"));
        let run = world.send_prompt("dig a hole").await;
        within_timeout(gate.reached()).await;
        let joined = world.send(steer("a blue one")).await;
        gate.open();
        let run = world.wait_ended(run.id).await;
        let joined = world.wait_ended(joined.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(
            (joined.state.status(), joined.merged_into),
            (RunStatus::Succeeded, Some(run.id)),
            "{protocol:?}"
        );
        assert_eq!(joined.final_message, run.final_message);
        assert_eq!(
            world.server.counts().received,
            2,
            "{protocol:?}: the prompt needed no model call of its own"
        );
        let request = world.server.requests().pop().unwrap().body.to_string();
        assert!(request.contains("dig is done") && request.contains("a blue one"), "{protocol:?}: {request}");
    }
}

#[tokio::test]
async fn a_steering_prompt_during_the_last_answer_is_answered_in_the_same_run() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let gate = Gate::default();
        world
            .server
            .enqueue(Reply::text("so").and(Action::Hold(gate.clone())).and_text(" far"))
            .enqueue(Reply::text("blue then"));
        let run = world.send_prompt("hi").await;
        within_timeout(gate.reached()).await;
        let joined = world.send(steer("in blue")).await;
        gate.open();
        let run = world.wait_ended(run.id).await;
        assert_eq!(world.wait_ended(joined.id).await.merged_into, Some(run.id), "{protocol:?}");
        let messages = world.messages(run.id).await;
        let texts: Vec<_> = messages.iter().map(|message| (message.role, message.text())).collect();
        let expected = [
            (Role::User, "hi"),
            (Role::Assistant, "so far"),
            (Role::User, "in blue"),
            (Role::Assistant, "blue then"),
        ];
        assert_eq!(texts, expected.map(|(role, text)| (role, text.to_owned())), "{protocol:?}");
        assert_eq!(world.steps(run.id).await.len(), 2);
    }
}

/// Continues the run once, after waiting at a gate.
struct ContinueAtGate {
    gate: Gate,
    received: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Hooks for ContinueAtGate {
    async fn on_turn(&self, _context: HookContext, text: &str) -> AfterTurn {
        self.received.lock().push(text.to_owned());
        if self.received.lock().len() > 1 {
            return AfterTurn::Stop;
        }
        self.gate.pass().await;
        AfterTurn::Continue("say from the hook".into())
    }
}

#[tokio::test]
async fn a_steering_prompt_takes_precedence_over_the_prompt_of_a_hook() {
    for protocol in Protocol::ALL {
        let (gate, received) = (Gate::default(), Arc::new(Mutex::new(vec![])));
        let world = Setup::protocol(protocol)
            .hooks(ContinueAtGate { gate: gate.clone(), received: received.clone() })
            .start()
            .await;
        let run = world.send_prompt("say first").await;
        within_timeout(gate.reached()).await;
        let joined = world.send(steer("say from the person")).await;
        gate.open();
        world.wait_ended(run.id).await;
        world.wait_ended(joined.id).await;
        assert_eq!(*received.lock(), ["first\n", "from the person\n"]);
    }
}
