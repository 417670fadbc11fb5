//! Networks of agents in the real binary: their drawings, and a kill at each step.

use std::path::Path;
use std::process::{Command, Stdio};

use mainspring_model_server::{Action, Gate, ModelServer, Protocol, Reply};
use serde_json::{Value, json};

use crate::cli::config_variable;
use crate::jsonl::Host;

const TEAM: &str = "id = \"team\"\nprofile = \"main_reasoner\"\n[network]\nmembers = [{ agent = \"planner\" }, \
                    { agent = \"writer\" }, { agent = \"critic\" }]\n[network.router]\n\
                    rules = [{ when = \"calls == 0\", to = [\"planner\"] }, \
                    { when = \"calls == 1\", to = [[\"writer\", \"critic\"]] }]\n[network.router.model]\n";

/// The replies of a run, in order: those of the parallel members are alike.
fn replies() -> Vec<Reply> {
    vec![
        Reply::tool("state_set", json!({"key": "plan", "value": "rhyme"})),
        Reply::text("roses"),
        Reply::text("roses"),
        Reply::tool("done", json!({"summary": "a poem"})),
    ]
}

fn mainspring(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command
        .env_clear()
        .env("HOME", dir)
        .env("ACME_KEY", "secret")
        .env("MAINSPRING_STATE_DIR", dir.join("state"))
        .env("MAINSPRING_AGENTS_DIR", dir.join("agents"))
        .env("MAINSPRING_ADAPTER", "native")
        .envs(config_variable(dir))
        .current_dir(dir)
        .args(arguments);
    command
}

fn output(dir: &Path, arguments: &[&str]) -> String {
    let output = mainspring(dir, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn configure(dir: &Path, server: &ModelServer) {
    let config = format!(
        "[providers.acme]\nkind = \"anthropic\"\nbase_url = \"{}\"\nkey_env = \"ACME_KEY\"\n\
         [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"m-1\"\n",
        server.base_url(Protocol::Anthropic)
    );
    std::fs::write(dir.join("mainspring.toml"), config).unwrap();
    std::fs::create_dir_all(dir.join("agents")).unwrap();
    for name in ["planner", "writer", "critic"] {
        std::fs::write(dir.join("agents").join(format!("{name}.toml")), format!("id = \"{name}\"")).unwrap();
    }
    std::fs::write(dir.join("agents/team.toml"), TEAM).unwrap();
}

const PROMPT: &[&str] =
    &["prompt", "--session", "s", "--mode", "act", "--agent-definition", "team", "a poem, please"];

#[tokio::test(flavor = "multi_thread")]
async fn a_network_survives_a_kill_at_each_step() {
    for kill_at in 0..replies().len() {
        let dir = tempfile::tempdir().unwrap();
        let (server, gate) = (ModelServer::start().await.unwrap(), Gate::default());
        configure(dir.path(), &server);
        for (at, mut reply) in replies().into_iter().enumerate() {
            if at == kill_at {
                reply.actions.insert(0, Action::Hold(gate.clone()));
            }
            server.enqueue(reply);
        }
        let mut command = mainspring(dir.path(), PROMPT);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        gate.reached().await;
        child.kill().unwrap();
        child.wait().unwrap();
        let server = ModelServer::start().await.unwrap();
        configure(dir.path(), &server);
        // A parallel member that had answered is not asked again. The routing model then gets the spare
        // reply, a text, and is asked once more to call a tool.
        let undone = if kill_at == 2 { 1 } else { kill_at };
        replies().into_iter().skip(undone).for_each(|reply| {
            server.enqueue(reply);
        });
        let run = first_run(dir.path());
        let id = run["runId"].as_str().unwrap();
        assert_eq!(run["status"], "orphaned", "{kill_at}");
        output(dir.path(), &["run", "retry", id]);
        let route: Value =
            serde_json::from_str(&output(dir.path(), &["run", "route", id, "--json"])).unwrap();
        assert_eq!(route["status"], "succeeded", "{kill_at}: {route}");
        let next: Vec<&Value> =
            route["decisions"].as_array().unwrap().iter().map(|one| &one["next"]).collect();
        assert_eq!(
            next,
            [&json!("planner"), &json!(["writer", "critic"]), &Value::Null],
            "{kill_at}: each decision was made once"
        );
        let planned = server.requests().len();
        let asked = replies().len() - undone;
        assert!(planned <= asked + 1, "{kill_at}: {planned} requests for {asked} undone steps");
    }
}

/// The run of the network: the oldest one.
fn first_run(dir: &Path) -> Value {
    let runs = output(dir, &["run", "list", "--session", "s", "--json"]);
    serde_json::from_str(runs.lines().last().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_and_the_route_of_its_run_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let server = ModelServer::start().await.unwrap();
    configure(dir.path(), &server);
    replies().into_iter().for_each(|reply| {
        server.enqueue(reply);
    });
    output(dir.path(), PROMPT);
    let drawn = output(dir.path(), &["network", "show", "team"]);
    assert!(drawn.contains("rule 2: calls == 1 → writer + critic"), "{drawn}");
    output(dir.path(), &["network", "show", "team@1", "--svg", "team.svg"]);
    assert!(std::fs::read_to_string(dir.path().join("team.svg")).unwrap().starts_with("<svg"));
    let refused = mainspring(dir.path(), &["network", "show", "planner"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let run = first_run(dir.path());
    let id = run["runId"].as_str().unwrap();
    let way = output(dir.path(), &["run", "route", id]);
    assert!(way.contains("rule 1 → planner") && way.contains("model → end · a poem"), "{way}");
    assert!(way.contains("per member") && way.contains("routing model  10 tokens in"), "{way}");
    output(dir.path(), &["run", "route", id, "--svg", "way.svg"]);
    assert!(std::fs::read_to_string(dir.path().join("way.svg")).unwrap().contains("critic"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_network_has_the_paragraphs_of_its_members_for_a_host_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = ModelServer::start().await.unwrap();
    configure(dir.path(), &server);
    let sequence = "id = \"team\"\n[network]\nmembers = [{ agent = \"writer\" }, { agent = \"critic\" }]\n\
                    [network.router]\nrules = [{ when = \"calls == 0\", to = [\"writer\"] }, \
                    { when = \"calls == 1\", to = [\"critic\"] }, { when = \"calls == 2\", to = [] }]\n";
    std::fs::write(dir.path().join("agents/team.toml"), sequence).unwrap();
    server.enqueue(Reply::text("one"));
    server.enqueue(Reply::text("two"));
    let owner = ["--owner", "desktop-local-user"];
    let made =
        output(dir.path(), &[&["session", "new", "s", "--adapter", "native", "--json"], &owner[..]].concat());
    let made: Value = serde_json::from_str(&made).unwrap();
    output(dir.path(), &[&["session", "set", "s", "--agent", "team"], &owner[..]].concat());
    let agents = dir.path().join("agents");
    let settings = [
        ("MAINSPRING_ADAPTER", "native"),
        ("MAINSPRING_AGENTS_DIR", agents.to_str().unwrap()),
        ("ACME_KEY", "secret"),
    ];
    let mut host = Host::start_with(dir.path(), &[], &settings);
    host.send(&json!({
        "type": "query", "protocolVersion": 2, "requestId": "r", "clientId": "test", "prompt": "a poem, please",
        "sessionId": made["sessionId"], "adapterId": "native",
    }));
    assert_eq!(host.receive_end("r")["text"], "one\n\ntwo");
}
