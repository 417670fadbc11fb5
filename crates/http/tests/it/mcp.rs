//! The control tools over MCP at `/mcp`.

use axum::http::{Method, StatusCode};
use mainspring_kernel::adapter::{AttemptHandle, Capabilities};
use mainspring_test_support::{FnAgent, OWNER, TOKEN, TestNode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::world::{RequestBuilder, Response, Server, send_request};

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

impl Server {
    async fn key(&self, owner: &str, role: &str) -> String {
        let body = json!({"name": owner, "ownerId": owner, "role": role});
        self.post("/v1/keys", body).await.1["secret"].as_str().unwrap().to_owned()
    }

    /// Builds the request of an MCP message, without credentials.
    fn message(&self, revision: &str, method: &str, mut params: Value) -> RequestBuilder {
        let mut request = self.anonymous(Method::POST, "/mcp");
        if revision == MODERN {
            let about = [
                ("io.modelcontextprotocol/protocolVersion", json!(MODERN)),
                ("io.modelcontextprotocol/clientInfo", json!({"name": "test", "version": "1"})),
                ("io.modelcontextprotocol/clientCapabilities", json!({})),
            ];
            about.into_iter().for_each(|(name, value)| params["_meta"][name] = value);
            request = request.header("mcp-method", method);
            if let Some(name) = params["name"].as_str() {
                request = request.header("mcp-name", name);
            }
        }
        request
            .header("host", "localhost")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", revision)
            .json(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
    }

    /// Calls a tool with a credential.
    pub(crate) async fn call(&self, credential: &str, tool: &str, input: Value) -> Value {
        let call = self.message(LEGACY, "tools/call", json!({"name": tool, "arguments": input}));
        let answer = message_of(call.bearer_auth(credential).send().await).await["result"].clone();
        let text: Value = serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
        match text["ok"] == true {
            true => assert_eq!(answer["structuredContent"], text),
            false => assert_eq!(answer["isError"], true),
        }
        text
    }
}

/// Returns the JSON-RPC message of a response, which is JSON or a stream.
async fn message_of(response: Response) -> Value {
    assert_eq!(response.status(), StatusCode::OK);
    match response.headers()["content-type"] == "application/json" {
        true => response.json().await,
        false => response.frames().next().await.unwrap().data,
    }
}

#[tokio::test]
async fn both_revisions_of_the_protocol_list_the_tools_of_the_manifest() {
    let server = Server::start().await;
    let manifest = server.get("/v1/tools").await.1;
    let manifest = manifest.as_array().unwrap();
    assert_eq!(manifest.len(), 6);
    for revision in [LEGACY, MODERN] {
        let list = server.message(revision, "tools/list", json!({})).bearer_auth(TOKEN);
        let listed = message_of(list.send().await).await;
        let tools = listed["result"]["tools"].as_array().unwrap();
        assert_eq!(tools.len(), manifest.len(), "{listed}");
        for (tool, known) in tools.iter().zip(manifest) {
            for field in ["name", "title", "description", "inputSchema", "outputSchema"] {
                assert_eq!(tool[field], known[field], "{revision} {field}");
            }
            assert_eq!(tool["annotations"]["readOnlyHint"], known["access"] == "read", "{tool}");
        }
    }
    let hello =
        json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let initialize = server.message(LEGACY, "initialize", hello).bearer_auth(TOKEN);
    let initialized = message_of(initialize.send().await).await;
    assert_eq!(initialized["result"]["protocolVersion"], LEGACY, "{initialized}");
    let discover = server.message(MODERN, "server/discover", json!({})).bearer_auth(TOKEN);
    let discovered = message_of(discover.send().await).await["result"]["supportedVersions"].clone();
    assert!([LEGACY, MODERN].iter().all(|known| discovered.as_array().unwrap().contains(&json!(known))));
}

#[tokio::test]
async fn progress_of_a_long_call_is_reported_to_a_caller_that_asks_for_it() {
    let server = Server::start().await;
    let session = server.play("a", "say hi").await["sessionId"].clone();
    for revision in [LEGACY, MODERN] {
        let input = json!({"sessionId": session, "prompt": "ask who?; say thanks", "mode": "act"});
        let params =
            json!({"name": "send_agent_message", "arguments": input, "_meta": {"progressToken": revision}});
        let call = server.message(revision, "tools/call", params).bearer_auth(TOKEN).send().await;
        assert_eq!(call.status(), StatusCode::OK);
        let mut frames = call.frames();
        let progress = frames.next().await.unwrap().data;
        assert_eq!(progress["method"], "notifications/progress", "{progress}");
        assert_eq!(
            (&progress["params"]["progressToken"], &progress["params"]["progress"]),
            (&json!(revision), &json!(1.0))
        );
        // The call goes on, and has its answer when the run has ended.
        let runs = server.get("/v1/runs").await.1;
        let waiting = runs["items"].as_array().unwrap().iter().find(|run| run["status"] == "waiting_input");
        let run = waiting.unwrap();
        let answer = json!({"waitId": run["wait"]["waitId"], "answer": {"kind": "input", "input": "me"}});
        let path = format!("/v1/runs/{}/answer", run["runId"].as_str().unwrap());
        let (status, answered) = server.post(&path, answer).await;
        assert!(status.is_success(), "{answered} {run}");
        let mut message = frames.next().await.unwrap().data;
        while message["method"] == "notifications/progress" {
            message = frames.next().await.unwrap().data;
        }
        assert_eq!(message["result"]["structuredContent"]["terminalStatus"], "succeeded", "{message}");
    }
}

#[tokio::test]
async fn a_call_acts_for_the_owner_of_its_credential() {
    let server = Server::start().await;
    let (theirs, viewer) = (server.key("them", "member").await, server.key(OWNER, "viewer").await);
    let run = server.play("a", "say hi").await;
    let (run_id, session) = (run["runId"].clone(), run["sessionId"].clone());
    let own = server.call(TOKEN, "get_agent_run", json!({"runId": run_id})).await;
    assert_eq!(own["run"]["finalText"], "hi\n", "{own}");
    let foreign = server.call(&theirs, "get_agent_run", json!({"runId": run_id})).await;
    assert_eq!(foreign["error"]["code"], "not_found", "{foreign}");
    let named = server.call(&theirs, "list_agent_sessions", json!({"ownerId": OWNER})).await;
    assert_eq!(named["error"]["code"], "not_found", "{named}");
    assert_eq!(server.call(&theirs, "list_agent_sessions", json!({})).await["sessions"], json!([]));
    let message = json!({"sessionId": session, "prompt": "say again"});
    let sent = server.call(TOKEN, "send_agent_message", message.clone()).await;
    assert_eq!(sent["text"], "again\n", "{sent}");
    let refused = server.call(&viewer, "send_agent_message", message).await;
    assert_eq!(refused["error"]["reason"], "forbidden", "{refused}");
}

#[tokio::test]
async fn refused_calls_are_in_the_audit_log_with_the_ids_that_they_name() {
    let server = Server::start().await;
    let (theirs, viewer) = (server.key("them", "member").await, server.key(OWNER, "viewer").await);
    let run = server.play("a", "say hi").await;
    let (run_id, session) = (&run["runId"], &run["sessionId"]);
    let message = json!({"sessionId": session, "prompt": "say again"});
    let of_run = json!({"runId": run_id});
    for (key, tool, input, operation, about) in [
        (&theirs, "get_agent_run", of_run.clone(), "run_get", json!([run_id])),
        (&theirs, "inspect_agent_artifacts", of_run.clone(), "run_artifacts", json!([run_id])),
        (&theirs, "send_agent_message", message.clone(), "run_create", json!([session])),
        (&viewer, "send_agent_message", message, "run_create", json!([session])),
        (&viewer, "cancel_agent_run", of_run, "run_cancel", json!([run_id])),
        (&theirs, "list_agent_sessions", json!({"ownerId": OWNER}), "mcp", Value::Null),
    ] {
        let refused = server.call(key, tool, input).await;
        assert!(refused["error"].is_object(), "{tool}: {refused}");
        let (_, page) = server.get("/v1/audit?kind=refusal&limit=200").await;
        let record = page["items"].as_array().unwrap().last().unwrap();
        assert_eq!((&record["operation"], &record["about"]), (&json!(operation), &about), "{tool}: {record}");
        assert_eq!(record["by"]["type"], "key", "{tool}: {record}");
    }
    // Allowed reads are not recorded.
    let before = server.get("/v1/audit?limit=200").await.1;
    server.call(&viewer, "get_agent_run", json!({"runId": run_id})).await;
    assert_eq!(server.get("/v1/audit?limit=200").await.1["items"], before["items"]);
}

#[tokio::test]
async fn requests_are_checked_as_in_the_rest_of_the_api() {
    let server = Server::start().await;
    let list = || server.message(LEGACY, "tools/list", json!({}));
    for request in [list(), list().bearer_auth("wrong"), list().bearer_auth(&format!("msk_{TOKEN}"))] {
        let response = request.send().await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
    let code = async |request: RequestBuilder| {
        let (status, problem) = send_request(request).await;
        (status.as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
    };
    let own = list().bearer_auth(TOKEN);
    assert_eq!(code(own.header("origin", "https://evil.example")).await, (403, "forbidden_origin".into()));
    let foreign = server.request(Method::POST, "/mcp").header("host", "evil.example");
    assert_eq!(code(foreign).await, (403, "forbidden_host".into()));
    assert_eq!(code(server.request(Method::GET, "/mcp")).await, (405, "method_not_allowed".into()));
    let unknown = server.request(Method::POST, "/mcp?owner=eve").header("host", "localhost").json(&json!({}));
    assert_eq!(code(unknown).await, (400, "invalid_request".into()));
    let owner = list().bearer_auth(TOKEN).header("mainspring-owner", "x".repeat(600));
    assert_eq!(code(owner).await, (400, "invalid_request".into()));
    let large = server.request(Method::POST, "/mcp").body(vec![b' '; 32 << 20]);
    assert_eq!(code(large).await, (413, "too_large".into()));
    let metrics = server.request(Method::GET, "/metrics").send().await.text().await;
    assert!(metrics.contains("operation=\"mcp\""), "{metrics}");
}

#[tokio::test]
async fn an_agents_token_acts_for_its_own_session() {
    let (tokens, mut received) = mpsc::unbounded_channel();
    let execute = move |attempt: AttemptHandle| {
        let token = attempt.new_agent_token();
        attempt.attach_token(&token);
        tokens.send(token.secret().to_owned()).unwrap();
        async move {
            let _token = token;
            std::future::pending().await
        }
    };
    let agent = FnAgent::new(Capabilities::minimal("agent"), execute);
    let server = Server::with(TestNode::builder().adapter(agent)).await;
    let other = server.prompt("other", "hang").await;
    let body = json!({"prompt": "go", "adapter": "agent", "mode": "act", "session": {"key": "own"}});
    let run = server.post("/v1/runs", body).await.1;
    let token = received.recv().await.unwrap();
    let delegate = |parent: Value| json!({"objective": "say done", "adapterId": "script", "parentRunId": parent, "requestId": parent.to_string()});
    let made = server.call(&token, "delegate_agent", delegate(Value::Null)).await;
    assert_eq!(made["result"]["summary"], "done\n", "{made}");
    assert_eq!(made["delegation"]["parentRunId"], run["runId"]);
    let foreign = server.call(&token, "delegate_agent", delegate(other["runId"].clone())).await;
    assert_eq!(foreign["error"]["code"], "not_found", "{foreign}");
    let own = json!({"sessionId": run["sessionId"], "prompt": "hi"});
    let deadlock = server.call(&token, "send_agent_message", own).await;
    assert_eq!(deadlock["error"]["reason"], "would_deadlock", "{deadlock}");
    let prompt = server.anonymous(Method::POST, "/v1/runs").bearer_auth(&token);
    let (status, _) = send_request(prompt.json(&json!({"prompt": "hi"}))).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "the token is no key");
}

#[tokio::test]
async fn open_calls_end_with_their_key_and_when_the_server_stops() {
    let server = Server::start().await;
    let key = server.post("/v1/keys", json!({"name": "short"})).await.1;
    let session = server.play("a", "say hi").await["sessionId"].clone();
    let send = |revision: &str, credential: &str, name: &str| {
        let input = json!({"sessionId": session, "prompt": "hang", "requestId": name});
        let params = json!({"name": "send_agent_message", "arguments": input});
        server.message(revision, "tools/call", params).bearer_auth(credential)
    };
    let position = server.get("/v1/sessions/a/snapshot").await.1["position"].as_str().unwrap().to_owned();
    let mut events = server.stream("/v1/sessions/a/events", Some(&position)).await;
    // Headers come at once; the answer would come with the end of the run.
    let mut by_key = send(LEGACY, key["secret"].as_str().unwrap(), "one").send().await.frames();
    events.next_of("run.running").await;
    let mut by_token = send(LEGACY, TOKEN, "one").send().await.frames();
    let path = format!("/v1/keys/{}", key["keyId"].as_str().unwrap());
    assert_eq!(server.delete(&path).await.0, StatusCode::NO_CONTENT);
    assert_eq!(by_key.next().await, None);
    let waiting = send(MODERN, TOKEN, "one").send();
    let mut waiting = std::pin::pin!(waiting);
    tokio::select! {
        biased;
        response = waiting.as_mut() => panic!("{}", response.status()),
        () = std::future::ready(()) => {}
    }
    server.node.stop.cancel();
    assert_eq!(by_token.next().await, None);
    assert_eq!(waiting.await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let runs = server.get("/v1/runs").await.1;
    let is_running = |run: &Value| run["status"] == "running";
    assert!(runs["items"].as_array().unwrap().iter().any(is_running), "the run goes on: {runs}");
}
