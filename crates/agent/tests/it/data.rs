//! State and artifacts of a model, long tool results, attached files.

use mainspring_agent::Toolbox;
use mainspring_agent::tool::function;
use mainspring_core::{
    ArtifactId, ArtifactRole, Block, Body, Expect, Place, Run, RunStatus, StateChange, StateScope,
    StateWriter,
};
use mainspring_kernel::adapter::NewArtifact;
use mainspring_kernel::kernel::{
    ArtifactQuery, ArtifactsOf, Caller, NewSession, RunRequest, SessionTarget, StateOf,
};
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Protocol, Reply};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::world::{Setup, World, within_timeout};

#[derive(Deserialize, JsonSchema)]
struct Size {
    size: usize,
}

/// Starts a world with every built-in tool and the tool `much`, which returns a long text. Returns the world and the
/// folder of its artifacts.
async fn world(setup: Setup) -> (World, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let much = function("much", "Returns a long text.", |_, Size { size }: Size| async move {
        Ok((0..)
            .map(|n: u32| format!("{n} "))
            .scan(0, |sum, word| {
                *sum += word.len();
                (*sum <= size).then_some(word)
            })
            .collect::<String>()
            + "END")
    });
    let tools = Toolbox::built_in().with(much).unwrap();
    let setup = Setup { tools, artifacts: Some(folder.path().to_owned()), ..setup };
    (setup.start().await, folder)
}

fn session() -> SessionRef {
    SessionRef::Key("s".into())
}

impl World {
    async fn artifact_text(&self, id: ArtifactId) -> String {
        let (_, mut reader) = self.kernel.artifact_read(&self.me, id, 0, None).await.unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        text
    }

    async fn attach(&self, bytes: &[u8], name: &str, mime_type: &str) -> Block {
        let new = NewArtifact {
            role: ArtifactRole::Input,
            name: Some(name.into()),
            mime_type: Some(mime_type.into()),
            ..NewArtifact::default()
        };
        let target = SessionTarget { key: Some("s".into()), ..SessionTarget::default() };
        self.kernel.session_open(&self.me, &target, None).await.unwrap();
        let put = self.kernel.artifact_put(&self.me, &session(), new, None, &mut &*bytes).await;
        Block::Attachment { artifact: put.unwrap().0.id, mime_type: String::new(), name: None }
    }

    /// Runs one round of tool calls and returns their results.
    async fn call_tools(&self, calls: &[(&str, Value)]) -> (Run, Vec<(String, bool)>) {
        let reply =
            calls.iter().fold(Reply::default(), |reply, (name, input)| reply.and_tool(name, input.clone()));
        self.server.enqueue(reply).enqueue(Reply::text("done"));
        let run = self.run_prompt("go").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        let results = self.tool_results(run.id).await;
        (run, results)
    }
}

#[tokio::test]
async fn a_long_tool_result_is_stored_and_can_be_read_in_parts() {
    for protocol in Protocol::ALL {
        let (world, _folder) = world(Setup::protocol(protocol)).await;
        world.server.enqueue(Reply::tool("much", json!({"size": 200_000}))).enqueue(Reply::text("long"));
        let run = world.run_prompt("go").await;
        let text = &world.tool_results(run.id).await[0].0;
        assert!(text.len() < (64 << 10) + 400, "{protocol:?}: {}", text.len());
        assert!(text.starts_with("0 1 2 ") && text.ends_with("END"), "{protocol:?}");
        let request = world.request_body(1).to_string();
        assert!(request.contains("bytes are left out here"), "{protocol:?}");
        let query = ArtifactQuery { of: ArtifactsOf::Run(run.id), before: None, limit: None };
        let stored = world.kernel.artifact_list(&world.me, query).await.unwrap().items;
        assert_eq!(stored.len(), 1, "{protocol:?}");
        assert_eq!((stored[0].role, stored[0].name.as_deref()), (ArtifactRole::ToolOutput, Some("much.txt")));
        let whole = world.artifact_text(stored[0].id).await;
        assert!(whole.len() > 199_000 && whole.ends_with("END"), "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        let at = |kind: &str| kinds.iter().position(|known| *known == kind).unwrap();
        assert!(at("artifact.created") < at("tool.completed"), "{protocol:?}: {kinds:?}");

        // Reads on as the note says.
        let note = text.split("artifact_read with ").nth(1).unwrap().split(']').next().unwrap();
        let mut input: Value = serde_json::from_str(&format!("{{{note}}}")).unwrap();
        assert_eq!(input["artifact"], json!(stored[0].id), "{protocol:?}");
        let mut read = text.split("\n[").next().unwrap().to_owned();
        loop {
            let (_, results) = world.call_tools(&[("artifact_read", input.clone())]).await;
            let (part, after) = results[0].0.rsplit_once("\n[bytes ").unwrap();
            read += part;
            let Some((_, next)) = after.split_once("read on with offset ") else { break };
            input["offset"] = json!(next.trim_end_matches(']').parse::<u64>().unwrap());
            input["length"] = json!(60_000);
        }
        assert_eq!(read, whole, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_definition_limits_result_size_and_a_missing_artifact_folder_is_reported() {
    let terse = "id = \"terse\"\nresult_bytes = 2000\ntools = [\"much\"]";
    let (world, _folder) = world(Setup::default().agent(terse)).await;
    world.server.enqueue(Reply::tool("much", json!({"size": 9_000}))).enqueue(Reply::text("long"));
    let run = world.run_prompt_as("terse", "go").await;
    let text = &world.tool_results(run.id).await[0].0;
    assert!(text.len() < 2_300 && text.contains("are stored as the artifact art_"), "{text}");
    assert!(!text.contains("artifact_read"), "the agent has no such tool: {text}");

    let world = Setup::default().start().await;
    world.server.enqueue(Reply::tool("long", json!({}))).enqueue(Reply::text("long"));
    let run = world.run_prompt("go").await;
    let text = &world.tool_results(run.id).await[0].0;
    assert!(text.contains("bytes are left out here; they could not be stored]"), "{}", text.len());
}

#[tokio::test]
async fn a_model_stores_state_and_artifacts() {
    for protocol in Protocol::ALL {
        let (world, _folder) = world(Setup::protocol(protocol)).await;
        let (run, results) = world
            .call_tools(&[
                ("state_set", json!({"key": "name", "value": {"first": "Ada"}})),
                ("state_set", json!({"key": "turn", "value": 1, "scope": "run"})),
                (
                    "artifact_write",
                    json!({"name": "report.md", "content": "# Äh", "mime_type": "text/markdown"}),
                ),
                ("state_set", json!({"key": "../etc", "value": 1})),
                ("state_set", json!({"key": "other", "value": 1, "version": 7})),
            ])
            .await;
        let failed: Vec<bool> = results.iter().map(|(_, is_error)| *is_error).collect();
        assert_eq!(failed, [false, false, false, true, true], "{protocol:?}: {results:?}");
        let written: Value = serde_json::from_str(&results[2].0).unwrap();
        let id: ArtifactId = written["artifact"].as_str().unwrap().parse().unwrap();
        assert_eq!(world.artifact_text(id).await, "# Äh", "{protocol:?}");
        let artifact = world.kernel.artifact_get(&world.me, id).await.unwrap();
        assert_eq!((artifact.run, artifact.role), (Some(run.id), ArtifactRole::Result), "{protocol:?}");
        let has_event = world.event_bodies(run.id).await.into_iter().any(
            |body| matches!(body, Body::StateChanged { key, scope: StateScope::Session, .. } if key == "name"),
        );
        assert!(has_event, "{protocol:?}");

        // The next turn has the session state, but not the run state.
        let (_, results) = world
            .call_tools(&[
                ("state_get", json!({"key": "name"})),
                ("state_get", json!({"key": "turn", "scope": "run"})),
                ("state_list", json!({})),
                ("artifact_list", json!({})),
                ("artifact_read", json!({"artifact": id, "offset": 2})),
                ("artifact_read", json!({"artifact": ArtifactId::from_random([9; 16])})),
                ("artifact_read", json!({"artifact": id, "offset": 99})),
            ])
            .await;
        let texts: Vec<&str> = results.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts[0], r#"{"value":{"first":"Ada"},"version":1}"#, "{protocol:?}");
        assert_eq!(texts[1], r#"{"value":null,"version":0}"#, "{protocol:?}");
        assert_eq!(
            texts[2], r#"{"entries":[{"key":"name","value":{"first":"Ada"},"version":1}]}"#,
            "{protocol:?}"
        );
        assert!(texts[3].contains("report.md"), "{protocol:?}: {}", texts[3]);
        assert_eq!(texts[4], "Äh\n[bytes 2 to 5 of 5; this is the end]", "{protocol:?}");
        assert!(results[5].1 && texts[5].contains("no artifact"), "{protocol:?}: {}", texts[5]);
        assert!(results[6].1 && texts[6].contains("past the end"), "{protocol:?}: {}", texts[6]);

        // A text that ends within a character has an end too.
        let (new, mut bytes) = (NewArtifact::default(), &b"abc\xC3"[..]);
        let put = world.kernel.artifact_put(&world.me, &session(), new, None, &mut bytes).await;
        let cut = put.unwrap().0.id;
        let reads = [0, 3].map(|offset| ("artifact_read", json!({"artifact": cut, "offset": offset})));
        let (_, results) = world.call_tools(&reads).await;
        assert_eq!(results[0].0, "abc\n[bytes 0 to 3 of 4; the last 1 are no text]", "{protocol:?}");
        assert_eq!(results[1].0, "\n[bytes 3 to 3 of 4; the last 1 are no text]", "{protocol:?}");

        let (_, results) = world.call_tools(&[("state_delete", json!({"key": "name"}))]).await;
        assert!(!results[0].1);
        let of = StateOf::Session(session(), None);
        assert!(world.kernel.state_get(&world.me, &of, "name").await.is_err(), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_retried_run_sends_the_checkpoint_with_its_prompt() {
    for protocol in Protocol::ALL {
        let (world, _folder) = world(Setup::protocol(protocol)).await;
        world.server.enqueue(Reply::text("half").and(Action::Disconnect)).enqueue(Reply::text("done"));
        let run = world.send_prompt("count").await;
        world.wait_event(run.id, "attempt.failed", 1).await;
        let new = NewArtifact {
            role: ArtifactRole::Checkpoint,
            name: Some("state".into()),
            run: Some(run.id),
            ..NewArtifact::default()
        };
        let session = SessionRef::Id(run.session);
        world.kernel.artifact_put(&world.me, &session, new, None, &mut &b"up to 41"[..]).await.unwrap();
        world.clock.advance(500);
        let run = world.wait_ended(run.id).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{protocol:?}");
        assert!(!world.request_body(0).to_string().contains("checkpoint"), "{protocol:?}");
        let request = world.request_body(1).to_string();
        assert!(request.contains("up to 41") && request.contains("</checkpoint>"), "{protocol:?}: {request}");
        // The prompt itself is unchanged.
        assert_eq!(world.messages(run.id).await[0].text(), "count", "{protocol:?}");
    }
}

#[tokio::test]
async fn an_artifact_of_another_owner_is_not_found() {
    let (world, _folder) = world(Setup::default()).await;
    let other = Caller::new("eve");
    let target = SessionTarget { key: Some("hers".into()), ..SessionTarget::default() };
    world.kernel.session_open(&other, &target, None).await.unwrap();
    let by = SessionRef::Key("hers".into());
    let put = world.kernel.artifact_put(&other, &by, NewArtifact::default(), None, &mut &b"secret"[..]).await;
    let (_, results) = world.call_tools(&[("artifact_read", json!({"artifact": put.unwrap().0.id}))]).await;
    assert!(results[0].1 && !results[0].0.contains("secret"), "{results:?}");
}

#[tokio::test]
async fn a_binary_artifact_is_not_read_as_text() {
    let (world, _folder) = world(Setup::default()).await;
    let Block::Attachment { artifact, .. } = world.attach(&[0xFF, 0xD8, 0xFF], "a.jpg", "image/jpeg").await
    else {
        unreachable!()
    };
    let (_, results) = world.call_tools(&[("artifact_read", json!({"artifact": artifact}))]).await;
    assert!(results[0].1 && results[0].0.contains("is not text but image/jpeg"), "{results:?}");
}

#[tokio::test]
async fn a_system_prompt_may_depend_on_state_along_the_path() {
    let agent = "id = \"guide\"\nsystem = \"You speak {{ state.language or 'English' }}.\"";
    let (world, _folder) = world(Setup::default().agent(agent)).await;
    let system = |n: usize| world.request_body(n)["system"].to_string();
    let play = async |text: &str, place| {
        let new = NewSession { agent_definition: Some("guide".into()), ..NewSession::default() };
        let session = SessionTarget { key: Some("s".into()), new, ..SessionTarget::default() };
        let request = RunRequest { session, prompt: vec![Block::text(text)], place, ..RunRequest::default() };
        let run = world.send(request).await;
        world.wait_ended(run.id).await
    };
    world.server.enqueue(Reply::tool("state_set", json!({"key": "language", "value": "French"})));
    world.server.enqueue(Reply::text("bien")).enqueue(Reply::text("oui")).enqueue(Reply::text("yes"));
    let first = play("hello", Place::Tip).await;
    play("again", Place::Tip).await;
    assert!(
        system(0).contains("You speak English.") && system(1).contains("You speak English."),
        "{}",
        system(1)
    );
    assert!(system(2).contains("You speak French."), "{}", system(2));
    // On a branch from before the change, the state is not set.
    let root = world.messages(first.id).await;
    let run = world.send(RunRequest {
        prompt: vec![],
        place: Place::Regenerate { message_id: root[0].id },
        ..RunRequest::text("s", "")
    });
    let run = run.await;
    world.wait_ended(run.id).await;
    assert!(system(3).contains("You speak English."), "{}", system(3));
}

/// The beginning of an image of one pixel.
const PNG: &[u8] = &[
    0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, 0, 0, 0, 0x0D, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0,
    0, 1, 8,
];
const PNG_BASE64: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCA==";

#[tokio::test]
async fn files_are_sent_in_the_form_of_each_protocol() {
    for protocol in Protocol::ALL {
        let (world, _folder) = world(Setup::protocol(protocol)).await;
        let blocks = vec![
            Block::text("what is this?"),
            world.attach(PNG, "dot.png", "image/png").await,
            world.attach(b"%PDF-1.4", "paper.pdf", "application/pdf").await,
            world.attach("Grüße".as_bytes(), "note.txt", "text/plain; charset=utf-8").await,
            world.attach(&[0, 1, 2], "song.ogg", "audio/ogg").await,
        ];
        world.server.enqueue(Reply::text("a dot")).enqueue(Reply::text("still a dot"));
        let run = world.send(RunRequest { prompt: blocks, ..RunRequest::text("s", "") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let request = world.request_body(0).to_string();
        let pdf = "JVBERi0xLjQ=";
        let expected = match protocol {
            Protocol::Anthropic => [
                format!(r#""source":{{"type":"base64","media_type":"image/png","data":"{PNG_BASE64}"}}"#),
                format!(r#""source":{{"type":"base64","media_type":"application/pdf","data":"{pdf}"}}"#),
            ],
            Protocol::Chat | Protocol::Responses => {
                [format!("data:image/png;base64,{PNG_BASE64}"), format!("data:application/pdf;base64,{pdf}")]
            }
            Protocol::Gemini => [
                format!(r#""mime_type":"image/png","data":"{PNG_BASE64}""#),
                format!(r#""mime_type":"application/pdf","data":"{pdf}""#),
            ],
        };
        for part in &expected {
            assert!(request.contains(part), "{protocol:?}: {part} {request}");
        }
        assert!(request.contains("Grüße") && request.contains("note.txt"), "{protocol:?}: {request}");
        assert!(
            request.contains("song.ogg") && request.contains("cannot be shown here"),
            "{protocol:?}: {request}"
        );
        // Later requests still contain the image.
        world.run_prompt("and now?").await;
        assert!(world.request_body(1).to_string().contains(PNG_BASE64), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_deleted_file_does_not_end_the_conversation() {
    let (world, _folder) = world(Setup::default()).await;
    let block = world.attach(PNG, "dot.png", "image/png").await;
    let Block::Attachment { artifact, .. } = &block else { unreachable!() };
    world.server.enqueue(Reply::text("a dot"));
    let run = world.send(RunRequest { prompt: vec![block.clone()], ..RunRequest::text("s", "") }).await;
    world.wait_ended(run.id).await;
    within_timeout(world.kernel.artifact_delete(&world.me, *artifact)).await.unwrap();
    world.server.enqueue(Reply::text("gone"));
    let run = world.run_prompt("and now?").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let request = world.request_body(1).to_string();
    assert!(request.contains("it cannot be read") && !request.contains(PNG_BASE64), "{request}");
}

#[tokio::test]
async fn state_of_the_owner_needs_a_definition_that_names_its_tools() {
    let agents = vec!["id = \"guide\"\ntools = [\"owner_state_*\", \"state_*\"]"];
    let (world, _folder) = world(Setup { agents, ..Setup::default() }).await;
    // The default definition has every tool except the tools that leave the session.
    let (_, results) = world.call_tools(&[("owner_state_set", json!({"key": "k", "value": 1}))]).await;
    assert!(results[0].1, "{results:?}");
    assert!(world.kernel.state_get(&world.me, &StateOf::Owner, "k").await.is_err());

    let calls = [
        ("owner_state_set", json!({"key": "lang", "value": "de", "version": 0})),
        ("owner_state_set", json!({"key": "lang", "value": "fr", "version": 0})),
        ("state_set", json!({"key": "lang", "value": "en"})),
        ("state_delete", json!({"key": "lang", "version": 9})),
    ];
    let reply =
        calls.iter().fold(Reply::default(), |reply, (name, input)| reply.and_tool(name, input.clone()));
    world.server.enqueue(reply).enqueue(Reply::text("done"));
    let run = world.run_prompt_as("guide", "go").await;
    let results = world.tool_results(run.id).await;
    let failed: Vec<bool> = results.iter().map(|(_, is_error)| *is_error).collect();
    assert_eq!(failed, [false, true, false, true], "{results:?}");
    let entry = world.kernel.state_get(&world.me, &StateOf::Owner, "lang").await.unwrap();
    assert_eq!(entry.value, "de");
    // The history names the tool and the run, and the session has the event.
    let changes =
        world.kernel.state_history(&world.me, &StateOf::Owner, "lang", None, None).await.unwrap().items;
    let by = match &changes[..] {
        [StateChange { by: StateWriter::Agent { run_id, tool, .. }, .. }] => (*run_id, tool.as_deref()),
        other => panic!("{other:?}"),
    };
    assert_eq!(by, (run.id, Some("owner_state_set")));
    let is_event = |body: &Body| matches!(body, Body::StateChanged { scope: StateScope::Owner, .. });
    assert_eq!(world.event_bodies(run.id).await.iter().filter(|body| is_event(body)).count(), 1);
}

#[tokio::test]
async fn a_tool_reads_and_writes_state_as_rust_values() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let count = function("count", "Counts.", |call, _: Nothing| async move {
        let state = call.context.state(StateScope::Session);
        let before = state.get_versioned::<u32>("count").await?;
        let (count, expect) = match before {
            Some((count, version)) => (count + 1, Expect::Version(version)),
            None => (1, Expect::Absent),
        };
        state.set_if("count", &count, expect).await?;
        state.set("last", &vec!["a", "b"]).await?;
        assert!(state.set_if("count", &0, Expect::Absent).await.is_err());
        assert!(state.get::<u32>("last").await.unwrap_err().to_string().contains("another type"));
        assert!(state.has("last").await? && state.delete("last").await? && !state.has("last").await?);
        assert!(!state.delete("last").await?);
        Ok(format!("{:?}", state.all::<u32>().await?))
    });
    let world = Setup { tools: Toolbox::default().with(count).unwrap(), ..Setup::default() }.start().await;
    let calls: Vec<(&str, Value)> = vec![("count", json!({}))];
    for expected in [r#"{"count": 1}"#, r#"{"count": 2}"#] {
        let (_, results) = world.call_tools(&calls).await;
        assert_eq!(results[0], (expected.to_owned(), false));
    }
}

#[tokio::test]
async fn an_agent_proposes_a_fact_to_remember_if_its_definition_names_the_tool() {
    let agents = vec!["id = \"guide\"\ntools = [\"memory_propose\"]"];
    let (world, _folder) = world(Setup { agents, ..Setup::default() }).await;
    let fact = json!({"text": "Ada likes tea.", "uncertainty": 0.25});
    let (_, results) = world.call_tools(&[("memory_propose", fact.clone())]).await;
    assert!(results[0].1, "the default definition does not have it: {results:?}");
    let calls = [("memory_propose", fact), ("memory_propose", json!({"text": "?", "uncertainty": 7}))];
    let reply =
        calls.iter().fold(Reply::default(), |reply, (name, input)| reply.and_tool(name, input.clone()));
    world.server.enqueue(reply).enqueue(Reply::text("done"));
    let run = world.run_prompt_as("guide", "go").await;
    let results = world.tool_results(run.id).await;
    assert_eq!((results[0].1, results[1].1), (false, true), "{results:?}");
    let candidates = world.kernel.memory_candidates(None, 9).await.unwrap();
    assert_eq!(candidates.len(), 1);
    assert_eq!((candidates[0].run, &candidates[0].metadata["uncertainty"]), (Some(run.id), &json!(0.25)));
}
