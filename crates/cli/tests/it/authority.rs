//! Attacks on a server by the holder of a member's key, and by agents: actions that are not allowed have no effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::{Server, send_request};
use crate::kill::example;

mod natives;
mod rules;

/// A server with a scripted ACP agent, and a stranger with a member's key of another owner.
struct Attack {
    server: Server,
    /// The stranger's key.
    key: String,
}

impl Attack {
    async fn start(settings: &str) -> Self {
        Self::start_with(settings, &[]).await
    }

    /// Starts a server with further variables in its environment. `COMMAND` in the settings stands for the agent's command.
    async fn start_with(settings: &str, variables: &[(&str, &str)]) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let (agent, file) = (dir.path().join("agent"), dir.path().join("config.toml"));
        for folder in [&agent, &dir.path().join("work"), &dir.path().join("other")] {
            std::fs::create_dir(folder).unwrap();
        }
        let command = json!([example("acp_agent"), agent, "resume"]);
        let settings = settings.replace("COMMAND", &command.to_string());
        let text = format!(
            "adapter = \"agent\"\nmax_workers = 1\n[adapters.agent]\nkind = \"acp\"\ncommand = {command}\n{settings}\n"
        );
        std::fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap();
        let settings = [
            ("MAINSPRING_CONFIG", file.to_str().unwrap()),
            ("MAINSPRING_ADAPTER", "agent"),
            ("PATH", path.as_str()),
        ];
        let server = Server::start_in(dir.clone(), &[&settings, variables].concat());
        let key = Self::make_key(&server, json!({"name": "stranger", "ownerId": "eve"})).await;
        Self { server, key }
    }

    async fn make_key(server: &Server, key: Value) -> String {
        let (status, made) = server.post("/v1/keys", key).await;
        assert_eq!(status, 201, "{made}");
        made["secret"].as_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.dir.path().canonicalize().unwrap().join(name)
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.path("state/token")).unwrap().trim().to_owned()
    }

    /// Sends a request with a key.
    async fn with_key(&self, key: &str, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.server.client.request(method, format!("{}{path}", self.server.url));
        let (status, answer) = send_request(request.bearer_auth(key).json(body)).await;
        (status.as_u16(), answer)
    }

    /// Prompts with the key of the stranger.
    async fn prompt(&self, body: &Value) -> (u16, Value) {
        self.with_key(&self.key, Method::POST, "/v1/runs", body).await
    }

    /// Runs a prompt of the local user to its end. Returns the run.
    async fn run_locally(&self, session: &str, cwd: &Path, prompt: &str) -> Value {
        let body = json!({"prompt": prompt, "session": {"key": session}, "options": {"cwd": cwd}});
        let (status, run) = self.server.post("/v1/runs", body).await;
        assert!(status.is_success(), "{run}");
        self.server.wait_ended(&run).await
    }
}

fn read(path: &Path) -> String {
    format!("call fs/read_text_file {}", json!({"path": path}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_members_run_cannot_read_the_token_of_the_state_directory() {
    let attack = Attack::start("rules = [\"allow fs read *\"]").await;
    let (state, token) = (attack.path("state"), attack.token());
    std::os::unix::fs::symlink(&state, attack.path("work/link")).unwrap();
    std::os::unix::fs::symlink(&state, attack.path("alias")).unwrap();
    let steal = read(&state.join("token"));
    let names = [
        state.clone(),
        state.join("artifacts"),
        state.join("not-there-yet"),
        attack.path("work/link"),
        attack.path("alias"),
        attack.path("work/../state"),
        attack.path("work/../alias/."),
    ];
    for cwd in &names {
        // The stranger names the folder in the options and as the folder of a session. The local user is
        // refused too.
        let (status, problem) = attack.prompt(&json!({"prompt": steal, "options": {"cwd": cwd}})).await;
        assert_eq!((status, &problem["code"]), (403, &json!("folder_not_allowed")), "{cwd:?}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains("the state directory of mainspring"),
            "{problem}"
        );
        let (status, _) = attack.prompt(&json!({"prompt": steal, "session": {"cwd": cwd}})).await;
        assert_eq!(status, 403, "{cwd:?}");
        let session = json!({"key": "s", "cwd": cwd});
        assert_eq!(
            attack.with_key(&attack.key, Method::POST, "/v1/sessions", &session).await.0,
            403,
            "{cwd:?}"
        );
        let (status, _) =
            attack.server.post("/v1/runs", json!({"prompt": steal, "options": {"cwd": cwd}})).await;
        assert_eq!(status, 403, "{cwd:?}");
    }
    // The folder of an existing session cannot be changed to the state directory either.
    attack.with_key(&attack.key, Method::POST, "/v1/sessions", &json!({"key": "mine"})).await;
    let moved =
        attack.with_key(&attack.key, Method::PATCH, "/v1/sessions/mine", &json!({"cwd": state})).await;
    assert_eq!((moved.0, &moved.1["code"]), (403, &json!("folder_not_allowed")), "{moved:?}");
    // A folder that contains the state directory is allowed to the local user; the files in the directory are not.
    let home = attack.path("");
    for path in [state.join("token"), home.join("alias/token"), home.join("work/link/token")] {
        let run = attack.run_locally("home", &home, &read(&path)).await;
        let text = run["finalText"].as_str().unwrap();
        assert!(text.starts_with("-32602") && !text.contains(&token), "{path:?}: {run}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_other_owners_get_the_folders_that_are_configured_for_them() {
    let attack = Attack::start("rules = [\"allow fs read *\"]").await;
    let (work, other) = (attack.path("work"), attack.path("other"));
    std::fs::write(work.join("file"), "content").unwrap();
    std::os::unix::fs::symlink(&other, work.join("out")).unwrap();
    // Nothing is configured. The answer does not say whether a folder exists.
    for cwd in [work.clone(), attack.path("none"), PathBuf::from("/")] {
        let (status, problem) = attack.prompt(&json!({"prompt": "hi", "options": {"cwd": cwd}})).await;
        assert_eq!((status, &problem["code"]), (403, &json!("folder_not_allowed")), "{cwd:?}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("key with `--folder`"), "{problem}");
    }
    // The folder in which the server was started is not a configured folder.
    let (status, problem) = attack.prompt(&json!({"prompt": "hi"})).await;
    assert_eq!((status, &problem["code"]), (403, &json!("folder_not_allowed")), "{problem}");
    let key = json!({"name": "worker", "ownerId": "eve", "folders": [work]});
    let key = Attack::make_key(&attack.server, key).await;
    let run = async |cwd: &Path| {
        let body = json!({"prompt": read(&work.join("file")), "options": {"cwd": cwd}});
        attack.with_key(&key, Method::POST, "/v1/runs", &body).await
    };
    let (status, accepted) = run(&work).await;
    assert!(status == 202 || status == 200, "{accepted}");
    assert_eq!(accepted["options"]["folders"], json!([work]), "{accepted}");
    for cwd in [&other, &work.join("out"), &work.join("../other"), &attack.path("workshop")] {
        assert_eq!(run(cwd).await.0, 403, "{cwd:?}");
    }
    // A key cannot make another key with more folders, and a request cannot name the folders of a run.
    let admin = json!({"name": "admin", "ownerId": "eve", "role": "admin", "folders": [work]});
    let admin = Attack::make_key(&attack.server, admin).await;
    let wider = json!({"name": "wider", "ownerId": "eve", "folders": ["/"]});
    assert_eq!(attack.with_key(&admin, Method::POST, "/v1/keys", &wider).await.0, 403);
    let same =
        attack.with_key(&admin, Method::POST, "/v1/keys", &json!({"name": "same", "ownerId": "local"})).await;
    assert_eq!(same.1["folders"], json!([work]), "{same:?}");
    let named = json!({"prompt": "hi", "options": {"cwd": other, "folders": ["/"]}});
    assert_eq!(attack.with_key(&key, Method::POST, "/v1/runs", &named).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folders_of_an_adapter_apply_to_every_owner() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = dir.path().canonicalize().unwrap();
    let attack = Attack::start(&format!("folders = [{allowed:?}]")).await;
    for (cwd, allowed) in [(&allowed, true), (&attack.path("work"), false)] {
        let body = json!({"prompt": "hi", "options": {"cwd": cwd}});
        let (of_stranger, answer) = attack.prompt(&body).await;
        assert_eq!(of_stranger != 403, allowed, "{cwd:?}: {answer}");
        let (of_local, answer) = attack.server.post("/v1/runs", body).await;
        assert_eq!(of_local != 403, allowed, "{cwd:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_replaced_by_a_link_after_acceptance_is_checked_again() {
    let attack = Attack::start("rules = [\"allow fs read *\"]").await;
    let (state, work) = (attack.path("state"), attack.path("work"));
    let blocker = attack.server.prompt("first", "hang").await;
    let body = json!({
        "prompt": read(&work.join("token")), "session": {"key": "second"}, "options": {"cwd": work},
    });
    let (status, queued) = attack.server.post("/v1/runs", body).await;
    assert_eq!((status.as_u16(), &queued["status"]), (202, &json!("queued")), "{queued}");
    std::fs::remove_dir(&work).unwrap();
    std::os::unix::fs::symlink(&state, &work).unwrap();
    let cancel = format!("/v1/runs/{}/cancel", blocker["runId"].as_str().unwrap());
    assert!(send_request(attack.server.request(Method::POST, &cancel)).await.0.is_success());
    let run = attack.server.wait_ended(&queued).await;
    assert_eq!(
        (&run["status"], &run["error"]["code"]),
        (&json!("failed"), &json!("folder_not_allowed")),
        "{run}"
    );
    assert!(!run.to_string().contains(&attack.token()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_a_program_admits_no_shell_and_no_variable_that_runs_another() {
    let attack = Attack::start("rules = [\"allow terminal run git diff*\", \"deny terminal run *\"]").await;
    let (work, marker) = (attack.path("work"), attack.path("marker"));
    let script = attack.path("script");
    std::fs::write(&script, format!("#!/bin/sh\ntouch '{}'\n", marker.display())).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let git = |arguments: &[&str]| {
        let git = std::process::Command::new("git").current_dir(&work).args(arguments).output();
        assert!(git.unwrap().status.success(), "git {arguments:?}");
    };
    git(&["init", "--quiet"]);
    std::fs::write(work.join("file"), "one\n").unwrap();
    git(&["add", "file"]);
    std::fs::write(work.join("file"), "two\n").unwrap();
    let run = async |request: Value| {
        let script = format!(
            "call terminal/create {request}; call terminal/wait_for_exit {{\"terminalId\": \"$T\"}}; \
             call terminal/output {{\"terminalId\": \"$T\"}}"
        );
        let run = attack.run_locally("s", &work, &script).await;
        assert!(!marker.exists(), "{request} ran another program");
        run["finalText"].as_str().unwrap().to_owned()
    };
    let touch = format!("touch {}", marker.display());
    for command in [
        json!({"command": format!("git diff && {touch}")}),
        json!({"command": format!("git diff $({touch})")}),
        json!({"command": format!("git diff\n{touch}")}),
        json!({"command": "sh", "args": ["-c", format!("git diff && {touch}")]}),
        json!({"command": "./git", "args": ["diff"]}),
        json!({"command": "git", "args": ["-c", format!("diff.external={}", script.display()), "diff"]}),
    ] {
        let text = run(command.clone()).await;
        assert!(text.starts_with("-32600"), "{command}: {text}");
    }
    let allowed = json!({"command": "git", "args": ["diff"], "env": [
        {"name": "GIT_EXTERNAL_DIFF", "value": script}, {"name": "PATH", "value": work},
    ]});
    let text = run(allowed).await;
    assert!(text.contains("+two"), "the command itself runs: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_pattern_does_not_hang_the_server() {
    let pattern = format!("{}b", "*a".repeat(60));
    let attack =
        Attack::start(&format!("rules = [\"deny terminal run {pattern}\", \"deny tool * {pattern}\"]")).await;
    let waiting = async |key: &str, body: Value| {
        let request = attack.server.client.post(format!("{}/v1/runs", attack.server.url));
        send_request(request.bearer_auth(key).header("prefer", "wait=60").json(&body)).await.1
    };
    // The pattern is in a rule, matched with a text of the agent, and in a definition of the stranger,
    // matched with the name of a tool.
    let body = json!({"prompt": format!("ask {}", "a".repeat(400)), "session": {"key": "s"}});
    let run = waiting(&attack.server.token, body).await;
    assert_eq!(run["status"], "waiting_approval", "{run}");
    let definition = json!({"id": "slow", "model": "scripted/any", "deny": [pattern]});
    let (status, made) = attack.with_key(&attack.key, Method::POST, "/v1/agents", &definition).await;
    assert_eq!(status, 201, "{made}");
    let name = "a".repeat(60);
    let body = json!({
        "prompt": format!("tool {name} {{}}"), "adapter": "native",
        "session": {"key": "slow", "agentDefinition": "slow"},
        "options": {"tools": [{"name": name, "description": "", "inputSchema": {"type": "object"}}]},
    });
    let run = waiting(&attack.key, body).await;
    assert_eq!(run["status"], "waiting_input", "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_agent_gets_no_variables_with_the_sockets_of_the_login_session() {
    let runtime = tempfile::tempdir().unwrap();
    let folder = runtime.path().to_str().unwrap();
    let names = ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK"];
    for (settings, told) in
        [("", 0), ("pass_env = [\"XDG_RUNTIME_DIR\", \"SSH_AUTH_SOCK\"]", 2), ("sandbox = \"off\"", 1)]
    {
        let attack = Attack::start_with(settings, &names.map(|name| (name, folder))).await;
        let script = format!("told:; {}", names.map(|name| format!("env {name}")).join("; "));
        let run = attack.run_locally("s", &attack.path("work"), &script).await;
        let text = run["finalText"].as_str().unwrap();
        assert_eq!(text.matches(folder).count(), told, "{settings}: {text}");
    }
}
