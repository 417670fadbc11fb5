//! The client's bridge: handles that share one real daemon process, through real pipes.
//!
//! Each module is one checklist for a host; each test's name is one item of it.

use std::path::Path;

use crate::cli::config_variable;
use mainspring_client::bridge::{
    AgentBridge, Health, Launch, Phase, Query, QueryEvent, QueryStream, RuntimeProcess, Surface,
};

mod docs;
mod migration;
mod multiplexing;
mod protocol;
mod restart;
mod status;

/// Builds the launch of a daemon on `dir`, without inherited settings.
pub(crate) fn launch(dir: &Path) -> Launch {
    let env = [("HOME".into(), dir.into())].into_iter().chain(config_variable(dir)).collect();
    let cwd = Some(dir.to_owned());
    let program = env!("CARGO_BIN_EXE_mainspring");
    Launch { env, cwd, clear_env: true, ..Launch::new(program, dir.join("state")) }
}

pub(crate) async fn start(dir: &Path) -> RuntimeProcess {
    RuntimeProcess::start(launch(dir)).await.unwrap()
}

fn start_query(bridge: &AgentBridge, surface: Surface, prompt: &str) -> QueryStream {
    bridge.query(Query::new(surface, prompt)).unwrap()
}

/// Reads until the text contains `word` and returns the text.
async fn read_until(stream: &mut QueryStream, word: &str) -> String {
    let mut text = String::new();
    while !text.contains(word) {
        text.push_str(
            stream.next().await.unwrap_or_else(|| panic!("the stream ended after {text:?}")).text(),
        );
    }
    text
}

/// Reads the stream to its end.
async fn read_rest(stream: &mut QueryStream) -> (String, Vec<QueryEvent>) {
    let (mut text, mut others) = (String::new(), vec![]);
    while let Some(event) = stream.next().await {
        match event {
            QueryEvent::TextDelta(piece) => text.push_str(&piece),
            other => others.push(other),
        }
    }
    (text, others)
}

/// Kills the process with SIGKILL and returns its pid.
fn kill(process: &RuntimeProcess) -> u32 {
    let pid = process.health().borrow().pid.unwrap();
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    pid
}

/// Waits until a process other than `pid` is ready.
async fn wait_for_new_process(process: &RuntimeProcess, pid: u32) -> Health {
    let mut health = process.health();
    let new = |health: &Health| health.phase == Phase::Ready && health.pid != Some(pid);
    health.wait_for(new).await.unwrap().clone()
}
