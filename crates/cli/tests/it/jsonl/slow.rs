//! A host that does not read: no output is lost, and none is buffered in memory.

use std::io::Write;

use mainspring_test_support::jsonl::{is_end, streamed_text};

use super::Host;
use crate::guests::serve;

/// Returns the peak memory of a process, in kilobytes.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_host_that_reads_late_receives_everything_within_bounded_memory() {
    const QUERIES: usize = 6;
    // Each text has nine megabytes; together they are many times the memory of an idle process.
    const TIMES: usize = 1_500_000;
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let mut host = Host::start(dir.path());
    let idle = peak(host.child.id());
    let name = |no: usize| format!("q{no}");
    (0..QUERIES)
        .for_each(|no| host.query(&name(no), &name(no), &format!("stream {TIMES} word{no}; say end")));
    // All runs have ended before the first line is read.
    let ended = |listed: &str| listed.matches("\"status\":\"succeeded\"").count();
    let list = ["run", "list", "--json", "--owner", "desktop-local-user"];
    while ended(&crate::cli::run(dir.path(), &list).out) < QUERIES {}
    let before = peak(host.child.id());
    let (mut received, mut ends) = (vec![], 0);
    while ends < QUERIES {
        let line = host.receive();
        ends += usize::from(is_end(&line));
        received.push(line);
    }
    for no in 0..QUERIES {
        let whole = format!("word{no} ").repeat(TIMES) + "end\n";
        assert!(streamed_text(&received, &name(no)) == whole, "{no}: every byte once and in order");
        let end = received.iter().find(|line| is_end(line) && line["requestId"] == name(no)).unwrap();
        assert!(end["text"] == whole, "{no}");
    }
    // The runs had produced more than fifty megabytes by then.
    let held = before - idle;
    assert!(held < 15_000, "{held} kB were held for a host that had not read");
}

#[test]
fn many_short_lines_from_a_host_that_does_not_read_use_bounded_memory() {
    const LINES: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start(dir.path());
    let idle = peak(host.child.id());
    let mut stdin = host.input.take().unwrap();
    let pipe = std::os::fd::AsFd::as_fd(&stdin).try_clone_to_owned().unwrap();
    let writer = std::thread::spawn(move || {
        for no in 0..LINES {
            let line = format!("{{\"type\":\"interrupt\",\"protocolVersion\":2,\"requestId\":\"{no}\"}}\n");
            stdin.write_all(line.as_bytes()).unwrap();
        }
        stdin
    });
    // Waits until the process stops reading its input: its buffers are full by then.
    let (mut full, mut before) = (0, 0);
    while !writer.is_finished() && full < 100_000 {
        let waiting = rustix::io::ioctl_fionread(&pipe).unwrap();
        full = if waiting == before { full + 1 } else { 0 };
        before = waiting;
        std::thread::yield_now();
    }
    drop(pipe);
    for _ in 0..LINES {
        assert_eq!(host.receive()["type"], "cancel_ack");
    }
    host.input = Some(writer.join().unwrap());
    let held = peak(host.child.id()) - idle;
    assert!(held < 100_000, "{held} kB are buffered for unread answers");
}
