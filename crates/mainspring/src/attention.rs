//! Runs the command of `on_attention` when a run waits for a person or has failed, and again when the wait is resolved.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use mainspring_core::webhook::ATTENTION;
use mainspring_core::{Body, Event, WaitId};
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::owner_events::OwnerItem;
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Kernel};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Time that the command may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the events could not be read.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// Maximum characters of the question or error that the command gets.
const TEXT_CHARS: usize = 300;

/// A notice to a person, for the command.
#[derive(Debug, PartialEq, Eq)]
struct Notice {
    /// `waiting`, `resolved` or `failed`.
    kind: &'static str,
    text: String,
}

/// Runs `command` for the events of `owner` from now on, until `stop` is cancelled.
pub(crate) async fn run_on_attention(
    kernel: Kernel,
    owner: String,
    command: Vec<String>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = follow(&kernel, &owner, &command) => {}
        () = stop.cancelled() => {}
    }
}

async fn follow(kernel: &Kernel, owner: &str, command: &[String]) {
    let caller = Caller::new(owner);
    let mut events = loop {
        match kernel.owner_events(&caller, Some(ATTENTION.to_vec()), None).await {
            Ok(events) => break events,
            Err(error) => wait_for_store(kernel, &error).await,
        }
    };
    let mut reported = HashSet::new();
    loop {
        let event = match events.next().await {
            Ok(OwnerItem::Event(event)) => event,
            Ok(_) => continue,
            Err(error) => {
                // The reader keeps its position: what happens meanwhile is reported late.
                wait_for_store(kernel, &error).await;
                continue;
            }
        };
        if let Some(notice) = notice(&event.body, &mut reported) {
            let session = kernel.session_get(&caller, &SessionRef::Id(event.session)).await;
            let title = session.ok().and_then(|session| session.title.or(session.key));
            run(kernel, command, &event, title.as_deref(), &notice).await;
        }
    }
}

async fn wait_for_store(kernel: &Kernel, error: &Error) {
    tracing::warn!(%error, "the command of on_attention waits for the store");
    kernel.sleep(STORE_PAUSE).await;
}

/// Makes the notice of an event; `None` if the event needs no person. `reported` holds the open waits that the command
/// was run for.
fn notice(body: &Body, reported: &mut HashSet<WaitId>) -> Option<Notice> {
    let shorten = |text: &str| text.chars().take(TEXT_CHARS).collect::<String>();
    let (kind, text) = match body {
        // A rule or a grant has decided: no person is asked.
        Body::ApprovalRequested { approval: Some(approval), .. } if approval.answers.is_empty() => {
            return None;
        }
        Body::ApprovalRequested { question, wait_id, .. }
        | Body::InputRequested { question, wait_id, .. } => {
            reported.insert(*wait_id);
            ("waiting", shorten(question))
        }
        Body::ApprovalResolved { wait_id, .. } | Body::InputProvided { wait_id, .. } => {
            if !reported.remove(wait_id) {
                return None;
            }
            ("resolved", "The question is not open any more.".into())
        }
        Body::RunFailed { error, .. } | Body::RunTimedOut { error, .. } | Body::RunOrphaned { error, .. } => {
            ("failed", shorten(&error.message))
        }
        _ => return None,
    };
    Some(Notice { kind, text })
}

/// Runs the command with the title and the text as its last arguments, and all data in environment variables.
async fn run(kernel: &Kernel, command: &[String], event: &Event, title: Option<&str>, notice: &Notice) {
    let Some((program, arguments)) = command.split_first() else { return };
    let title = title.unwrap_or("a session");
    let data = json!({
        "kind": notice.kind, "text": notice.text, "title": title, "event": event.body.kind(),
        "sessionId": event.session, "runId": event.run,
    });
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).args([title, &notice.text]);
    command.env("MAINSPRING_ATTENTION", data.to_string()).env("MAINSPRING_ATTENTION_KIND", notice.kind);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let ended = match command.spawn() {
        Ok(mut child) => tokio::select! {
            ended = child.wait() => ended,
            () = kernel.sleep(TIMEOUT) => return tracing::warn!(program, "the command of on_attention takes too long"),
        },
        Err(error) => Err(error),
    };
    match ended {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::warn!(program, %status, "the command of on_attention has failed"),
        Err(error) => tracing::warn!(program, %error, "the command of on_attention cannot be run"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainspring_core::{RunStatus, Time};
    use mainspring_kernel::clock::Clock;
    use mainspring_kernel::kernel::RunRequest;
    use mainspring_reference_store::MemoryStore;

    use super::*;
    use crate::{Config, Node};

    #[tokio::test]
    async fn a_question_is_reported_although_the_events_could_not_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (store, clock) = (Arc::new(MemoryStore::default()), Clock::manual(Time(1_000_000)));
        let config = Config::with_state_dir(folder.path().join("state"));
        let node = Node::builder(config).store(store.clone()).clock(clock.clone()).open().await.unwrap();
        let (kernel, me) = (node.kernel(), Caller::new("ada"));
        let ask = async |key: &str, prompt: &str| {
            let run = kernel.run_create(&me, RunRequest::text(key, prompt)).await.unwrap().run;
            kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap().state.status()
        };
        // Each notice is written to a pipe, so that reading the pipe waits for the command.
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = format!("printf '%s|%s' \"$MAINSPRING_ATTENTION_KIND\" \"$1\" > '{}'", pipe.display());
        let command = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let read_notice = async || {
            let pipe = pipe.clone();
            tokio::task::spawn_blocking(move || std::fs::read_to_string(pipe).unwrap()).await.unwrap()
        };
        store.fail_owner_events();
        let stop = CancellationToken::new();
        let task = run_on_attention(kernel.clone(), "ada".into(), command, stop.clone());
        kernel.tasks().spawn(task);
        while store.fails_owner_events() {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask("a", "ask Milk?").await, RunStatus::WaitingInput);
        let reads = store.reads();
        clock.advance(u64::try_from(STORE_PAUSE.as_millis()).unwrap());
        while store.reads() == reads {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask("b", "fail no milk").await, RunStatus::Failed);
        assert_eq!(read_notice().await, "waiting|Milk?");
        assert_eq!(read_notice().await, "failed|no milk");
        stop.cancel();
        node.close().await;
    }
}
