//! Export and import of artifacts with their bytes, and of state.

use mainspring_core::{Artifact, Block, Expect, FileLocation};
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::kernel::StateOf;
use mainspring_kernel::{Error, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::artifacts::world_with_artifacts;
use crate::portable::{changed, export, import, join_lines};
use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{World, by_key, every_store};

fn session() -> StateOf {
    StateOf::Session(by_key("a"), None)
}

/// Creates a session with artifacts (one larger than a line, one empty), with state, and with a run that has state.
async fn create_session_with_data(world: &World) -> Vec<(Artifact, Vec<u8>)> {
    world.play("a", "say one").await;
    let set = async |of: &StateOf, key: &str, value: Option<Value>| {
        world.kernel.state_set(&world.me, of, key, value, Expect::Any).await.unwrap();
    };
    for value in [json!(1), json!({"deep": ["ü", null]})] {
        set(&session(), "kept", Some(value)).await;
    }
    set(&session(), "gone", Some(json!(0))).await;
    set(&session(), "gone", None).await;
    let run = world.prompt("a", "hang").await;
    set(&StateOf::Run(run.id), "own", Some(json!("run's"))).await;
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    world.ended(run.id).await;
    let mut artifacts = vec![];
    for size in [0_usize, 5, 120_000] {
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        artifacts.push((world.put("a", &bytes).await.unwrap(), bytes));
    }
    artifacts
}

#[tokio::test]
async fn artifacts_and_state_are_exported_and_imported() {
    for from in every_store() {
        let folder = TempDir::new().unwrap();
        let world = world_with_artifacts(from, &folder, 1).await;
        let artifacts = create_session_with_data(&world).await;
        let file = export(&world, "a").await;
        for to in every_store() {
            let folder = TempDir::new().unwrap();
            let there = world_with_artifacts(to, &folder, 2).await;
            there.kernel.session_delete(&there.me, &by_key("a")).await.unwrap();
            import(&there, &file).await.unwrap();
            assert_eq!(export(&there, "a").await, file, "{} to {}", world.disk.name, there.disk.name);
            for (artifact, bytes) in &artifacts {
                assert_eq!(there.kernel.artifact_get(&there.me, artifact.id).await.unwrap(), *artifact);
                assert_eq!(there.bytes(artifact, 0, None).await, *bytes);
            }
            assert_eq!(there.kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new());
            let state = async |world: &World, of: &StateOf| {
                world.kernel.state_list(&world.me, of, None, None).await.unwrap().items
            };
            let here = state(&world, &session()).await;
            assert_eq!(here.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["kept"]);
            assert_eq!(state(&there, &session()).await, here);
            let runs = world.kernel.run_list(&world.me, Default::default()).await.unwrap().items;
            let of = StateOf::Run(runs[0].id);
            assert_eq!(state(&world, &of).await.len(), 1);
            assert_eq!(state(&there, &of).await, state(&world, &of).await);
            // The imported session continues, and reuses no version.
            let again =
                there.kernel.state_set(&there.me, &session(), "kept", Some(json!(3)), Expect::Any).await;
            assert_eq!(again.unwrap().entry.unwrap().version, here[0].version + 1);
        }
    }
}

/// A round of tool calls as an external agent reports it, with a change of a file in full and one as artifacts.
fn tool_round(before: &Artifact, after: &Artifact) -> [Record; 2] {
    let location = FileLocation { path: "/w/plan.md".into(), line: Some(3) };
    let call = Block::ToolUse {
        id: "t1".into(),
        name: "edit".into(),
        input: json!({"path": "/w/plan.md"}),
        title: Some("Edit the plan".into()),
        kind: Some("edit".into()),
        locations: vec![location],
    };
    let diff = |text: bool| Block::Diff {
        path: "/w/plan.md".into(),
        before: text.then(|| "one\n".into()),
        after: text.then(|| "two \u{1F980}\n".into()),
        before_artifact: (!text).then_some(before.id),
        after_artifact: (!text).then_some(after.id),
    };
    let image = Block::Attachment { artifact: after.id, mime_type: "image/png".into(), name: None };
    let result =
        Block::tool_result("t1", "edit", vec![Block::text("done"), diff(true), diff(false), image], false);
    [Record::Message { blocks: vec![call], usage: None }, Record::ToolResults { blocks: vec![result] }]
}

#[tokio::test]
async fn tool_calls_diffs_and_attachments_are_exported_and_imported() {
    for from in every_store() {
        let folder = TempDir::new().unwrap();
        let (adapter, mut control) = puppet(&from.store, PuppetBehavior::default());
        let options = Options { artifacts: Some(folder.path().join("artifacts")), ..Options::default() };
        let world = World::with(from, options, vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let (before, after) = (world.put("a", b"one").await.unwrap(), world.put("a", b"two").await.unwrap());
        for record in tool_round(&before, &after) {
            execution.handle.record(vec![record]).await.unwrap();
        }
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let file = export(&world, "a").await;
        let path = world.path("a").await;
        let round = [&path[1].content[0], &path[2].content[0]];
        assert!(
            matches!(round, [Block::ToolUse { kind: Some(_), .. }, Block::ToolResult { .. }]),
            "{round:?}"
        );
        for to in every_store() {
            let folder = TempDir::new().unwrap();
            let there = world_with_artifacts(to, &folder, 2).await;
            there.kernel.session_delete(&there.me, &by_key("a")).await.unwrap();
            import(&there, &file).await.unwrap();
            assert_eq!(there.path("a").await, path, "{} to {}", world.disk.name, there.disk.name);
            assert_eq!(export(&there, "a").await, file, "{} to {}", world.disk.name, there.disk.name);
            assert_eq!(there.bytes(&after, 0, None).await, b"two");
        }
    }
}

#[tokio::test]
async fn invalid_artifacts_and_state_are_refused_with_the_line_and_leave_nothing() {
    let folder = TempDir::new().unwrap();
    let world = world_with_artifacts(crate::world::Disk::memory(), &folder, 1).await;
    create_session_with_data(&world).await;
    let file = export(&world, "a").await;
    let lines: Vec<&str> = file.lines().collect();
    let first = |text: &str| 1 + lines.iter().position(|line| line.contains(text)).unwrap();
    // The newest artifact is first and has more than one line of bytes.
    let (artifact, bytes, state) =
        (first(r#""kind":"artifact""#), first(r#""kind":"bytes""#), first(r#""kind":"state_at""#));
    let without = |line: usize| join_lines(&[&lines[..line - 1], &lines[line..]].concat());
    let twice = |line: usize| join_lines(&[&lines[..line], &lines[line - 1..]].concat());
    let nobody = json!("run_00000000000040008000000000000000");
    let spoiled = [
        ("no base64", bytes, changed(&file, bytes, "/data", &json!("*"))),
        ("other bytes", bytes + 2, changed(&file, bytes, "/data", &json!("AAAA".repeat(16 << 10)))),
        ("bytes that are missing", bytes + 2, without(bytes)),
        ("bytes too many", bytes + 2, twice(bytes)),
        ("bytes of nothing", artifact, without(artifact)),
        (
            "another's artifact",
            artifact,
            changed(&file, artifact, "/artifact/sessionId", &json!("ses_00000000000040008000000000000000")),
        ),
        ("an artifact of a run elsewhere", artifact, changed(&file, artifact, "/artifact/runId", &nobody)),
        (
            "bytes elsewhere",
            artifact,
            changed(&file, artifact, "/artifact/uri", &json!("file:///etc/passwd")),
        ),
        ("a bad kind", artifact, changed(&file, artifact, "/artifact/kind", &json!(""))),
        ("a bad key", state, changed(&file, state, "/key", &json!("a b"))),
        ("no version", state, changed(&file, state, "/version", &json!(0))),
        (
            "state before artifacts",
            artifact + 1,
            join_lines(&[&lines[..artifact - 1], &lines[state - 1..state], &lines[artifact - 1..]].concat()),
        ),
    ];
    for (what, line, file) in spoiled {
        for disk in every_store() {
            let folder = TempDir::new().unwrap();
            let there = world_with_artifacts(disk, &folder, 2).await;
            there.kernel.session_delete(&there.me, &by_key("a")).await.unwrap();
            let error = import(&there, &file).await.expect_err(what);
            assert!(
                matches!(error, Error::BadImport { line: at, .. } if at == line as u64),
                "{what}: {error}"
            );
            there.settled().await;
            assert_eq!(there.kernel.blobs_check(false).await.unwrap().blobs, 0, "{what}");
        }
    }
}

#[tokio::test]
async fn an_import_does_not_take_an_artifact_of_another_session() {
    let folder = TempDir::new().unwrap();
    let world = world_with_artifacts(crate::world::Disk::sqlite(), &folder, 1).await;
    create_session_with_data(&world).await;
    let file = export(&world, "a").await;
    let there_folder = TempDir::new().unwrap();
    let there = world_with_artifacts(crate::world::Disk::sqlite(), &there_folder, 2).await;
    let theirs = there.put("b", b"mine").await.unwrap();
    there.kernel.session_delete(&there.me, &by_key("a")).await.unwrap();
    let line = 1 + file.lines().position(|line| line.contains(r#""kind":"artifact""#)).unwrap();
    let file = changed(&file, line, "/artifact/artifactId", &json!(theirs.id));
    let refused = import(&there, &file).await.unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    assert_eq!(there.kernel.artifact_get(&there.me, theirs.id).await.unwrap(), theirs);
    assert_eq!(there.bytes(&theirs, 0, None).await, b"mine");
}
