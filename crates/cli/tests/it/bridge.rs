//! The bridge of an application: handles that share one daemon process, a real one, through real pipes.
//!
//! The modules are the lists of what a host's side must hold; the names of the tests say the lines of them.

use std::path::Path;

use mainspring_client::bridge::{
    AgentBridge, Health, Launch, Phase, Query, QueryEvent, QueryStream, RuntimeProcess, Surface,
};

mod docs;
mod migration;
mod multiplexing;
mod protocol;
mod restart;
mod status;

/// How the process of `dir` is started: with no settings but its own.
pub(crate) fn launch(dir: &Path) -> Launch {
    let env = vec![("HOME".into(), dir.into())];
    let cwd = Some(dir.to_owned());
    let program = env!("CARGO_BIN_EXE_mainspring");
    Launch { env, cwd, clear_env: true, ..Launch::new(program, dir.join("state")) }
}

pub(crate) async fn start(dir: &Path) -> RuntimeProcess {
    RuntimeProcess::start(launch(dir)).await.unwrap()
}

fn ask(bridge: &AgentBridge, surface: Surface, prompt: &str) -> QueryStream {
    bridge.query(Query::new(surface, prompt)).unwrap()
}

/// Reads until the text so far holds `word`; gives the text.
async fn until(stream: &mut QueryStream, word: &str) -> String {
    let mut text = String::new();
    while !text.contains(word) {
        text.push_str(stream.next().await.unwrap_or_else(|| panic!("it ended after {text:?}")).text());
    }
    text
}

/// Everything that is streamed until the end.
async fn rest(stream: &mut QueryStream) -> (String, Vec<QueryEvent>) {
    let (mut text, mut others) = (String::new(), vec![]);
    while let Some(event) = stream.next().await {
        match event {
            QueryEvent::TextDelta(piece) => text.push_str(&piece),
            other => others.push(other),
        }
    }
    (text, others)
}

/// Kills the process, as `kill -9` does, and gives its id.
fn kill(process: &RuntimeProcess) -> u32 {
    let pid = process.health().borrow().pid.unwrap();
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    pid
}

/// Waits until the process is another one than `pid`, and ready.
async fn another(process: &RuntimeProcess, pid: u32) -> Health {
    let mut health = process.health();
    let new = |health: &Health| health.phase == Phase::Ready && health.pid != Some(pid);
    health.wait_for(new).await.unwrap().clone()
}
