//! Calls of members: hooks that stop them, the text and the results of a run, and readers that fail.

use async_trait::async_trait;
use mainspring_agent::hooks::{HookContext, Hooks};
use mainspring_agent::native::Plan;
use mainspring_core::{Failure, RunStatus};
use mainspring_kernel::kernel::RunRequest;
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Gate, Reply};

use super::{leaked, setup, start, team};
use crate::world::{Setup, within_timeout};

const SEQUENCE: &str = "[network.router]\nsequence = [\"planner\", \"writer\"]";

/// Stops the agents whose system prompt has a word.
struct Stop(&'static str);

#[async_trait]
impl Hooks for Stop {
    async fn on_start(&self, _context: HookContext, plan: &mut Plan) -> Result<(), Failure> {
        if plan.system.as_deref().is_some_and(|system| system.contains(self.0)) {
            plan.stop();
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_run_that_a_hook_stops_at_its_start_makes_no_model_call() {
    let world =
        Setup::default().agent("id = \"planner\"\nsystem = \"You plan.\"").hooks(Stop("plan")).start().await;
    let run = world.run_prompt_as("planner", "go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.server.counts().received, 0);
    assert_eq!(world.steps(run.id).await, []);
    assert_eq!(world.answer_text(run.id).await, "", "the result is empty");
    super::assert_terminal_events(&world, &run).await;
}

#[tokio::test]
async fn a_member_that_a_hook_stops_counts_as_a_call_with_an_empty_result() {
    let router = r#"
[[network.router.rules]]
when = "calls == 0"
to = ["planner"]
[[network.router.rules]]
when = "calls == 1 and last.agent == 'planner' and last.text == ''"
to = ["writer"]
"#;
    let world = setup().hooks(Stop("You plan")).agent(leaked(team("planner writer", router))).start().await;
    world.server.enqueue(Reply::text("a poem"));
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(world.route_text(&run).await, "planner writer Some(StackEmpty)", "{:?}", run.state);
    assert_eq!(world.agents(&run).await, ["writer@1"], "the planner's model was not called");
    assert_eq!(world.routes(&run).await.last().unwrap().calls, 2);
    assert_eq!(world.answer_text(run.id).await, "a poem");
}

#[tokio::test]
async fn the_text_of_a_run_has_its_members_answers_as_paragraphs() {
    let router = r#"
[[network.router.rules]]
when = "calls < 3"
to = ["planner"]
[[network.router.rules]]
when = "calls == 3"
to = ["writer"]
"#;
    let world = start("planner writer", router).await;
    for text in ["one", "two", "three", "four"] {
        world.server.enqueue(Reply::text(text));
    }
    let run = world.run_prompt_as("team", "go").await;
    let text = world.get(run.id).await.final_text;
    assert_eq!(text.as_deref(), Some("one\n\ntwo\n\nthree\n\nfour"));
    // The same from the store.
    assert!(world.kernel.session_close(&world.me, &SessionRef::Id(run.session)).await.unwrap());
    assert_eq!(world.get(run.id).await.final_text, text);
}

#[tokio::test]
async fn changing_a_result_that_was_read_does_not_change_the_stored_one() {
    let world = start("planner writer", SEQUENCE).await;
    world.server.enqueue(Reply::text("a plan")).enqueue(Reply::text("a poem"));
    let run = world.run_prompt_as("team", "go").await;
    let mut steps = world.steps(run.id).await;
    let mut result = world.kernel.run_step(&world.me, run.id, 1).await.unwrap();
    let (before, checksum) = (steps.clone(), result.checksum.clone());
    assert!(checksum.is_some());
    steps.clear();
    result.step.agent = "somebody".into();
    result.answered_calls.clear();
    assert_eq!(world.steps(run.id).await, before);
    let again = world.kernel.run_step(&world.me, run.id, 1).await.unwrap();
    assert_eq!((again.step.agent.as_str(), again.checksum), ("planner@1", checksum));
}

#[tokio::test]
async fn a_subscriber_that_fails_does_not_break_the_run() {
    let world = start("planner writer", SEQUENCE).await;
    let gate = Gate::default();
    world
        .server
        .enqueue(Reply::text("a plan").and(Action::Hold(gate.clone())))
        .enqueue(Reply::text("a poem"));
    let request = RunRequest { session: super::as_team("team"), ..RunRequest::text("team", "go") };
    let run = world.send(request).await;
    let mut failing =
        world.kernel.session_subscribe(&world.me, &SessionRef::Id(run.session), None).await.unwrap();
    let mut subscriber = tokio::task::JoinSet::new();
    subscriber.spawn(async move {
        failing.next().await.unwrap().unwrap();
        panic!("the subscriber fails by design");
    });
    let failed: Result<(), _> = within_timeout(subscriber.join_next()).await.unwrap();
    assert!(failed.unwrap_err().is_panic());
    gate.open();
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.route_text(&run).await, "planner writer Some(StackEmpty)");
    super::assert_terminal_events(&world, &run).await;
}
