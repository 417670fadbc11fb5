//! Tools that the caller executes: the run waits durably for their results, and each result counts once.

use insta::assert_snapshot;
use mainspring_core::{
    Answer, Body, ClientResult, ClientTool, Limits, Mode, Policy, Run, RunId, RunOptions, RunStatus, WaitId,
    WaitRequest,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::{Error, Options};
use serde_json::{Value, json};

use crate::puppet::{PuppetBehavior, puppet};
use crate::world::{
    Disk, NOW, World, count, events_text, every_store, message_text, run_process, with_timeout,
};

/// Builds a prompt that declares tools of these names.
fn declaring(key: &str, script: &str, names: &[&str]) -> RunRequest {
    let tool = |name: &&str| ClientTool {
        name: (*name).into(),
        description: "Says what the weather is.".into(),
        input_schema: json!({"type": "object"}),
        ..ClientTool::default()
    };
    let options = RunOptions { tools: names.iter().map(tool).collect(), ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text(key, script) }
}

/// Calls two tools of the caller and, between them, a tool of the agent.
const MIXED: &str = r#"say Looking.; tool rain {"at":1} | add {"a":1,"b":2} | wind {"at":2}; say done"#;

async fn run_until_waiting(world: &World, script: &str) -> (Run, WaitId) {
    let run = world.send(declaring("a", script, &["rain", "wind"])).await.unwrap().run;
    let wait = world.wait_for_question(run.id).await;
    (world.get(run.id).await, wait)
}

/// Returns the id of the call of this tool.
fn call(run: &Run, name: &str) -> String {
    let calls = &run.state.wait().unwrap().calls;
    calls.iter().find(|call| call.name == name).unwrap().tool_use_id.clone()
}

fn result(id: &str, content: impl Into<Value>) -> ClientResult {
    ClientResult { tool_use_id: id.into(), content: content.into(), ..ClientResult::default() }
}

async fn provide_results(
    world: &World,
    run: RunId,
    wait: WaitId,
    results: &[ClientResult],
) -> Result<Run, Error> {
    let answer = Answer::Tools { results: results.to_vec() };
    with_timeout(world.kernel.run_answer(&world.me, run, wait, answer)).await
}

#[tokio::test]
async fn results_may_arrive_one_by_one_and_are_ordered_like_the_calls() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let (run, wait) = run_until_waiting(&world, MIXED).await;
        assert_eq!(run.state.status(), RunStatus::WaitingInput);
        let asked = run.state.wait().unwrap();
        assert_eq!(asked.request, WaitRequest::Tools);
        let calls: Vec<_> = asked.calls.iter().map(|call| (call.name.as_str(), &call.input)).collect();
        assert_eq!(calls, [("rain", &json!({"at": 1})), ("wind", &json!({"at": 2}))]);
        let some = provide_results(&world, run.id, wait, &[result(&call(&run, "wind"), json!({"kn": 7}))])
            .await
            .unwrap();
        let asked = some.state.wait().unwrap();
        assert_eq!((asked.calls[0].answered, asked.calls[1].answered), (false, true));
        assert_eq!(asked.answer, None, "one is missing");
        world.clock.advance(70);
        provide_results(&world, run.id, wait, &[result(&call(&run, "rain"), "none")]).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
        let events = world.events("a").await;
        let provided = events.iter().filter_map(|event| match &event.body {
            Body::ToolCompleted { name, end, .. } => {
                Some((name.as_str(), end.duration_ms.unwrap_or(0) >= 70))
            }
            _ => None,
        });
        assert_eq!(provided.collect::<Vec<_>>(), [("add", false), ("rain", true), ("wind", true)]);
        let events = events_text(&events[6..]);
        insta::allow_duplicates! {
            assert_snapshot!(events, @r#"
            run.running
            message.completed assistant completed "Looking.\n" + call rain + call add + call wind
            tool.started
            tool.completed
            tools.requested rain, wind
            run.waiting_input
            tools.provided {"kn":7}
            tools.provided none
            run.running
            tool.completed
            tool.completed
            message.completed user completed result "none" error=false + result "3" error=false + result "{\"kn\":7}" error=false
            message.completed assistant completed "done\n"
            session.updated
            run.succeeded
            "#);
        }
    }
}

#[tokio::test]
async fn a_result_counts_once_even_after_the_run_has_continued() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let (run, wait) = run_until_waiting(&world, MIXED).await;
        let (rain, wind) = (result(&call(&run, "rain"), "none"), result(&call(&run, "wind"), "west"));
        let other = ClientResult { is_error: true, ..wind.clone() };
        let code = |outcome: Result<Run, Error>| outcome.unwrap_err().code();
        provide_results(&world, run.id, wait, std::slice::from_ref(&wind)).await.unwrap();
        let before = world.events("a").await;
        provide_results(&world, run.id, wait, std::slice::from_ref(&wind)).await.unwrap();
        assert_eq!(
            code(provide_results(&world, run.id, wait, &[rain.clone(), other.clone()]).await),
            "tool_result_conflict"
        );
        let unknown = [rain.clone(), result("call_9", "x")];
        assert_eq!(code(provide_results(&world, run.id, wait, &unknown).await), "unknown_tool_use");
        assert_eq!(code(provide_results(&world, run.id, wait, &[]).await), "invalid_request");
        let input = Answer::Input { input: json!("x") };
        assert_eq!(code(world.kernel.run_answer(&world.me, run.id, wait, input).await), "wrong_answer");
        assert_eq!(world.events("a").await, before, "refused and repeated results change nothing");
        provide_results(&world, run.id, wait, &[wind.clone(), rain.clone()]).await.unwrap();
        world.ended(run.id).await;
        let again = provide_results(&world, run.id, wait, &[rain, wind]).await.unwrap();
        assert_eq!(
            again.state.status(),
            RunStatus::Succeeded,
            "a caller that missed the answer may repeat the call"
        );
        assert_eq!(code(provide_results(&world, run.id, wait, &[other]).await), "tool_result_conflict");
        let unknown = [result("call_9", "x")];
        assert_eq!(code(provide_results(&world, run.id, wait, &unknown).await), "not_waiting");
        assert_eq!(count(&world.events("a").await, "tools.provided"), 2);
    }
}

#[tokio::test]
async fn a_cancelled_or_expired_run_keeps_its_results() {
    for expires in [false, true] {
        let world = World::on(Disk::memory()).await;
        let (run, wait) = run_until_waiting(&world, MIXED).await;
        provide_results(&world, run.id, wait, &[result(&call(&run, "wind"), "west")]).await.unwrap();
        match expires {
            false => drop(world.kernel.run_cancel(&world.me, run.id).await.unwrap()),
            true => world.clock.advance(24 * 3_600_000),
        }
        let status = if expires { RunStatus::TimedOut } else { RunStatus::Cancelled };
        assert_eq!(world.ended(run.id).await.state.status(), status);
        let path = world.path("a").await;
        assert_eq!(
            message_text(&path[2]),
            "user completed result \"outcome unknown: the run ended before the tool answered\" error=true + \
             result \"3\" error=false + result \"west\" error=false"
        );
        let late = provide_results(&world, run.id, wait, &[result(&call(&run, "rain"), "none")]).await;
        assert_eq!(late.unwrap_err().code(), "not_waiting");
        assert_eq!(world.play("a", "say next").await.state.status(), RunStatus::Succeeded);
    }
}

#[test]
fn calls_and_results_survive_a_crash() {
    for disk in every_store() {
        let (run, wait, wind) = run_process(async {
            let world = World::on(disk.clone()).await;
            let (run, wait) = run_until_waiting(&world, MIXED).await;
            let wind = result(&call(&run, "wind"), "west");
            provide_results(&world, run.id, wait, std::slice::from_ref(&wind)).await.unwrap();
            (run.id, wait, wind)
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let now = world.get(run).await;
            assert_eq!(now.options.tools.len(), 2, "a run holds all it needs");
            let other = ClientResult { content: json!("east"), ..wind.clone() };
            let refused = provide_results(&world, run, wait, &[other]).await;
            assert_eq!(refused.unwrap_err().code(), "tool_result_conflict", "{}", disk.name);
            provide_results(&world, run, wait, &[wind, result(&call(&now, "rain"), "none")]).await.unwrap();
            assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
            let path = world.path("a").await;
            assert!(
                message_text(&path[2])
                    .contains(r#"result "none" error=false + result "3" error=false + result "west""#)
            );
        });
    }
}

#[test]
fn an_attempt_after_a_crash_gets_the_recorded_results() {
    let disk = Disk::memory();
    let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
    let (run, given) = run_process(async {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk.clone(), options.clone(), vec![adapter]).await;
        let prompt = RunRequest { adapter: Some("puppet".into()), ..declaring("a", "go", &["rain"]) };
        let run = world.send(prompt).await.unwrap().run;
        let call = mainspring_core::ClientCall {
            tool_use_id: "t1".into(),
            name: "rain".into(),
            input: json!({}),
            ..mainspring_core::ClientCall::default()
        };
        let ask = mainspring_kernel::adapter::Ask::calls(vec![call]);
        control.next().await.end(mainspring_kernel::adapter::Executed::Waiting(ask));
        let wait = world.wait_for_question(run.id).await;
        provide_results(&world, run.id, wait, &[result("t1", "none")]).await.unwrap();
        let execution = control.next().await;
        assert!(matches!(execution.handle.answer().unwrap().answer, Answer::Tools { .. }));
        (run.id, (wait, result("t1", "none")))
    });
    run_process(async {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let clock = Clock::manual(NOW.plus(1_000));
        let world = World::boot(disk.clone(), options, vec![adapter], clock, 2).await;
        let execution = control.next().await;
        assert_eq!(execution.handle.assignment().attempt.no, 2);
        let earlier = with_timeout(execution.handle.earlier_calls()).await.unwrap();
        assert_eq!(earlier.given, [given]);
        assert_eq!(world.get(run).await.attempts, 2);
    });
}

#[tokio::test]
async fn invalid_tools_are_refused_with_the_prompt() {
    let limits =
        Limits { client_tools: 2, client_tools_bytes: 400, prompt_bytes: 1_000, ..Limits::default() };
    let disk = Disk::memory();
    let (adapter, _control) =
        puppet(&disk.store, PuppetBehavior { client_tools: false, ..PuppetBehavior::default() });
    let world = World::with(disk, Options { limits, ..Options::default() }, vec![adapter]).await;
    let code = |outcome: Result<mainspring_kernel::kernel::Accepted, Error>| outcome.unwrap_err().code();
    assert_eq!(code(world.send(declaring("a", "say x", &["a b"])).await), "invalid_request");
    assert_eq!(code(world.send(declaring("a", "say x", &["a", "a"])).await), "invalid_request");
    assert_eq!(code(world.send(declaring("a", "say x", &["a", "b", "c"])).await), "invalid_request");
    let mut large = declaring("a", "say x", &["rain"]);
    large.options.tools[0].description = "x".repeat(400);
    assert_eq!(code(world.send(large).await), "too_large");
    let asks = RunRequest { mode: Mode::Ask, ..declaring("a", "say x", &["rain"]) };
    assert_eq!(code(world.send(asks).await), "invalid_request");
    let puppet = RunRequest { adapter: Some("puppet".into()), ..declaring("a", "go", &["rain"]) };
    assert_eq!(code(world.send(puppet).await), "adapter_incompatible");
    // The declaration and the results have separate limits.
    let (run, wait) = run_until_waiting(&world, "tool rain").await;
    let long = [result(&call(&run, "rain"), "x".repeat(1_000))];
    assert_eq!(provide_results(&world, run.id, wait, &long).await.unwrap_err().code(), "too_large");
    // A steering prompt cannot change the tools of the run it joins.
    let steers = RunRequest { policy: Policy::Steer, ..declaring("a", "say x", &["rain"]) };
    assert_eq!(code(world.send(steers).await), "adapter_incompatible");
    // A name that the agent itself uses can be refused only by the agent.
    let run = world.send(declaring("b", "tool add {\"a\":1,\"b\":2}", &["add"])).await.unwrap().run;
    let run = world.ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "tool_name_taken");
}

#[tokio::test]
async fn the_key_order_of_schemas_does_not_change_a_request() {
    let world = World::on(Disk::memory()).await;
    let send = |schema: &str| {
        let mut request = declaring("a", "say hi", &["rain"]);
        request.options.tools[0].input_schema = serde_json::from_str(schema).unwrap();
        request.name.idempotency_key = Some("k".into());
        world.send(request)
    };
    let first = send(r#"{"type":"object","properties":{"a":{},"b":{}}}"#).await.unwrap();
    let again = send(r#"{"properties":{"b":{},"a":{}},"type":"object"}"#).await.unwrap();
    assert_eq!((again.run.id, again.replayed), (first.run.id, true));
    let other = send(r#"{"type":"object"}"#).await.unwrap_err();
    assert_eq!(other.code(), "request_conflict");
}
