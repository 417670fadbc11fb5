//! JSONL over standard input and output: the throughput of deltas from an agent to the host's pipe and the duration
//! of a query, against a bare program that writes the same text or answers a line with a line.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::http::server::mainspring;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::world;

/// The argument that selects the bare program.
pub(crate) const BARE: &str = "--stdio-bare";

const DELTAS: usize = 1_000_000;
const WORD: &str = "word";
const SESSIONS: [usize; 2] = [1, 8];
const ROUNDS: usize = 5;
const QUERIES: usize = 100;

pub(crate) fn measure(_runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let mut ours = Host::start(mainspring(&folder.file("state")).arg("stdio"));
    let init = ours.receive();
    assert_eq!(init["type"], "init", "build it first: cargo build --profile dist -p mainspring-cli");
    let mut bare = Host::start(Command::new(std::env::current_exe().unwrap()).args([BARE, "."]));
    for sessions in SESSIONS {
        flood(&mut ours, &mut bare, sessions, table);
    }
    queries(&mut ours, &mut bare, table);
}

fn flood(ours: &mut Host, bare: &mut Host, sessions: usize, table: &mut Table) {
    let (mut rates, mut baseline, mut lines) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let each = DELTAS / sessions;
        let prompt = format!("stream {each} {WORD}");
        let begin = Instant::now();
        for session in 0..sessions {
            ours.query(&format!("f{sessions}.{round}.{session}"), &format!("s{session}"), &prompt);
        }
        let line_count = ours.read_text(sessions, each);
        rates.push(DELTAS as f64 / begin.elapsed().as_secs_f64());
        lines.push(line_count as f64);
        let begin = Instant::now();
        bare.send(&json!({"type": "flood", "deltas": DELTAS}));
        bare.read_text(1, DELTAS);
        baseline.push(DELTAS as f64 / begin.elapsed().as_secs_f64());
    }
    let sessions_text =
        if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions at once") };
    table.line(
        format!("deltas from an agent to the host's pipe, {sessions_text}, every byte"),
        median(&rates),
        Some((median(&baseline), "a line per delta, written by hand")),
        "/s",
        Goal::AtLeast(50_000.0),
    );
    table.batched("a reader that is behind gets all text since its last delta as one line");
    table.note(format!(
        "Of the flood of {DELTAS} deltas of {sessions_text}, a host reads {:.0} lines.",
        median(&lines)
    ));
}

/// Measures queries from their line to their result.
fn queries(ours: &mut Host, bare: &mut Host, table: &mut Table) {
    let (mut times, mut baseline) = (vec![], vec![]);
    for no in 0..QUERIES {
        let begin = Instant::now();
        ours.query(&format!("q{no}"), "q", "say hello");
        ours.read_text(1, 0);
        times.push(ms(begin.elapsed()));
        let begin = Instant::now();
        bare.send(&json!({"type": "flood", "deltas": 1}));
        bare.read_text(1, 1);
        baseline.push(ms(begin.elapsed()));
    }
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        table.line(
            format!("query to its result, {name}"),
            percentile(&times, part),
            Some((percentile(&baseline, part), "a line for a line")),
            "ms",
            Goal::None,
        );
    }
}

/// The bare program: writes the requested number of deltas for each line.
pub(crate) fn bare(_: &Path) {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let text = format!("{WORD} ");
        for _ in 0..request["deltas"].as_u64().unwrap() {
            writeln!(out, "{}", json!({"type": "text_delta", "text": text})).unwrap();
        }
        writeln!(out, "{}", json!({"type": "result"})).unwrap();
        out.flush().unwrap();
    }
}

/// A child process and the host's side of its pipes. Dropping it ends the process.
struct Host {
    child: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Host {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::with_capacity(64 << 10, stdout) }
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn query(&mut self, request: &str, key: &str, prompt: &str) {
        self.send(&json!({
            "type": "query", "protocolVersion": 2, "requestId": request, "clientId": "bench", "legacySessionKey": key,
            "prompt": prompt, "systemPrompt": "",
        }));
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_default()
    }

    /// Reads to the end of `queries` queries of `deltas` deltas each; 0 deltas mean that the text is not checked.
    /// Returns the number of lines.
    fn read_text(&mut self, queries: usize, deltas: usize) -> usize {
        let (mut bytes, mut ends, mut lines) = (0, 0, 0);
        let mut line = String::new();
        while ends < queries {
            line.clear();
            self.lines.read_line(&mut line).unwrap();
            lines += 1;
            let read: Value = serde_json::from_str(&line).unwrap();
            match read["type"].as_str().unwrap() {
                "text_delta" => bytes += read["text"].as_str().unwrap().len(),
                "result" => ends += 1,
                other => panic!("{other}: {line}"),
            }
        }
        assert!(deltas == 0 || bytes == queries * deltas * (WORD.len() + 1), "bytes are missing");
        lines
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
