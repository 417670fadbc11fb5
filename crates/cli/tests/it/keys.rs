//! Keys of model providers: from the environment, from private files, over the wire to a scripted model server.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mainspring_model_server::{ModelServer, Protocol};
use serde_json::json;

use crate::cli::{CommandOutput, bare_command, command, command_output, json_lines};
use crate::guests::Process;

const SECRET: &str = "sk-planted-0123456789abcdef";

/// Directs the built-in providers to the model server. No model and no adapter is configured.
fn redirect(dir: &Path, server: &ModelServer) {
    let mut config = String::new();
    for (name, kind, protocol, variable) in [
        ("anthropic", "anthropic", Protocol::Anthropic, "ANTHROPIC_API_KEY"),
        ("openai", "openai-responses", Protocol::Responses, "OPENAI_API_KEY"),
        ("gemini", "gemini", Protocol::Gemini, "GEMINI_API_KEY"),
    ] {
        config += &format!(
            "[providers.{name}]\nkind = \"{kind}\"\nbase_url = \"{}\"\nkey_env = \"{variable}\"\n",
            server.base_url(protocol)
        );
    }
    std::fs::write(dir.join("mainspring.toml"), config).unwrap();
}

fn run(command: &mut Command) -> CommandOutput {
    command_output(command.output().unwrap())
}

/// Runs a command with `input` as its standard input.
fn run_with_input(mut command: Command, input: &str) -> CommandOutput {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    // A command that reads no input may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    command_output(child.wait_with_output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_environment_is_used_and_the_model_is_named() {
    for (variable, model) in [
        ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-5"),
        ("OPENAI_API_KEY", "openai/gpt-5.6"),
        ("GEMINI_API_KEY", "gemini/gemini-3.6-flash"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = ModelServer::start().await.unwrap();
        redirect(dir.path(), &server);
        let with_key = || {
            let mut command = bare_command(dir.path());
            command.env(variable, SECRET);
            command
        };
        let prompt = ["prompt", "-s", "s", "--request-id", "r1", "say hello"];
        let output = run(with_key().args(prompt));
        assert_eq!((output.code, output.out.as_str()), (0, "hello\n"), "{variable}: {}", output.err);
        assert!(output.err.contains(&format!("model {model}")), "{variable}: {}", output.err);
        // A repeated request makes the same choice, although the session exists now.
        let again = run(with_key().args(prompt));
        assert!(again.code == 0 && again.err.contains("repeated request"), "{}", again.err);
        // The next prompt of the session, and a chat, talk to the same model.
        assert_eq!(run(with_key().args(["prompt", "-s", "s", "say more"])).out, "more\n");
        let mut chat = with_key();
        chat.arg("chat");
        let chat = run_with_input(chat, "say hi\n");
        assert_eq!((chat.code, chat.out.as_str()), (0, "hi\n"), "{variable}: {}", chat.err);
        assert!(chat.err.contains(&format!("model: {model}")), "{variable}: {}", chat.err);
        let asked = server.requests();
        assert_eq!(asked.len(), 3, "{variable}");
        let id = model.split_once('/').unwrap().1;
        for request in &asked {
            assert!(request.body["model"] == id || request.path.contains(id), "{variable}: {}", request.path);
            assert!(request.headers.iter().any(|(_, value)| value.contains(SECRET)), "{variable}");
        }
        // A model that is named, and a configured adapter, win.
        let named = run(with_key().args(["prompt", "--model", "scripted/any", "say x"]));
        assert_eq!((named.code, named.out.as_str()), (0, "x\n"), "{}", named.err);
        assert!(!named.err.contains(model));
        let script = run(with_key().env("MAINSPRING_ADAPTER", "script").args(["prompt", "say script"]));
        assert_eq!(script.out, "script\n");
        assert_eq!(server.requests().len(), 3, "{variable}");
    }
}

#[test]
fn a_prompt_without_any_model_names_the_script_agent() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(bare_command(dir.path()).args(["prompt", "-s", "s", "say hello"]));
    assert_eq!((output.code, output.out.as_str()), (2, ""));
    for wanted in ["error[no_model]", "ANTHROPIC_API_KEY", "mainspring auth add", "--adapter script"] {
        assert!(output.err.contains(wanted), "{wanted}: {}", output.err);
    }
    assert_eq!(run(bare_command(dir.path()).args(["session", "show", "s"])).code, 3, "nothing was created");
    let script =
        run(bare_command(dir.path()).args(["prompt", "-s", "s", "--adapter", "script", "say hello"]));
    assert_eq!((script.code, script.out.as_str()), (0, "hello\n"));
    // The session keeps its agent.
    assert_eq!(run(bare_command(dir.path()).args(["prompt", "-s", "s", "say more"])).out, "more\n");
}

#[test]
fn a_model_is_refused_by_the_script_agent() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(command(dir.path()).args(["prompt", "--model", "anthropic/x", "hi"]));
    assert_eq!((output.code, output.out.as_str()), (2, ""));
    assert!(output.err.contains("error[option_not_used]") && output.err.contains("native"), "{}", output.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_ollama_is_used() {
    use axum::routing::get;
    let dir = tempfile::tempdir().unwrap();
    let models = || async { axum::Json(json!({"object": "list", "data": [{"id": "llama9:8b"}]})) };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/v1/models", get(models));
    let tasks = mainspring_system::tasks::Tasks::default();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    let ollama = || {
        let mut command = bare_command(dir.path());
        command.env("OLLAMA_HOST", address.to_string());
        command
    };
    let output = run(ollama().args(["prompt", "-s", "s", "hi"]));
    assert!(output.err.contains("model ollama/llama9:8b"), "{}", output.err);
    let runs = json_lines(&run(ollama().args(["run", "list", "--json"])));
    assert_eq!(runs[0]["options"]["model"], "ollama/llama9:8b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_key_reaches_a_daemon_that_is_already_running() {
    let dir = tempfile::tempdir().unwrap();
    let server = ModelServer::start().await.unwrap();
    redirect(dir.path(), &server);
    let mut daemon = bare_command(dir.path());
    daemon.args(["serve", "--listen", "127.0.0.1:0"]);
    let _daemon = Process::serve_command(daemon);
    let guest =
        |arguments: &[&str]| run(bare_command(dir.path()).env("ANTHROPIC_API_KEY", SECRET).args(arguments));
    // The daemon does not have the key of its guest, and the guest says so.
    let refused = guest(&["prompt", "say hello"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("`mainspring auth add anthropic`"), "{}", refused.err);
    let auth = |arguments: &[&str], input: &str| {
        let mut command = bare_command(dir.path());
        command.arg("auth").args(arguments);
        run_with_input(command, input)
    };
    let misspelt = auth(&["add", "antropic"], SECRET);
    assert!(misspelt.code == 2 && misspelt.err.contains("did you mean `anthropic`?"), "{}", misspelt.err);
    assert_eq!(auth(&["add", "anthropic"], " \n").code, 2);
    assert_eq!(auth(&["add", "anthropic"], "two words\n").code, 2);
    assert_eq!(auth(&["remove", "anthropic"], "").code, 3);
    let added = auth(&["add", "anthropic"], &format!("{SECRET}\n"));
    assert_eq!(added.code, 0, "{}", added.err);
    let keys = dir.path().join("state/keys");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&keys), mode(&keys.join("anthropic.key"))), (0o700, 0o600));
    let listed = json_lines(&auth(&["list", "--json"], ""));
    let source = |row: &serde_json::Value| format!("{} {}", row["provider"], row["source"]);
    assert_eq!(
        listed.iter().map(source).collect::<Vec<_>>(),
        [r#""anthropic" "stored""#, r#""gemini" "missing""#, r#""openai" "missing""#]
    );
    let answered = guest(&["prompt", "say hello"]);
    assert_eq!((answered.code, answered.out.as_str()), (0, "hello\n"), "{}", answered.err);
    assert!(server.requests()[0].headers.iter().any(|(_, value)| value.contains(SECRET)));
    let shown = guest(&["run", "list", "--json"]).out + &added.err + &auth(&["list"], "").out;
    assert!(!shown.contains(SECRET), "{shown}");
    assert_eq!(auth(&["remove", "anthropic"], "").code, 0);
    assert_eq!(guest(&["prompt", "say hello"]).code, 2, "the daemon reads the key at each use");
    for file in std::fs::read_dir(dir.path().join("state")).unwrap().map(|file| file.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{}", file.display());
    }
}

#[test]
fn doctor_checks_that_agents_start_and_keys_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, folder) = (crate::kill::example("acp_agent"), dir.path().join("agent"));
    std::fs::create_dir(&folder).unwrap();
    let config = format!(
        "adapter = \"good\"\n[adapters.good]\nkind = \"acp\"\ncommand = [{:?}, {:?}, \"resume\"]\n\
         [adapters.missing]\nkind = \"acp\"\ncommand = [\"no-such-program-here\"]\n\
         [adapters.broken]\nkind = \"acp\"\ncommand = [\"sh\", \"-c\", \"echo no luck $UNLISTED >&2; exit 3\"]\n\
         [models.main_reasoner]\nprovider = \"anthropic\"\nmodel = \"m-1\"\n",
        agent.to_string_lossy(),
        folder.to_string_lossy()
    );
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let path = std::env::var("PATH").unwrap();
    let doctor = || run(bare_command(dir.path()).env("PATH", &path).env("UNLISTED", "at all").arg("doctor"));
    let output = doctor();
    assert_eq!(output.code, 5, "{}", output.out);
    for wanted in [
        "missing: there is no program \"no-such-program-here\"; install it, or change adapters.missing.command",
        "broken: sh does not start: no luck",
        "main_reasoner: anthropic/m-1 has no key; run `mainspring auth add anthropic`, or set ANTHROPIC_API_KEY",
    ] {
        assert!(output.out.contains(wanted), "{wanted}: {}", output.out);
    }
    assert!(!output.out.contains("at all"), "agents inherit what they inherit in a run: {}", output.out);
    let good = output.out.lines().find(|line| line.contains("good: ")).unwrap();
    assert!(good.starts_with("ok") && good.contains(" starts"), "{good}");
    let mut add = bare_command(dir.path());
    add.args(["auth", "add", "anthropic"]);
    assert_eq!(run_with_input(add, SECRET).code, 0);
    assert!(doctor().out.contains("main_reasoner: anthropic/m-1\n"));
}
