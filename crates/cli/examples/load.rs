//! Keeps one mainspring busy and prints the events it observes: `load STATE_DIR ROUND`.
//!
//! Prints `ack RUN` once a run is acknowledged and `end RUN STATUS` once its end was observed. The `kill -9` test
//! runs this program and compares its output with the state afterwards.

use std::io::Write;

use mainspring::core::RunId;
use mainspring::{Caller, Config, Item, Node, RunRequest, SessionTarget};
use mainspring_kernel::store::SessionRef;
use tokio::task::JoinSet;

const SESSIONS: usize = 12;

/// The scripts of the sessions, repeated in turn: they cover every path of the kernel.
const SCRIPTS: [&str; 8] = [
    "say hello",
    "stream 200",
    "say a; tool add {\"a\":1,\"b\":2}; say b",
    "stream 20 every 2ms",
    "say x; fail once; say y",
    "fail",
    "think hm; usage 3 4 0.01; stream 5 every 1ms",
    "tool nope; tool upper {\"text\":\"t\"}; stream 30 every 1ms",
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(round)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: load STATE_DIR ROUND");
    };
    let mut config = Config::with_state_dir(dir);
    config.retry.base_ms = 1;
    let node = Node::open(&config).await?;
    let mut sessions = JoinSet::new();
    for no in 0..SESSIONS {
        let (kernel, round) = (node.kernel().clone(), round.clone());
        sessions.spawn(async move { keep_busy(kernel, no, &round).await });
    }
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
        let accepted = kernel.run_create(&me, request).await?;
        let run = accepted.run.id;
        print_line(format_args!("ack {run}"));
        if turn % 7 == 3 {
            // The run may have ended already: then there is nothing to cancel.
            let _ = kernel.run_cancel(&me, run).await;
        }
        let by = SessionRef::Id(accepted.session.id);
        let mut items = kernel.session_subscribe(&me, &by, Some(accepted.position)).await?;
        while let Some(item) = items.next().await.transpose()? {
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
