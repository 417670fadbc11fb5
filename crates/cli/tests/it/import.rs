//! `mainspring import omi`: imports the original daemon's state directory once, completely and faithfully.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use mainspring::core::{
    ArtifactId, BindingStatus, Body, Cursor, Event, ExternalRef, Fidelity, MessageStatus, Role, RunStatus,
};
use mainspring::{Caller, Config, Kernel, Node};
use mainspring_kernel::store::SessionRef;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::cli::{CommandOutput, command, json_lines, run};
use crate::jsonl::Host;

mod columns;
mod offer;
mod original;
use original::{OWNER, Original, THOUGHT, id};

/// Maps the original's runtimes to the adapter of the tests.
const ALIASES: [&str; 4] = ["--alias", "acp=script", "--alias", "pi-mono=script"];

/// Imports `from` into the state directory of `dir`.
fn import(dir: &Path, from: &Path, more: &[&str]) -> CommandOutput {
    let from = from.to_str().unwrap();
    run(dir, &[&["import", "omi", from], &ALIASES[..], more].concat())
}

fn report(output: &CommandOutput) -> Value {
    assert_eq!(output.code, 0, "{}", output.err);
    json_lines(output).pop().unwrap()
}

/// Reads every file in `folder`.
fn read_files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(read_files(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).unwrap_or_default())),
        }
    }
    found
}

/// Builds an original with every kind of record and many irregular ones. `bytes` is the file of an artifact.
fn sample_original(bytes: &Path) -> Original {
    fs::write(bytes, "# all is well\n").unwrap();
    let mut original = Original::new();
    add_chat(&mut original, bytes);
    add_running_task(&mut original);
    add_delegation(&mut original);
    add_irregular_records(&mut original);
    original
}

/// Adds session 1: a chat with bindings, two ended runs, artifacts and grants.
fn add_chat(original: &mut Original, bytes: &Path) {
    let chat = original.session(
        1,
        "main_chat",
        &[("external_ref_kind", &"chat"), ("external_ref_id", &"default"), ("title", &"Tea")],
    );
    let stale = original.binding(1, &chat, &[("status", &"stale")]);
    let active = original.binding(2, &chat, &[("binding_generation", &2)]);
    let first = original.run(
        1,
        &chat,
        "say hello",
        &[("final_text", &"hello Ada"), ("input_tokens", &19), ("output_tokens", &23), ("cost_usd", &0.5)],
    );
    original.event(
        &chat,
        Some(&first),
        None,
        "binding.stale",
        &json!({"bindingId": stale, "reason": "gone"}),
    );
    let replaced = json!({"bindingId": active, "replacesBindingId": stale, "bindingGeneration": 2});
    original.event(&chat, Some(&first), None, "binding.replaced", &replaced);
    original.turn(1, &chat, &first, &active, "succeeded");
    let uri = format!("file://{}", bytes.to_str().unwrap().replace(' ', "%20"));
    original.artifact(1, &chat, &first, &uri, 14);
    original.artifact(2, &chat, &first, "file:///nowhere/at/all.md", 3);
    let created = json!({"artifactId": id("art", 1)});
    original.event(&chat, Some(&first), None, "artifact.created", &created);
    original.grant(1, &chat, &first, &[]);
    original.grant(2, &chat, &first, &[("revoked_at_ms", &2)]);
    original.grant(3, &chat, &first, &[("constraints_json", &r#"{"times":1}"#)]);
    original.grant(4, &chat, &first, &[("constraints_json", &"[1]")]);
    let second =
        original.run(2, &chat, "never mind", &[("status", &"cancelled"), ("final_text", &"half of")]);
    original.turn(2, &chat, &second, &active, "cancelled");
}

/// Adds session 2: a task with a run that had not ended.
fn add_running_task(original: &mut Original) {
    let alias: [(&str, &dyn rusqlite::types::ToSql); 3] = [
        ("legacy_client_scope", &"task-chat"),
        ("legacy_session_key", &"t-9"),
        ("default_adapter_id", &"pi-mono"),
    ];
    let task = original.session(2, "task_chat", &alias);
    let memory = [("adapter_id", &"pi-mono" as _), ("resume_fidelity", &"none" as _)];
    let memory = original.binding(3, &task, &memory);
    let running = original.run(3, &task, "work", &[("status", &"running")]);
    original.attempt(
        3,
        &running,
        &task,
        &[("status", &"running"), ("binding_id", &memory), ("adapter_id", &"pi-mono")],
    );
}

/// Adds session 3, to which the first run of session 1 delegated work.
fn add_delegation(original: &mut Original) {
    let (parent_session, parent_run, binding) = (id("ses", 1), id("run", 1), id("bind", 2));
    let child = original.session(3, "delegated_agent", &[]);
    let child_run =
        original.run(4, &child, "look it up", &[("parent_run_id", &parent_run), ("final_text", &"found")]);
    original.turn(4, &child, &child_run, &binding, "succeeded");
    original.insert(
        "delegations",
        &[
            ("delegation_id", &id("del", 1)),
            ("parent_session_id", &parent_session),
            ("parent_run_id", &parent_run),
            ("child_session_id", &child),
            ("child_run_id", &child_run),
            ("mode", &"spawn"),
            ("status", &"running"),
            ("objective", &"look it up"),
            ("created_at_ms", &1),
        ],
    );
}

/// Adds session 4 and rows that are invalid, incomplete or unknown.
fn add_irregular_records(original: &mut Original) {
    let odd = original.session(4, "floating_pill", &[("status", &"dreaming"), ("metadata_json", &"[broken")]);
    original.run(5, &odd, "", &[("status", &"pondering"), ("input_json", &"{not json")]);
    let failed = [
        ("status", &"failed" as _),
        ("error_code", &"quota_exceeded" as _),
        ("error_message", &"no more" as _),
    ];
    original.run(6, &odd, "more", &failed);
    original.run(7, &id("ses", 99), "lost", &[]);
    original.insert(
        "sessions",
        &[
            ("session_id", &"ses_probe"),
            ("owner_id", &OWNER),
            ("status", &"open"),
            ("surface_kind", &"probe"),
            ("default_adapter_id", &"acp"),
            ("created_at_ms", &1),
            ("updated_at_ms", &1),
            ("last_activity_at_ms", &1),
        ],
    );
    original.database.execute_batch("CREATE TABLE later (x); INSERT INTO later VALUES (1)").unwrap();
}

fn session(n: u64) -> SessionRef {
    SessionRef::Id(id("ses", n).parse().unwrap())
}

/// Opens the imported state directory as a node would.
async fn with_kernel<T>(dir: &Path, look: impl AsyncFnOnce(&Kernel, &Caller) -> T) -> T {
    let node = Node::builder(Config::with_state_dir(dir.join("state"))).records_only().open().await.unwrap();
    let seen = look(node.kernel(), &Caller::new(OWNER)).await;
    node.close().await;
    seen
}

fn kinds(events: &[Event]) -> Vec<(u64, &'static str)> {
    events.iter().map(|event| (event.cursor.0, event.body.kind())).collect()
}

#[tokio::test]
async fn sessions_keep_their_ids_and_events_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let original = sample_original(&dir.path().join("the report.md"));
    let from = original.copy_after_kill(dir.path());
    let report = report(&import(dir.path(), &from, &["--json"]));
    assert_eq!(
        report["taken"],
        json!({"sessions": 4, "runs": 6, "attempts": 4, "bindings": 3, "events": 29, "artifacts": 2, "delegations": 1,
               "grants": 2}),
        "{report:#}"
    );
    with_kernel(dir.path(), async |kernel, me| {
        let chat = ExternalRef { kind: "chat".into(), id: "default".into() };
        let chat = kernel.session_get(me, &SessionRef::External(chat)).await.unwrap();
        assert_eq!((chat.id.to_string(), chat.title.as_deref()), (id("ses", 1), Some("Tea")));
        assert_eq!((chat.surface_kind.as_str(), chat.adapter.as_str()), ("main_chat", "script"));
        let path = kernel.session_path(me, &session(1), None, None).await.unwrap();
        let messages: Vec<_> =
            path.iter().map(|placed| (placed.role, placed.status, placed.text())).collect();
        let message = |role, status, text: &str| (role, status, text.to_owned());
        assert_eq!(
            messages,
            [
                message(Role::User, MessageStatus::Completed, "say hello"),
                message(Role::Assistant, MessageStatus::Completed, "hello Ada"),
                message(Role::User, MessageStatus::Completed, "never mind"),
                message(Role::Assistant, MessageStatus::Cancelled, "half of"),
            ]
        );
        let first = kernel.run_get(me, id("run", 1).parse().unwrap()).await.unwrap();
        assert_eq!((first.usage.input_tokens, first.usage.cost.usd()), (19, Some(0.5)));
        assert_eq!(first.options.system_prompt.as_deref(), Some("be kind"));
        // Events keep their numbers; the numbers of events without a counterpart are used for the messages.
        let events = kernel.session_events(me, &session(1), Cursor::START, None).await.unwrap();
        let original: BTreeMap<u64, String> = original
            .database
            .prepare("SELECT event_seq, type FROM events")
            .unwrap()
            .query_map([], |row| Ok((u64::try_from(row.get::<_, i64>(0)?).unwrap(), row.get(1)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let same = events
            .iter()
            .filter(|event| original.get(&event.cursor.0).is_some_and(|was| was == event.body.kind()));
        assert!(same.count() >= 10, "{:?}", kinds(&events));
        assert_eq!(
            kinds(&events)[..13],
            [
                (1, "run.queued"),
                (2, "binding.stale"),
                (3, "binding.replaced"),
                (4, "attempt.created"),
                (5, "attempt.started"),
                (6, "run.running"),
                (7, "message.completed"),
                (9, "tool.started"),
                (10, "tool.completed"),
                (12, "message.completed"),
                (13, "run.succeeded"),
                (14, "artifact.created"),
                (15, "run.queued"),
            ]
        );
        assert!(events.is_sorted_by(|a, b| a.cursor < b.cursor));
        let last = events.last().unwrap();
        assert!(
            last.cursor.0 > *original.keys().last().unwrap(),
            "the events of the import come after all others"
        );
        assert!(matches!(last.body, Body::DelegationCompleted { .. }), "{last:?}");
    })
    .await;
    let doctor = run(dir.path(), &["doctor", "--thorough"]);
    assert_eq!(doctor.code, 0, "{}", doctor.out);
}

#[tokio::test]
async fn unfinished_runs_are_orphaned_and_irregular_records_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let from = sample_original(&dir.path().join("report.md")).copy_after_kill(dir.path());
    let report = report(&import(dir.path(), &from, &["--json"]));
    let notes = |list: &str| -> Vec<String> {
        let one = |note: &Value| {
            format!("{} {}: {}", note["count"], note["what"].as_str().unwrap(), note["why"].as_str().unwrap())
        };
        report[list].as_array().unwrap().iter().map(one).collect()
    };
    insta::assert_snapshot!(notes("changed").join("\n"), @r"
    1 artifacts: bytes not available: only the address is kept
    1 bindings: lived in the original's process: stale
    1 runs: not ended: orphaned
    1 attempts: not ended: orphaned
    1 sessions: unknown status: open
    1 sessions: metadata that is too large or not an object: removed
    1 runs: unknown status: orphaned
    1 runs: unreadable input: kept unchanged as the prompt
    1 delegations: not ended: given the status of the child run
    ");
    insta::assert_snapshot!(notes("left").join("\n"), @r"
    1 other rows: unknown table later
    1 sessions: its id is not ses_ and 32 hexadecimal digits
    1 grants: it was revoked
    1 grants: its constraints are too large or not an object
    3 events: thoughts, or what may contain thoughts, are not imported
    6 events: streamed text: the final text of its run contains it
    2 events: another event says the same
    1 runs: its session or run is missing or was left
    1 events: its session or run is missing or was left
    ");
    for (what, found) in report["found"].as_object().unwrap() {
        let left: u64 = report["left"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|note| note["what"] == *what)
            .map(|note| note["count"].as_u64().unwrap())
            .sum();
        let taken = report["taken"][what].as_u64().unwrap();
        assert_eq!(found.as_u64().unwrap(), taken + left, "{what}: imported and reported rows do not add up");
    }
    with_kernel(dir.path(), async |kernel, me| {
        for (n, code) in [(3, "executor_lost"), (5, "executor_lost")] {
            let run = kernel.run_get(me, id("run", n).parse().unwrap()).await.unwrap();
            assert_eq!(run.state.status(), RunStatus::Orphaned, "run {n}");
            assert_eq!(run.state.error().unwrap().code.as_str(), code);
            let events = kernel.run_events(me, run.id, Cursor::START, None).await.unwrap();
            assert_eq!(events.last().unwrap().body.kind(), "run.orphaned");
        }
        let failed = kernel.run_get(me, id("run", 6).parse().unwrap()).await.unwrap();
        assert_eq!(failed.state.error().unwrap().code.as_str(), "quota_exceeded");
        let odd = kernel.session_path(me, &session(4), None, None).await.unwrap();
        assert_eq!(odd[0].text(), "{not json", "unreadable content is kept unchanged");
        assert!(
            kernel.run_get(me, id("run", 7).parse().unwrap()).await.is_err(),
            "the session of the run does not exist"
        );
    })
    .await;
}

#[tokio::test]
async fn imported_bindings_artifacts_and_delegations_have_their_current_status() {
    let dir = tempfile::tempdir().unwrap();
    let from = sample_original(&dir.path().join("a report.md")).copy_after_kill(dir.path());
    report(&import(dir.path(), &from, &["--json"]));
    with_kernel(dir.path(), async |kernel, me| {
        let tip = kernel.session_get(me, &session(1)).await.unwrap().tip_message;
        let bindings = kernel.binding_list(me, &session(1), None, None).await.unwrap();
        let shown: Vec<_> = bindings
            .iter()
            .map(|one| (one.generation, one.status, one.fidelity, one.native.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                (2, BindingStatus::Active, Fidelity::Native, Some("native-2")),
                (1, BindingStatus::Stale, Fidelity::Native, Some("native-1")),
            ]
        );
        assert_eq!(bindings[0].last_message, tip, "the next prompt continues the binding");
        let lost = kernel.binding_list(me, &session(2), None, None).await.unwrap();
        assert_eq!(lost[0].status, BindingStatus::Stale, "its process is gone");

        let (kept, mut bytes) = kernel.artifact_read(me, artifact(1), 0, None).await.unwrap();
        let mut text = String::new();
        bytes.read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), kept.name.as_deref()), ("# all is well\n", Some("report.md")));
        let absent = kernel.artifact_get(me, artifact(2)).await.unwrap();
        assert_eq!((absent.uri.as_str(), absent.content_hash), ("file:///nowhere/at/all.md", None));
        let error = kernel.artifact_read(me, artifact(2), 0, None).await.unwrap_err();
        assert!(error.to_string().contains("not kept here but at file:///nowhere"), "{error}");

        let events = kernel.run_events(me, id("run", 1).parse().unwrap(), Cursor::START, None).await.unwrap();
        let settled = events.iter().find_map(|event| match &event.body {
            Body::DelegationCompleted { status, .. } => Some(status.name()),
            _ => None,
        });
        assert_eq!(settled, Some("succeeded"), "the delegation has the status of its child");
    })
    .await;
}

#[tokio::test]
async fn bindings_of_several_aliases_of_one_adapter_are_renumbered() {
    let dir = tempfile::tempdir().unwrap();
    let mut original = Original::new();
    let chat = original.session(1, "main_chat", &[]);
    // The host used `acp` first and `acp-claude` later; the second also has a native session of the first.
    original.binding(1, &chat, &[("status", &"stale")]);
    original.binding(2, &chat, &[("binding_generation", &2)]);
    let other: [(&str, &dyn rusqlite::types::ToSql); 2] =
        [("adapter_id", &"acp-claude"), ("status", &"stale")];
    let same = ("adapter_native_session_id", &"native-1" as &dyn rusqlite::types::ToSql);
    original.binding(3, &chat, &[&other[..], &[same]].concat());
    original.binding(4, &chat, &[other[0], ("binding_generation", &2)]);
    // Another session under the first name, bound to a native session of the second.
    let pill = original.session(2, "floating_pill", &[]);
    original.binding(5, &pill, &[("adapter_native_session_id", &"native-4")]);
    let from = original.copy_after_kill(dir.path());
    let report = report(&import(dir.path(), &from, &["--alias", "acp-claude=script", "--json"]));
    let changed: Vec<_> = report["changed"].as_array().unwrap().iter().map(|one| &one["count"]).collect();
    assert_eq!(changed, [3, 1, 2], "{}", report["changed"]);
    with_kernel(dir.path(), async |kernel, me| {
        let mut shown = vec![];
        for of in [1, 2] {
            let bindings = kernel.binding_list(me, &session(of), None, None).await.unwrap();
            shown.extend(bindings.into_iter().map(|one| {
                assert_eq!(one.adapter, "script");
                (one.generation, one.status, one.native.unwrap())
            }));
        }
        assert_eq!(
            shown,
            [
                (4, BindingStatus::Active, "native-4".to_owned()),
                (3, BindingStatus::Stale, "native-2".to_owned()),
                (2, BindingStatus::Stale, "native-1".to_owned()),
                (1, BindingStatus::Closed, "native-1".to_owned()),
                (1, BindingStatus::Closed, "native-4".to_owned()),
            ]
        );
    })
    .await;
}

fn artifact(n: u64) -> ArtifactId {
    id("art", n).parse().unwrap()
}

#[test]
fn imported_sessions_continue() {
    let dir = tempfile::tempdir().unwrap();
    let from = sample_original(&dir.path().join("report.md")).copy_after_kill(dir.path());
    report(&import(dir.path(), &from, &["--json"]));
    let chat = id("ses", 1);
    let listed = run(dir.path(), &["session", "list", "--owner", OWNER]);
    assert!(listed.out.contains("Tea"), "{}", listed.out);
    let went_on = run(dir.path(), &["prompt", "--owner", OWNER, "--session", &chat, "say and on"]);
    assert_eq!((went_on.code, went_on.out.as_str()), (0, "and on\n"), "{}", went_on.err);
    let retried = run(dir.path(), &["run", "retry", &id("run", 6), "--owner", OWNER]);
    assert_eq!((retried.code, retried.out.as_str()), (0, "You said: more\n"), "{}", retried.err);

    // A host finds its sessions by their external references, and its old requests by their ids.
    let mut host = Host::start_with(dir.path(), &ALIASES, &[("MAINSPRING_OWNER", OWNER)]);
    host.send(&json!({"type": "query", "protocolVersion": 2, "requestId": "new", "clientId": "swift", "prompt": "say hi",
                     "systemPrompt": "be kind", "externalRefKind": "chat", "externalRefId": "default"}));
    assert_eq!(host.receive_end("new")["sessionId"], json!(chat));
    host.send(&json!({"type": "query", "protocolVersion": 2, "requestId": "task", "clientId": "swift", "prompt": "say hi",
                     "systemPrompt": "", "legacyClientScope": "task-chat", "legacySessionKey": "t-9"}));
    assert_eq!(host.receive_end("task")["sessionId"], json!(id("ses", 2)));
    host.send(&json!({"type": "query", "protocolVersion": 2, "requestId": "request-1", "clientId": "swift",
                     "prompt": "say hello", "systemPrompt": "be kind", "sessionId": chat}));
    let again = host.receive_end("request-1");
    assert_eq!(
        (&again["runId"], &again["text"]),
        (&json!(id("run", 1)), &json!("hello Ada")),
        "nothing runs twice"
    );
    host.close();
    let doctor = run(dir.path(), &["doctor"]);
    assert_eq!(doctor.code, 0, "{}", doctor.out);
}

#[test]
fn the_source_is_unchanged_and_thoughts_are_not_imported() {
    let dir = tempfile::tempdir().unwrap();
    let from = sample_original(&dir.path().join("report.md")).copy_after_kill(dir.path());
    let before = read_files(&from);
    assert!(before.values().any(|bytes| contains(bytes, THOUGHT)), "the original wrote it down");
    report(&import(dir.path(), &from, &["--json", "--dry-run"]));
    report(&import(dir.path(), &from, &["--json"]));
    assert_eq!(read_files(&from), before);
    let state = read_files(&dir.path().join("state"));
    assert!(
        state.keys().all(|file| !file.to_string_lossy().contains("omi")),
        "the copy is gone: {:?}",
        state.keys()
    );
    for (file, bytes) in state {
        assert!(!contains(&bytes, THOUGHT), "{} holds a thought", file.display());
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_dry_run_reports_the_same_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let from = sample_original(&dir.path().join("report.md")).copy_after_kill(dir.path());
    let mut dry = report(&import(dir.path(), &from, &["--json", "--dry-run"]));
    assert!(!dir.path().join("state").exists());
    let for_people = import(dir.path(), &from, &["--dry-run"]);
    assert!(for_people.out.contains("would import 4 of 5 sessions"), "{}", for_people.out);
    assert!(for_people.out.contains("nothing was changed"), "{}", for_people.out);
    let done = report(&import(dir.path(), &from, &["--json"]));
    dry["dryRun"] = json!(false);
    assert_eq!(dry, done);
}

#[test]
fn an_import_requires_an_idle_original_and_an_empty_store_and_happens_once() {
    let dir = tempfile::tempdir().unwrap();
    let original = sample_original(&dir.path().join("report.md"));
    let refused = |dir: &Path, from: &Path, code: i32, name: &str| {
        for more in [&["--dry-run"][..], &[]] {
            let output = import(dir, from, more);
            assert_eq!(output.code, code, "{more:?}: {}", output.err);
            assert!(output.err.contains(&format!("error[{name}]")), "{more:?}: {}", output.err);
        }
    };
    refused(dir.path(), original.running_dir(), 5, "source_in_use");
    refused(dir.path(), dir.path(), 3, "not_found");
    let nonsense = dir.path().join("nonsense");
    fs::create_dir(&nonsense).unwrap();
    fs::write(
        nonsense.join("omi-agentd.sqlite3"),
        "no database at all, and long enough to be read as one".repeat(40),
    )
    .unwrap();
    refused(dir.path(), &nonsense, 2, "source_unfit");
    fs::write(nonsense.join("omi-agentd.sqlite3"), "").unwrap();
    refused(dir.path(), &nonsense, 2, "source_unfit");
    let from = original.copy_after_kill(dir.path());
    report(&import(dir.path(), &from, &["--json"]));
    refused(dir.path(), &from, 4, "already_imported");
    let used = tempfile::tempdir().unwrap();
    assert_eq!(run(used.path(), &["prompt", "say hi"]).code, 0);
    refused(used.path(), &from, 4, "store_not_empty");
    let host = Host::start(used.path());
    let owned = import(used.path(), &from, &[]);
    assert_eq!(owned.code, 6, "{}", owned.err);
    host.close();
}

#[test]
fn a_killed_import_is_all_or_nothing_and_can_be_repeated() {
    const SESSIONS: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let mut original = Original::new();
    original.database.execute_batch("BEGIN").unwrap();
    for n in 0..SESSIONS {
        let chat = original.session(n, "main_chat", &[]);
        let run = original.run(n, &chat, "say hello", &[("final_text", &"hello Ada")]);
        original.turn(n, &chat, &run, &id("bind", n), "succeeded");
    }
    original.database.execute_batch("COMMIT").unwrap();
    let from = original.copy_after_kill(dir.path());
    let mut child: Child = command(dir.path())
        .args(["import", "omi", from.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("500 of 2000 sessions"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
    let stored = || {
        let doctor = run(dir.path(), &["doctor", "--json"]);
        assert_eq!(doctor.code, 0, "{}", doctor.out);
        let found = json_lines(&doctor).into_iter().find(|found| found["what"] == "stored").unwrap();
        found["found"].as_str().unwrap().to_owned()
    };
    let left = stored();
    let again = import(dir.path(), &from, &["--json"]);
    match left.starts_with("0 sessions") {
        true => assert_eq!(report(&again)["taken"]["sessions"], json!(SESSIONS)),
        // The import was complete before the kill.
        false => assert!(again.err.contains("already_imported"), "{}", again.err),
    }
    assert!(stored().starts_with("2000 sessions, 2000 runs"), "{}", stored());
}
