//! A native agent with a tool of your own, which keeps notes in the session's state.
//!
//! ```sh
//! cargo run -p mainspring --example tool                                         # a scripted model, without a key
//! ANTHROPIC_API_KEY=… cargo run -p mainspring --example tool -- "note that I like tea" anthropic/claude-sonnet-4-5
//! ```

use std::io::Write as _;

use mainspring::core::{Body, Expect, Role, StateScope};
use mainspring::tool::{ToolCall, ToolError, function};
use mainspring::{Caller, Config, Item, Node, RunRequest, StateOf, Toolbox, session_ref};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Note {
    /// A short name.
    name: String,
    /// The text.
    text: String,
}

async fn take_note(call: ToolCall, note: Note) -> Result<String, ToolError> {
    // State belongs to a point of the conversation: a branch or a fork sees the notes as of its start.
    call.context.state_set(StateScope::Session, &note.name, Some(note.text.into()), Expect::Any).await?;
    Ok(format!("noted {}", note.name))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or(r#"tool take_note {"name":"drink","text":"tea"}; say noted"#.into());

    let config =
        Config::with_state_dir(std::env::temp_dir().join("mainspring-example-tool")).adapter("native".into());
    let tools = Toolbox::new().with(function("take_note", "Keeps a note.", take_note))?;
    let node = Node::builder(config).tools(tools).open().await?;

    let me = Caller::new("me");
    let mut request = RunRequest::text("notes", prompt);
    request.options.model = Some(args.next().unwrap_or("scripted/any".into()));
    let accepted = node.kernel().run_create(&me, request).await?;

    let session = session_ref("notes")?;
    let mut stream = node.kernel().session_subscribe(&me, &session, Some(accepted.position)).await?;
    let (mut out, mut shown) = (std::io::stdout(), 0);
    while let Some(item) = stream.next().await.transpose()? {
        match item {
            Item::Delta(delta) => {
                write!(out, "{}", delta.text)?;
                shown += delta.text.len();
            }
            Item::Event(event) => match &event.body {
                // A completed message replaces its deltas. It may contain text that was not streamed.
                Body::MessageCompleted { message, .. } if message.role == Role::Assistant => {
                    write!(out, "{}", message.text().get(shown..).unwrap_or_default())?;
                    shown = 0;
                }
                Body::ToolStarted { name, .. } => writeln!(out, "· {name}")?,
                body if body.ends_run() => break,
                _ => {}
            },
            _ => {}
        }
    }
    for entry in node.kernel().state_list(&me, &StateOf::Session(session, None), None, None).await?.items {
        writeln!(out, "\n{}: {}", entry.key, entry.value)?;
    }
    node.close().await;
    Ok(())
}
