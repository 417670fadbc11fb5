//! Keeps one mainspring busy and prints what it observes: `load STATE_DIR ROUND [STEP_MS]`.
//!
//! ```text
//! ack RUN                         a run is acknowledged
//! end RUN STATUS                  the end of the run was observed
//! text SESSION POSITION MESSAGE TEXT    a reader received TEXT, a JSON string that ends at POSITION
//! at SESSION POSITION             the reader has received an event
//! done SESSION POSITION MESSAGE TEXT    the reader has received the event that completes a message
//! cut SESSION POSITION            the reader got a report that text after the position is lost
//! refused CODE                    a prompt was refused and is sent again, or the store reported a failure
//! ```
//!
//! The `kill -9` test runs this program and compares its output with the state afterwards. STEP_MS moves the clock
//! forward or back by this number of milliseconds once the sessions are started.

use std::io::Write;
use std::time::Duration;

use mainspring::core::{Body, RunId};
use mainspring::{Caller, Config, Item, Node, RunRequest, SessionTarget};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::StoreChange;
use mainspring_kernel::store::SessionRef;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

const SESSIONS: usize = 12;

/// The scripts of the sessions, repeated in turn: text, streams, thinking, progress, tool calls, failures and retries.
const SCRIPTS: [&str; 8] = [
    "say hello",
    "stream 200",
    "say a; tool add {\"a\":1,\"b\":2}; say b",
    "stream 20 every 2ms; progress half; stream 20 every 2ms",
    "say x; fail once; say y",
    "fail",
    "think hm; usage 3 4 0.01; stream 5 every 1ms",
    "tool nope; tool upper {\"text\":\"t\"}; stream 30 every 1ms; progress near; stream 5",
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(round)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: load STATE_DIR ROUND [STEP_MS]");
    };
    let step_ms: i64 = arguments.next().map_or(Ok(0), |step| step.parse())?;
    // Catches SIGXFSZ, which would end the process: a write beyond the file size limit then returns an error.
    let _file_size = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    let mut config = Config::with_state_dir(dir);
    config.retry.base_ms = 1;
    let clock = Clock::system();
    let node = Node::builder(config).clock(clock.clone()).open().await?;
    let mut sessions = JoinSet::new();
    for no in 0..SESSIONS {
        let (kernel, round) = (node.kernel().clone(), round.clone());
        sessions.spawn(async move { keep_busy(kernel, no, &round).await });
    }
    clock.set_system_time(step_ms);
    while let Some(ended) = sessions.join_next().await {
        ended??;
    }
    Ok(())
}

async fn keep_busy(kernel: mainspring::Kernel, session: usize, round: &str) -> anyhow::Result<()> {
    let me = Caller::new("load");
    for turn in 0.. {
        let mut request = RunRequest::text(format!("s{session}"), SCRIPTS[(turn + session) % SCRIPTS.len()]);
        request.name.client_id = Some(format!("load-{session}"));
        request.name.request_id = Some(format!("{round}.{turn}"));
        let target = SessionTarget { key: Some(format!("s{session}")), ..SessionTarget::default() };
        request.session = target;
        let accepted = loop {
            match kernel.run_create(&me, request.clone()).await {
                Err(error) if error.is_retryable() => {
                    print_line(format_args!("refused {}", error.code()));
                    kernel.sleep(Duration::from_millis(20)).await;
                }
                accepted => break accepted?,
            }
        };
        let run = accepted.run.id;
        print_line(format_args!("ack {run}"));
        if turn % 7 == 3 {
            // The run may have ended already: then there is nothing to cancel.
            let _ = kernel.run_cancel(&me, run).await;
        }
        let (id, by) = (accepted.session.id, SessionRef::Id(accepted.session.id));
        let mut items = kernel.session_subscribe(&me, &by, Some(accepted.position)).await?;
        while let Some(item) = items.next().await.transpose()? {
            match &item {
                Item::Delta(delta) => {
                    let (at, message) = (delta.position, delta.message);
                    let text = serde_json::to_string(&delta.text)?;
                    print_line(format_args!("text {id} {at} {message} {text}"));
                }
                Item::Event(event) => match &event.body {
                    Body::MessageCompleted { message, .. } => {
                        let (at, message, text) = (event.position(), message.id, message.text());
                        let text = serde_json::to_string(&text)?;
                        print_line(format_args!("done {id} {at} {message} {text}"));
                    }
                    _ => print_line(format_args!("at {id} {}", event.position())),
                },
                Item::Store(_, StoreChange::Failed { code, .. }) => {
                    print_line(format_args!("refused {code}"));
                }
                Item::Truncated(at) => print_line(format_args!("cut {id} {at}")),
                _ => {}
            }
            if ended(&item, run) {
                let status = kernel.run_get(&me, run).await?.state.status();
                print_line(format_args!("end {run} {status}"));
                break;
            }
        }
    }
    Ok(())
}

fn ended(item: &Item, run: RunId) -> bool {
    matches!(item, Item::Event(event) if event.run == Some(run) && event.body.ends_run())
}

/// Prints one complete line at a time, so that a reader never sees a partial line.
fn print_line(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
