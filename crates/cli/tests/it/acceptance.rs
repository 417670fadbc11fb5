//! Acceptance tests of the control plane's specification that need the binary: a host over standard input and output,
//! and the command line. docs/acceptance.md names the test of each requirement.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::{json_lines, run};
use crate::docs::document;
use crate::jsonl::Host;
use crate::kill::example;

/// Creates a folder configured with an ACP agent and pi, as a desktop host would.
fn desktop_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let agent = |name: &str| {
        let folder = dir.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let acp = json!([example("acp_agent"), agent("acp"), "resume"]);
    let pi = json!([example("pi_agent"), agent("pi"), "keep"]);
    let of = |name: &str, kind: &str, command: &Value| {
        format!("[adapters.{name}]\nkind = \"{kind}\"\ncommand = {command}\npermissions = \"legacy\"\n")
    };
    let file = of("claude", "acp", &acp) + &of("coder", "pi", &pi);
    std::fs::write(dir.path().join("mainspring.toml"), file).unwrap();
    dir
}

/// The three surfaces of a desktop: kind, kind and id of the external reference, and adapter.
const SURFACES: [(&str, &str, &str, &str); 3] = [
    ("main_chat", "chat", "default", "acp"),
    ("task_chat", "task", "task-7", "acp-claude"),
    ("floating_pill", "pill", "0d1c", "pi-mono"),
];

/// Builds a query of a surface.
fn surface_query(request: &str, (kind, of, id, adapter): (&str, &str, &str, &str), prompt: &str) -> Value {
    json!({
        "type": "query", "protocolVersion": 2, "requestId": request, "clientId": "desk", "surfaceKind": kind,
        "externalRefKind": of, "externalRefId": id, "adapterId": adapter, "prompt": prompt, "systemPrompt": "",
    })
}

/// Sends a query and returns every line about it.
fn query_lines(host: &mut Host, line: &Value) -> Vec<Value> {
    host.send(line);
    host.receive_query(line["requestId"].as_str().unwrap())
}

fn query_end(host: &mut Host, line: &Value) -> Value {
    query_lines(host, line).pop().unwrap()
}

/// Runs a command as the host's owner and returns its JSON lines.
fn command_json(dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = run(dir, &[arguments, &["--owner", "desktop-local-user", "--json"]].concat());
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.err);
    json_lines(&output)
}

fn field<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_else(|| panic!("{field} is missing: {line}"))
}

#[test]
fn criterion_1_every_surface_gets_durable_session_run_and_attempt_ids() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    let ends: Vec<Value> = SURFACES.map(|of| query_end(&mut host, &surface_query(of.0, of, "hello"))).into();
    host.close();
    for (of, end) in SURFACES.iter().zip(&ends) {
        let run = &command_json(dir.path(), &["run", "show", field(end, "runId")])[0];
        assert_eq!(run["sessionId"], end["sessionId"], "{}", of.0);
        assert_eq!(run["attemptList"][0]["attemptId"], end["attemptId"], "{}", of.0);
        let session = &command_json(dir.path(), &["session", "show", field(end, "sessionId")])[0]["session"];
        assert_eq!(session["surfaceKind"], of.0, "{session}");
    }
}

#[test]
fn criterion_2_a_restart_preserves_sessions_runs_bindings_events_and_statuses() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    let [ok, failed] = [("ok", "hello"), ("failed", "crash")].map(|(request, prompt)| {
        let of = (request, "task", request, "acp");
        query_end(&mut host, &surface_query(request, of, prompt))
    });
    let runs = [field(&ok, "runId"), field(&failed, "runId")];
    let everything = || {
        let of_run = runs.map(|run| {
            [
                command_json(dir.path(), &["run", "show", run]),
                command_json(dir.path(), &["run", "events", run]),
            ]
        });
        (of_run, command_json(dir.path(), &["session", "show", field(&ok, "sessionId")]))
    };
    let before = everything();
    assert_eq!(
        (&before.0[0][0][0]["status"], &before.0[1][0][0]["status"]),
        (&json!("succeeded"), &json!("failed"))
    );
    host.kill();
    assert_eq!(everything(), before);
    let mut host = Host::start(dir.path());
    let next = query_end(&mut host, &surface_query("next", ("ok", "task", "ok", "acp"), "history"));
    assert_eq!(next["adapterSessionId"], ok["adapterSessionId"], "the binding holds");
    assert!(field(&next, "text").contains("hello"), "{next}");
}

#[test]
fn criterion_3_acp_and_pi_both_execute_beneath_the_kernel() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    let mut adapters = BTreeSet::new();
    for of in SURFACES {
        let end = query_end(&mut host, &surface_query(of.0, of, "hello"));
        let run = &command_json(dir.path(), &["run", "show", field(&end, "runId")])[0];
        assert_eq!((&run["status"], &run["attempts"]), (&json!("succeeded"), &json!(1)));
        assert!(run["attemptList"][0]["bindingId"].is_string(), "{run}");
        adapters.insert(field(run, "adapter").to_owned());
    }
    assert_eq!(adapters.into_iter().collect::<Vec<_>>(), ["claude", "coder"]);
}

#[test]
fn criterion_4_native_ids_appear_only_in_adapter_fields() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    for of in SURFACES {
        let lines = query_lines(&mut host, &surface_query(of.0, of, "hello"));
        let native = field(lines.last().unwrap(), "adapterSessionId").to_owned();
        for line in &lines {
            assert!(field(line, "sessionId").starts_with("ses_"), "{line}");
            for (field, value) in line.as_object().unwrap() {
                assert!(field == "adapterSessionId" || *value != json!(native), "{field} of {line}");
            }
        }
        let session = &command_json(dir.path(), &["session", "show", field(&lines[0], "sessionId")])[0];
        assert!(!session.to_string().contains(&native), "{session}");
    }
}

#[test]
fn criterion_6_retries_are_visible_attempts() {
    let dir = desktop_dir();
    let mut host = Host::start_with(dir.path(), &[], &[("MAINSPRING_RETRY_BASE_MS", "1")]);
    let of = ("main_chat", "chat", "default", "script");
    let end = query_end(&mut host, &surface_query("r", of, "fail once no luck; say done"));
    assert_eq!(end["text"], "done\n");
    let run = &command_json(dir.path(), &["run", "show", field(&end, "runId")])[0];
    let attempts = run["attemptList"].as_array().unwrap();
    let seen: Vec<_> = attempts.iter().map(|attempt| (&attempt["attemptNo"], &attempt["status"])).collect();
    assert_eq!(seen, [(&json!(1), &json!("failed")), (&json!(2), &json!("succeeded"))]);
    assert_eq!(attempts[1]["resumeFromAttemptId"], attempts[0]["attemptId"]);
    assert_eq!(attempts[1]["attemptId"], end["attemptId"]);
}

#[test]
fn criterion_7_every_line_of_a_query_is_correlated() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    for of in SURFACES {
        for (request, prompt) in [("ok", "hello; tool edit"), ("dies", "crash")] {
            let request = format!("{request} {}", of.0);
            let lines = query_lines(&mut host, &surface_query(&request, of, prompt));
            let end = lines.last().unwrap();
            for line in &lines {
                assert_eq!(
                    (&line["requestId"], &line["clientId"]),
                    (&json!(request), &json!("desk")),
                    "{line}"
                );
                for field in ["sessionId", "runId"] {
                    assert_eq!(line[field], end[field], "{line}");
                }
                assert!(field(line, "attemptId").starts_with("att_"), "{line}");
            }
        }
    }
}

#[test]
fn criterion_8_a_cancellation_is_acknowledged_once_and_ends_with_its_true_status() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    for of in SURFACES {
        host.send(&surface_query(of.0, of, "hang"));
        host.receive_until(|line| line["text"].as_str().is_some_and(|text| text.contains("hanging")));
        host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": of.0, "clientId": "desk"}));
        let lines = host.receive_query(of.0);
        let acks: Vec<&Value> = lines.iter().filter(|line| line["type"] == "cancel_ack").collect();
        assert_eq!(acks.len(), 1, "{lines:?}");
        assert_eq!((&acks[0]["accepted"], &acks[0]["dispatchAttempted"]), (&json!(true), &json!(true)));
        assert_eq!(acks[0]["adapterAcknowledged"], false, "the agent has not confirmed yet");
        let end = lines.last().unwrap();
        assert_eq!(
            (&end["terminalStatus"], end["text"].as_str().map(|text| text.contains("hanging"))),
            (&json!("cancelled"), Some(true))
        );
        let run = &command_json(dir.path(), &["run", "show", field(end, "runId")])[0];
        assert_eq!(run["status"], "cancelled");
        assert!(run["attemptList"][0]["cancellationDispatchedAtMs"].is_i64(), "{run}");
    }
}

#[test]
fn criterion_10_the_kernel_owns_the_status_even_when_a_host_dies() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    host.send(&surface_query("r", SURFACES[0], "hang"));
    let line = host
        .receive_until(|line| line["text"].as_str().is_some_and(|text| text.contains("hanging")))
        .pop()
        .unwrap();
    let run_id = field(&line, "runId").to_owned();
    let status = || field(&command_json(dir.path(), &["run", "show", &run_id])[0], "status").to_owned();
    assert_eq!(status(), "running", "every client sees the same status");
    host.kill();
    assert_eq!(status(), "orphaned", "a lost run is not a success");
    let mut host = Host::start(dir.path());
    assert_eq!(query_end(&mut host, &surface_query("r", SURFACES[0], "hang"))["reason"], "executor_lost");
}

#[test]
fn criterion_12_an_edge_has_no_runtime_of_its_own() {
    let runtimes = ["mainspring-adapters", "mainspring-agent", "mainspring-store"];
    for (edge, beneath) in
        [("http", &runtimes[..]), ("host", &[&runtimes[..], &["mainspring-kernel"]].concat())]
    {
        let manifest = document(&format!("crates/{edge}/Cargo.toml"));
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        for lower in beneath {
            assert!(!product.contains(lower), "{edge} depends on {lower}");
        }
    }
}

#[test]
fn task_main_and_pill_references_resolve_stably() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    let ask = |host: &mut Host, no: &str| {
        SURFACES.map(|of| {
            field(&query_end(host, &surface_query(&format!("{no} {}", of.0), of, "hello")), "sessionId")
                .to_owned()
        })
    };
    let first = ask(&mut host, "1");
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(ask(&mut host, "2"), first);
    host.kill();
    assert_eq!(ask(&mut Host::start(dir.path()), "3"), first);
}

#[test]
fn a_follow_up_creates_a_new_run_in_the_same_session() {
    let dir = desktop_dir();
    let mut host = Host::start(dir.path());
    let [first, next] = ["1", "2"].map(|no| query_end(&mut host, &surface_query(no, SURFACES[0], "hello")));
    assert_eq!(first["sessionId"], next["sessionId"]);
    assert_ne!(first["runId"], next["runId"]);
    let runs = command_json(dir.path(), &["run", "list", "--session", field(&first, "sessionId")]);
    let numbers: Vec<_> = runs.iter().map(|run| (&run["runNo"], &run["attempts"])).collect();
    assert_eq!(numbers, [(&json!(2), &json!(1)), (&json!(1), &json!(1))]);
}

#[test]
fn a_version_1_query_creates_a_session_a_run_and_an_attempt() {
    let dir = desktop_dir();
    let mut host = Host::start_with(dir.path(), &["--adapter", "claude"], &[]);
    host.send(
        &json!({"type": "query", "id": "1", "prompt": "hello", "systemPrompt": "", "sessionKey": "main"}),
    );
    let end = host.receive_until(|line| line["type"] == "result").pop().unwrap();
    assert!(field(&end, "sessionId").starts_with("native-"), "version 1 knows the agent's own: {end}");
    let runs = command_json(dir.path(), &["run", "list"]);
    assert_eq!((runs.len(), &runs[0]["status"], &runs[0]["attempts"]), (1, &json!("succeeded"), &json!(1)));
    let session = &command_json(dir.path(), &["session", "show", field(&runs[0], "sessionId")])[0]["session"];
    assert_eq!(session["legacyAlias"], json!({"scope": "default", "key": "main"}));
}

/// Lists every source file beneath `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false if path.extension().is_some_and(|kind| kind == "rs") => found.push(path),
            false => {}
        }
    }
    found
}

/// Lists the tests of the sources as `crate::module::name`; the module is the file's.
fn tests() -> BTreeMap<String, PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeMap::new();
    for path in sources(&crates) {
        let inside = path.strip_prefix(&crates).unwrap().with_extension("");
        let words: Vec<&str> = inside.iter().map(|word| word.to_str().unwrap()).collect();
        let (file, folders) = words.split_last().unwrap();
        let folders = folders.iter().filter(|word| !["src", "tests", "it"].contains(*word));
        let module = folders.chain([file]).copied().collect::<Vec<_>>().join("::");
        let text = std::fs::read_to_string(&path).unwrap();
        let marked = ["#[test]", "#[tokio::test"].into_iter().flat_map(|mark| text.split(mark).skip(1));
        for after in marked {
            let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            found.extend(name.map(|name| (format!("{module}::{name}"), path.clone())));
        }
    }
    found.extend(python_tests(&crates));
    found
}

/// Lists the tests of the suite with the package `roboto`, by the names of their functions.
fn python_tests(crates: &Path) -> Vec<(String, PathBuf)> {
    let mut found = vec![];
    for entry in std::fs::read_dir(crates.join("cli/tests/threads")).unwrap() {
        let path = entry.unwrap().path();
        let (Some("py"), Some(module)) = (
            path.extension().and_then(|kind| kind.to_str()),
            path.file_stem().and_then(|name| name.to_str()),
        ) else {
            continue;
        };
        let text = std::fs::read_to_string(&path).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("def test_")?.split('(').next());
        found.extend(names.map(|name| (format!("cli::threads::{module}::test_{name}"), path.clone())));
    }
    found
}

/// Returns the tests that the last cell of a row names.
fn tests_of(row: &str) -> Vec<&str> {
    row.rsplit('|').nth(1).unwrap().split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_requirement_of_the_specification_has_a_test() {
    let (page, tests) = (document("docs/acceptance.md"), tests());
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    let mut section = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        let Some(row) = line.strip_prefix("| ").filter(|row| row.contains('`')) else { continue };
        let named = tests_of(row);
        assert!(!named.is_empty(), "{line}");
        for name in named {
            assert!(tests.contains_key(name), "{name} is not a test: {line}");
        }
        *rows.entry(section).or_default() += 1;
    }
    let counts: Vec<_> = rows.into_iter().collect();
    assert_eq!(
        counts,
        [
            ("Acceptance criteria", 12),
            ("Faults of the original", 15),
            ("First tests", 36),
            ("First tests of a host", 13),
            ("Goals, tasks and feedback of threads", 17),
            ("Histories and state of AgentKit", 7),
            ("Networks of agents", 22),
            ("The native agent and the session tree", 38),
            ("The threads API", 34)
        ],
        "a row of the specification is missing or extra"
    );
}

#[test]
fn every_promise_of_security_has_a_test_that_attacks_it() {
    let (page, tests) = (document("SECURITY.md"), tests());
    let (mut promises, mut attacks) = (0, vec![]);
    let mut section = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        let is_head =
            line.starts_with("| promise") || line.starts_with("| attack") || line.starts_with("|---");
        let Some(row) = line.strip_prefix("| ").filter(|_| !is_head) else { continue };
        if !["Promises", "Attacks that were found"].contains(&section) {
            continue;
        }
        let named = tests_of(row);
        for name in &named {
            assert!(tests.contains_key(*name), "{name} is not a test: {line}");
        }
        let name = row.split(" |").next().unwrap();
        match section {
            "Promises" => promises += 1,
            _ => attacks.push(name),
        }
        assert!(!named.is_empty(), "{name} has no test: {line}");
        let is_played = named.iter().any(|test| test.starts_with("cli::"));
        // Attacks from outside run against the program. A panic can only be injected inside, and the writes of a
        // confined agent are tested with its guard.
        let is_inner = section == "Promises" || ["M9", "S1", "S2"].contains(&name);
        assert!(is_played || is_inner, "{name} has no test against the real program: {line}");
    }
    assert!(promises >= 20, "{promises}");
    assert_eq!(
        attacks,
        [
            "C1", "C2", "H1", "H2", "H3", "H4", "H5", "H6", "H7", "M1", "M2", "M3", "M4", "M5", "M6", "M7",
            "M8", "M9", "L1", "L2", "L3", "L4", "L5", "L6", "S1", "S2", "S3", "S4", "S5",
        ]
    );
}
