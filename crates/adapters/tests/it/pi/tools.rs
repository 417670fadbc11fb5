//! Results of pi's tools: changes of files and images.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_result_has_its_diff_and_its_images() {
    let world = world("keep").await;
    let edit = json!({"path": "/a", "edits": [{"oldText": "x", "newText": "y"}]});
    let said = json!({"content": [{"type": "text", "text": "edited"}]});
    let image = json!({"content": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]});
    let script = format!("result edit {edit} {said}; result read {} {image}; bye", json!({"path": "/p.png"}));
    world.answer_to("a", &script).await;
    let path = world.path("a").await;
    let Block::ToolResult { content, .. } = &path[2].content[0] else { panic!("{path:?}") };
    let json = serde_json::to_string(content).unwrap();
    assert_eq!(
        json,
        r#"[{"type":"text","text":"edited"},{"type":"diff","path":"/a","before":"x","after":"y"}]"#
    );
    let Block::ToolResult { content, .. } = &path[4].content[0] else { panic!("{path:?}") };
    assert!(
        matches!(&content[..], [Block::Attachment { mime_type, .. }] if mime_type == "image/png"),
        "{content:?}"
    );
    assert!(event_types(&world.events("a").await).contains(&"artifact.created"));
    world.close().await;
}
