//! The native adapter in the real binary: a configuration, a key, a model server over HTTP.

use std::path::Path;
use std::process::{Command, Output};

use mainspring_model_server::{ModelServer, Protocol};
use serde_json::Value;

use crate::cli::config_variable;

const SECRET: &str = "sk-planted-0123456789abcdef";

/// Runs `mainspring` with an API key in its environment, in a folder with a configuration.
fn mainspring(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mainspring"))
        .env_clear()
        .env("HOME", dir)
        .env("ACME_KEY", SECRET)
        .env("MAINSPRING_STATE_DIR", dir.join("state"))
        .env("MAINSPRING_ADAPTER", "native")
        .env("MAINSPRING_LOG", "trace")
        .envs(config_variable(dir))
        .current_dir(dir)
        .args(arguments)
        .output()
        .unwrap()
}

fn configure(dir: &Path, server: &ModelServer, protocol: Protocol) {
    let kind = match protocol {
        Protocol::Anthropic => "anthropic",
        Protocol::Chat => "openai",
        Protocol::Responses => "openai-responses",
        Protocol::Gemini => "gemini",
    };
    let config = format!(
        "[providers.acme]\nkind = \"{kind}\"\nbase_url = \"{}\"\nkey_env = \"ACME_KEY\"\n\
         [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"m-1\"\n",
        server.base_url(protocol)
    );
    std::fs::write(dir.join("mainspring.toml"), config).unwrap();
}

/// Reads every file beneath `dir`.
fn read_files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![];
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            all.extend(read_files(&entry));
        } else if let Ok(bytes) = std::fs::read(&entry) {
            // Sockets cannot be read and are skipped.
            all.push((entry.display().to_string(), bytes));
        }
    }
    all
}

fn contains_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_reaches_the_provider_and_nothing_else() {
    for protocol in Protocol::ALL {
        let dir = tempfile::tempdir().unwrap();
        let server = ModelServer::start().await.unwrap();
        configure(dir.path(), &server, protocol);
        for prompt in ["think hm; say hello; tool nobody; say well", "fail auth", "say half; fail auth"] {
            let path = dir.path().to_owned();
            let output = mainspring(&path, &["prompt", "--json", "-s", "s", prompt]);
            for bytes in [&output.stdout, &output.stderr] {
                assert!(!contains_secret(bytes), "{protocol:?} {prompt}: {}", String::from_utf8_lossy(bytes));
            }
        }
        let asked = server.requests();
        assert!(asked.len() >= 4, "{protocol:?}");
        let sent = |(_, value): &(String, String)| value.contains(SECRET);
        assert!(
            asked.iter().all(|request| request.headers.iter().any(sent)),
            "{protocol:?}: the key was sent"
        );
        let files = read_files(&dir.path().join("state"));
        assert!(files.iter().any(|(name, _)| name.ends_with(".sqlite3")), "{protocol:?}: {files:?}");
        for (name, bytes) in files {
            assert!(!contains_secret(&bytes), "{protocol:?}: {name} holds the key");
        }
        let listed = mainspring(dir.path(), &["run", "list", "--json"]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        let runs: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let statuses: Vec<&str> = runs.iter().rev().map(|run| run["status"].as_str().unwrap()).collect();
        assert_eq!(statuses, ["succeeded", "failed", "failed"], "{protocol:?}");
        assert!(
            listed.contains("[key]"),
            "{protocol:?}: the key in the error of the server is not redacted: {listed}"
        );
    }
}

/// Beginning of a PNG image.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";

#[tokio::test(flavor = "multi_thread")]
async fn files_can_be_attached_and_run_show_prints_the_remaining_budget() {
    let dir = tempfile::tempdir().unwrap();
    let server = ModelServer::start().await.unwrap();
    configure(dir.path(), &server, Protocol::Anthropic);
    std::fs::write(dir.path().join("dot.png"), PNG).unwrap();
    std::fs::write(dir.path().join("notes"), "Grüße").unwrap();
    let prompt = |more: &[&str]| {
        let all = ["prompt", "--json", "--attach", "dot.png", "--attach", "notes"];
        let output = mainspring(dir.path(), &[&all[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let first: Value =
            serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
        first["runId"].as_str().unwrap().to_owned()
    };
    let named = ["--request-id", "r1", "-s", "s", "say a dot"];
    let run = prompt(&named);
    let asked = server.requests()[0].body.to_string();
    assert!(asked.contains("iVBORw0KGgoAAAANSUhEUg==") && asked.contains("image/png"), "{asked}");
    assert!(asked.contains("Grüße") && asked.contains("file notes, text/plain"), "{asked}");
    // The same request again returns the same run, with the same files.
    assert_eq!(prompt(&named), run);
    assert_eq!(server.counts().received, 1);
    // Without text, in a new session.
    prompt(&[]);
    assert_eq!(server.counts().received, 2);
    let missing = mainspring(dir.path(), &["prompt", "--attach", "nowhere.png", "hi"]);
    assert_eq!(missing.status.code(), Some(2));

    let shown = mainspring(dir.path(), &["run", "show", &run]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("99 of 100 model calls left"), "{shown}");
    let shown = mainspring(dir.path(), &["run", "show", "--json", &run]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["budget"]["stepsLeft"], 99, "{shown}");
}

#[test]
fn model_list_shows_whether_keys_are_set_but_never_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[providers.acme]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nkey_env = \"ACME_KEY\"\n\
                  [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"m-1\"\n\
                  [models.worker]\nprovider = \"openai\"\nmodel = \"gpt-4o\"\n\
                  [prices.\"m-1\"]\ninput = 2\noutput = 8\n";
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let output = mainspring(dir.path(), &["model", "list", "--json"]);
    assert!(!contains_secret(&output.stdout) && !contains_secret(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [main, worker] = &list["profiles"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(
        [&main["profile"], &main["provider"], &main["model"], &main["key"]],
        ["main_reasoner", "acme", "m-1", "present"]
    );
    assert_eq!((&main["price"]["input"], main["price"].get("asOf")), (&Value::from(2.0), None), "{main}");
    assert_eq!(worker["key"], "missing");
    assert!(worker["price"]["asOf"].is_string() && worker["contextTokens"].is_u64(), "{worker}");
    let provider = |name: &str| {
        let all = list["providers"].as_array().unwrap();
        all.iter().find(|one| one["provider"] == name).unwrap().clone()
    };
    assert_eq!(
        (provider("acme")["kind"].as_str(), provider("acme")["key"].as_str()),
        (Some("openai"), Some("present"))
    );
    assert_eq!(provider("ollama")["key"], "not_needed");
    assert_eq!(provider("scripted")["key"], "not_needed");
    let shown = mainspring(dir.path(), &["model", "list"]);
    let (stdout, stderr) =
        (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert!(
        stdout.contains("acme/m-1") && stdout.contains("present  unknown  2/8") && stdout.contains("2.5/10*"),
        "{stdout}"
    );
    assert!(stderr.contains("set your own in [prices]"), "{stderr}");
}
