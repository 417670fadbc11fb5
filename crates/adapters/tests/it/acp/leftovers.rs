//! Processes that an agent starts: a cancelled turn leaves none, and those that another turn leaves are reported.

use mainspring_core::{Proof, Supervision};

use super::*;

/// The commands of the world's processes that contain `text`.
fn running(world: &World, text: &str) -> usize {
    world.commands().iter().filter(|command| command.contains(text)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_everything_that_the_turn_started_and_nothing_else() {
    let world = world("resume").await;
    let agent = world.answer_to("a", "shell setsid sleep 1001 >/dev/null 2>&1 &; pid").await;
    world.wait_for_processes(3).await;
    // In other sessions, without their parents, and in the background.
    let start = "shell setsid sh -c '(sleep 1002 &) && setsid sleep 1002 & sleep 1002' >/dev/null 2>&1 &; spawn; hang";
    let run = world.start("a", start).await;
    world.wait_for_text("a", "hanging").await;
    world.cancel(run).await;
    let run = world.wait_for_end(run).await;
    assert_eq!(run.state.status(), RunStatus::Cancelled, "{run:?}");
    assert_eq!(running(&world, "sleep 1002"), 0, "{:?}", world.commands());
    assert_eq!(world.processes(), 3, "the guard, the agent and its earlier process: {:?}", world.commands());
    assert_eq!(running(&world, "sleep 1001"), 1, "it was started before");
    assert_eq!(world.answer_to("a", "shell true; pid").await, agent, "the agent goes on");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_turn_leaves_are_reported() {
    let world = world("resume").await;
    world.answer_to("a", "shell setsid sleep 1003 >/dev/null 2>&1 &").await;
    world.answer_to("a", "nothing more").await;
    let events = world.events("a").await;
    let left = events.iter().filter_map(|event| match &event.body {
        Body::AttemptLeftRunning { processes } => Some((event.attempt, processes)),
        _ => None,
    });
    let left: Vec<_> = left.collect();
    let [(Some(_), processes)] = left.as_slice() else { panic!("{left:?}") };
    let commands: Vec<&str> = processes.iter().map(|process| process.command.as_str()).collect();
    // The shell's child may not have become `setsid` and then `sleep` yet: it still has the shell's command line.
    assert!(commands.len() == 1 && commands[0].contains("sleep 1003"), "{commands:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_turn_left_are_listed_and_ended() {
    let world = world("resume").await;
    let run = world.run("a", "shell setsid sleep 1004 >/dev/null 2>&1 &").await;
    let listed = world.kernel().run_processes(&world.me, run.id).await.unwrap();
    assert!(listed.len() == 1 && listed[0].command.contains("sleep 1004"), "{listed:?}");
    let attempts = world.kernel().run_attempts(&world.me, run.id).await.unwrap().items;
    let reported: Vec<i32> = attempts[0].left_running.iter().map(|process| process.pid).collect();
    assert_eq!(reported, [listed[0].pid], "the run reports them");
    assert_eq!(world.kernel().run_processes_end(&world.me, run.id).await.unwrap(), []);
    assert_eq!(running(&world, "sleep 1004"), 0);
    assert_eq!(world.kernel().run_processes(&world.me, run.id).await.unwrap(), []);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_group_guard_a_cancel_recycles_the_agent_and_reports_it() {
    let world = world_with("resume", |setup| setup.agent.supervision = Supervision::Group).await;
    let agent = world.answer_to("a", "pid").await;
    let run = world.start("a", "shell sleep 1005 >/dev/null 2>&1 &; hang").await;
    world.wait_for_text("a", "hanging").await;
    world.cancel(run).await;
    let run = world.wait_for_end(run).await;
    assert_eq!(run.state.status(), RunStatus::Cancelled, "{run:?}");
    assert_eq!(world.processes(), 0, "{:?}", world.commands());
    let events = world.events("a").await;
    let proof = events.iter().find_map(|event| match &event.body {
        Body::AttemptCancelled { proof } => Some(*proof),
        _ => None,
    });
    assert_eq!(proof, Some(Proof::Group));
    assert_ne!(world.answer_to("a", "pid").await, agent);
    assert_eq!(world.bindings("a").await.len(), 1, "the session was resumed");
    world.close().await;
}

/// Starts a chain of processes that each add a byte to the file `grows`, start the next one and end. With an
/// argument, the program adopts the chain's processes, and starts the chain after a write to the pipe `go`.
const CHAIN: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int count, char **arguments) {
    if (count > 1) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        signal(SIGCHLD, SIG_IGN);
        open("go", O_RDONLY);
        if (fork() != 0) for (;;) pause();
    }
    int file = open("grows", O_WRONLY | O_CREAT | O_APPEND, 0600);
    for (;;) {
        write(file, "x", 1);
        if (fork() != 0) _exit(0);
    }
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_chains_of_processes_that_end_at_once() {
    for arguments in ["", "adopt"] {
        let world = world_with("resume", |setup| setup.agent.cwd = setup.folder.clone()).await;
        let program = compile(world.folder.path(), CHAIN);
        let size = || std::fs::metadata(world.folder.path().join("grows")).map_or(0, |file| file.len());
        let start = format!("shell {program} {arguments} >/dev/null 2>&1 &");
        let run = if arguments.is_empty() {
            world.start("a", &format!("{start}; hang")).await
        } else {
            world.answer_to("a", "shell mkfifo go").await;
            world.answer_to("a", &start).await;
            world.start("a", "shell echo > go; hang").await
        };
        let grown = async {
            while size() == 0 {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(grown).await;
        world.cancel(run).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
        let ended = size();
        world.answer_to("a", "shell true; pid").await;
        assert_eq!(size(), ended, "{arguments}: the chain goes on");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_left_process_starts_later_are_listed_and_ended() {
    let world = world_with("resume", |setup| setup.agent.cwd = setup.folder.clone()).await;
    // The first process ends, and so does the parent of the third one.
    let later = "until [ -e go ]; do sleep 0.01; done; setsid sleep 1006 & sleep 1006 & (sleep 1006 &)";
    std::fs::write(world.folder.path().join("later"), later).unwrap();
    let run = world.run("a", "shell setsid sh later >/dev/null 2>&1 &").await;
    std::fs::write(world.folder.path().join("go"), "").unwrap();
    let listed = async || {
        let listed = world.kernel().run_processes(&world.me, run.id).await.unwrap();
        listed.iter().filter(|process| process.command == "sleep 1006").count()
    };
    let started = async {
        while listed().await < 3 {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(started).await;
    assert_eq!(world.kernel().run_processes_end(&world.me, run.id).await.unwrap(), []);
    assert_eq!((listed().await, running(&world, "sleep 1006")), (0, 0));
    world.close().await;
}
