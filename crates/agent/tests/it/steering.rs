//! Steering: what is said to a run while it works reaches the model at its next step.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{Hooks, Next, Occasion};
use mainspring_core::{Policy, Role, RunStatus};
use mainspring_kernel::kernel::RunRequest;
use mainspring_model_server::{Action, Gate, Protocol, Reply};
use parking_lot::Mutex;
use serde_json::json;

use crate::world::{Setup, gated, soon, tools};

fn steer(text: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..RunRequest::text("s", text) }
}

#[tokio::test]
async fn a_prompt_joins_between_the_tools_and_the_next_model_call() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let tools = tools().with(gated("dig", &gate)).unwrap();
        let world = Setup { tools, ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(Reply::tool("dig", json!({}))).enqueue(Reply::text("a blue hole"));
        let run = world.prompt("dig a hole").await;
        soon(gate.reached()).await;
        let joined = world.send(steer("a blue one")).await;
        gate.open();
        let run = world.ended(run.id).await;
        let joined = world.ended(joined.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(
            (joined.state.status(), joined.merged_into),
            (RunStatus::Succeeded, Some(run.id)),
            "{protocol:?}"
        );
        assert_eq!(joined.final_message, run.final_message);
        assert_eq!(world.server.counts().received, 2, "{protocol:?}: it cost no model call of its own");
        let asked = world.server.requests().pop().unwrap().body.to_string();
        assert!(asked.contains("dig is done") && asked.contains("a blue one"), "{protocol:?}: {asked}");
    }
}

#[tokio::test]
async fn a_prompt_that_comes_while_the_model_gives_its_last_answer_is_answered_too() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let gate = Gate::default();
        world
            .server
            .enqueue(Reply::text("so").and(Action::Hold(gate.clone())).and_text(" far"))
            .enqueue(Reply::text("blue then"));
        let run = world.prompt("hi").await;
        soon(gate.reached()).await;
        let joined = world.send(steer("in blue")).await;
        gate.open();
        let run = world.ended(run.id).await;
        assert_eq!(world.ended(joined.id).await.merged_into, Some(run.id), "{protocol:?}");
        let messages = world.messages(run.id).await;
        let said: Vec<_> = messages.iter().map(|message| (message.role, message.text())).collect();
        let wanted = [
            (Role::User, "hi"),
            (Role::Assistant, "so far"),
            (Role::User, "in blue"),
            (Role::Assistant, "blue then"),
        ];
        assert_eq!(said, wanted.map(|(role, text)| (role, text.to_owned())), "{protocol:?}");
        assert_eq!(world.steps(run.id).await.len(), 2);
    }
}

/// Says once that the run shall go on, at a gate.
struct Insisting {
    gate: Gate,
    heard: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Hooks for Insisting {
    async fn on_turn(&self, _of: Occasion, text: &str) -> Next {
        self.heard.lock().push(text.to_owned());
        if self.heard.lock().len() > 1 {
            return Next::Stop;
        }
        self.gate.pass().await;
        Next::Continue("say from the hook".into())
    }
}

#[tokio::test]
async fn what_a_person_says_comes_before_what_a_hook_says_and_the_hook_is_still_asked() {
    for protocol in Protocol::ALL {
        let (gate, heard) = (Gate::default(), Arc::new(Mutex::new(vec![])));
        let world = Setup::protocol(protocol)
            .hooks(Insisting { gate: gate.clone(), heard: heard.clone() })
            .start()
            .await;
        let run = world.prompt("say first").await;
        soon(gate.reached()).await;
        let joined = world.send(steer("say from the person")).await;
        gate.open();
        world.ended(run.id).await;
        world.ended(joined.id).await;
        assert_eq!(*heard.lock(), ["first\n", "from the person\n"]);
    }
}
