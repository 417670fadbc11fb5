//! What an import took, what it left and why. The books balance: each row of the source is in one of them.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result};
use serde::Serialize;

use super::rows;

/// How many ids are named for each reason.
const EXAMPLES: usize = 3;
/// Tables of the original, and what their rows are called here.
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

/// What an import took, changed and left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmiReport {
    /// How many of each there were.
    pub found: BTreeMap<&'static str, u64>,
    /// How many of each are here now.
    pub taken: BTreeMap<&'static str, u64>,
    /// Messages that were made of the runs' inputs and final texts.
    pub messages: u64,
    /// Whose sessions they are.
    pub owners: BTreeMap<String, u64>,
    /// The adapters that they use unless a run names another.
    pub adapters: BTreeMap<String, u64>,
    /// What was taken otherwise than it was, and how.
    pub changed: Vec<OmiLeft>,
    /// What was not taken, and why.
    pub left: Vec<OmiLeft>,
}

/// Rows of which the same is to be said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmiLeft {
    /// What they are.
    pub what: &'static str,
    /// What is to be said.
    pub why: String,
    /// How many.
    pub count: u64,
    /// Some of them.
    pub examples: Vec<String>,
}

impl OmiReport {
    /// What there is of each, in the order of the tables: its name, how many were taken, how many there were.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> + '_ {
        let of = |map: &BTreeMap<&'static str, u64>, what| map.get(what).copied().unwrap_or(0);
        TABLES.iter().map(move |(_, what)| (*what, of(&self.taken, what), of(&self.found, what)))
    }

    /// Nothing is taken yet.
    pub(super) fn of(source: &Connection) -> Result<Self> {
        let mut found = BTreeMap::new();
        for (table, what) in TABLES {
            found.insert(what, rows::count(source, table)?);
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
                let why = format!("the table {table} is not part of what is known of the original");
                report.left.push(OmiLeft { what: "other rows", why, count, examples: vec![] });
            }
        }
        Ok(report)
    }

    pub(super) fn took(&mut self, what: &'static str) {
        *self.taken.entry(what).or_default() += 1;
    }

    pub(super) fn left(&mut self, what: &'static str, why: &str, example: &str) {
        note(&mut self.left, what, why, Some(example));
    }

    /// Something of which no single one is worth naming.
    pub(super) fn left_plain(&mut self, what: &'static str, why: &str) {
        note(&mut self.left, what, why, None);
    }

    pub(super) fn changed(&mut self, what: &'static str, how: &str, example: &str) {
        note(&mut self.changed, what, how, Some(example));
    }

    /// Says of what nothing was said so far: it belongs to something that is not there.
    pub(super) fn settle(&mut self) {
        for (_, what) in TABLES {
            let taken = *self.taken.entry(what).or_default();
            let said: u64 = self.left.iter().filter(|left| left.what == what).map(|left| left.count).sum();
            let count = self.found[what].saturating_sub(taken + said);
            if count > 0 {
                let why = "of a session or a run that is not there or was left".to_owned();
                self.left.push(OmiLeft { what, why, count, examples: vec![] });
            }
        }
    }
}

fn note(notes: &mut Vec<OmiLeft>, what: &'static str, why: &str, example: Option<&str>) {
    let known = notes.iter().position(|note| note.what == what && note.why == why);
    let at = known.unwrap_or_else(|| {
        notes.push(OmiLeft { what, why: why.to_owned(), count: 0, examples: vec![] });
        notes.len() - 1
    });
    let note = &mut notes[at];
    note.count += 1;
    if let Some(example) = example.filter(|_| note.examples.len() < EXAMPLES) {
        note.examples.push(example.chars().take(64).collect());
    }
}
