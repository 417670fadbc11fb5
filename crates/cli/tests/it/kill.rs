//! `kill -9` at random points under load, with full disks, stepped clocks and restored backups: no acknowledged run
//! is lost, none is invented, and readers have received only stored text, or get a report of the exact text that is lost.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use mainspring::core::{Cursor, RunId, RunStatus, SessionId};
use mainspring::{Caller, Config, Node};
use mainspring_kernel::store::SessionRef;
use mainspring_test_support::Rng;
use rustix::process::Pid;

use self::readers::Reader;

mod readers;

const KILLS: u64 = 60;
const HOUR_MS: i64 = 60 * 60 * 1_000;

/// The output of the killed processes.
#[derive(Clone, Default)]
struct Observed {
    runs: HashMap<RunId, Option<RunStatus>>,
    readers: HashMap<SessionId, Reader>,
    refused: u64,
}

impl Observed {
    /// Records a line. Returns true if it is about a run.
    fn record_line(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        match words[..] {
            ["ack", run] => drop(self.runs.entry(run.parse().unwrap()).or_insert(None)),
            ["end", run, status] => {
                self.runs.insert(run.parse().unwrap(), RunStatus::from_name(status));
            }
            ["refused", _] => self.refused += 1,
            ["at", session, at] => self.reader(session).record_position(at),
            ["text", session, at, message, text] => self.reader(session).record_text(at, message, text),
            ["done", session, at, message, text] => self.reader(session).record_message(at, message, text),
            _ => panic!("unexpected line {line:?}"),
        }
        matches!(words[0], "ack" | "end")
    }

    fn reader(&mut self, session: &str) -> &mut Reader {
        self.readers.entry(session.parse().unwrap()).or_default()
    }
}

/// A fault that is injected before the process is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The disk is full for a while.
    FullDisk,
    /// The disk is full until the kill.
    FullDiskAtTheEnd,
    /// A backup is made, which replaces the state directory after the kill.
    Restore,
}

impl Fault {
    fn of_round(round: u64) -> Self {
        match round {
            25 | 50 => Self::Restore,
            _ if round % 10 == 4 => Self::FullDisk,
            _ if round % 20 == 9 => Self::FullDiskAtTheEnd,
            _ => Self::None,
        }
    }
}

#[test]
fn acknowledged_runs_survive_sixty_kills() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let (mut observed, mut truncated) = (Observed::default(), 0);
    for round in 0..KILLS {
        let fault = Fault::of_round(round);
        let step_ms = [0, HOUR_MS, -HOUR_MS][usize::try_from(round % 3).unwrap()];
        let mut load = Load::start(&state, round, step_ms);
        let lines = rng.below(120) + 1;
        load.read_lines(lines.div_ceil(2), &mut observed);
        let mut restored = None;
        match fault {
            Fault::None => {}
            Fault::FullDisk => {
                load.fill_disk(&mut observed);
                load.limit_files(None);
            }
            Fault::FullDiskAtTheEnd => load.fill_disk(&mut observed),
            Fault::Restore => {
                let before = observed.clone();
                mainspring(&state, &["backup", folder.path().join(format!("copy{round}")).to_str().unwrap()]);
                restored = Some(before);
            }
        }
        if fault != Fault::FullDiskAtTheEnd {
            load.read_lines(lines.div_ceil(2), &mut observed);
        }
        load.kill(&mut observed);
        if let Some(before) = restored {
            fs::remove_dir_all(&state).unwrap();
            mainspring(&state, &["restore", folder.path().join(format!("copy{round}")).to_str().unwrap()]);
            // Everything acknowledged before the backup is kept; the readers stay, as readers of the lost state directory.
            observed = Observed { runs: before.runs, ..observed };
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        truncated += runtime.block_on(check_state(&state, &mut observed, round));
        mainspring(&state, if round % 2 == 0 { &["doctor", "--thorough"] } else { &["verify"] });
    }
    assert!(
        observed.runs.len() > 500,
        "only {} runs were acknowledged; too little load",
        observed.runs.len()
    );
    let ended = observed.runs.values().flatten().filter(|status| **status == RunStatus::Succeeded).count();
    assert!(ended > 100, "only {ended} runs succeeded; too little load");
    assert!(
        truncated > 10,
        "only {truncated} readers got a report of lost text; too little text is streamed"
    );
    assert!(observed.refused > 10, "a full disk was noticed only {} times", observed.refused);
}

/// A process under load. Killed on drop.
struct Load {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Drop for Load {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Load {
    fn start(state: &Path, round: u64, step_ms: i64) -> Self {
        let mut command = Command::new(example("load"));
        command.arg(state).args([round.to_string(), step_ms.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdout }
    }

    fn read_line(&mut self, observed: &mut Observed) -> bool {
        let line = self.stdout.next().expect("the process ended by itself").unwrap();
        observed.record_line(&line)
    }

    /// Reads until `lines` lines were about runs.
    fn read_lines(&mut self, lines: u64, observed: &mut Observed) {
        let mut read = 0;
        while read < lines {
            read += u64::from(self.read_line(observed));
        }
    }

    /// Lets no file grow until some prompts are refused or some readers receive the store's failure.
    fn fill_disk(&mut self, observed: &mut Observed) {
        self.limit_files(Some(1));
        let refused = observed.refused;
        while observed.refused < refused + 5 {
            self.read_line(observed);
        }
    }

    fn limit_files(&self, bytes: Option<u64>) {
        crate::full_disk::limit_files(Pid::from_child(&self.child), bytes);
    }

    fn kill(mut self, observed: &mut Observed) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // Complete lines written before the kill count as well.
        for line in self.stdout.by_ref().map_while(Result::ok) {
            observed.record_line(&line);
        }
    }
}

/// Opens the state directory of the killed process and compares it with the recorded output. Returns the number of
/// readers to which lost text was reported.
async fn check_state(dir: &Path, observed: &mut Observed, round: u64) -> usize {
    let node = Node::builder(Config::with_state_dir(dir)).records_only().open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("load"));
    let mut sessions = HashMap::new();
    for (id, earlier) in &mut observed.runs {
        let run = kernel
            .run_get(&me, *id)
            .await
            .unwrap_or_else(|error| panic!("round {round}: {id} is lost: {error}"));
        let status = run.state.status();
        sessions.entry(run.session).or_insert(0);
        match earlier {
            Some(earlier) => assert_eq!(*earlier, status, "round {round}: {id} had ended"),
            None => {
                assert!(status.is_ended() || status == RunStatus::Queued, "round {round}: {id} is {status}");
            }
        }
        // A final status never changes again.
        *earlier = status.is_ended().then_some(status);
        let attempts = kernel.run_attempts(&me, *id).await.unwrap().items;
        let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.no).collect();
        assert_eq!(numbers, (1..=run.attempts).collect::<Vec<_>>(), "round {round}: {id}");
        assert!(
            attempts.iter().all(|attempt| attempt.status.is_ended()),
            "round {round}: {id}: {attempts:?}"
        );
    }
    for session in sessions.keys() {
        let by = SessionRef::Id(*session);
        kernel.session_path(&me, &by, None, Some(500)).await.unwrap();
        let events = kernel.session_events(&me, &by, Cursor::START, Some(500)).await.unwrap();
        assert!(
            events.is_sorted_by(|a, b| a.cursor < b.cursor && a.pos <= b.pos),
            "round {round}: {session}"
        );
    }
    let mut truncated = 0;
    for (session, reader) in observed.readers.drain().filter(|(session, _)| sessions.contains_key(session)) {
        truncated += usize::from(reader.check(kernel, &me, session, round).await);
    }
    node.close().await;
    truncated
}

/// Runs a command on the state directory, which must succeed.
fn mainspring(state: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(arguments).arg("--state-dir").arg(state).env_clear().env("HOME", state.parent().unwrap());
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {text}");
}

/// Path of an example of this package, built beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(built.exists(), "{} is not built: run cargo build --examples", built.display());
    built
}
