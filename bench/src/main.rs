//! Benchmarks of mainspring, each against a baseline.
//!
//! Each benchmark alternates between mainspring and a baseline within one process, so that a busy machine slows both.
//! The table contains medians. `mainspring-bench [--markdown] [--scale PART] [NAME…]` runs the named benchmarks, or all
//! usual ones. With `--scale 0.01` the large ones have a hundredth of their size, which shows that they work.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock, prints, and panics at the first error"
)]

use std::path::Path;
use std::process::ExitCode;

use tokio::runtime::Runtime;

mod adapter;
mod by_hand;
mod bytes;
mod commit;
mod confine;
mod delta;
mod history;
mod http;
mod model;
mod network;
mod owners;
mod postgres;
mod raw;
mod readers;
mod replay;
mod size;
mod soak;
mod start;
mod state;
mod stats;
mod stdio;
mod steps;
mod table;
mod threads;
mod tree;
mod turn;
mod world;

use http::server::{BARE, OURS};
use table::Table;

type Benchmark = fn(&Runtime, &mut Table);
type ChildMain = fn(&Path);

/// The modes in which a benchmark starts this program as a child process.
const CHILDREN: [(&str, ChildMain); 5] = [
    (start::CHILD, start::child),
    (OURS, http::server::ours),
    (BARE, http::server::bare),
    (stdio::BARE, stdio::bare),
    (size::waiting::CHILD, size::waiting::child),
];

/// Benchmarks that run only when named: they take long and use nearly the whole machine, or need PostgreSQL.
const ONLY_WHEN_NAMED: [(&str, Benchmark); 3] =
    [("size", size::measure), ("soak", soak::measure), ("postgres", postgres::measure)];

const BENCHMARKS: [(&str, Benchmark); 17] = [
    ("commit", commit::measure),
    ("turn", turn::measure),
    ("tree", tree::measure),
    ("delta", delta::measure),
    ("model", model::measure),
    ("network", network::measure),
    ("state", state::measure),
    ("bytes", bytes::measure),
    ("replay", replay::measure),
    ("start", start::measure),
    ("confine", confine::measure),
    ("owners", owners::measure),
    ("http", http::measure),
    ("readers", readers::measure),
    ("steps", steps::measure),
    ("stdio", stdio::measure),
    ("threads", threads::measure),
];

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if let [child, path] = &names[..]
        && let Some((_, run)) = CHILDREN.iter().find(|(name, _)| name == child)
    {
        run(path.as_ref());
        return ExitCode::SUCCESS;
    }
    let markdown = names.iter().any(|name| name == "--markdown");
    names.retain(|name| name != "--markdown");
    if let Some(at) = names.iter().position(|name| name == "--scale") {
        let part =
            names.get(at + 1).and_then(|part| part.parse().ok()).filter(|part| (0.0..=1.0).contains(part));
        let Some(part) = part else {
            eprintln!("--scale takes a part of 1, such as 0.01");
            return ExitCode::from(2);
        };
        world::set_scale(part);
        names.drain(at..=at + 1);
    }
    let all = || BENCHMARKS.into_iter().chain(ONLY_WHEN_NAMED);
    if let Some(unknown) = names.iter().find(|name| all().all(|(known, _)| known != *name)) {
        let known = all().map(|(known, _)| known).collect::<Vec<_>>().join(", ");
        eprintln!("no benchmark {unknown:?}; there are {known}, and the options --markdown and --scale PART");
        return ExitCode::from(2);
    }
    let mut table = Table::default();
    for (name, measure) in all() {
        let usual = names.is_empty() && BENCHMARKS.iter().any(|(known, _)| *known == name);
        if usual || names.iter().any(|wanted| wanted == name) {
            eprintln!("{name} …");
            measure(&world::runtime(), &mut table);
        }
    }
    table.print(markdown);
    ExitCode::SUCCESS
}
