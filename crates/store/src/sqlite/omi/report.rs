//! Counts the rows that an import imported, changed and skipped.
//!
//! Invariant: for each table, found = imported + skipped.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result};
use serde::Serialize;

use super::rows;

/// The maximum number of ids that a note gives as examples.
const MAX_EXAMPLES: usize = 3;
/// Tables of the original, and the name of their rows in the report.
pub(super) const TABLES: [(&str, &str); 8] = [
    ("sessions", "sessions"),
    ("runs", "runs"),
    ("run_attempts", "attempts"),
    ("adapter_bindings", "bindings"),
    ("events", "events"),
    ("artifacts", "artifacts"),
    ("delegations", "delegations"),
    ("grants", "grants"),
];

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmiReport {
    /// The number of rows in the source, per kind.
    pub found: BTreeMap<&'static str, u64>,
    /// The number of imported rows, per kind.
    pub taken: BTreeMap<&'static str, u64>,
    /// The number of messages made from the inputs and final texts of runs.
    pub messages: u64,
    /// The number of sessions per owner.
    pub owners: BTreeMap<String, u64>,
    /// The number of sessions per default adapter.
    pub adapters: BTreeMap<String, u64>,
    /// Rows that were imported with a change, and the change.
    pub changed: Vec<OmiNote>,
    /// Rows that were skipped, and the reason.
    pub left: Vec<OmiNote>,
}

/// Rows of one kind that were changed or skipped for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmiNote {
    /// The kind of row.
    pub what: &'static str,
    /// The change or the reason.
    pub why: String,
    /// The number of rows.
    pub count: u64,
    /// The ids of some of the rows.
    pub examples: Vec<String>,
}

impl OmiReport {
    /// Returns each kind with its numbers of imported and found rows, in the order of the tables.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> + '_ {
        let count = |map: &BTreeMap<&'static str, u64>, kind| map.get(kind).copied().unwrap_or(0);
        TABLES.iter().map(move |(_, kind)| (*kind, count(&self.taken, kind), count(&self.found, kind)))
    }

    /// Counts the rows of `source`. Rows of unknown tables are reported as skipped.
    pub(super) fn new(source: &Connection) -> Result<Self> {
        let mut found = BTreeMap::new();
        for (table, kind) in TABLES {
            found.insert(kind, rows::count(source, table)?);
        }
        let mut report = Self {
            found,
            taken: BTreeMap::new(),
            messages: 0,
            owners: BTreeMap::new(),
            adapters: BTreeMap::new(),
            changed: vec![],
            left: vec![],
        };
        for table in rows::unknown_tables(source)? {
            let count = rows::count(source, &table)?;
            if count > 0 {
                let why = format!("unknown table {table}");
                report.left.push(OmiNote { what: "other rows", why, count, examples: vec![] });
            }
        }
        Ok(report)
    }

    pub(super) fn imported(&mut self, kind: &'static str) {
        *self.taken.entry(kind).or_default() += 1;
    }

    pub(super) fn skipped(&mut self, kind: &'static str, why: &str, example: &str) {
        count_note(&mut self.left, kind, why, Some(example));
    }

    /// Like [`Self::skipped`], without an example.
    pub(super) fn skipped_unnamed(&mut self, kind: &'static str, why: &str) {
        count_note(&mut self.left, kind, why, None);
    }

    pub(super) fn changed(&mut self, kind: &'static str, how: &str, example: &str) {
        count_note(&mut self.changed, kind, how, Some(example));
    }

    /// Reports rows that were neither imported nor skipped: their session or run was not imported.
    pub(super) fn count_unreported(&mut self) {
        for (_, kind) in TABLES {
            let imported = *self.taken.entry(kind).or_default();
            let skipped: u64 = self.left.iter().filter(|note| note.what == kind).map(|note| note.count).sum();
            let count = self.found[kind].saturating_sub(imported + skipped);
            if count > 0 {
                let why = "its session or run is missing or was left".to_owned();
                self.left.push(OmiNote { what: kind, why, count, examples: vec![] });
            }
        }
    }
}

fn count_note(notes: &mut Vec<OmiNote>, kind: &'static str, why: &str, example: Option<&str>) {
    let known = notes.iter().position(|note| note.what == kind && note.why == why);
    let index = known.unwrap_or_else(|| {
        notes.push(OmiNote { what: kind, why: why.to_owned(), count: 0, examples: vec![] });
        notes.len() - 1
    });
    let note = &mut notes[index];
    note.count += 1;
    if let Some(example) = example.filter(|_| note.examples.len() < MAX_EXAMPLES) {
        note.examples.push(example.chars().take(64).collect());
    }
}
