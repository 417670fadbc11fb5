//! Guarded processes: whatever an agent starts and however it ends, nothing of it is left.

use std::ffi::OsString;
use std::time::Duration;

use mainspring_adapters::process::{
    Launch, Log, MARK_VARIABLE, Pipes, Process, processes_with_variable, sweep,
};
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::tasks::Tasks;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// A process that ends the group of its shell, and grandchildren in sessions of their own.
const FAMILY: &str = "setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & sleep 1000' & (sleep 1000 &) ; \
     nohup sleep 1000 >/dev/null 2>&1 & echo ready";

/// This program, as a guard.
pub(crate) fn guard() -> Vec<OsString> {
    vec![env!("CARGO_BIN_EXE_mainspring").into(), "guard".into()]
}

fn launch(script: &str, grace: u64) -> Launch {
    Launch {
        guard: guard(),
        command: vec!["sh".into(), "-c".into(), script.into()],
        env: vec![("GIVEN".into(), "given".into())],
        pass_env: vec![],
        cwd: "/".into(),
        grace: Duration::from_millis(grace),
        scope: "guard-tests".into(),
        name: Ids::system().node().to_string(),
        log: Log::default(),
    }
}

/// Starts a script and waits until it says that it is ready.
async fn start(launch: &Launch) -> (Process, Pipes, Tasks) {
    let tasks = Tasks::default();
    let (process, pipes) = Process::start(launch, &tasks, &Clock::system()).unwrap();
    let mut pipes = pipes;
    let mut line = String::new();
    soon(BufReader::new(&mut pipes.stdout).read_line(&mut line)).await.unwrap();
    assert_eq!(line, "ready\n", "{}", process.log().text());
    (process, pipes, tasks)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("what was awaited did not happen")
}

fn processes(launch: &Launch) -> Vec<rustix::process::Pid> {
    processes_with_variable(MARK_VARIABLE, |mark| mark == launch.mark())
}

/// How many processes carry the mark of `launch`, the guard among them.
fn left(launch: &Launch) -> usize {
    processes(launch).len()
}

#[tokio::test]
async fn a_killed_tree_leaves_nothing_not_even_who_left_its_session() {
    let launch = launch(&format!("{FAMILY}; cat"), 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    // The guard, the shell, and those that were sent away.
    soon(async {
        while left(&launch) < 6 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(soon(process.kill()).await, Death::Proven);
    assert_eq!(left(&launch), 0);
    assert!(!process.is_alive());
}

#[tokio::test]
async fn a_tree_ends_when_mainspring_is_gone_even_if_it_does_not_read() {
    let launch = launch(&format!("{FAMILY}; trap '' TERM INT HUP; sleep 1000"), 60_000);
    let (process, mut pipes, _tasks) = start(&launch).await;
    // The agent's input is full: a guard that waited for it to be read would notice nothing.
    let full = async { while pipes.stdin.write_all(&[b'x'; 1 << 16]).await.is_ok() {} };
    let _ = tokio::time::timeout(Duration::from_millis(300), full).await;
    // What a kill -9 of mainspring does: the pipe closes, and nobody says anything.
    drop(pipes);
    soon(process.ended()).await;
    assert_eq!(left(&launch), 0);
}

#[tokio::test]
async fn a_polite_agent_ends_by_itself_and_what_it_left_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let bye = folder.path().join("bye");
    let launch = launch(&format!("{FAMILY}; cat; echo bye > {}; exit 3", bye.display()), 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    assert_eq!(soon(process.stop()).await, Death::Proven);
    assert_eq!(std::fs::read_to_string(&bye).unwrap(), "bye\n");
    assert_eq!(left(&launch), 0);
}

#[tokio::test]
async fn a_stubborn_agent_is_killed_after_its_grace() {
    let launch =
        launch("trap '' TERM INT HUP QUIT; setsid sleep 1000 & echo ready; while :; do sleep 1000; done", 50);
    let (process, _pipes, _tasks) = start(&launch).await;
    assert_eq!(soon(process.stop()).await, Death::Proven);
    assert_eq!(left(&launch), 0);
}

#[tokio::test]
async fn a_guard_that_was_killed_proves_nothing_and_its_tree_is_killed_without_it() {
    let launch = launch("setsid sleep 1000 & echo ready; cat", 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    let is_guard = |pid: &rustix::process::Pid| {
        let command =
            std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
        command.split('\0').nth(1) == Some("guard")
    };
    let guard = processes(&launch).into_iter().find(is_guard).unwrap();
    rustix::process::kill_process(guard, rustix::process::Signal::KILL).unwrap();
    soon(process.ended()).await;
    assert_eq!(process.kill().await, Death::Unproven);
    soon(async {
        while left(&launch) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_agent_sees_what_it_is_given_and_its_last_words_are_kept() {
    let script = "echo ready; head -c 200000 /dev/zero | tr '\\0' x >&2; echo \"$GIVEN,$CARGO_MANIFEST_DIR,$PWD\" >&2; exit 7";
    let launch = launch(script, 1_000);
    let (process, _pipes, tasks) = start(&launch).await;
    soon(process.ended()).await;
    tasks.stop();
    soon(tasks.wait()).await;
    let stderr = process.log().text();
    assert!(
        stderr.ends_with("x\ngiven,,/\n") || stderr.ends_with("xgiven,,/\n"),
        "{}",
        &stderr[stderr.len() - 99..]
    );
    assert!(stderr.len() <= 65 << 10, "{}", stderr.len());
}

#[tokio::test]
async fn what_cannot_be_started_says_so() {
    let tasks = Tasks::default();
    let missing = Launch { cwd: "/no/such/folder".into(), ..launch("true", 0) };
    let error = Process::start(&missing, &tasks, &Clock::system()).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder does not exist"), "{error}");
    let no_guard = Launch { guard: vec!["/no/such/guard".into()], ..launch("true", 0) };
    let error = Process::start(&no_guard, &tasks, &Clock::system()).unwrap_err().to_string();
    assert!(error.contains("/no/such/guard could not be started"), "{error}");
    let no_agent = Launch { command: vec!["/no/such/agent".into()], ..launch("true", 0) };
    let (process, _pipes) = Process::start(&no_agent, &tasks, &Clock::system()).unwrap();
    soon(process.ended()).await;
    tasks.stop();
    soon(tasks.wait()).await;
    assert!(process.log().text().contains("/no/such/agent could not be started"), "{}", process.log().text());
}

#[tokio::test]
async fn what_an_earlier_process_left_is_waited_for_and_then_killed() {
    let orphaned = Launch {
        scope: Ids::system().node().to_string(),
        ..launch("setsid sleep 1000 & echo ready; cat", 60_000)
    };
    let other = launch("echo ready; cat", 60_000);
    let (process, _pipes, _tasks) = start(&orphaned).await;
    let (kept, _kept_pipes, _kept_tasks) = start(&other).await;
    // Nobody ends it, until the patience is over.
    let clock = Clock::manual(mainspring::core::Time(0));
    let sweeping = async {
        tokio::join!(sweep(&orphaned.scope, &clock), async {
            while left(&orphaned) > 0 {
                clock.advance(1_000);
                tokio::task::yield_now().await;
            }
            clock.advance(1_000);
        })
    };
    soon(sweeping).await;
    assert_eq!(left(&orphaned), 0);
    assert!(kept.is_alive() && left(&other) > 0, "what belongs to another is let alone");
    soon(process.ended()).await;
    soon(kept.kill()).await;
}
