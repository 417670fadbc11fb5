//! An import checks the records of a file against each other: an imported session is intact.

use mainspring_core::{Expect, KeyId, KeyLists, RunOptions, Usage};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{Caller, RunRequest, SessionPatch, StateOf};
use mainspring_kernel::store::SessionRef;
use mainspring_store::{SqliteView, Verification};
use serde_json::{Value, json};

use crate::portable::{changed, export, import};
use crate::world::{Disk, World, by_key, with_timeout};

/// Makes a session with usage, a failure, a title, state and several runs, and exports it.
async fn example() -> String {
    let world = World::on(Disk::memory()).await;
    world.play("a", "usage 10 20; say one").await;
    world.play("a", r#"say look; tool add {"a": 1, "b": 2}; say done"#).await;
    world.play("a", "usage 1 1; fail for good").await;
    let patch = SessionPatch { title: Some(Some("Tea".into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap();
    for value in [json!(1), json!({"deep": [2, null]})] {
        let of = StateOf::Session(by_key("a"), None);
        world.kernel.state_set(&world.me, &of, "kept", Some(value), Expect::Any).await.unwrap();
    }
    export(&world, "a").await
}

fn verify(world: &World) -> Vec<Verification> {
    SqliteView::open(world.disk.file.as_ref().unwrap(), true).unwrap().verify().unwrap()
}

/// Lists the paths of all scalar values below `value`.
fn scalars(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                scalars(value, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                scalars(value, &format!("{path}/{at}"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

/// Other values in the place of `value`: at the limits of its type, and small changes that only a comparison notices.
fn mutations(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(number) => {
            let next = number.as_i64().map_or(json!(0.5), |number| json!(number.wrapping_add(1)));
            vec![json!(-1), next, json!(i64::MIN), json!(i64::MAX), json!(u64::MAX), json!(1e308)]
        }
        Value::String(text) => vec![json!(format!("{text}x")), json!(""), json!("succeeded"), Value::Null],
        Value::Bool(is) => vec![json!(!is), Value::Null],
        _ => vec![json!(-1), json!("x")],
    }
}

/// Returns the file with one value of one line replaced.
fn with_value(file: &str, line: usize, path: &str, to: &Value) -> String {
    let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
    let mut value: Value = serde_json::from_str(&lines[line]).unwrap();
    *value.pointer_mut(path).unwrap() = to.clone();
    lines[line] = value.to_string();
    lines.join("\n") + "\n"
}

/// Only one in this many mutations is tried, so that the test stays quick. The number is prime, so that all
/// kinds of mutations are tried.
const TRIED_EVERY: usize = 7;

/// The outcome of an import.
enum Import {
    Accepted,
    Refused,
    TooLarge,
}

/// Imports `file`. If the import is accepted, checks that the session is intact, and deletes it. `change` describes the
/// file in errors.
async fn import_and_verify(world: &World, file: &str, change: &str) -> Import {
    let session = match import(world, file).await {
        Ok(session) => session,
        Err(Error::BadImport { .. }) => return Import::Refused,
        Err(other) => {
            assert!(matches!(other.code(), "too_large" | "too_many"), "{change}: {other:?}");
            return Import::TooLarge;
        }
    };
    for part in verify(world) {
        assert_eq!(part.findings, Vec::<String>::new(), "{change}");
    }
    let id = SessionRef::Id(session.id);
    let loaded = with_timeout(world.kernel.session_snapshot(&world.me, &id)).await;
    assert!(loaded.is_ok(), "{change}: {loaded:?}");
    let deleted = world.kernel.session_delete(&world.me, &id).await;
    assert!(deleted.is_ok(), "{change}: {deleted:?}");
    Import::Accepted
}

#[tokio::test]
async fn an_accepted_import_is_intact() {
    let file = example().await;
    let world = World::on(Disk::sqlite()).await;
    let (mut at, mut accepted, mut refused) = (0, 0, 0);
    for (no, line) in file.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let mut paths = vec![];
        scalars(&line, "", &mut paths);
        for path in paths {
            for to in mutations(line.pointer(&path).unwrap()) {
                at += 1;
                if at % TRIED_EVERY != 0 {
                    continue;
                }
                let changed = with_value(&file, no, &path, &to);
                match import_and_verify(&world, &changed, &format!("line {no}, {path} = {to}")).await {
                    Import::Accepted => accepted += 1,
                    Import::Refused => refused += 1,
                    Import::TooLarge => {}
                }
                world.settled().await;
            }
        }
    }
    assert!(accepted > 20 && refused > 100, "{accepted} accepted, {refused} refused of {at}");
}

#[tokio::test]
async fn an_agent_that_reports_more_tokens_than_can_be_counted_damages_nothing() {
    let world = World::on(Disk::sqlite()).await;
    for _ in 0..2 {
        world.play("a", "usage 18446744073709551615 18446744073709551615; say hi").await;
    }
    for part in verify(&world) {
        assert_eq!(part.findings, Vec::<String>::new());
    }
    let used = world.kernel.session_usage(&world.me, &by_key("a")).await.unwrap().usage;
    assert!(used.input_tokens >= Usage::MAX_TOKENS, "{used:?}");
    let file = export(&world, "a").await;
    let there = World::on(Disk::sqlite()).await;
    import(&there, &file).await.unwrap();
    assert_eq!(export(&there, "a").await, file);
}

#[tokio::test]
async fn contradictions_are_refused_with_the_record_and_the_field() {
    let file = example().await;
    let lines: Vec<&str> = file.lines().collect();
    let first = |text: &str| 1 + lines.iter().position(|line| line.contains(text)).unwrap();
    let (run, message, state) =
        (first(r#""kind":"run""#), first(r#""kind":"message""#), first(r#""kind":"state_at""#));
    let event = first(r#""kind":"event""#);
    for (line, path, to, field) in [
        (run, "/run/usage/inputTokens", json!(7), "usage of run_"),
        (run, "/run/usage/inputTokens", json!(u64::MAX), "usage.inputTokens of run_"),
        (run, "/run/usage/inputTokens", json!(-5), "run.usage.inputTokens"),
        (run, "/run/usage/costUsd", json!(-0.5), "run.usage.costUsd"),
        (run, "/run/usage/costUsd", json!(5e9), "usage.costUsd of run_"),
        (run, "/run/status", json!("cancelled"), ""),
        (run, "/run/runNo", json!(0), "runNo of run_"),
        (run, "/run/attempts", json!(9), "attempts of run_"),
        (run, "/run/createdAtMs", json!(-1), "createdAtMs of run_"),
        (run, "/attempts/0/attemptNo", json!(0), "attemptNo of att_"),
        (run, "/attempts/0/completedAtMs", json!(i64::MAX), "completedAtMs of att_"),
        (message, "/message/createdAtMs", json!(-1), "createdAtMs of msg_"),
        (state, "/value", json!(3), "value of the state \"kept\""),
        (state, "/updatedAtMs", json!(-1), "updatedAtMs of the state"),
        (event, "/event/timestampMs", json!(-1), "timestampMs of evt_"),
        (1, "/session/title", json!("Coffee"), "title of the session"),
        (1, "/session/status", json!("archived"), ""),
        (1, "/session/updatedAtMs", json!(-1), "updatedAtMs of ses_"),
    ] {
        let world = World::on(Disk::memory()).await;
        match import(&world, &changed(&file, line, path, &to)).await {
            Err(Error::BadImport { reason, .. }) => {
                assert!(reason.contains(field), "{path} = {to}: {reason}");
            }
            // No event records the status of this session.
            Ok(_) if path == "/session/status" => {}
            other => panic!("{path} = {to}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn imported_runs_get_the_limits_of_the_importing_caller() {
    let world = World::on(Disk::memory()).await;
    let lists = |adapters: &[&str]| {
        let adapters = Some(adapters.iter().map(ToString::to_string).collect());
        let key_id = KeyId::from_random([7; 16]);
        Some(Box::new(KeyLists { key_id, adapters, models: None, tools: None, spend_per_day: None }))
    };
    let options =
        RunOptions { folders: Some(vec!["/".into()]), key: lists(&["script"]), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("a", "say hi") }).await.unwrap().run;
    world.ended(run.id).await;
    let file = export(&world, "a").await;
    assert!(file.contains(r#""folders":["/"]"#));
    for caller in [
        Caller::new("ada"),
        Caller {
            folders: Some(vec!["/srv".into()]),
            lists: lists(&["script", "native"]),
            ..Caller::new("ada")
        },
    ] {
        let there = World { me: caller.clone(), ..World::on(Disk::memory()).await };
        import(&there, &file).await.unwrap();
        let imported = there.get(run.id).await.options;
        assert_eq!((imported.folders, imported.key), (caller.folders, caller.lists));
    }
}
