//! Guarded processes: however an agent ends, no process of its tree is left.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mainspring_adapters::process::{
    Launch, Log, MARK_VARIABLE, Pipes, Process, processes_with_variable, sweep, wait_until_gone,
};
use mainspring_core::{Supervision, Time};
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::tasks::Tasks;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::world::{compile, guard, with_timeout};

/// Starts descendants in other sessions and process groups, then prints "ready".
const FAMILY: &str = "setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & sleep 1000' & (sleep 1000 &) ; \
     nohup sleep 1000 >/dev/null 2>&1 & echo ready";

fn launch(script: &str, grace_ms: u64) -> Launch {
    Launch {
        guard: guard(),
        command: vec!["sh".into(), "-c".into(), script.into()],
        env: vec![("GIVEN".into(), "given".into())],
        pass_env: vec![],
        cwd: "/".into(),
        grace: Duration::from_millis(grace_ms),
        scope: "guard-tests".into(),
        name: Ids::system().node().to_string(),
        log: Log::default(),
        sandbox: None,
        supervision: Supervision::Tree,
        endpoint: None,
    }
}

/// Starts a script and waits until it prints "ready".
async fn start(launch: &Launch) -> (Process, Pipes, Tasks) {
    let tasks = Tasks::default();
    let (process, mut pipes) = Process::start(launch, &tasks, &Clock::system()).unwrap();
    let mut line = String::new();
    with_timeout(BufReader::new(&mut pipes.stdout).read_line(&mut line)).await.unwrap();
    assert_eq!(line, "ready\n", "{}", process.log().text());
    (process, pipes, tasks)
}

fn processes(launch: &Launch) -> Vec<Pid> {
    processes_with_variable(MARK_VARIABLE, |mark| mark == launch.mark())
}

/// The number of processes of `launch`, including the guard.
fn count(launch: &Launch) -> usize {
    processes(launch).len()
}

async fn wait_for_count(launch: &Launch, is_reached: impl Fn(usize) -> bool) {
    let reached = async {
        while !is_reached(count(launch)) {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(reached).await;
}

#[tokio::test]
async fn a_kill_ends_every_descendant_in_any_session() {
    let launch = launch(&format!("{FAMILY}; cat"), 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    // The guard, the shell, and the descendants.
    wait_for_count(&launch, |count| count >= 6).await;
    assert_eq!(with_timeout(process.kill()).await, Death::Proven);
    assert_eq!(count(&launch), 0);
    assert!(!process.is_alive());
}

#[tokio::test]
async fn a_tree_ends_with_mainspring_even_if_the_agent_does_not_read() {
    let launch = launch(&format!("{FAMILY}; trap '' TERM INT HUP; sleep 1000"), 60_000);
    let (process, mut pipes, _tasks) = start(&launch).await;
    // Fill the agent's input: a guard that blocks on writing to it would not notice that mainspring is gone.
    let fill = async { while pipes.stdin.write_all(&[b'x'; 1 << 16]).await.is_ok() {} };
    let _ = tokio::time::timeout(Duration::from_millis(300), fill).await;
    // As with kill -9 of mainspring: the pipe closes without a signal.
    drop(pipes);
    with_timeout(process.ended()).await;
    assert_eq!(count(&launch), 0);
}

#[tokio::test]
async fn a_dropped_process_is_killed() {
    let launch = launch("trap '' TERM INT HUP; setsid sleep 1000 & echo ready; sleep 1000", 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    let ended = process.ended();
    drop(process);
    with_timeout(ended).await;
    assert_eq!(count(&launch), 0);
}

#[tokio::test]
async fn an_agent_that_exits_on_closed_input_takes_its_descendants_along() {
    let folder = tempfile::tempdir().unwrap();
    let bye = folder.path().join("bye");
    let launch = launch(&format!("{FAMILY}; cat; echo bye > {}; exit 3", bye.display()), 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    assert_eq!(with_timeout(process.stop()).await, Death::Proven);
    assert_eq!(std::fs::read_to_string(&bye).unwrap(), "bye\n");
    assert_eq!(with_timeout(process.ended()).await, Some(3), "the guard exits with the agent's code");
    assert_eq!(count(&launch), 0);
}

#[tokio::test]
async fn an_agent_that_does_not_exit_is_killed_after_its_grace_period() {
    let script = "trap '' TERM INT HUP QUIT; setsid sleep 1000 & echo ready; while :; do sleep 1000; done";
    let launch = launch(script, 50);
    let (process, _pipes, _tasks) = start(&launch).await;
    assert_eq!(with_timeout(process.stop()).await, Death::Proven);
    assert_eq!(with_timeout(process.ended()).await, Some(128 + 9), "as a shell reports SIGKILL");
    assert_eq!(count(&launch), 0);
}

#[tokio::test]
async fn the_end_of_a_killed_guard_is_unproven_and_its_tree_is_killed() {
    let launch = launch("setsid sleep 1000 & echo ready; cat", 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    let is_guard = |pid: &Pid| {
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_pid()));
        command.unwrap_or_default().split('\0').nth(1) == Some("--grace-ms")
    };
    let guard = processes(&launch).into_iter().find(is_guard).unwrap();
    kill_process(guard, Signal::KILL).unwrap();
    with_timeout(process.ended()).await;
    assert_eq!(process.kill().await, Death::Unproven);
    wait_for_count(&launch, |count| count == 0).await;
}

/// Makes the guard start only after a line is written to the named pipe `gate`. Until then a shell stands in its
/// place, which ignores signals as a job in the background does.
fn start_late(launch: Launch, gate: &Path) -> Launch {
    let script = format!("trap '' QUIT TERM; echo ready; read line <{}; exec \"$@\"", gate.display());
    let shell = ["sh", "-c", &script, "sh"].map(OsString::from);
    Launch { guard: shell.into_iter().chain(launch.guard).collect(), ..launch }
}

#[tokio::test]
async fn a_signal_that_a_starting_guard_ignores_is_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    for is_kill in [true, false] {
        let launch = start_late(launch("cat", 1_000), &gate);
        let (process, _pipes, _tasks) = start(&launch).await;
        let end = async { if is_kill { process.kill().await } else { process.stop().await } };
        let mut end = Box::pin(end);
        assert!(futures_util::poll!(&mut end).is_pending());
        // Lets the supervising task send the signal to the shell.
        tokio::task::yield_now().await;
        std::fs::write(&gate, "go\n").unwrap();
        assert_eq!(with_timeout(end).await, Death::Proven, "{is_kill}");
        assert_eq!(count(&launch), 0);
    }
}

#[tokio::test]
async fn an_agent_gets_its_variables_and_a_bounded_log() {
    let script = "echo ready; head -c 200000 /dev/zero | tr '\\0' x >&2; echo \"$GIVEN,$CARGO_MANIFEST_DIR,$PWD\" >&2; exit 7";
    let launch = launch(script, 1_000);
    let (process, _pipes, tasks) = start(&launch).await;
    assert_eq!(with_timeout(process.ended()).await, Some(7));
    tasks.stop();
    with_timeout(tasks.wait()).await;
    let stderr = process.log().text();
    assert!(
        stderr.ends_with("x\ngiven,,/\n") || stderr.ends_with("xgiven,,/\n"),
        "{}",
        &stderr[stderr.len() - 99..]
    );
    assert!(stderr.len() <= 65 << 10, "{}", stderr.len());
}

#[tokio::test]
async fn a_failed_start_names_the_reason() {
    let tasks = Tasks::default();
    let missing = Launch { cwd: "/no/such/folder".into(), ..launch("true", 0) };
    let error = Process::start(&missing, &tasks, &Clock::system()).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder does not exist"), "{error}");
    let no_guard = Launch { guard: vec!["/no/such/guard".into()], ..launch("true", 0) };
    let error = Process::start(&no_guard, &tasks, &Clock::system()).unwrap_err().to_string();
    assert!(error.contains("/no/such/guard could not be started"), "{error}");
    let no_agent = Launch { command: vec!["/no/such/agent".into()], ..launch("true", 0) };
    let (process, _pipes) = Process::start(&no_agent, &tasks, &Clock::system()).unwrap();
    assert_eq!(with_timeout(process.ended()).await, Some(127), "as a shell reports a missing program");
    tasks.stop();
    with_timeout(tasks.wait()).await;
    assert!(process.log().text().contains("/no/such/agent could not be started"), "{}", process.log().text());
}

#[tokio::test]
async fn leftover_processes_of_a_scope_are_awaited_and_then_killed() {
    let leftover = Launch {
        scope: Ids::system().node().to_string(),
        ..launch("setsid sleep 1000 & echo ready; cat", 60_000)
    };
    let other = launch("echo ready; cat", 60_000);
    let (process, _pipes, _tasks) = start(&leftover).await;
    let (kept, _kept_pipes, _kept_tasks) = start(&other).await;
    let clock = Clock::manual(Time(0));
    let mut sweeping = Box::pin(sweep(&leftover.scope, &clock));
    assert!(futures_util::poll!(&mut sweeping).is_pending());
    clock.advance(4_999);
    assert!(futures_util::poll!(&mut sweeping).is_pending());
    assert!(process.is_alive(), "its own guard may still end it");
    let advance = async {
        while count(&leftover) > 0 {
            clock.advance(1_000);
            tokio::task::yield_now().await;
        }
        clock.advance(1_000);
    };
    with_timeout(async { tokio::join!(sweeping, advance) }).await;
    assert_eq!(count(&leftover), 0);
    assert!(kept.is_alive() && count(&other) > 0, "another scope is left alone");
    with_timeout(process.ended()).await;
    with_timeout(kept.kill()).await;
}

#[tokio::test]
async fn the_end_of_marked_processes_is_awaited() {
    let marked = launch("echo ready; cat", 60_000);
    let part = Launch { name: format!("{}.1", marked.name), ..launch("echo ready; cat", 60_000) };
    let similar = Launch { name: format!("{}1", marked.name), ..launch("echo ready; cat", 60_000) };
    let clock = Clock::manual(Time(0));
    let mark = marked.mark();
    let (similar, _similar_pipes, _similar_tasks) = start(&similar).await;
    assert_eq!(wait_until_gone(&mark, &clock).await, Death::Proven, "another mark is not awaited");
    let (process, _pipes, _tasks) = start(&marked).await;
    let (part, _part_pipes, _part_tasks) = start(&part).await;
    with_timeout(process.kill()).await;
    let mut gone = Box::pin(wait_until_gone(&mark, &clock));
    assert!(futures_util::poll!(&mut gone).is_pending(), "its part is still there");
    with_timeout(part.kill()).await;
    clock.advance(20);
    assert_eq!(with_timeout(gone).await, Death::Proven);
    let mut gone = Box::pin(wait_until_gone("guard-tests#", &clock));
    assert!(futures_util::poll!(&mut gone).is_ready(), "a mark is not a prefix");
    let mark = similar_mark(&marked);
    let mut gone = Box::pin(wait_until_gone(&mark, &clock));
    assert!(futures_util::poll!(&mut gone).is_pending());
    clock.advance(5_000);
    assert_eq!(with_timeout(gone).await, Death::Unproven, "the wait is bounded");
    with_timeout(similar.kill()).await;
}

fn similar_mark(launch: &Launch) -> String {
    format!("{}1", launch.mark())
}

#[tokio::test]
async fn a_group_ends_with_its_guard_and_with_mainspring() {
    let group = |script: &str| Launch { supervision: Supervision::Group, ..launch(script, 60_000) };
    let family = "sleep 1000 & (sleep 1000 &) ; sh -c 'sleep 1000 & sleep 1000' & echo ready; cat";
    let killed = group(family);
    let (process, _pipes, _tasks) = start(&killed).await;
    wait_for_count(&killed, |count| count >= 6).await;
    assert_eq!(with_timeout(process.kill()).await, Death::Proven);
    assert_eq!(count(&killed), 0);
    let left = group(family);
    let (process, pipes, _tasks) = start(&left).await;
    // As with kill -9 of mainspring.
    drop(pipes);
    with_timeout(process.ended()).await;
    assert_eq!(count(&left), 0);
    let ended = group("sleep 1000 & echo ready; exit 3");
    let (process, _pipes, _tasks) = start(&ended).await;
    assert_eq!(with_timeout(process.ended()).await, Some(3));
    assert_eq!(count(&ended), 0, "what an agent that exits leaves in its group ends too");
}

/// The main thread ends; another one prints "ready" and goes on.
const ENDED_MAIN_THREAD: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *go_on(void *unused) {
    char state, path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    do {
        FILE *stat = fopen(path, "r");
        fscanf(stat, "%*d %*s %c", &state);
        fclose(stat);
    } while (state != 'Z');
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, go_on, 0);
    syscall(SYS_exit, 0);
}
"#;

#[tokio::test]
async fn a_process_whose_main_thread_has_ended_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), ENDED_MAIN_THREAD);
    for supervision in [Supervision::Tree, Supervision::Group] {
        let launch = Launch { supervision, ..launch(&format!("{program} & cat"), 60_000) };
        let (process, _pipes, _tasks) = start(&launch).await;
        // The guard, the shell, `cat` and the program.
        wait_for_count(&launch, |count| count == 4).await;
        assert_eq!(with_timeout(process.kill()).await, Death::Proven, "{supervision:?}");
        assert_eq!(count(&launch), 0, "{supervision:?}");
    }
}

#[tokio::test]
async fn a_sweep_finds_a_process_whose_main_thread_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), ENDED_MAIN_THREAD);
    let scope = Ids::system().node().to_string();
    let mut marked = Command::new(program);
    marked.env(MARK_VARIABLE, format!("{scope}#x")).stdout(std::process::Stdio::piped());
    let mut left = marked.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(left.stdout.take().unwrap()), &mut line)
        .unwrap();
    let clock = Clock::manual(Time(0));
    let mut sweeping = Box::pin(sweep(&scope, &clock));
    assert!(futures_util::poll!(&mut sweeping).is_pending(), "it still runs");
    clock.advance(5_000);
    assert!(futures_util::poll!(&mut sweeping).is_pending());
    left.wait().unwrap();
    clock.advance(1_000);
    with_timeout(sweeping).await;
}

#[tokio::test]
async fn chains_of_processes_that_start_the_next_one_and_end_are_killed() {
    let chains = r#"
#include <stdio.h>
#include <unistd.h>
int main(void) {
    if (fork() == 0) setsid();
    puts("ready");
    fflush(stdout);
    for (;;) if (fork() != 0) _exit(0);
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), chains);
    let launch = launch(&format!("{program}; cat"), 60_000);
    let (process, _pipes, _tasks) = start(&launch).await;
    assert_eq!(with_timeout(process.kill()).await, Death::Proven);
    assert_eq!(count(&launch), 0);
}

#[test]
fn an_agent_cannot_reach_the_terminal_of_mainspring() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, vec![]).unwrap().into_string().unwrap();
    let open_terminal = "(: < /dev/tty) 2>/dev/null && echo terminal || echo none";
    for (is_guarded, expected) in [(false, "terminal\n"), (true, "none\n")] {
        for group in ["", "--group"] {
            // The guard ends when its input does, so it reads a pipe: its standard error.
            let (input, _open) = std::io::pipe().unwrap();
            let guarded = format!("{} --grace-ms 1 {group} --", guard()[0].display());
            let script = format!(
                "{} sh -c '{open_terminal}' 0<&2 2>/dev/null; true",
                if is_guarded { guarded } else { String::new() }
            );
            let mut shell = Command::new("setsid");
            shell.args(["--ctty", "--wait", "sh", "-c", &script]);
            shell.stdin(std::fs::File::options().read(true).write(true).open(&name).unwrap()).stderr(input);
            let output = shell.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{script}");
        }
    }
}
