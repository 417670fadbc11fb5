//! Runs the example of docs/bridge.md and checks that it matches the document.

use mainspring_client::bridge::{Launch, Query, QueryEvent, RuntimeProcess, Surface};
use mainspring_client::status::StatusStore;

use super::launch;
use crate::docs::document;

// The document shows the code from here.
async fn example(launch: Launch) -> Result<String, Box<dyn std::error::Error>> {
    let process = RuntimeProcess::start(launch).await?;
    let status = StatusStore::follow(process.client()?);
    let task = Surface::task_chat("42");

    let chat = process.bridge();
    let mut answer = chat.query(Query::new(task.clone(), "say hello"))?;
    let mut shown = String::new();
    while let Some(event) = answer.next().await {
        match event {
            QueryEvent::TextDelta(text) => shown.push_str(&text),
            // The process died: the text is sent again from its beginning.
            QueryEvent::Restarted => shown.clear(),
            QueryEvent::ToolCall(call) => call.fail("policy_denied", "this host has no tools"),
            _ => {}
        }
    }
    let result = answer.result().await?;

    // The session is found again by its surface, also after a restart.
    let run = status.until(|status| status.surface(&task)?.1.filter(|run| run.status.is_ended())).await;
    assert_eq!((run.run_id, run.status), (result.run_id, result.terminal_status));
    process.stop().await;
    Ok(result.text)
}
// To here.

#[tokio::test]
async fn the_documented_example_matches_the_output() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(example(launch(dir.path())).await.unwrap(), "hello\n");
    let own = include_str!("docs.rs");
    let code = own.split("here.\n").nth(1).unwrap().split("// To").next().unwrap();
    assert!(
        document("docs/bridge.md").contains(&format!("```rust\n{code}```")),
        "docs/bridge.md should hold:\n{code}"
    );
}
