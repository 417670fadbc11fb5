//! `kill -9` at random points under load: no acknowledged run is lost, and none is invented.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mainspring::core::{Cursor, RunId, RunStatus};
use mainspring::{Caller, Config, Node};
use mainspring_kernel::store::SessionRef;
use mainspring_test_support::Rng;

const KILLS: u64 = 60;

#[test]
fn acknowledged_runs_survive_sixty_kills() {
    let folder = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut reported = HashMap::new();
    for round in 0..KILLS {
        run_and_kill(folder.path(), round, rng.below(120) + 1, &mut reported);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check_state(folder.path(), &mut reported, round));
    }
    assert!(reported.len() > 500, "only {} runs were acknowledged; too little load", reported.len());
    let ended = reported.values().flatten().filter(|status| **status == RunStatus::Succeeded).count();
    assert!(ended > 100, "only {ended} runs succeeded; too little load");
}

/// Starts the load, kills it after `lines` lines, and records its output.
fn run_and_kill(dir: &Path, round: u64, lines: u64, reported: &mut HashMap<RunId, Option<RunStatus>>) {
    let mut child: Child =
        Command::new(example("load")).arg(dir).arg(round.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in stdout.by_ref().take(usize::try_from(lines).unwrap()) {
        record_line(&line.unwrap(), reported);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Complete lines written before the kill count as well.
    for line in stdout.map_while(Result::ok) {
        record_line(&line, reported);
    }
}

fn record_line(line: &str, reported: &mut HashMap<RunId, Option<RunStatus>>) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["ack", run] => drop(reported.entry(run.parse().unwrap()).or_insert(None)),
        ["end", run, status] => drop(reported.insert(run.parse().unwrap(), RunStatus::from_name(status))),
        _ => panic!("unexpected line {line:?}"),
    }
}

/// Opens the state directory of the killed process and compares it with the recorded output.
async fn check_state(dir: &Path, reported: &mut HashMap<RunId, Option<RunStatus>>, round: u64) {
    let node = Node::builder(Config::with_state_dir(dir)).records_only().open().await.unwrap();
    let (kernel, me) = (node.kernel(), Caller::new("load"));
    let mut sessions = HashMap::new();
    for (id, earlier) in reported.iter_mut() {
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
        .env_clear()
        .env("HOME", dir)
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
