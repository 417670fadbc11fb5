//! Servers that share the work: agents and tools at one of them reach sessions of another, also while that one is killed.

use futures_util::stream;

use super::*;

/// The agent definition that may use the control tools.
const KEEPER: &str = "keeper";

impl Servers {
    /// Starts servers that share the work, with an agent that has the control tools.
    async fn with_keeper(count: usize) -> Self {
        let servers = Self::start_with(count, true).await;
        let definition =
            json!({"id": KEEPER, "model": "scripted/any", "tools": ["*_agent_*", "delegate_agent"]});
        send(servers.request(0, Method::POST, "/v1/agents").json(&definition)).await.unwrap();
        servers
    }

    /// Makes an idle session at a server. Returns its id.
    async fn idle_session(&self, n: usize, key: &str) -> String {
        let run = self.prompt(n, key, "say hello").await;
        assert_eq!(self.home(key), Some(n));
        self.ended(n, run["runId"].as_str().unwrap()).await;
        run["sessionId"].as_str().unwrap().to_owned()
    }

    /// Makes an idle session at a server, with an agent that enforces the limits of work delegated to it.
    /// Returns the session's id.
    async fn idle_agent(&self, n: usize, key: &str) -> String {
        let run = self.prompt_agent(n, key, "say hello").await;
        self.ended(n, run["runId"].as_str().unwrap()).await;
        run["sessionId"].as_str().unwrap().to_owned()
    }

    /// Starts a run of the agent that calls `tool`, at a server.
    async fn call_by_agent(&self, n: usize, key: &str, tool: &str, input: &Value) -> Value {
        self.prompt_agent(n, key, &format!("tool {tool} {input}\nsay done")).await
    }

    async fn prompt_agent(&self, n: usize, key: &str, prompt: &str) -> Value {
        let session = json!({"key": key, "agentDefinition": KEEPER, "adapter": "native"});
        let body = json!({"prompt": prompt, "adapter": "native", "session": session});
        let run = send(self.request(n, Method::POST, "/v1/runs").json(&body)).await.unwrap();
        assert_eq!(self.home(key), Some(n));
        run
    }

    /// Waits until a run has ended, through the server `n`.
    async fn ended(&self, n: usize, run: &str) -> Value {
        let path = format!("/v1/runs/{run}");
        until(async || {
            let run = send(self.request(n, Method::GET, &path)).await?;
            let is_over = !["queued", "starting", "running", "cancelling"].contains(&run["status"].as_str()?);
            is_over.then_some(run)
        })
        .await
    }

    /// Waits until a run has delegated work. Returns the delegation.
    async fn delegated(&self, n: usize, run: &str) -> Value {
        let path = format!("/v1/runs/{run}/delegations");
        until(async || {
            let found = send(self.request(n, Method::GET, &path)).await?;
            let child = found["children"].get(0)?.clone();
            Some(child)
        })
        .await
    }

    /// Waits until a run executes, through the server `n`.
    async fn runs(&self, n: usize, run: &str) {
        let path = format!("/v1/runs/{run}");
        until(async || {
            let run = send(self.request(n, Method::GET, &path)).await?;
            (run["status"] == "running").then_some(())
        })
        .await;
    }

    /// Calls a control tool over MCP at a server.
    async fn call_tool(&self, n: usize, tool: &str, input: &Value) -> Value {
        let params = json!({"name": tool, "arguments": input});
        let request = self.request(n, Method::POST, "/mcp");
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.header("mcp-protocol-version", "2025-11-25");
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let answer = request.json(&message).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        let message = match answer.headers()["content-type"] == "application/json" {
            true => answer.json::<Value>().await.unwrap(),
            false => EventStream::new(answer.bytes_stream()).next().await.unwrap().data,
        };
        serde_json::from_str(message["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reaches_sessions_of_other_servers_and_their_end_is_known_when_servers_are_killed() {
    let mut servers = Servers::with_keeper(3).await;
    let [first, second] = [servers.idle_agent(1, "first").await, servers.idle_agent(2, "second").await];
    // A message to a session of another server.
    let message = json!({"sessionId": first, "prompt": "say green"});
    let asker = servers.call_by_agent(0, "asker", "send_agent_message", &message).await;
    let ended = servers.ended(2, asker["runId"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "succeeded", "{ended}\n{}", servers.log(0));
    let made = servers.delegated(1, asker["runId"].as_str().unwrap()).await;
    assert_eq!((&made["status"], &made["childSessionId"]), (&json!("succeeded"), &json!(first)), "{made}");
    assert_eq!(servers.home("first"), Some(1), "the session stays where it is");
    let child = servers.ended(0, made["childRunId"].as_str().unwrap()).await;
    assert_eq!(child["parentRunId"], asker["runId"], "{child}");
    assert_eq!(child["finalText"].as_str().map(str::trim), Some("green"), "{child}");

    // The server of the child is killed: the delegation fails, and its parent goes on.
    let work = json!({"mode": "continue", "childSessionId": first, "objective": "sleep 60m"});
    let parent = servers.call_by_agent(0, "parent", "delegate_agent", &work).await;
    let made = servers.delegated(0, parent["runId"].as_str().unwrap()).await;
    servers.runs(0, made["childRunId"].as_str().unwrap()).await;
    servers.children.kill(1);
    let ended = servers.ended(0, parent["runId"].as_str().unwrap()).await;
    assert_eq!(
        (&ended["status"], ended["finalText"].as_str().map(str::trim)),
        (&json!("succeeded"), Some("done")),
        "{ended}"
    );
    let settled = servers.delegated(0, parent["runId"].as_str().unwrap()).await;
    assert_eq!((&settled["status"], &settled["delegationId"]), (&json!("failed"), &made["delegationId"]));
    let child = servers.ended(0, made["childRunId"].as_str().unwrap()).await;
    assert_eq!((&child["status"], &child["attempts"]), (&json!("orphaned"), &json!(1)), "{child}");
    let list = format!("/v1/runs?session={first}");
    let runs = until(async || send(servers.request(0, Method::GET, &list)).await).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 3, "one run for each request: {runs}");

    // The server of the parent is killed: the child is cancelled.
    let work = json!({"mode": "continue", "childSessionId": second, "objective": "sleep 60m"});
    let parent = servers.call_by_agent(0, "lost", "delegate_agent", &work).await;
    let made = servers.delegated(0, parent["runId"].as_str().unwrap()).await;
    servers.runs(2, made["childRunId"].as_str().unwrap()).await;
    servers.children.kill(0);
    let ended = servers.ended(2, parent["runId"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "orphaned", "{ended}");
    let child = servers.ended(2, made["childRunId"].as_str().unwrap()).await;
    assert_eq!(child["status"], "cancelled", "{child}");
    until(async || {
        let settled = servers.delegated(2, parent["runId"].as_str().unwrap()).await;
        (settled["status"] == "cancelled").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_mcp_reach_sessions_of_any_server() {
    let servers = Servers::start_with(2, true).await;
    let session = servers.idle_session(1, "theirs").await;
    let answer =
        servers.call_tool(0, "send_agent_message", &json!({"sessionId": session, "prompt": "say red"})).await;
    assert_eq!((&answer["ok"], &answer["text"]), (&json!(true), &json!("red\n")), "{answer}");
    let run = servers.prompt(1, "theirs", "sleep 60m").await;
    servers.runs(0, run["runId"].as_str().unwrap()).await;
    let listed = servers.call_tool(0, "list_agent_sessions", &json!({})).await;
    assert_eq!(listed["sessions"][0]["activeRun"]["runId"], run["runId"], "{listed}");
    let answer = servers.call_tool(0, "cancel_agent_run", &json!({"runId": run["runId"]})).await;
    assert_eq!(answer["ok"], true, "{answer}");
    let ended = servers.ended(0, run["runId"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_prompt_finds_its_session_by_its_key_at_any_server() {
    let servers = Servers::start_with(2, true).await;
    let session = servers.idle_session(1, "theirs").await;
    let text = "x".repeat(600 << 10);
    let body = json!({"prompt": format!("say {text}"), "adapter": "script", "session": {"key": "theirs"}});
    let whole = servers.request(0, Method::POST, "/v1/runs").json(&body);
    // The same without a length, in pieces.
    let bytes = serde_json::to_vec(&body).unwrap();
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        bytes.chunks(50_000).map(|piece| Ok(piece.to_vec())).collect();
    let in_pieces = servers.request(0, Method::POST, "/v1/runs").header("content-type", "application/json");
    let in_pieces = in_pieces.body(reqwest::Body::wrap_stream(stream::iter(pieces)));
    for request in [whole, in_pieces] {
        let answer = request.send().await.unwrap();
        let (status, run) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert!(status.is_success(), "{status}: {run}");
        assert_eq!(run["sessionId"], session);
        let ended = servers.ended(0, run["runId"].as_str().unwrap()).await;
        assert_eq!(ended["finalText"].as_str().map(|said| said.trim().len()), Some(text.len()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_server_can_mark_a_request_as_forwarded() {
    let servers = Servers::start_with(2, true).await;
    let other = 1 - servers.active().unwrap();
    let hook = json!({"url": "https://hooks.example.com/x", "types": ["run.succeeded"]});
    for hops in ["1", "2", "255", "x"] {
        let request = servers.request(other, Method::POST, "/v1/webhooks").json(&hook);
        let answer = request.header("mainspring-forwarded", hops).send().await.unwrap();
        let (status, problem) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")), "{problem}");
    }
    // With a valid proof and the maximum number of forwards, the server refuses: the leader would not learn of the
    // webhook.
    let context = "mainspring 2026-11-18 requests between the servers of a cluster";
    let key = blake3::derive_key(context, b"a secret of all servers");
    let proof = blake3::keyed_hash(&key, b"forwarded 2").to_hex().to_string();
    let request = servers.request(other, Method::POST, "/v1/webhooks").json(&hook);
    let request = request.header("mainspring-forwarded", "2").header("mainspring-cluster-proof", &proof);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text().await.unwrap());
    let request = servers.request(other, Method::POST, "/cluster/requests").json(&json!({}));
    assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    let listed = send(servers.request(other, Method::GET, "/v1/webhooks")).await.unwrap();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(0), "{listed}");
    // Without the header it goes to the leader.
    let request = servers.request(other, Method::POST, "/v1/webhooks").json(&hook);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::CREATED);
}
