use std::time::Duration;

use futures_util::poll;
use mainspring_core::Time;
use mainspring_kernel::policy::Rule;
use mainspring_kernel::tasks::Tasks;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, Lines as TextLines, ReadHalf, WriteHalf};

use super::*;

/// The agent's end of a connection over pipes in memory.
struct FakeAgent {
    lines: TextLines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

impl FakeAgent {
    async fn receive(&mut self) -> Value {
        let line = soon(self.lines.next_line()).await.unwrap().expect("the client closed its end");
        serde_json::from_str(&line).unwrap()
    }

    async fn write(&mut self, text: &str) {
        soon(self.output.write_all(text.as_bytes())).await.unwrap();
    }

    async fn send(&mut self, message: &Value) {
        self.write(&format!("{message}\n")).await;
    }

    async fn update(&mut self, session: &str, update: &Value) {
        let params = json!({"sessionId": session, "update": update});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params})).await;
    }

    async fn text(&mut self, session: &str, text: &str) {
        let content = json!({"type": "text", "text": text});
        self.update(session, &json!({"sessionUpdate": "agent_message_chunk", "content": content})).await;
    }

    /// Sends a request and returns the client's response.
    async fn request(&mut self, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": "r", "method": method, "params": params})).await;
        self.receive().await
    }

    /// Waits until the client has processed everything sent so far.
    async fn sync(&mut self) {
        let response = self.request("test/sync", &json!({})).await;
        assert_eq!(response["error"]["code"], -32601, "{response}");
    }
}

struct Fixture {
    connection: Connection,
    agent: FakeAgent,
    log: Log,
    ignored: Arc<AtomicU64>,
    _tasks: Tasks,
}

impl Fixture {
    async fn new(rules: &[&str]) -> Self {
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let (client, agent) = tokio::io::duplex(1 << 16);
        let (stdout, stdin) = tokio::io::split(client);
        let (input, output) = tokio::io::split(agent);
        let (log, tasks) = (Log::default(), Tasks::default());
        let context =
            ProcessContext { tasks: tasks.clone(), clock: Clock::system(), ignored: Arc::default() };
        let features = ClientFeatures::of(&rules);
        let connection = Connection::open((stdin, stdout), log.clone(), features, &context).await;
        let ignored = context.ignored;
        let agent = FakeAgent { lines: BufReader::new(input).lines(), output };
        Self { connection: connection.unwrap(), agent, log, ignored, _tasks: tasks }
    }

    fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    /// Calls a method that the agent answers with `response`: a result or an error.
    async fn call<T: DeserializeOwned>(&mut self, response: Value) -> Result<T, CallError> {
        let call = self.connection.call("session/new", json!({"cwd": "/"}));
        let agent = &mut self.agent;
        let respond = async {
            let request = agent.receive().await;
            assert_eq!((&request["method"], &request["params"]["cwd"]), (&json!("session/new"), &json!("/")));
            let mut response = response;
            (response["jsonrpc"], response["id"]) = ("2.0".into(), request["id"].clone());
            agent.send(&response).await;
        };
        soon(async { tokio::join!(call, respond) }).await.0
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(future)).await.expect("timed out")
}

fn text_of(inbound: Option<Inbound>) -> String {
    match inbound {
        Some(Inbound::Update(update)) => match *update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                serde_json::to_value(chunk.content).unwrap()["text"].as_str().unwrap().to_owned()
            }
            other => panic!("not a text: {other:?}"),
        },
        Some(_) => panic!("not an update"),
        None => panic!("the queue has ended"),
    }
}

#[tokio::test]
async fn a_call_returns_the_result_or_the_agents_error() {
    let mut fixture = Fixture::new(&[]).await;
    let result: Value = fixture.call(json!({"result": {"sessionId": "s"}})).await.unwrap();
    assert_eq!(result, json!({"sessionId": "s"}));
    for (error, message) in [
        (json!({"code": -32000, "message": "no"}), "no"),
        (json!({"code": -32000, "message": "no", "data": "key"}), "no: key"),
        (json!({"code": -32000, "message": "no", "data": {"details": "key"}}), "no: key"),
        (json!({"code": -32000, "message": "no", "data": {"message": "key"}}), "no: key"),
        (json!({"code": -32000, "message": "no", "data": [1]}), "no"),
    ] {
        let refused = fixture.call::<Value>(json!({"error": error})).await.unwrap_err();
        assert!(matches!(refused, CallError::Refused { code: ErrorCode::AUTH_REQUIRED, .. }), "{refused:?}");
        assert_eq!(refused.to_string(), message);
    }
    let invalid = fixture.call::<u64>(json!({"result": "text"})).await.unwrap_err();
    assert!(matches!(invalid, CallError::InvalidResponse { .. }), "{invalid:?}");
    assert!(invalid.to_string().starts_with("the agent's response to session/new is invalid: "), "{invalid}");
}

#[tokio::test]
async fn the_last_output_of_an_agent_that_has_stopped_reading_is_received() {
    let ((stdin, input), (mut output, stdout)) = (tokio::io::duplex(1 << 16), tokio::io::duplex(1 << 16));
    // The clock stands still: only the end of the output ends the connection.
    let context =
        ProcessContext { tasks: Tasks::default(), clock: Clock::manual(Time(0)), ignored: Arc::default() };
    let features = ClientFeatures::of(&[]);
    let connection =
        soon(Connection::open((stdin, stdout), Log::default(), features, &context)).await.unwrap();
    let mut inbound = connection.subscribe("s");
    drop(input);
    assert!(connection.notify("test/fails", json!({})));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let content = json!({"type": "text", "text": "last"});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    let params = json!({"sessionId": "s", "update": update});
    let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
    output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    drop(output);
    let received = tokio::select! {
        biased;
        received = inbound.recv() => text_of(received),
        () = connection.closed() => text_of(inbound.try_recv().ok()),
    };
    assert_eq!(received, "last");
    drop(connection);
    // Nothing waits for the clock.
    soon(context.tasks.wait()).await;
}

#[tokio::test]
async fn plain_text_is_logged_and_the_connection_continues() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.agent.write("ready\n  loading model\n[1, 2]\n\n").await;
    let result: Value = fixture.call(json!({"result": 1})).await.unwrap();
    assert_eq!(result, 1);
    assert_eq!(fixture.log.text(), "ready\n  loading model\n[1, 2]\n\n");
}

#[tokio::test]
async fn malformed_json_does_not_end_the_connection() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.agent.write("{\"jsonrpc\": \"2.0\", \"method\": \n").await;
    let response = fixture.agent.receive().await;
    assert_eq!((&response["id"], &response["error"]["code"]), (&Value::Null, &json!(-32700)), "{response}");
    let result: Value = fixture.call(json!({"result": 1})).await.unwrap();
    assert_eq!(result, 1);
    assert!(fixture.connection.is_open());
}

#[tokio::test]
async fn an_oversized_line_closes_the_connection() {
    let mut fixture = Fixture::new(&[]).await;
    let mut call = Box::pin(fixture.connection.call::<Value>("session/new", json!({})));
    assert!(poll!(&mut call).is_pending());
    let chunk = format!("{{\"x\": \"{}", "x".repeat(1 << 20));
    let flood = async {
        // Fails once the client has closed its end.
        while fixture.agent.output.write_all(chunk.as_bytes()).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let closed = async {
        tokio::select! { () = fixture.connection.closed() => {}, () = flood => {} }
    };
    soon(closed).await;
    assert!(matches!(soon(call).await, Err(CallError::Disconnected)));
    assert!(!fixture.connection.is_open());
}

#[tokio::test]
async fn a_closed_connection_ends_calls_and_refuses_notifications() {
    let Fixture { connection, agent, _tasks, .. } = Fixture::new(&[]).await;
    assert!(connection.notify("session/cancel", json!({"sessionId": "s"})));
    let mut call = Box::pin(connection.call::<Value>("session/new", json!({})));
    assert!(poll!(&mut call).is_pending());
    drop(agent);
    assert!(matches!(soon(call).await, Err(CallError::Disconnected)));
    soon(connection.closed()).await;
    assert!(!connection.is_open());
    let call = connection.call::<Value>("session/new", json!({}));
    assert!(matches!(soon(call).await, Err(CallError::Disconnected)));
}

#[tokio::test]
async fn unknown_methods_are_refused_and_unknown_notifications_ignored() {
    let mut fixture = Fixture::new(&["allow fs read *"]).await;
    let mut inbound = fixture.connection.subscribe("s");
    fixture.agent.send(&json!({"jsonrpc": "2.0", "method": "vendor/notice", "params": {"x": 1}})).await;
    for (method, params) in [
        ("vendor/question", json!({"sessionId": "s"})),
        // Requests that the client does not offer, because of the rules.
        ("fs/write_text_file", json!({"sessionId": "s", "path": "/x", "content": ""})),
        ("terminal/create", json!({"sessionId": "s", "command": "true"})),
        // An offered request, but for another session.
        ("fs/read_text_file", json!({"sessionId": "other", "path": "/x"})),
        ("session/request_permission", json!({"sessionId": "other"})),
        ("fs/read_text_file", json!({"path": "/x"})),
    ] {
        let response = fixture.agent.request(method, &params).await;
        assert_eq!(response["error"]["code"], -32601, "{method}: {response}");
    }
    assert_eq!(fixture.ignored(), 7);
    assert!(poll!(Box::pin(inbound.recv())).is_pending(), "nothing reached the turn");
    let read = json!({"sessionId": "s", "path": "/x"});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": read});
    fixture.agent.send(&request).await;
    let Some(Inbound::Client(request)) = soon(inbound.recv()).await else { panic!("not a client request") };
    assert_eq!((request.method.as_str(), &request.params), ("fs/read_text_file", &read));
    request.responder.respond(json!({"content": "hi"})).unwrap();
    assert_eq!(fixture.agent.receive().await["result"]["content"], "hi");
}

#[tokio::test]
async fn a_turn_receives_only_updates_of_its_own_session() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.agent.text("s", "too early").await;
    fixture.agent.sync().await;
    let mut inbound = fixture.connection.subscribe("s");
    fixture.agent.text("other", "LEAK").await;
    fixture.agent.text("s", "one").await;
    fixture.agent.update("s", &json!({"sessionUpdate": "agent_message_chunk", "content": 7})).await;
    fixture.agent.text("s", "two").await;
    assert_eq!(text_of(soon(inbound.recv()).await), "one");
    assert_eq!(text_of(soon(inbound.recv()).await), "two");
    fixture.connection.unsubscribe();
    fixture.agent.text("s", "too late").await;
    fixture.agent.sync().await;
    assert!(soon(inbound.recv()).await.is_none());
    // Three updates outside of the turn or its session, one malformed update, and two sync requests.
    assert_eq!(fixture.ignored(), 6);
}

#[tokio::test]
async fn the_response_to_a_prompt_ends_the_turn_after_its_updates() {
    let mut fixture = Fixture::new(&[]).await;
    let mut inbound = fixture.connection.subscribe("s");
    let call = fixture.connection.call::<Value>("session/prompt", json!({"sessionId": "s"}));
    let agent = &mut fixture.agent;
    let respond = async {
        let id = agent.receive().await["id"].clone();
        agent.text("s", "before").await;
        agent.send(&json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}})).await;
        agent.text("s", "AFTER").await;
        agent.sync().await;
    };
    let (result, ()) = soon(async { tokio::join!(call, respond) }).await;
    assert_eq!(result.unwrap()["stopReason"], "end_turn");
    assert_eq!(text_of(soon(inbound.recv()).await), "before");
    assert!(soon(inbound.recv()).await.is_none(), "later updates belong to no turn");
}

#[tokio::test]
async fn a_permission_request_loses_its_unknown_options_and_must_be_valid() {
    let mut fixture = Fixture::new(&[]).await;
    let mut inbound = fixture.connection.subscribe("s");
    let response =
        fixture.agent.request("session/request_permission", &json!({"sessionId": "s", "options": 7})).await;
    assert_eq!(response["error"]["code"], -32602, "{response}");
    let options = json!([{"optionId": "today", "name": "Today", "kind": "allow_today"},
                         {"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options});
    let request =
        json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params});
    fixture.agent.send(&request).await;
    let Some(Inbound::Permission(asked)) = soon(inbound.recv()).await else { panic!("not a permission") };
    let ids: Vec<String> = asked.0.options.iter().map(|option| option.option_id.to_string()).collect();
    assert_eq!(ids, ["yes"]);
    asked.1.respond(json!({"outcome": {"outcome": "cancelled"}})).unwrap();
    assert_eq!(fixture.agent.receive().await["result"]["outcome"]["outcome"], "cancelled");
}

#[tokio::test]
async fn modes_options_and_costs_are_kept_until_taken() {
    let mut fixture = Fixture::new(&[]).await;
    let mode = |mode: &str| json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
    let cost = |amount: f64, currency: &str| {
        let cost = json!({"amount": amount, "currency": currency});
        json!({"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": cost})
    };
    fixture.agent.update("s", &mode("code")).await;
    fixture.agent.update("s", &mode("plan")).await;
    fixture.agent.update("s", &cost(0.5, "USD")).await;
    fixture.agent.update("s", &cost(9.0, "EUR")).await;
    fixture
        .agent
        .update("s", &json!({"sessionUpdate": "config_option_update", "configOptions": [{"id": "m"}]}))
        .await;
    fixture.agent.sync().await;
    let connection = &fixture.connection;
    assert_eq!(connection.take_changes("s"), (Some("plan".into()), Some(vec![json!({"id": "m"})])));
    assert_eq!(connection.take_changes("s"), (None, None));
    assert_eq!((connection.take_cost("s"), connection.take_cost("s")), (Some(0.5), None));
    assert_eq!((connection.take_cost("other"), connection.take_changes("other")), (None, (None, None)));
    // The result of an open replaces earlier reports of modes and options, but not of costs.
    fixture.agent.update("s", &mode("code")).await;
    fixture.agent.update("s", &cost(0.75, "USD")).await;
    fixture.agent.sync().await;
    fixture.call::<Value>(json!({"result": {}})).await.unwrap();
    assert_eq!(fixture.connection.take_changes("s"), (None, None));
    assert_eq!(fixture.connection.take_cost("s"), Some(0.75));
}

#[tokio::test]
async fn reports_are_kept_of_a_bounded_number_of_sessions() {
    let mut fixture = Fixture::new(&[]).await;
    for no in 0..=MAX_REPORTED_SESSIONS {
        let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"});
        fixture.agent.update(&format!("s{no}"), &update).await;
        fixture.agent.sync().await;
        assert!(fixture.connection.router.lock().reports.len() <= MAX_REPORTED_SESSIONS);
    }
    let last = format!("s{MAX_REPORTED_SESSIONS}");
    assert_eq!(fixture.connection.take_changes(&last).0.as_deref(), Some("code"));
}
