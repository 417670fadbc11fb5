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

use std::process::ExitCode;

use tokio::runtime::Runtime;

mod adapter;
mod bytes;
mod commit;
mod delta;
mod history;
mod raw;
mod replay;
mod start;
mod stats;
mod table;
mod tree;
mod turn;
mod world;

use table::Table;

type Measure = fn(&Runtime, &mut Table);

const MEASURES: [(&str, Measure); 7] = [
    ("commit", commit::measure),
    ("turn", turn::measure),
    ("tree", tree::measure),
    ("delta", delta::measure),
    ("bytes", bytes::measure),
    ("replay", replay::measure),
    ("start", start::measure),
];

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if let [child, path] = &names[..]
        && child == start::CHILD
    {
        start::child(path.as_ref());
        return ExitCode::SUCCESS;
    }
    let markdown = names.iter().any(|name| name == "--markdown");
    names.retain(|name| name != "--markdown");
    if let Some(unknown) = names.iter().find(|name| MEASURES.iter().all(|(known, _)| known != name)) {
        let known = MEASURES.map(|(known, _)| known).join(", ");
        eprintln!("no measure {unknown:?}; there is {known}, and the option --markdown");
        return ExitCode::from(2);
    }
    let mut table = Table::default();
    for (name, measure) in MEASURES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            eprintln!("{name} …");
            measure(&world::runtime(), &mut table);
        }
    }
    table.print(markdown);
    ExitCode::SUCCESS
}
