//! The attacks of SECURITY.md that no other test runs against the real program. Each test makes several attacks on one
//! server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::run;
use crate::http::{Server, send_request};
use crate::kill::example;

/// A server with a scripted ACP agent, agent definitions of the operator, and a folder in which members may work.
struct Target {
    server: Server,
}

impl Target {
    fn start(settings: &str) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        for folder in ["agent", "agents", "work"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let tight = "id = \"tight\"\nmodel = \"scripted/any\"\n[limits]\nmax_steps = 1\n";
        std::fs::write(dir.path().join("agents/tight.toml"), tight).unwrap();
        let keeper = "id = \"keeper\"\nmodel = \"scripted/any\"\ntools = [\"*_agent_*\"]\n";
        std::fs::write(dir.path().join("agents/keeper.toml"), keeper).unwrap();
        let command = json!([example("acp_agent"), dir.path().join("agent"), "resume"]);
        let text = format!(
            "agents_dir = {:?}\n[adapters.agent]\nkind = \"acp\"\ncommand = {command}\n{settings}\n",
            dir.path().join("agents")
        );
        let file = dir.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap();
        let variables = [("MAINSPRING_CONFIG", file.to_str().unwrap()), ("PATH", path.as_str())];
        Self { server: Server::start_in(dir, &variables) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.dir.path().canonicalize().unwrap().join(name)
    }

    /// Makes a key with the token of the state directory.
    async fn key(&self, key: Value) -> String {
        let (status, made) = self.server.post("/v1/keys", key).await;
        assert_eq!(status, 201, "{made}");
        made["secret"].as_str().unwrap().to_owned()
    }

    async fn member(&self, owner: &str) -> String {
        self.key(json!({"name": owner, "ownerId": owner, "folders": [self.path("work")]})).await
    }

    async fn send(&self, key: &str, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.server.client.request(method, format!("{}{path}", self.server.url));
        let request = request.bearer_auth(key).header("prefer", "wait=30");
        let request = if body.is_null() { request } else { request.json(body) };
        let (status, answer) = send_request(request).await;
        (status.as_u16(), answer)
    }

    async fn post(&self, key: &str, path: &str, body: &Value) -> (u16, Value) {
        self.send(key, Method::POST, path, body).await
    }

    /// Waits for the end of a run: its stream ends with it.
    async fn ended(&self, key: &str, run: &Value) -> Value {
        let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
        loop {
            let run = self.send(key, Method::GET, &path, &Value::Null).await.1;
            if ["succeeded", "failed", "cancelled", "timed_out"].iter().any(|status| run["status"] == *status)
            {
                return run;
            }
            let stream = self.server.client.get(format!("{}{path}/events", self.server.url)).bearer_auth(key);
            stream.header("accept", "text/event-stream").send().await.unwrap().text().await.unwrap();
        }
    }

    /// Sends a prompt and waits for the end of its run.
    async fn prompt(&self, key: &str, body: &Value) -> Value {
        let (status, run) = self.post(key, "/v1/runs", body).await;
        assert!((200..300).contains(&status), "{run}");
        run
    }
}

/// M1, M6, L1, L3: attacks by an admin of another org, and by a member, on a shared server.
#[tokio::test(flavor = "multi_thread")]
async fn members_cannot_take_owners_change_logins_imitate_names_or_read_figures_of_others() {
    let target = Target::start("");
    let admin = async |org: &str| {
        let owner = format!("boss of {org}");
        target.key(json!({"name": org, "ownerId": owner, "orgId": org, "role": "admin"})).await
    };
    let (acme, beta) = (admin("acme").await, admin("beta").await);
    let newcomer = json!({"name": "k", "ownerId": "newcomer"});
    let (status, made) = target.post(&acme, "/v1/keys", &newcomer).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(target.post(&beta, "/v1/keys", &newcomer).await.0, 403, "the owner is of the other org");
    let revoke = format!("/v1/keys/{}", made["keyId"].as_str().unwrap());
    assert!(target.send(&acme, Method::DELETE, &revoke, &Value::Null).await.0 < 300);
    assert_eq!(target.post(&beta, "/v1/keys", &newcomer).await.0, 403, "also without a key");

    let (status, problem) =
        target.post(&acme, "/v1/adapters/agent/logins", &json!({"methodId": "none"})).await;
    assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{problem}");

    for name in ["\u{430}da", "ada\u{202e}", "a\u{200b}da"] {
        let (status, problem) = target.server.post("/v1/keys", json!({"name": "k", "ownerId": name})).await;
        assert_eq!((status.as_u16(), &problem["code"]), (400, &json!("invalid_name")), "{name:?}: {problem}");
    }

    let (ada, eve) = (target.member("ada").await, target.member("eve").await);
    target.prompt(&ada, &json!({"prompt": "say mine", "session": {"key": "secret"}})).await;
    assert_eq!(target.send(&eve, Method::GET, "/metrics", &Value::Null).await.0, 403);
    assert_eq!(target.send(&eve, Method::GET, "/v1/sessions/secret", &Value::Null).await.0, 404);
    let (_, sessions) = target.send(&eve, Method::GET, "/v1/sessions", &Value::Null).await;
    assert!(!sessions.to_string().contains("secret"), "{sessions}");
}

/// M4: a native session stays with the owner who had it first, and its id is not a path.
#[tokio::test(flavor = "multi_thread")]
async fn a_native_session_of_another_owner_is_not_adopted() {
    let target = Target::start("");
    let (ada, eve) = (target.member("ada").await, target.member("eve").await);
    let adopt = async |key: &str, session: &str, native: &str| {
        let body = json!({
            "session": {"key": session}, "adapter": "agent", "adapterNativeSessionId": native,
            "cwd": target.path("work"),
        });
        target.post(key, "/v1/adopt", &body).await
    };
    let body = json!({
        "prompt": "say mine", "adapter": "agent", "session": {"key": "a"}, "options": {"cwd": target.path("work")},
    });
    let run = target.prompt(&ada, &body).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let (_, bindings) = target.send(&ada, Method::GET, "/v1/sessions/a/bindings", &Value::Null).await;
    let native = bindings["items"][0]["adapterNativeSessionId"].as_str().unwrap().to_owned();
    assert_eq!(adopt(&eve, "e", &native).await.0, 400);
    assert!(target.send(&ada, Method::DELETE, "/v1/sessions/a", &Value::Null).await.0 < 300);
    let (status, problem) = adopt(&eve, "e", &native).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_request")), "{problem}");
    for native in ["/etc/passwd", "../other.jsonl", "a/b", "..", "~/x", "a\\b"] {
        assert_eq!(adopt(&eve, "e", native).await.0, 400, "{native}");
    }
    assert_eq!(adopt(&ada, "b", &native).await.0, 201, "its own owner may");
}

/// M7, M8, L4, L5, L6: attacks with a limited key, with a key that expires and from a page of another origin.
#[tokio::test(flavor = "multi_thread")]
async fn keys_cannot_exceed_their_limits_and_a_repeated_header_is_refused() {
    let target = Target::start("");
    let ada = target.member("ada").await;
    let lists = json!({"name": "limited", "ownerId": "ada", "adapters": ["script"], "folders": [target.path("work")]});
    let limited = target.key(lists).await;
    let body = json!({
        "prompt": "say mine", "adapter": "agent", "session": {"key": "a", "adapter": "agent"},
        "options": {"cwd": target.path("work")},
    });
    target.prompt(&ada, &body).await;
    let change = json!({"systemPrompt": "obey eve"});
    let (status, problem) = target.send(&limited, Method::PATCH, "/v1/sessions/a", &change).await;
    assert_eq!((status, &problem["code"]), (403, &json!("not_allowed_by_key")), "{problem}");
    assert_eq!(
        target.send(&limited, Method::GET, "/v1/sessions/a", &Value::Null).await.0,
        200,
        "it may read"
    );

    let soon = json!({"name": "admin", "ownerId": "boss", "orgId": "acme", "role": "admin", "expiresAtMs": 4_000_000_000_000_u64});
    let admin = target.key(soon).await;
    let forever =
        json!({"name": "k", "ownerId": "boss", "orgId": "acme", "expiresAtMs": 5_000_000_000_000_u64});
    assert_eq!(target.post(&admin, "/v1/keys", &forever).await.0, 403);
    let (status, made) = target.post(&admin, "/v1/keys", &json!({"name": "k", "ownerId": "boss"})).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["expiresAtMs"], 4_000_000_000_000_u64, "{made}");

    let eve = target.member("eve").await;
    for owner in [&ada, &eve] {
        let (status, stored) = target.send(owner, Method::PUT, "/v1/state/mood", &json!("calm")).await;
        assert!(status < 300, "{stored}");
        assert_eq!(stored["version"], 1, "{stored}");
    }
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "get_agent_run", "arguments": {"runId": "run_00000000000000000000000000000000"}},
    });
    let request = target.server.client.post(format!("{}/mcp", target.server.url)).bearer_auth(&eve);
    let request = request.header("accept", "application/json, text/event-stream").json(&call);
    // The response is a stream: the call has ended when the stream ends.
    request.send().await.unwrap().text().await.unwrap();
    let (_, records) = target.send(&eve, Method::GET, "/v1/audit", &Value::Null).await;
    assert!(records.to_string().contains("run_00000000000000000000000000000000"), "{records}");

    let twice = target.server.client.get(format!("{}/v1/sessions", target.server.url)).bearer_auth(&ada);
    let (status, problem) = send_request(twice.header("authorization", format!("Bearer {eve}"))).await;
    assert_eq!(status.as_u16(), 400, "{problem}");
    let other = target.server.client.get(format!("{}/v1/sessions", target.server.url)).bearer_auth(&ada);
    let port = target.server.url.rsplit(':').next().unwrap();
    let (status, problem) = send_request(other.header("origin", format!("https://127.0.0.1:{port}"))).await;
    assert_eq!(status.as_u16(), 403, "{problem}");
}

/// H3, M5: the limits of a parent and of a shared definition apply to messages, options and retries.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_not_raised_by_messages_options_and_retries() {
    let target = Target::start("");
    let eve = target.member("eve").await;
    let native = |key: &str, agent: &str, prompt: &str, limits: Value| {
        json!({
            "prompt": prompt, "adapter": "native", "options": {"limits": limits},
            "session": {"key": key, "agentDefinition": agent, "adapter": "native"},
        })
    };
    let wanted = json!({"maxSteps": 50, "ask": true});
    let body =
        native("tight", "tight", "tool nothing {}\nsay one\ntool nothing {}\nsay done", wanted.clone());
    let run = target.prompt(&eve, &body).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("limit_reached")), "{run}");
    let retry = format!("/v1/runs/{}/retry", run["runId"].as_str().unwrap());
    let (status, retried) = target.post(&eve, &retry, &json!({"limits": wanted})).await;
    assert!(status < 300, "{retried}");
    let run = target.ended(&eve, &run).await;
    assert_eq!((&run["attempts"], &run["error"]["code"]), (&json!(2), &json!("limit_reached")), "{run}");

    let other = target.prompt(&eve, &native("other", "keeper", "say hello", json!({}))).await;
    let message = json!({"sessionId": other["sessionId"], "prompt": "say green"});
    let script = format!("tool send_agent_message {message}\nsay done");
    let run = target.prompt(&eve, &native("keeper", "keeper", &script, json!({"maxTokens": 100_000}))).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let kin = format!("/v1/runs/{}/delegations", run["runId"].as_str().unwrap());
    let (_, kin) = target.send(&eve, Method::GET, &kin, &Value::Null).await;
    let child = format!("/v1/runs/{}", kin["children"][0]["childRunId"].as_str().unwrap());
    let (_, child) = target.send(&eve, Method::GET, &child, &Value::Null).await;
    assert_eq!(child["parentRunId"], run["runId"], "{child}");
    assert!(child["options"]["limits"]["maxTokens"].as_u64().unwrap() < 100_000, "{child}");
}

/// S5: a schema whose references multiply is refused before it is compared, and the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_whose_references_multiply_does_not_hang_the_server() {
    let target = Target::start("");
    let (ada, eve) = (target.member("ada").await, target.member("eve").await);
    let definition = |at: u32| {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        (format!("d{at}"), json!({"allOf": vec![next; 10]}))
    };
    let mut definitions: serde_json::Map<String, Value> = (0..12).map(definition).collect();
    definitions.insert("d12".into(), json!({"type": "string"}));
    let schema = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
    for session in 0..4 {
        let body = json!({
            "prompt": "say \"x\"", "adapter": "native", "session": {"key": format!("s{session}")},
            "options": {"model": "scripted/any", "outputSchema": schema},
        });
        let run = target.prompt(&eve, &body).await;
        assert!(run.to_string().contains("too much work"), "{run}");
    }
    let run = target.prompt(&ada, &json!({"prompt": "say hi", "session": {"key": "work"}})).await;
    assert_eq!(run["status"], "succeeded", "{run}");
}

/// H5: an agent that may run every command reads neither the token nor the variables of the server.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_run_everything_reads_no_token() {
    let target = Target::start("rules = [\"allow terminal run *\"]");
    let state = target.path("state");
    let token = std::fs::read_to_string(state.join("token")).unwrap().trim().to_owned();
    let environ = PathBuf::from(format!("/proc/{}/environ", target.server.id()));
    for file in [state.join("token"), state.join("mainspring.sqlite3"), environ] {
        let create = json!({"command": "cat", "args": [file]});
        let script = format!(
            "call terminal/create {create}; call terminal/wait_for_exit {{\"terminalId\": \"$T\"}}; \
             call terminal/output {{\"terminalId\": \"$T\"}}"
        );
        let body = json!({
            "prompt": script, "adapter": "agent", "session": {"key": "s"}, "options": {"cwd": target.path("work")},
        });
        let run = target.prompt(&target.server.token, &body).await;
        let text = run["finalText"].as_str().unwrap_or_default();
        assert!(text.contains("ermission denied"), "{}: {run}", file.display());
        assert!(!run.to_string().contains(&token), "{}: {run}", file.display());
    }
}

/// H6: the native agent cannot use `mainspring mcp` as an MCP server, which would let it name any owner.
#[test]
fn mainspring_as_an_mcp_server_of_its_own_agent_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_mainspring"));
    let config = format!("[mcp.ms]\ncommand = {program:?}\nargs = [\"mcp\", \"--owner\", \"eve\"]\n");
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let refused = run(dir.path(), &["prompt", "say hi"]);
    assert!(refused.code != 0 && refused.err.contains("built in"), "{}{}", refused.out, refused.err);
}

/// M3: text of agents and titles cannot rewrite a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn text_of_agents_is_printed_without_control_sequences() {
    let target = Target::start("");
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2Jall is \u{202e}well";
    let body = json!({
        "prompt": format!("say {hostile}"), "session": {"key": "s", "metadata": {"x": hostile}},
    });
    target.prompt(&target.server.token, &body).await;
    let dir = target.server.dir.path();
    for arguments in [
        &["session", "show", "s"][..],
        &["session", "tree", "s"],
        &["session", "search", "owned"],
        &["run", "list"],
    ] {
        let shown = run(dir, arguments);
        let text = shown.out + &shown.err;
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{arguments:?}: {text:?}");
    }
}
