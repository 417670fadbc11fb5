//! The data of a board: open waits, cards, usage, changes of files and the standard error of agents.

use axum::http::{Method, StatusCode};
use mainspring_core::{ArtifactRole, Block};
use mainspring_kernel::adapter::{Adapter, AttemptHandle, Capabilities, End, Executed, Record};
use mainspring_kernel::kernel::NewArtifact;
use mainspring_test_support::{FnAgent, TestNode, asking_agent};
use serde_json::{Map, Value, json};

use crate::world::{RequestBuilder, Server, send_request};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// An agent `writer` that reports a file with its prompt as the new content, and stores a log of its standard error.
fn writer() -> impl Adapter {
    FnAgent::new(Capabilities::minimal("writer"), write)
}

async fn write(attempt: AttemptHandle) -> Executed {
    let after = Some(attempt.assignment().prompt.text());
    let path = "/notes.md".to_owned();
    let diff = Block::Diff { path, before: None, after, before_artifact: None, after_artifact: None };
    let call = Block::tool_use("t1", "write", json!({"path": "/notes.md"}));
    let (tool_use_id, name) = ("t1".to_owned(), "write".to_owned());
    let result = Block::tool_result(tool_use_id, name, vec![diff], false);
    let records = vec![
        Record::Message { blocks: vec![call], usage: None },
        Record::ToolResults { blocks: vec![result] },
    ];
    attempt.record(records).await.unwrap();
    let log = NewArtifact {
        kind: "log".into(),
        role: ArtifactRole::Log,
        name: Some("stderr.log".into()),
        mime_type: Some("text/plain".into()),
        metadata: Map::from_iter([("stream".to_owned(), "stderr".into())]),
        ..NewArtifact::default()
    };
    attempt.artifact(log, &mut &b"warning: \xff\n"[..]).await.unwrap();
    attempt.delta(0, "written").unwrap();
    End::succeeded()
}

impl Server {
    async fn prompt_with(&self, prompt: Value) -> Value {
        let request = self.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&prompt);
        let (status, run) = send_request(request).await;
        assert!(status.is_success(), "{run}");
        run
    }

    async fn listed(&self, path: &str) -> Vec<Value> {
        let (status, page) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        page["items"].as_array().unwrap().clone()
    }

    async fn answer(&self, wait: &Value) {
        let path = format!("/v1/runs/{}/answer", wait["runId"].as_str().unwrap());
        let answer = json!({"waitId": wait["wait"]["waitId"], "answer": {"kind": "input", "input": "x"}});
        let (status, answered) = self.post(&path, answer).await;
        assert_eq!(status, StatusCode::OK, "{answered}");
    }
}

fn titles(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn open_waits_of_all_sessions_are_listed_oldest_first() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    for (title, adapter, prompt) in
        [("first", "script", "ask Tea?"), ("second", "asker", "ls"), ("third", "script", "ask Milk?")]
    {
        let session = json!({"title": title, "cwd": "/tmp", "adapter": adapter});
        let run = server.prompt_with(json!({"prompt": prompt, "session": session, "mode": "act"})).await;
        assert!(run["wait"].is_object(), "{run}");
        server.node.clock.advance(1_000);
    }
    server.play("done", "say hi").await;
    let waits = server.listed("/v1/waits").await;
    assert_eq!(titles(&waits), ["first", "second", "third"]);
    let second = &waits[1];
    assert_eq!(second["wait"]["approval"]["call"]["input"], json!({"command": "ls"}));
    assert_eq!(second["wait"]["approval"]["answers"][0], "allow_once");
    assert_eq!(
        (&second["adapter"], &second["cwd"], &second["mayAnswer"]),
        (&json!("asker"), &json!("/tmp"), &json!(true))
    );
    // Page by page.
    let (_, page) = server.get("/v1/waits?limit=2").await;
    let rest = server.listed(&format!("/v1/waits?limit=2&after={}", page["next"].as_str().unwrap())).await;
    assert_eq!(
        (titles(page["items"].as_array().unwrap()), titles(&rest)),
        (vec!["first", "second"], vec!["third"])
    );
    // An answered wait is not open.
    server.answer(&waits[0]).await;
    assert_eq!(titles(&server.listed("/v1/waits").await), ["second", "third"]);
}

#[tokio::test]
async fn members_of_an_org_read_the_waits_of_shared_sessions_and_answer_their_own() {
    let server = Server::start().await;
    let key = async |owner: &str, role: &str| {
        let body = json!({"name": owner, "ownerId": owner, "orgId": "acme", "role": role});
        server.post("/v1/keys", body).await.1["secret"].as_str().unwrap().to_owned()
    };
    let (ada, bob, viewer) =
        (key("ada", "member").await, key("bob", "member").await, key("ada", "viewer").await);
    let ask = |title: &str, visibility: &str| {
        let session = json!({"title": title, "visibility": visibility});
        let body = json!({"prompt": "ask Tea?", "session": session});
        server.anonymous(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body).bearer_auth(&ada)
    };
    for request in [ask("shared", "org"), ask("private", "private")] {
        assert!(send_request(request).await.0.is_success());
        server.node.clock.advance(1);
    }
    let waits = async |key: &str| {
        let get: RequestBuilder = server.anonymous(Method::GET, "/v1/waits").bearer_auth(key);
        let (_, page) = send_request(get).await;
        let items = page["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|wait| (wait["title"].as_str().unwrap().to_owned(), wait["mayAnswer"] == true))
            .collect::<Vec<_>>()
    };
    assert_eq!(waits(&ada).await, [("shared".into(), true), ("private".into(), true)]);
    assert_eq!(waits(&bob).await, [("shared".into(), false)]);
    assert_eq!(waits(&viewer).await, [("shared".into(), false), ("private".into(), false)]);
}

#[tokio::test]
async fn cards_show_the_last_line_the_active_run_and_the_cost() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    server.play("done", "usage 10 5 0.5; say one").await;
    server.play("done", "usage 10 5 0.25; say last line").await;
    server.node.clock.advance(1);
    let asks = server.prompt_with(json!({"prompt": "ask Tea?", "session": {"key": "asks"}})).await;
    server.prompt("asks", "say later").await;
    server.node.clock.advance(1);
    // An agent that reports its cost at its end: until then the cost is unknown.
    server.ask("unknown", "ls").await;
    let cards = server.listed("/v1/sessions?view=cards").await;
    let card = |key: &str| cards.iter().find(|card| card["key"] == key).unwrap();
    let done = &card("done")["card"];
    assert_eq!(done["last"], json!({"kind": "text", "text": "last line"}));
    assert_eq!((&done["usage"]["costUsd"], &done["usage"]["inputTokens"]), (&json!(0.75), &json!(20)));
    assert_eq!(done["activeRun"], Value::Null);
    let waiting = card("asks");
    assert_eq!(waiting["card"]["activeRun"]["runId"], asks["runId"]);
    assert_eq!(waiting["card"]["activeRun"]["wait"]["question"], "Tea?");
    assert_eq!(waiting["latestRun"]["status"], "queued");
    // The last line is that of the active run, whose messages are not on the path yet. A session without a title shows
    // the prompt of its latest run.
    assert_eq!(waiting["card"]["last"], json!({"kind": "text", "text": "Tea?"}));
    assert_eq!(waiting["card"]["prompt"], "say later");
    assert_eq!(done["prompt"], Value::Null, "the session has a title");
    let unknown = card("unknown");
    assert_eq!(
        (&unknown["card"]["usage"]["costUsd"], &unknown["latestRun"]["status"]),
        (&Value::Null, &json!("waiting_approval"))
    );
    assert_eq!(unknown["card"]["activeRun"], Value::Null, "the latest run is the active one");
    // Only sessions with unfinished runs, the latest activity first.
    let live = server.listed("/v1/sessions?view=cards&live=true").await;
    let keys: Vec<_> = live.iter().map(|card| card["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["unknown", "asks"]);
    assert_eq!(live[1], *waiting);
    assert_eq!(server.listed("/v1/sessions?live=true&limit=1").await.len(), 1);
    let asking = server.listed("/v1/sessions?view=cards&session=asks").await;
    assert_eq!(asking, std::slice::from_ref(waiting));
    assert_eq!(server.listed("/v1/sessions?view=cards&session=nobody").await, [Value::Null; 0]);
    assert_eq!(server.listed("/v1/sessions").await[0]["card"], Value::Null);
}

#[tokio::test]
async fn the_cost_on_a_card_covers_all_runs_also_after_a_retry() {
    let server = Server::start().await;
    let check = async |tokens: u64| {
        let cards = server.listed("/v1/sessions?view=cards&session=a").await;
        let (_, used) = server.get("/v1/sessions/a/usage").await;
        assert_eq!(cards[0]["card"]["usage"], used["totalUsage"]);
        assert_eq!(used["totalUsage"]["inputTokens"], tokens);
    };
    server.play("a", "usage 1 1; say one").await;
    check(1).await;
    let failed = server.play("a", "usage 10 1; fail no").await;
    check(11).await;
    // A retry adds usage to the failed run, whose usage was read before.
    let (status, _) =
        server.post(&format!("/v1/runs/{}/retry", failed["runId"].as_str().unwrap()), json!({})).await;
    assert!(status.is_success());
    server.wait_ended(&failed).await;
    check(21).await;
    // More runs than are read at once.
    for _ in 0..12 {
        server.play("a", "usage 100 1; say more").await;
    }
    check(1221).await;
    server.play("a", "usage 1000 1; say last").await;
    check(2221).await;
}

#[tokio::test]
async fn usage_is_summed_by_day_agent_model_and_session() {
    let server = Server::with(TestNode::builder().adapter(asking_agent())).await;
    let start = server.node.clock.now().0;
    server.play("a", "usage 10 5 0.5; say one").await;
    server.node.clock.advance(DAY_MS);
    let options = json!({"model": "small"});
    let prompt = json!({"prompt": "usage 1 1 0.25; say two", "session": {"key": "b"}, "options": options, "ignoreUnusedOptions": true});
    server.prompt_with(prompt).await;
    server.play("b", "usage 2 2 0.25; say three").await;
    server.ask("c", "ls").await;
    server.node.clock.advance(1);
    let (status, report) = server.get("/v1/usage?by=day,agent").await;
    assert_eq!(status, StatusCode::OK, "{report}");
    let total = json!({
        "runs": 4, "inputTokens": 13, "outputTokens": 8, "cacheReadTokens": 0, "cacheWriteTokens": 0,
        "knownCostUsd": 1.0, "unknownCostRuns": 1, "atLeastRuns": 0,
    });
    assert_eq!(report["total"], total);
    let groups: Vec<_> = report["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let usage = &group["usage"];
            json!([
                group["day"],
                group["agent"],
                usage["runs"],
                usage["knownCostUsd"],
                usage["unknownCostRuns"]
            ])
        })
        .collect();
    assert_eq!(
        groups,
        [
            json!(["2027-01-15", "script", 1, 0.5, 0]),
            json!(["2027-01-16", "asker", 1, 0.0, 1]),
            json!(["2027-01-16", "script", 2, 0.5, 0]),
        ]
    );
    let (_, sessions) = server.get("/v1/usage?by=session").await;
    assert_eq!(sessions["groups"].as_array().unwrap().len(), 3);
    let (_, span) = server.get(&format!("/v1/usage?from={start}&to={}", start + 1)).await;
    assert_eq!((&span["total"]["runs"], &span["groups"]), (&json!(1), &json!([])));
    let (_, moved) = server.get("/v1/usage?by=day&utcOffsetMinutes=960").await;
    assert_eq!(moved["groups"][0]["day"], "2027-01-16", "08:00 UTC is midnight at UTC+16");
    for bad in ["by=week", "from=5&to=5", "utcOffsetMinutes=5000", "by=day,"] {
        let (status, problem) = server.get(&format!("/v1/usage?{bad}")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{bad}");
    }
}

#[tokio::test]
async fn recorded_changes_are_listed_and_other_tool_calls_make_the_changes_unknown() {
    let server = Server::with(TestNode::builder().adapter(writer())).await;
    for text in ["one", "two"] {
        server.prompt_with(json!({"prompt": text, "adapter": "writer", "session": {"key": "a"}})).await;
    }
    let (status, changes) = server.get("/v1/sessions/a/changes").await;
    assert_eq!(status, StatusCode::OK, "{changes}");
    assert_eq!((&changes["state"], &changes["toolCalls"]), (&json!("recorded"), &json!(2)));
    let turns = changes["turns"].as_array().unwrap();
    let prompts: Vec<_> = turns.iter().map(|turn| turn["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts, ["one", "two"]);
    let change = json!({"path": "/notes.md", "after": "one", "tool": "write", "toolUseId": "t1"});
    assert_eq!(turns[0]["changes"], json!([change]));
    assert_eq!(changes["files"], json!([{"path": "/notes.md", "after": "two"}]));
    server.play("none", "say hi").await;
    server.play("unknown", r#"tool add {"a":1,"b":2}; say counted"#).await;
    assert_eq!(server.get("/v1/sessions/none/changes").await.1["state"], "none");
    assert_eq!(server.get("/v1/sessions/unknown/changes").await.1["state"], "unknown");
}

#[tokio::test]
async fn the_standard_error_of_an_agent_is_read_by_its_attempt() {
    let server = Server::with(TestNode::builder().adapter(writer())).await;
    let run =
        server.prompt_with(json!({"prompt": "one", "adapter": "writer", "session": {"key": "a"}})).await;
    let attempt = run["lastAttemptId"].as_str().unwrap();
    let (status, stderr) = server.get(&format!("/v1/attempts/{attempt}/stderr")).await;
    assert_eq!((status, &stderr["text"]), (StatusCode::OK, &json!("warning: \u{fffd}\n")), "{stderr}");
    assert!(stderr["artifactId"].as_str().unwrap().starts_with("art_"));
    let silent = server.play("b", "say hi").await;
    let attempt = silent["lastAttemptId"].as_str().unwrap();
    let (status, stderr) = server.get(&format!("/v1/attempts/{attempt}/stderr")).await;
    assert_eq!((status, &stderr["text"]), (StatusCode::OK, &Value::Null));
}
