//! What mainspring costs, measured beside what it stands on.
//!
//! Each measure runs ours and a baseline in turns within one process, so that a busy machine slows both; the table
//! gives medians. `mainspring-bench [--markdown] [NAME…]` runs the measures of these names, or all.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock, prints, and stops at the first thing that goes wrong"
)]

use std::path::Path;
use std::process::ExitCode;

use tokio::runtime::Runtime;

mod adapter;
mod bytes;
mod commit;
mod delta;
mod history;
mod http;
mod model;
mod raw;
mod replay;
mod soak;
mod start;
mod stats;
mod stdio;
mod table;
mod tree;
mod turn;
mod world;

use http::server::{BARE, OURS};
use table::Table;

type Measure = fn(&Runtime, &mut Table);
type Served = fn(&Path);

/// What this program is when a measure calls it as a process of its own.
const CHILDREN: [(&str, Served); 4] = [
    (start::CHILD, start::child),
    (OURS, http::server::ours),
    (BARE, http::server::bare),
    (stdio::BARE, stdio::bare),
];

/// What runs only when it is named: it takes its time, and nearly all of the machine.
const NAMED: [(&str, Measure); 1] = [("soak", soak::measure)];

const MEASURES: [(&str, Measure); 10] = [
    ("commit", commit::measure),
    ("turn", turn::measure),
    ("tree", tree::measure),
    ("delta", delta::measure),
    ("model", model::measure),
    ("bytes", bytes::measure),
    ("replay", replay::measure),
    ("start", start::measure),
    ("http", http::measure),
    ("stdio", stdio::measure),
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
    let all = || MEASURES.into_iter().chain(NAMED);
    if let Some(unknown) = names.iter().find(|name| all().all(|(known, _)| known != *name)) {
        let known = all().map(|(known, _)| known).collect::<Vec<_>>().join(", ");
        eprintln!("no measure {unknown:?}; there is {known}, and the option --markdown");
        return ExitCode::from(2);
    }
    let mut table = Table::default();
    for (name, measure) in all() {
        let usual = names.is_empty() && MEASURES.iter().any(|(known, _)| *known == name);
        if usual || names.iter().any(|wanted| wanted == name) {
            eprintln!("{name} …");
            measure(&world::runtime(), &mut table);
        }
    }
    table.print(markdown);
    ExitCode::SUCCESS
}
