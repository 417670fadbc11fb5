//! Tool calls in messages: details, changes of files, images and other files, and rounds of overlapping calls.

use mainspring_core::{ArtifactId, Block};
use mainspring_kernel::kernel::SearchQuery;
use serde_json::{Value, json};

use super::*;

/// Builds the script command that reports an update of a tool call.
fn call(kind: &str, id: &str, fields: Value) -> String {
    let mut update = fields;
    (update["sessionUpdate"], update["toolCallId"]) = (kind.into(), id.into());
    format!("report {update}")
}

fn start(id: &str, fields: Value) -> String {
    call("tool_call", id, fields)
}

fn end(id: &str, content: &Value) -> String {
    call("tool_call_update", id, json!({"status": "completed", "content": content}))
}

fn content(block: &Value) -> Value {
    json!({"type": "content", "content": block})
}

async fn artifact(world: &World, id: ArtifactId) -> Vec<u8> {
    let (_, mut reader) = world.kernel().artifact_read(&world.me, id, 0, None).await.unwrap();
    let mut bytes = vec![];
    tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut bytes).await.unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_has_its_kind_locations_and_diff() {
    let world = world("resume").await;
    let started = start(
        "t",
        json!({"title": "Edit a.rs", "name": "Edit", "kind": "edit", "status": "pending", "rawInput": {"x": 1},
               "locations": [{"path": "/a.rs", "line": 3}]}),
    );
    let diffs = json!([{"type": "diff", "path": "/a.rs", "oldText": "old", "newText": "new"},
                       {"type": "diff", "path": "/b.rs", "newText": "$L"}]);
    world.answer_to("a", &format!("hi; {started}; {}; bye", end("t", &diffs))).await;
    let path = world.path("a").await;
    let Block::ToolResult { content, .. } = &path[2].content[0] else { panic!("{path:?}") };
    let Block::Diff { path: file, before: None, after: None, after_artifact: Some(stored), .. } = &content[1]
    else {
        panic!("{content:?}")
    };
    assert_eq!((file.as_str(), artifact(&world, *stored).await.len()), ("/b.rs", 100_000));
    let messages = world.content("a", 1).await.replace(&stored.to_string(), "ART");
    insta::assert_snapshot!(messages, @r#"
    assistant [{"type":"text","text":"hi\n"},{"type":"tool_use","id":"t","name":"Edit","input":{"x":1},"title":"Edit a.rs","kind":"edit","locations":[{"path":"/a.rs","line":3}]}]
    user [{"type":"tool_result","toolUseId":"t","name":"Edit","content":[{"type":"diff","path":"/a.rs","before":"old","after":"new"},{"type":"diff","path":"/b.rs","afterArtifact":"ART"}],"isError":false}]
    assistant [{"type":"text","text":"bye\n"}]
    "#);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_an_agent_and_its_tools_are_stored() {
    let world = world("resume").await;
    let image = json!({"type": "image", "data": "$P", "mimeType": "image/png"});
    let resource = json!({"type": "resource", "resource": {"uri": "file:///x/notes.md", "mimeType": "text/markdown", "text": "# Hi"}});
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": image});
    let sound = json!({"type": "audio", "data": "not base64!", "mimeType": "audio/wav"});
    let results = json!([
        content(&json!({"type": "text", "text": "$L"})),
        content(&image),
        content(&resource),
        content(&sound)
    ]);
    let script = format!(
        "look; report {chunk}; {}; {}",
        start("t", json!({"title": "draw", "status": "in_progress"})),
        end("t", &results)
    );
    world.answer_to("a", &script).await;
    let path = world.path("a").await;
    let [Block::Text { .. }, Block::Attachment { artifact: picture, mime_type, .. }] = &path[1].content[..]
    else {
        panic!("{path:?}")
    };
    assert_eq!(
        (mime_type.as_str(), artifact(&world, *picture).await.as_slice()),
        ("image/png", &b"\x89PNG\r\n\x1a\n"[..])
    );
    let Block::ToolResult { content, .. } = &path[3].content[0] else { panic!("{path:?}") };
    let names: Vec<_> = content
        .iter()
        .map(|block| match block {
            Block::Text { text } if text.len() < 100 => text.clone(),
            Block::Text { text } => format!("{} bytes", text.len() / 1024 * 1024),
            Block::Attachment { mime_type, name, .. } => format!("{mime_type} {name:?}"),
            other => format!("{other:?}"),
        })
        .collect();
    insta::assert_snapshot!(names.join("\n"), @r#"
    16384 bytes
    text/plain; charset=utf-8 Some("draw.txt")
    image/png None
    text/markdown Some("notes.md")
    [audio/wav: the agent sent invalid base64]
    "#);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_calls_form_a_round() {
    let world = world("resume").await;
    let text = |text: &str| json!([content(&json!({"type": "text", "text": text}))]);
    let begin = |id: &str| start(id, json!({"title": id, "status": "in_progress"}));
    let script = [
        begin("a"),
        "meanwhile".into(),
        begin("b"),
        end("a", &text("1")),
        end("b", &text("2")),
        end("b", &text("again")),
    ];
    world.answer_to("a", &format!("{}; done; {}", script.join("; "), begin("c"))).await;
    insta::assert_snapshot!(world.content("a", 1).await, @r#"
    assistant [{"type":"tool_use","id":"a","name":"a","input":{}}]
    assistant [{"type":"text","text":"meanwhile\n"},{"type":"tool_use","id":"b","name":"b","input":{}}]
    user [{"type":"tool_result","toolUseId":"a","name":"a","content":[{"type":"text","text":"1"}],"isError":false},{"type":"tool_result","toolUseId":"b","name":"b","content":[{"type":"text","text":"2"}],"isError":false}]
    assistant [{"type":"text","text":"done\n"},{"type":"tool_use","id":"c","name":"c","input":{}}]
    user [{"type":"tool_result","toolUseId":"c","name":"c","content":[{"type":"text","text":"outcome unknown: the run ended before the tool answered"}],"isError":true}]
    assistant []
    "#);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_during_a_round_loses_no_result() {
    let world = world("resume").await;
    let text = json!([content(&json!({"type": "text", "text": "1"}))]);
    let begin = |id: &str| start(id, json!({"title": id, "status": "in_progress"}));
    world.run("a", &format!("{}; {}; {}; crash", begin("a"), begin("b"), end("a", &text))).await;
    insta::assert_snapshot!(world.content("a", 3).await, @r#"
    user [{"type":"tool_result","toolUseId":"a","name":"a","content":[{"type":"text","text":"1"}],"isError":false},{"type":"tool_result","toolUseId":"b","name":"b","content":[{"type":"text","text":"outcome unknown: the run ended before the tool answered"}],"isError":true}]
    assistant [{"type":"error","code":"transport_interruption","message":"the agent's process has ended; its last output: acp_agent ready\nout of memory"}]
    "#);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconstructed_session_gets_its_tool_calls() {
    let mut world = world("none").await;
    world.answer_to("a", "hello; tool read; bye").await;
    world.restart().await;
    let answer = world.answer_to("a", "history").await;
    let transcript = r#"assistant: hello |  | assistant called the tool read {"path":"/x"} | the tool read returned: done it | assistant: bye"#;
    assert!(answer.contains(transcript), "{answer}");
    // A search finds them, too.
    let query = SearchQuery { text: "done it".into(), ..SearchQuery::default() };
    let found = world.kernel().session_search(&world.me, &query).await.unwrap();
    assert!(!found.hits.is_empty());
    world.close().await;
}
