//! Bounded answers: no answer of a reading tool exceeds the maximum size, and the pages together hold every item once.

use mainspring_control::ANSWER_MAX_BYTES;
use mainspring_core::ArtifactRole;
use mainspring_kernel::kernel::{NewArtifact, RunRequest};
use mainspring_kernel::store::SessionRef;
use serde_json::{Map, Value, json};

use crate::world::{World, within_timeout};

impl World {
    /// Reads all pages of a tool. Returns the items of the list `field`, one vector for each page.
    async fn pages(&self, tool: &str, input: Value, field: &str) -> Vec<Vec<Value>> {
        let (mut pages, mut cursor) = (vec![], Value::Null);
        loop {
            let mut input = input.clone();
            input["cursor"] = cursor;
            let answer = self.call(tool, input).await;
            let size = answer.to_string().len();
            assert!(size <= ANSWER_MAX_BYTES, "{tool}: {size} bytes");
            pages.push(answer[field].as_array().unwrap().clone());
            cursor = answer["nextCursor"].clone();
            if cursor.is_null() {
                return pages;
            }
        }
    }
}

#[tokio::test]
async fn sessions_are_listed_in_pages_of_bounded_size() {
    let world = World::start().await;
    let mut expected = vec![];
    for number in 0..60 {
        // All sessions have their last activity at the same time.
        let run = world.run(&format!("s{number}"), &format!("say {}", "long ".repeat(900))).await;
        expected.push(json!(run.session));
    }
    let pages = world.pages("list_agent_sessions", json!({"limit": 200}), "sessions").await;
    assert!(pages.len() > 2, "{} pages", pages.len());
    let mut found: Vec<_> =
        pages.concat().iter().map(|listed| listed["session"]["omiSessionId"].clone()).collect();
    found.sort_by_key(Value::to_string);
    expected.sort_by_key(Value::to_string);
    assert_eq!(found, expected, "each session once");
    let first = world.call("list_agent_sessions", json!({"limit": 1})).await;
    let truncated = first["truncated"].as_array().unwrap();
    assert!(truncated.contains(&json!("/sessions/0/latestRun/finalText")), "{first}");
    assert_eq!(first["sessions"][0]["latestRun"]["finalText"].as_str().unwrap().len(), 1_000);
}

#[tokio::test]
async fn a_long_run_is_read_in_pages() {
    let world = World::start().await;
    let text = "ä \"quoted\"\t".repeat(3_000);
    let run = world.run("s", &format!("{}say {text}", "progress half way there; ".repeat(700))).await;
    let input = json!({"runId": run.id, "eventLimit": 500});
    let pages = world.pages("get_agent_run", input, "events").await;
    let numbers: Vec<u64> =
        pages.iter().rev().flatten().map(|event| event["eventSeq"].as_u64().unwrap()).collect();
    assert!(pages.len() > 1 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let all = world.kernel.run_events(&world.me, run.id, mainspring_core::Cursor::START, Some(500)).await;
    assert!(numbers.len() > 700 && all.unwrap()[0].cursor.0 == numbers[0], "each event once");
    let (mut read, mut offset) = (String::new(), json!(0));
    while !offset.is_null() {
        let input = json!({"runId": run.id, "includeEvents": false, "textOffset": offset});
        let answer = world.call("get_agent_run", input).await;
        assert!(answer.to_string().len() <= ANSWER_MAX_BYTES);
        read += answer["run"]["finalText"].as_str().unwrap();
        offset = answer["nextTextOffset"].clone();
    }
    assert_eq!(Some(read), world.kernel.run_get(&world.me, run.id).await.unwrap().final_text);
}

#[tokio::test]
async fn artifacts_are_listed_in_pages() {
    let world = World::start().await;
    let run = world.run("s", "say now").await;
    for number in 0..230 {
        let metadata = Map::from_iter([("text".to_owned(), json!("x".repeat(800)))]);
        let role = if number == 0 { ArtifactRole::Result } else { ArtifactRole::Input };
        let new =
            NewArtifact { name: Some(format!("{number}.txt")), role, metadata, ..NewArtifact::default() };
        let by = SessionRef::Id(run.session);
        world.kernel.artifact_put(&world.me, &by, new, None, &mut &b"text"[..]).await.unwrap();
    }
    let input = json!({"sessionId": run.session, "limit": 200});
    let pages = world.pages("inspect_agent_artifacts", input, "artifacts").await;
    let mut names: Vec<_> = pages.concat().iter().map(|found| found["displayName"].to_string()).collect();
    names.sort();
    names.dedup();
    assert!(pages.len() > 4 && names.len() == 230, "{} pages, {} names", pages.len(), names.len());
    // The only artifact with this role is the oldest artifact.
    let results = json!({"sessionId": run.session, "role": "result"});
    let found = world.call("inspect_agent_artifacts", results).await;
    assert_eq!(found["artifacts"][0]["displayName"], "0.txt", "{found}");
}

#[tokio::test]
async fn artifacts_of_every_attempt_are_listed() {
    let world = World::start().await;
    // This adapter writes an artifact in every attempt.
    let mut request = RunRequest::text("s", "fail no luck");
    request.adapter = Some("profiled".into());
    let run = world.kernel.run_create(&world.me, request).await.unwrap().run.id;
    within_timeout(world.kernel.run_wait_ended(&world.me, run)).await.unwrap();
    let again = mainspring_api::RetryOptions::default().into();
    world.kernel.run_retry(&world.me, run, again).await.unwrap();
    within_timeout(world.kernel.run_wait_ended(&world.me, run)).await.unwrap();
    let attempts = world.kernel.run_attempts(&world.me, run).await.unwrap().items;
    assert_eq!(attempts.len(), 2);
    for attempt in attempts {
        let found = world.call("inspect_agent_artifacts", json!({"attemptId": attempt.id})).await;
        let [artifact] = found["artifacts"].as_array().unwrap().as_slice() else { panic!("{found}") };
        assert_eq!(artifact["attemptId"], json!(attempt.id));
    }
}

#[tokio::test]
async fn a_server_that_allows_only_small_pages_is_read_in_small_pages() {
    let world = World::start_with(|options| options.limits.page = 3).await;
    let run = world.run("s", "say now").await;
    for _ in 0..5 {
        let (by, new) = (SessionRef::Id(run.session), NewArtifact::default());
        world.kernel.artifact_put(&world.me, &by, new, None, &mut &b"text"[..]).await.unwrap();
    }
    let read = world.call("get_agent_run", json!({"runId": run.id})).await;
    assert!(read["events"].as_array().is_some_and(|events| events.len() > 3), "{read}");
    let listed = world.call("inspect_agent_artifacts", json!({"sessionId": run.session})).await;
    assert_eq!(listed["artifacts"].as_array().map(Vec::len), Some(5), "{listed}");
}
