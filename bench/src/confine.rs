//! Confinement: how much longer an agent takes to start under Landlock than under its guard alone.
//!
//! Runs the program mainspring, as http does. The state directory lies deep in a home folder with many entries, because
//! every entry beside the path to it gets a rule.

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::http::server::mainspring;
use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::world;

const ROUNDS: usize = 41;
/// Entries of the home folder.
const ENTRIES: usize = 200;

pub(crate) fn measure(_runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let home = folder.file("home");
    let state = home.join(".local/state/mainspring");
    std::fs::create_dir_all(&state).unwrap();
    for no in 0..ENTRIES {
        std::fs::create_dir(home.join(no.to_string())).unwrap();
    }
    let confinement = json!({
        "readable": [home], "writable": [home.join("0"), "/tmp"], "hidden": [state], "protected": [], "ports": null,
    });
    let program = mainspring(&home).get_program().to_owned();
    let confiner = [program, "guard".into(), "--confine".into(), confinement.to_string().into(), "--".into()];
    let (mut ours, mut baseline) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        baseline.push(start(&home, &[]));
        ours.push(start(&home, &confiner));
    }
    let (ours, baseline) = (median(&ours), median(&baseline));
    table.line(
        "start and end under a guard, confined",
        ours,
        Some((baseline, "not confined")),
        "ms",
        Goal::None,
    );
    table.line("of that, the confinement", ours - baseline, None, "ms", Goal::AtMost(10.0));
}

/// The milliseconds from the start of a guard to its end, with a command that ends at once.
fn start(home: &Path, confiner: &[std::ffi::OsString]) -> f64 {
    let begin = Instant::now();
    let mut command = mainspring(home);
    // An open input: a guard ends its agent when that is closed.
    command.stdin(std::process::Stdio::piped()).args(["guard", "--grace-ms", "1000", "--"]);
    let mut guard = command.args(confiner).arg("true").spawn().unwrap();
    let input = guard.stdin.take();
    let status = guard.wait().unwrap();
    drop(input);
    assert!(status.success(), "{status}");
    ms(begin.elapsed())
}
