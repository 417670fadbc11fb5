//! The mark of an unfinished copy. It identifies the source and the records that are copied already. The target keeps
//! the mark until the copy is complete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tables::Value;

/// The schema version of a target until its copy is complete. No program supports this version, so none takes the
/// target for a complete store: earlier programs refuse it as made by a newer version.
pub(crate) const UNFINISHED_COPY: u32 = 1_000_000_000;

/// The values of the columns by which a record is ordered.
pub(crate) type Position = Vec<Value>;

/// Everything that an unfinished copy needs to continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The state of the source when the copy began.
    pub(crate) source: SourceState,
    /// The version of the tables of the target.
    pub(crate) schema: u64,
    /// The kinds of records that are copied completely or in part, by name.
    pub(crate) tables: BTreeMap<String, TableMark>,
}

impl Mark {
    pub(crate) fn new(source: SourceState, schema: u64) -> Self {
        Self { source, schema, tables: BTreeMap::new() }
    }

    /// The number of records that were written and compared.
    pub(crate) fn records(&self) -> u64 {
        self.tables.values().map(|table| table.records).sum()
    }
}

/// Identifies the content of a source. Every process that may change a database begins a history in it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceState {
    /// The token of the latest history; empty if there is none.
    pub(crate) history: String,
    /// The last cursor that the source has ever given.
    pub(crate) last_cursor: i64,
    /// The number of changes of the file, to detect commands that change a SQLite database without beginning a history;
    /// 0 in PostgreSQL.
    pub(crate) changes: u32,
}

/// The records of one kind that were written and compared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TableMark {
    /// The number of these records.
    pub(crate) records: u64,
    /// The position of the last of these records in the source. Its position in the target may differ.
    pub(crate) read_to: Option<Position>,
    /// The position of the last of these records in the target.
    pub(crate) written_to: Option<Position>,
    /// True if the source has no more records of this kind.
    pub(crate) is_complete: bool,
}
