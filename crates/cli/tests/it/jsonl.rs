//! `mainspring stdio`: a host that speaks JSON lines with a real process through real pipes.

use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use mainspring_test_support::jsonl::HostPipes;
use serde_json::Value;

use crate::cli::command;

pub(crate) mod acp;
mod faults;
mod guests;
mod pi;
mod relay;
mod restart;
mod slow;

/// A `mainspring stdio` process and its host, killed on drop.
pub(crate) struct Host {
    child: Child,
    pipes: HostPipes<ChildStdin, ChildStdout>,
    dir: PathBuf,
}

impl Deref for Host {
    type Target = HostPipes<ChildStdin, ChildStdout>;

    fn deref(&self) -> &Self::Target {
        &self.pipes
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.pipes
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    /// Starts a process on `dir` and waits until it is ready.
    pub(crate) fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[], &[])
    }

    pub(crate) fn start_with(dir: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut host = Self::spawn(dir, arguments, settings);
        host.receive_init();
        host
    }

    fn spawn(dir: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut child = command(dir)
            .arg("stdio")
            .args(arguments)
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes = HostPipes::new(child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, pipes, dir: dir.to_owned() }
    }

    /// Sends a query that asks a question and continues with `script` once the host has read the question. By then the
    /// run is followed, so that no thought is missed. Returns the command that answered, which ends with the run.
    fn query_followed(&mut self, request: &str, key: &str, script: &str) -> Child {
        self.query(request, key, &format!("ask Go?; {script}"));
        let asked =
            self.receive_until(|line| line["text"].as_str().is_some_and(|text| text.ends_with("?\n")));
        let field = |name: &str| asked[asked.len() - 1][name].as_str().unwrap();
        let (session, run_id) = (field("sessionId"), field("runId"));
        let owner = ["--owner", "desktop-local-user"];
        let tail = ["session", "tail", session, "--after", "start", "--json"];
        let mut tail = command(&self.dir).args(tail).args(owner).stdout(Stdio::piped()).spawn().unwrap();
        let mut events = BufReader::new(tail.stdout.take().unwrap()).lines();
        assert!(events.any(|event| event.unwrap().contains("input.requested")), "no question was asked");
        tail.kill().unwrap();
        tail.wait().unwrap();
        let answer = ["run", "answer", run_id, "go"];
        command(&self.dir)
            .args(answer)
            .args(owner)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Closes the input and returns the remaining lines and the exit code.
    pub(crate) fn close(mut self) -> (Vec<Value>, i32) {
        drop(self.input.take());
        self.wait_ended()
    }

    /// Reads until the process ends by itself; returns the lines and the exit code.
    fn wait_ended(&mut self) -> (Vec<Value>, i32) {
        let rest = self.receive_rest();
        (rest, self.child.wait().unwrap().code().unwrap())
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the reading end of a pipe without a writer.
fn empty_pipe() -> ChildStdout {
    let (read, _) = std::io::pipe().unwrap();
    std::os::fd::OwnedFd::from(read).into()
}
