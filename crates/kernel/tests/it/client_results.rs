//! Results of client tools: their outcome and time are kept with the messages, and the declaration of a tool decides what
//! happens if a call gets no result in time.

use mainspring_core::{
    Answer, Block, Body, ClientResult, ClientTool, Cursor, OnExpiry, ResultStatus, Run, RunOptions,
    RunStatus, ToolOutcome, WaitId,
};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::RunRequest;
use serde_json::{Value, json};

use crate::world::{Disk, World, by_key, every_store, read_until, run_process, with_timeout};

/// Calls two tools of the caller and, between them, a tool of the agent.
const MIXED: &str = r#"tool rain {"at":1} | add {"a":1,"b":2} | wind {"at":2}; say done"#;

fn tool(name: &str) -> ClientTool {
    ClientTool { name: name.into(), input_schema: json!({"type": "object"}), ..ClientTool::default() }
}

/// Declares `rain` with a time limit of 500 ms, and `wind` without one.
fn with_limit(on_timeout: OnExpiry) -> RunRequest {
    let rain = ClientTool { timeout_ms: Some(500), on_timeout, ..tool("rain") };
    let options = RunOptions { tools: vec![rain, tool("wind")], ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("a", MIXED) }
}

async fn waiting(world: &World, request: RunRequest) -> (Run, WaitId) {
    let run = world.send(request).await.unwrap().run;
    let wait = world.wait_for_question(run.id).await;
    (world.get(run.id).await, wait)
}

fn result(run: &Run, name: &str, content: impl Into<Value>) -> ClientResult {
    let calls = &run.state.wait().unwrap().calls;
    let tool_use_id = calls.iter().find(|call| call.name == name).unwrap().tool_use_id.clone();
    ClientResult { tool_use_id, content: content.into(), ..ClientResult::default() }
}

async fn provide(world: &World, run: &Run, wait: WaitId, results: &[ClientResult]) -> Result<Run, Error> {
    let answer = Answer::Tools { results: results.to_vec() };
    with_timeout(world.kernel.run_answer(&world.me, run.id, wait, answer)).await
}

/// Name, text, error, declined and time of each result on the path.
async fn results(world: &World) -> Vec<(String, String, bool, bool, Option<u64>)> {
    let path = world.path("a").await;
    let blocks = path.iter().flat_map(|message| &message.content);
    let result = |block: &Block| match block {
        Block::ToolResult { name, content, is_error, declined, runtime_ms, .. } => Some((
            name.clone(),
            mainspring_core::message::result_text(content),
            *is_error,
            *declined,
            *runtime_ms,
        )),
        _ => None,
    };
    blocks.filter_map(result).collect()
}

fn kept(
    name: &str,
    text: &str,
    declined: bool,
    time: Option<u64>,
) -> (String, String, bool, bool, Option<u64>) {
    (name.into(), text.into(), declined, declined, time)
}

#[tokio::test]
async fn the_outcome_and_the_time_of_a_call_stay_with_its_message_after_compaction() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let options = RunOptions { tools: vec![tool("rain"), tool("wind")], ..RunOptions::default() };
        let (run, wait) = waiting(&world, RunRequest { options, ..RunRequest::text("a", MIXED) }).await;
        world.clock.advance(70);
        let declined = ClientResult {
            status: Some(ResultStatus::Declined),
            runtime_ms: Some(7),
            ..result(&run, "rain", Value::Null)
        };
        provide(&world, &run, wait, &[declined]).await.unwrap();
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput, "wind is missing");
        provide(&world, &run, wait, &[result(&run, "wind", "west")]).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
        let expected = [
            kept("rain", "The call was declined.", true, Some(7)),
            kept("add", "3", false, Some(0)),
            // Without a time of the caller: since it was asked.
            kept("wind", "west", false, Some(70)),
        ];
        assert_eq!(results(&world).await, expected);
        let events = world.events("a").await;
        let failed = events.iter().find_map(|event| match &event.body {
            Body::ToolFailed { outcome, error, .. } => Some((*outcome, error.code.to_string())),
            _ => None,
        });
        assert_eq!(failed, Some((ToolOutcome::Rejected, "tool_declined".into())));
        let last = events.last().unwrap().cursor;
        let floor = world.kernel.session_compact(&world.me, &by_key("a"), last).await.unwrap();
        assert_eq!(floor.cursor, Cursor(last.0 - 1), "the events are gone");
        assert_eq!(results(&world).await, expected);
    }
}

#[tokio::test]
async fn a_repeated_result_may_name_another_time_but_no_other_outcome() {
    let world = World::on(Disk::memory()).await;
    let (run, wait) = waiting(&world, with_limit(OnExpiry::TimeOut)).await;
    let failed = ClientResult { status: Some(ResultStatus::Error), ..result(&run, "wind", "no") };
    provide(&world, &run, wait, std::slice::from_ref(&failed)).await.unwrap();
    let repeated = [
        ClientResult { runtime_ms: Some(9), ..failed.clone() },
        ClientResult { status: None, is_error: true, ..failed.clone() },
    ];
    for repeated in repeated {
        provide(&world, &run, wait, &[repeated]).await.unwrap();
    }
    for status in [ResultStatus::Declined, ResultStatus::Success] {
        let other = ClientResult { status: Some(status), ..failed.clone() };
        let refused = provide(&world, &run, wait, &[other]).await;
        assert_eq!(refused.unwrap_err().code(), "tool_result_conflict");
    }
}

#[test]
fn a_call_without_a_result_in_time_fails_and_the_run_continues() {
    for disk in every_store() {
        let run = run_process(async {
            let world = World::on(disk.clone()).await;
            let (run, wait) = waiting(&world, with_limit(OnExpiry::Continue)).await;
            let (_, mut events) = world.subscribe("a", None).await;
            world.clock.advance(500);
            with_timeout(read_until(&mut events, "tools.provided")).await;
            let now = world.get(run.id).await;
            let calls = &now.state.wait().unwrap().calls;
            assert_eq!((calls[0].answered, calls[1].answered), (true, false), "wind has no time limit");
            let late = provide(&world, &run, wait, &[result(&run, "rain", "none")]).await;
            assert_eq!(late.unwrap_err().code(), "tool_result_conflict");
            provide(&world, &run, wait, &[result(&run, "wind", "west")]).await.unwrap();
            assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
            let text = "timed out: the caller gave no result in time";
            let results = results(&world).await;
            assert_eq!(results[0], ("rain".into(), text.into(), true, false, Some(500)), "{}", disk.name);
            run.id
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::Succeeded);
        });
    }
}

#[tokio::test]
async fn a_call_that_must_not_be_missed_ends_the_run_when_its_time_has_passed() {
    let world = World::on(Disk::memory()).await;
    let (run, wait) = waiting(&world, with_limit(OnExpiry::TimeOut)).await;
    provide(&world, &run, wait, &[result(&run, "wind", "west")]).await.unwrap();
    world.clock.advance(500);
    let run = world.ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::TimedOut);
    assert_eq!(run.state.error().unwrap().code.as_str(), "wait_expired");
}

#[test]
fn a_time_limit_outlives_the_process() {
    for disk in every_store() {
        let run = run_process(async {
            let world = World::on(disk.clone()).await;
            waiting(&world, with_limit(OnExpiry::TimeOut)).await.0.id
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            world.clock.advance(500);
            let ended = world.ended(run).await;
            assert_eq!(ended.state.status(), RunStatus::TimedOut, "{}", disk.name);
        });
    }
}
