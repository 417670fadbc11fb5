//! `kill -9` at random points under load: no acknowledged run is lost, and none is invented.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mainspring::core::{Cursor, RunId, RunStatus};
use mainspring::{Caller, Config, Node};
use mainspring_kernel::store::SessionRef;

const KILLS: u64 = 60;

/// A small random generator, so that a failure can be reproduced from its seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[test]
fn what_was_acknowledged_survives_sixty_kills() {
    let folder = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut dice = Dice(seed);
    let mut told = HashMap::new();
    for round in 0..KILLS {
        kill_one(folder.path(), round, dice.below(120) + 1, &mut told);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(examine(folder.path(), &mut told, round));
    }
    assert!(told.len() > 500, "only {} runs were acknowledged: that was no load", told.len());
    let ended = told.values().flatten().filter(|status| **status == RunStatus::Succeeded).count();
    assert!(ended > 100, "only {ended} runs succeeded: that was no load");
}

/// Starts the load, kills it after `lines` lines, and records its output.
fn kill_one(dir: &Path, round: u64, lines: u64, told: &mut HashMap<RunId, Option<RunStatus>>) {
    let mut child: Child =
        Command::new(example("load")).arg(dir).arg(round.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in said.by_ref().take(usize::try_from(lines).unwrap()) {
        hear(&line.unwrap(), told);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Complete lines written before the kill count as well.
    for line in said.map_while(Result::ok) {
        hear(&line, told);
    }
}

fn hear(line: &str, told: &mut HashMap<RunId, Option<RunStatus>>) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["ack", run] => drop(told.entry(run.parse().unwrap()).or_insert(None)),
        ["end", run, status] => drop(told.insert(run.parse().unwrap(), RunStatus::from_name(status))),
        _ => panic!("what is {line:?}?"),
    }
}

/// Opens the state directory of the killed process and compares it with the recorded output.
async fn examine(dir: &Path, told: &mut HashMap<RunId, Option<RunStatus>>, round: u64) {
    let node = Node::builder(Config::with_state_dir(dir)).records_only().open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("load"));
    let mut sessions = HashMap::new();
    for (id, was) in told.iter_mut() {
        let run = kernel
            .run_get(&me, *id)
            .await
            .unwrap_or_else(|error| panic!("round {round}: {id} is lost: {error}"));
        let status = run.state.status();
        sessions.entry(run.session).or_insert(0);
        match was {
            Some(was) => assert_eq!(*was, status, "round {round}: {id} had ended"),
            None => {
                assert!(status.is_ended() || status == RunStatus::Queued, "round {round}: {id} is {status}");
            }
        }
        // A final status never changes again.
        *was = status.is_ended().then_some(status);
        let attempts = kernel.run_attempts(&me, *id).await.unwrap();
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
    node.close().await;
    let checked = Command::new(env!("CARGO_BIN_EXE_mainspring"))
        .args(["doctor", "--thorough", "--state-dir"])
        .arg(dir)
        .env_remove("MAINSPRING_STATE_DIR")
        .output()
        .unwrap();
    assert!(checked.status.success(), "round {round}: {}", String::from_utf8_lossy(&checked.stdout));
}

/// Path of an example of this package, built beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(built.exists(), "{} is not built: run cargo build --examples", built.display());
    built
}
