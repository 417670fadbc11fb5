//! The threads API through its router, on a manual clock. `crates/cli/tests/threads` drives it with the real package.

use std::pin::pin;

use axum::http::{Method, StatusCode};
use futures_util::poll;
use mainspring_kernel::adapter::{Capabilities, End};
use mainspring_test_support::{FnAgent, NodeBuilder, TestNode, native_agent};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

/// How long the package waits for an answer, in milliseconds.
const CLIENT_TIMEOUT_MS: u64 = 30_000;

async fn serve(builder: NodeBuilder) -> Server {
    Server::with(builder.edge(|http| http.with_threads(true))).await
}

async fn start() -> Server {
    serve(TestNode::builder()).await
}

/// Sends a script to a new session, and returns the session's id.
async fn thread(server: &Server, script: &str) -> String {
    let key: String = script.chars().filter(char::is_ascii_alphanumeric).collect();
    let run = server.prompt(&key, script).await;
    run["sessionId"].as_str().unwrap().to_owned()
}

async fn record(server: &Server, thread: &str) -> Value {
    server.get(&format!("/v1/ai/threads/{thread}")).await.1["data"].take()
}

async fn delta(server: &Server, thread: &str, token: &Value) -> (StatusCode, Value) {
    let token = token.as_str().unwrap();
    server.get(&format!("/v1/ai/threads/{thread}/delta?next_token={token}")).await
}

/// Reads the thread until it is as wanted.
async fn until(server: &Server, thread: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let record = record(server, thread).await;
        if wanted(&record) {
            return record;
        }
        tokio::task::yield_now().await;
    }
}

/// The number of requests that wait.
async fn waiting(server: &Server) -> f64 {
    let page = server.request(Method::GET, "/metrics").send().await.text().await;
    let line = page.lines().find_map(|line| line.strip_prefix("mainspring_http_streams "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_poll_of_a_working_thread_is_answered_well_before_its_client_gives_up() {
    let server = start().await;
    let thread = thread(&server, "hang").await;
    let token = until(&server, &thread, |record| record["messages"].as_array().unwrap().len() == 1).await
        ["continuation_token"]
        .take();
    let mut held = pin!(delta(&server, &thread, &token));
    while poll!(&mut held).is_pending() && waiting(&server).await < 1.0 {
        tokio::task::yield_now().await;
    }
    server.node.clock.advance(CLIENT_TIMEOUT_MS / 10);
    assert!(poll!(&mut held).is_pending(), "the poll is held");
    server.node.clock.advance(CLIENT_TIMEOUT_MS / 2);
    let (status, answer) = held.await;
    assert_eq!((status, &answer["data"]["status"]), (StatusCode::OK, &json!("roboto_turn")));
    assert_eq!(
        (&answer["data"]["messages_by_idx"], &answer["data"]["continuation_token"]),
        (&json!({}), &token)
    );
    assert_eq!(waiting(&server).await, 0.0);
}

#[tokio::test]
async fn a_poll_of_an_idle_thread_is_answered_at_once() {
    let server = start().await;
    let run = server.play("s", "say hi").await;
    let thread = run["sessionId"].as_str().unwrap();
    let token = record(&server, thread).await["continuation_token"].take();
    // The clock stands still: a poll that is held would never be answered.
    for _ in 0..3 {
        let (status, answer) = delta(&server, thread, &token).await;
        assert_eq!((status, &answer["data"]["status"]), (StatusCode::OK, &json!("user_turn")));
        assert_eq!(answer["data"]["continuation_token"], token);
    }
    let (_, waits) = server
        .post(
            "/v1/runs",
            json!({
                "prompt": "tool client_a {}; say done", "session": {"key": "t"},
                "options": {"tools": [{"name": "client_a", "inputSchema": {"type": "object"}}]},
            }),
        )
        .await;
    let thread = waits["sessionId"].as_str().unwrap();
    let token =
        until(&server, thread, |record| record["status"] == "client_tool_turn").await["continuation_token"]
            .take();
    assert_eq!(delta(&server, thread, &token).await.1["data"]["status"], "client_tool_turn");
    let page = server.get("/v1/ai/threads").await.1;
    let mut items = page["data"]["items"].as_array().unwrap().iter();
    let listed = items.find(|item| item["thread_id"] == thread).unwrap();
    assert_eq!(listed["status"], "client_tool_turn", "the list shows the same status");
}

#[tokio::test]
async fn a_queued_turn_and_a_turn_that_waits_for_a_person_are_server_turns_and_show_the_reason() {
    let server = serve(TestNode::builder().options(|options| options.max_workers = 1)).await;
    for (script, activity) in [
        ("ask Tea or coffee?", "Waiting for input: Tea or coffee?"),
        ("approve Pay?", "Waiting for an approval: Pay?"),
    ] {
        let thread = thread(&server, script).await;
        let record = until(&server, &thread, |record| record["activity"] != Value::Null).await;
        assert_eq!((&record["status"], &record["activity"]), (&json!("roboto_turn"), &json!(activity)));
        // A delta shows the same status and activity to a client that holds nothing.
        let path = format!("/v1/ai/threads/{thread}/delta");
        let delta = server.get(&path).await.1["data"].take();
        assert_eq!((&delta["status"], &delta["activity"]), (&json!("roboto_turn"), &json!(activity)));
    }
    thread(&server, "hang").await;
    let queued = thread(&server, "say later").await;
    let record = record(&server, &queued).await;
    assert_eq!(
        (&record["status"], &record["activity"], &record["messages"]),
        (&json!("roboto_turn"), &json!("Waiting for a free worker"), &json!([]))
    );
}

#[tokio::test]
async fn a_cached_view_is_not_returned_to_other_callers() {
    let server = start().await;
    let run = server.play("s", "say secret").await;
    let path = format!("/v1/ai/threads/{}", run["sessionId"].as_str().unwrap());
    assert_eq!(server.get(&path).await.0, StatusCode::OK);
    let as_eve = |method, path: &str| server.request(method, path).header("mainspring-owner", "eve");
    for path in [path.clone(), format!("{path}/delta")] {
        let (status, answer) = send_request(as_eve(Method::GET, &path)).await;
        assert_eq!(
            (status, &answer["error"]["error_code"]),
            (StatusCode::NOT_FOUND, &json!("RobotoNotFoundException"))
        );
    }
    assert_eq!(send_request(as_eve(Method::DELETE, &path)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(server.delete(&path).await.0, StatusCode::OK);
    assert_eq!(
        server.get(&path).await.0,
        StatusCode::NOT_FOUND,
        "also the kept view of a deleted thread is gone"
    );
}

/// The number of messages of the only session; 0 before it exists.
async fn message_count(server: &Server) -> usize {
    let sessions = server.get("/v1/sessions").await.1;
    let Some(session) = sessions["items"][0]["sessionId"].as_str() else { return 0 };
    let messages = server.get(&format!("/v1/sessions/{session}/messages")).await.1;
    messages["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_repeated_start_appends_only_the_messages_that_are_missing() {
    let native = FnAgent::new(Capabilities::minimal("native"), async |_| End::succeeded());
    let server = serve(TestNode::builder().adapter(native)).await;
    let texts = ["one", "two", "three", "four"];
    let roles = ["user", "assistant"].iter().cycle();
    let message = |(text, role)| json!({"role": role, "content": [{"text": text}]});
    let body = json!({"messages": texts.iter().zip(roles).map(message).collect::<Vec<_>>()});
    {
        let mut first = pin!(server.post("/v1/ai/threads", body.clone()));
        while message_count(&server).await == 0 {
            assert!(poll!(&mut first).is_pending());
            tokio::task::yield_now().await;
        }
        // The client disconnects, as at a crash of the server.
    }
    assert_eq!(message_count(&server).await, 1);
    let (status, answer) = server.post("/v1/ai/threads", body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let messages = answer["data"]["messages"].as_array().unwrap();
    let found: Vec<_> =
        messages.iter().map(|message| message["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(found, texts);
}

#[tokio::test]
async fn every_page_of_the_threads_is_listed_once() {
    let server = start().await;
    let mut threads = vec![];
    for number in 0..7 {
        server.node.clock.advance(1);
        let run = server.play(&format!("s{number}"), "say hi").await;
        threads.insert(0, run["sessionId"].clone());
    }
    let (mut listed, mut token) = (vec![], String::new());
    loop {
        let page = server.get(&format!("/v1/ai/threads?limit=3&page_token={token}")).await.1["data"].take();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 3 && items.iter().all(|item| item["messages"] == json!([])));
        listed.extend(items.iter().map(|item| item["thread_id"].clone()));
        match page["next_token"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(listed, threads);
    let (status, _) = server.get("/v1/ai/threads?page_token=nonsense").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn bad_requests_are_refused_in_the_form_of_the_package() {
    let server = start().await;
    let run = server.play("s", "say hi").await;
    let thread = format!("/v1/ai/threads/{}", run["sessionId"].as_str().unwrap());
    let user = |text: &str| json!({"role": "user", "content": [{"text": text}]});
    let goal = json!({"goal_type": "dataset_summary", "dataset_id": "d"});
    let bad = [
        ("/v1/ai/threads".to_owned(), json!([])),
        ("/v1/ai/threads".to_owned(), json!({"messages": "hi"})),
        ("/v1/ai/threads".to_owned(), json!({"messages": [user("x")], "goals": vec![goal; 100]})),
        ("/v1/ai/threads".to_owned(), json!({"goals": [{"goal_type": "no_such_goal"}]})),
        ("/v1/ai/threads".to_owned(), json!({"messages": [user("x")], "visibility": "world"})),
        (format!("{thread}/messages"), json!({})),
        (format!("{thread}/messages"), json!({"message": {"role": "assistant", "content": [{"text": "x"}]}})),
        (format!("{thread}/messages"), json!({"message": {"role": "user", "content": [{"text": 7}]}})),
        (format!("{thread}/tool-results"), json!({"tool_results": [{"tool_use_id": "t"}]})),
        (format!("{thread}/fork"), json!({"message_sequence_num": "first"})),
        (format!("{thread}/visibility"), json!({"visibility": "world"})),
        (format!("{thread}/pin"), json!({"pinned": "yes"})),
        (format!("{thread}/messages/1/feedback"), json!({"sentiment": "mixed"})),
        ("/v1/ai/agents".to_owned(), json!({"name": "a", "request_template": []})),
    ];
    for path in [format!("{thread}/delta?next_token=a&next_token=b"), "/v1/ai/threads?limit=many".to_owned()]
    {
        let (status, answer) = server.get(&path).await;
        let code = &answer["error"]["error_code"];
        assert_eq!(
            (status, code),
            (StatusCode::BAD_REQUEST, &json!("RobotoInvalidRequestException")),
            "{path}"
        );
    }
    for (path, body) in bad {
        let (status, answer) = server.post(&path, body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body} {answer}");
        let error = answer["error"].as_object().unwrap();
        assert!(error.keys().eq(["error_code", "message"]), "{path} {body} {answer}");
        assert_eq!(error["error_code"], "RobotoInvalidRequestException", "{path} {body}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_scope_is_set_whatever_the_metadata_of_the_session_holds() {
    let server = serve(TestNode::builder().adapter(native_agent())).await;
    let scope = json!({"datasets": ["ds_1"]});
    for (index, metadata) in
        [json!({"threads": 1}), json!({"threads": "x"}), json!({"threads": [1], "own": 2})]
            .into_iter()
            .enumerate()
    {
        let key = format!("s{index}");
        let new = json!({"key": key, "adapter": "agent", "metadata": metadata});
        let (_, session) = server.post("/v1/sessions", new).await;
        let path = format!("/v1/ai/threads/{}/messages", session["sessionId"].as_str().unwrap());
        let message = json!({"role": "user", "content": [{"text": "say hi"}]});
        let (status, answer) = server.post(&path, json!({"message": message, "analysis_scope": scope})).await;
        assert!(status.is_success(), "{metadata} {answer}");
        let stored = server.get(&format!("/v1/sessions/{key}")).await.1["metadata"].take();
        assert_eq!(stored["own"], metadata["own"], "the rest stays");
        assert!(stored["threads"]["analysisScope"].is_object(), "{stored}");
    }
}
