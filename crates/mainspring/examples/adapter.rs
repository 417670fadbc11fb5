//! An agent runtime of your own as an adapter: durable sessions, streaming, cancelling and retries come with it.
//!
//! ```sh
//! cargo run -p mainspring --example adapter -- "one two three"
//! ```

use std::io::Write as _;

use async_trait::async_trait;
use mainspring::adapter::{Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed};
use mainspring::core::{AttemptId, Body, Failure, Role};
use mainspring::{Caller, Config, Item, Node, RunRequest, session_ref};

/// Answers with the words of the prompt in reverse.
struct Reverse;

#[async_trait]
impl Adapter for Reverse {
    fn capabilities(&self) -> Capabilities {
        Capabilities { supports_cancellation: true, ..Capabilities::minimal("reverse") }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let prompt = attempt.assignment().prompt.text();
        for word in prompt.split_whitespace().rev() {
            if attempt.is_cancelled() {
                return End::stopped();
            }
            // Streamed text goes to readers at once, and becomes the answer when the attempt succeeds.
            if let Err(error) = attempt.delta(0, &format!("{word} ")) {
                return End::failed(Failure::new("reverse_failed", error.to_string()), false);
            }
        }
        End::succeeded()
    }

    async fn cancel(&self, _: AttemptId) -> Dispatch {
        // `execute` watches the handle itself.
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _: AttemptId) -> Death {
        // There is no process: dropping the future has stopped everything.
        Death::Proven
    }

    fn forget(&self, _: &str) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let prompt = std::env::args().nth(1).unwrap_or("one two three".into());
    let config = Config::with_state_dir(std::env::temp_dir().join("mainspring-example-adapter"))
        .adapter("reverse".into());
    let node = Node::builder(config).adapter(Reverse).open().await?;

    let me = Caller::new("me");
    let accepted = node.kernel().run_create(&me, RunRequest::text("words", prompt)).await?;
    let session = session_ref("words")?;
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
                }
                body if body.ends_run() => break,
                _ => {}
            },
            _ => {}
        }
    }
    writeln!(out)?;
    node.close().await;
    Ok(())
}
