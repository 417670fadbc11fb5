//! `kill -9` and restart: an accepted query is one run, even if the host sends it again.

use std::collections::HashMap;
use std::path::PathBuf;

use mainspring_test_support::Rng;
use mainspring_test_support::jsonl::{is_end, query};
use serde_json::Value;

use super::Host;
use crate::cli::{json_lines, run};

fn runs(dir: &std::path::Path) -> Vec<Value> {
    json_lines(&run(dir, &["run", "list", "--json", "--limit", "500", "--owner", "desktop-local-user"]))
}

#[test]
fn queries_repeated_after_a_kill_receive_their_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        query("ended", "a", "say done"),
        query("active", "b", "say half; hang"),
        query("queued", "b", "say later"),
    ];
    let mut host = Host::start(dir.path());
    host.send(&lines[0]);
    let ended = host.receive_end("ended");
    host.send(&lines[1]);
    let half = host.receive_until(|line| line["type"] == "text_delta").pop().unwrap();
    host.send(&lines[2]);
    // A queued query produces no line; its acceptance shows in the list of runs.
    while runs(dir.path()).len() < 3 {}
    host.kill();
    let mut host = Host::start(dir.path());
    host.send(&lines[0]);
    let again = host.receive_end("ended");
    assert_eq!((&again["runId"], &again["text"]), (&ended["runId"], &ended["text"]));
    host.send(&lines[1]);
    let orphaned = host.receive_end("active");
    assert_eq!(
        (&orphaned["type"], &orphaned["reason"], &orphaned["runId"]),
        (&"error".into(), &"executor_lost".into(), &half["runId"])
    );
    host.send(&lines[2]);
    assert_eq!(host.receive_end("queued")["text"], "later\n");
    assert_eq!(runs(dir.path()).len(), 3);
}

#[test]
fn twenty_kills_neither_repeat_nor_lose_a_query() {
    const KILLS: usize = 20;
    const QUERIES: usize = 5 * KILLS;
    let dir = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut ends: HashMap<String, Value> = HashMap::new();
    let line =
        |no: usize| query(&format!("q{no}"), &format!("s{}", no % 7), &format!("stream 20 every 1ms w{no}"));
    for kill in 1..=KILLS {
        let mut host = Host::start(dir.path());
        let asked = 5 * kill;
        let open = (0..asked).filter(|no| !ends.contains_key(&format!("q{no}")));
        open.collect::<Vec<_>>().into_iter().for_each(|no| host.send(&line(no)));
        // The last process is killed after it has answered everything.
        let most = if kill < KILLS { rng.below(40) } else { u64::MAX };
        let mut received = 0;
        while received < most && ends.len() < asked {
            let line = host.receive();
            received += 1;
            if is_end(&line) {
                let known = ends.insert(line["requestId"].as_str().unwrap().to_owned(), line.clone());
                assert_eq!(known, None, "one end each: {line}");
            }
        }
        host.kill();
    }
    let mut host = Host::start(dir.path());
    for no in 0..QUERIES {
        host.send(&line(no));
        let (request, again) = (format!("q{no}"), host.receive());
        let first = &ends[&request];
        for field in ["type", "runId", "sessionId", "text", "code", "terminalStatus"] {
            assert_eq!(again.get(field), first.get(field), "{request} {field}");
        }
        if first["type"] == "result" {
            assert_eq!(first["text"], format!("w{no} ").repeat(20));
        }
    }
    assert_eq!(runs(dir.path()).len(), QUERIES, "each query is one run");
}

#[test]
fn fault_socket_file_after_kill() {
    let dir = super::acp::folder();
    let mut host = Host::start(dir.path());
    host.query("path", "k", "env OMI_BRIDGE_PIPE");
    let relay = PathBuf::from(host.receive_end("path")["text"].as_str().unwrap());
    host.kill();
    assert!(relay.exists(), "a killed process leaves its socket");
    assert!(std::os::unix::net::UnixStream::connect(&relay).is_err());
    let mut host = Host::start(dir.path());
    assert!(!relay.parent().unwrap().exists(), "the next process removes it");
    host.query("r", "k", r#"relay {"type":"context","callId":"c"}"#);
    assert!(host.receive_end("r")["text"].as_str().unwrap().contains("\"requestId\":\"r\""));
}
