//! Checksums of rows, so that bit rot is reported instead of served.
//!
//! The checksum of a row is the CRC-32 of the stored form of its columns, in the order of the list with which they are
//! read. The column `checksum` follows that list. It is NULL in rows that a version without checksums wrote. A column that
//! was added to the list later is left out if it is NULL, so that rows from before keep their checksum.
//!
//! A run has two checksums: one of the columns of its request, of which only the options and the hash of the
//! system prompt may change, and one of the other columns. The checksum of a message combines the checksum of
//! its place with that of all other columns: a message gets its place after its content, and placing the
//! message does not read the content.

use std::ops::Range;

use mainspring_core::{ArtifactId, AttemptId, Damage, EventId, MessageId, RunId, SessionId, StepId};
use rusqlite::types::{ToSqlOutput, Type, Value, ValueRef};
use rusqlite::{Connection, Error, Result, Row, Statement, ToSql};

use super::columns::Id;
use super::read::{
    artifact_columns, attempt_columns, chunk_columns, digest_columns, effect_columns, event_columns,
    message_columns, run_columns, run_request_columns, run_state_columns, session_columns,
    state_change_columns, state_columns, step_columns,
};

/// The number of bytes that are collected before they are added to a checksum.
const PENDING_BYTES: usize = 256;
/// The same number for the few columns whose checksum is computed separately.
const PENDING_BYTES_APART: usize = 64;

/// The columns of a kind of row that its checksum covers.
pub(super) struct Layout {
    /// The number of columns before `checksum`.
    columns: usize,
    /// The number of columns at the end of the list that were added to it after rows with checksums had been written.
    added: usize,
    /// The columns whose checksum is computed separately and combined with that of the others.
    apart: Range<usize>,
    /// The kind of the row.
    kind: &'static str,
    /// Returns the id or key of a row, given the index of its first column.
    id: fn(&Row<'_>, usize) -> Option<String>,
    /// Describes the id, where a description helps more than the id alone.
    describe: Option<fn(&Row<'_>, usize, &str) -> String>,
}

pub(super) const SESSION: Layout = Layout {
    columns: column_count(session_columns!()),
    added: 4,
    apart: 0..0,
    kind: "session",
    id: id::<SessionId>,
    describe: None,
};
pub(super) const RUN_REQUEST: Layout = Layout {
    columns: column_count(run_request_columns!()),
    added: 1,
    apart: 0..0,
    kind: "run",
    id: id::<RunId>,
    describe: None,
};
pub(super) const RUN_STATE: Layout = Layout {
    columns: column_count(run_state_columns!()),
    added: 4,
    apart: 0..0,
    // The other columns of the run and their checksum come before.
    kind: "run",
    id: |row, first| id::<RunId>(row, first - RUN_REQUEST.columns - 1),
    describe: None,
};
pub(super) const MESSAGE: Layout = Layout {
    columns: column_count(message_columns!()),
    added: 2,
    apart: 4..7,
    kind: "message",
    id: id::<MessageId>,
    describe: None,
};
pub(super) const EVENT: Layout = Layout {
    columns: column_count(event_columns!()),
    added: 0,
    apart: 0..0,
    kind: "event",
    id: |row, first| id::<EventId>(row, first + 1),
    describe: Some(|row, first, id| {
        let cursor = row.get::<_, i64>(first).unwrap_or_default();
        format!("{id} at {cursor}")
    }),
};
pub(super) const EFFECT: Layout = Layout {
    columns: column_count(effect_columns!()),
    added: 0,
    apart: 0..0,
    kind: "tool call",
    id: |row, first| row.get(first + 1).ok(),
    describe: Some(|row, first, call| {
        format!("{call:?} of run {}", id::<RunId>(row, first).unwrap_or_else(unreadable))
    }),
};
pub(super) const CHUNK: Layout = Layout {
    columns: column_count(chunk_columns!()),
    added: 0,
    apart: 0..0,
    kind: "streamed text",
    id: |row, first| id::<MessageId>(row, first + 1),
    describe: Some(|_, _, id| format!("of message {id}")),
};
pub(super) const STATE: Layout = Layout {
    columns: column_count(state_columns!()),
    added: 0,
    apart: 0..0,
    kind: "state",
    id: |row, first| row.get(first).ok(),
    describe: Some(|_, _, key| format!("{key:?}")),
};

pub(super) const STATE_CHANGE: Layout = Layout {
    columns: column_count(state_change_columns!()),
    added: 0,
    apart: 0..0,
    kind: "change of state",
    id: |row, first| row.get(first).ok(),
    describe: Some(|_, _, key| format!("of {key:?}")),
};
pub(super) const ATTEMPT: Layout = Layout {
    columns: column_count(attempt_columns!()),
    added: 1,
    apart: 0..0,
    kind: "attempt",
    id: id::<AttemptId>,
    describe: None,
};
pub(super) const STEP: Layout = Layout {
    columns: column_count(step_columns!()),
    added: 3,
    apart: 0..0,
    kind: "step",
    id: id::<StepId>,
    describe: None,
};
pub(super) const DIGEST: Layout = Layout {
    columns: column_count(digest_columns!()),
    added: 0,
    apart: 0..0,
    kind: "digest",
    id: |row, first| id::<MessageId>(row, first + 3),
    describe: Some(|_, _, id| format!("at message {id}")),
};
pub(super) const ARTIFACT: Layout = Layout {
    columns: column_count(artifact_columns!()),
    added: 0,
    apart: 0..0,
    kind: "artifact",
    id: id::<ArtifactId>,
    describe: None,
};

/// A row that does not match its checksum.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name} does not match its checksum: restore a backup")]
pub(super) struct Mismatch {
    kind: &'static str,
    id: Option<String>,
    /// The description of the id.
    name: String,
}

/// Counts the names in a list of columns that ends with `checksum`, without `checksum` itself.
const fn column_count(list: &str) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < list.len() {
        if list.as_bytes()[at] == b',' {
            count += 1;
        }
        at += 1;
    }
    count
}

fn id<T: Id + std::fmt::Display>(row: &Row<'_>, column: usize) -> Option<String> {
    row.get(column).map(|id| T::from_column(id).to_string()).ok()
}

fn unreadable() -> String {
    "without a readable id".into()
}

/// Returns the damage of a row that cannot be read, or the error of a read that failed for another reason.
pub(super) fn damage(error: Error) -> Result<Damage> {
    let damage =
        |kind: &str, id: Option<String>, message: String| Damage { kind: kind.into(), id, index: 0, message };
    match error {
        Error::FromSqlConversionFailure(_, _, problem) => Ok(match problem.downcast_ref::<Mismatch>() {
            Some(mismatch) => damage(mismatch.kind, mismatch.id.clone(), mismatch.to_string()),
            None => damage("row", None, problem.to_string()),
        }),
        // Only rows without a checksum get here: other rows are compared with their checksum first.
        Error::InvalidColumnType(..) | Error::IntegralValueOutOfRange(..) | Error::Utf8Error(..) => {
            Ok(damage("row", None, error.to_string()))
        }
        other => Err(other),
    }
}

impl Layout {
    /// Fails if the row that begins with column `first` does not match its checksum. Puts the first columns into `kept` and
    /// returns their number.
    pub(super) fn check<'row>(
        &self,
        row: &'row Row<'row>,
        first: usize,
        kept: &mut [ValueRef<'row>],
    ) -> Result<usize> {
        // A checksum that is not a number is damaged as well.
        if let Ok(stored) = row.get::<_, Option<i64>>(first + self.columns) {
            let Some(stored) = stored else { return Ok(0) };
            let mut sum = RowSum::new(self);
            for index in 0..self.columns {
                let value = row.get_ref(first + index)?;
                sum.add(index, value);
                if let Some(kept) = kept.get_mut(index) {
                    *kept = value;
                }
            }
            if sum.end() == stored {
                return Ok(self.columns.min(kept.len()));
            }
        }
        let id = (self.id)(row, first);
        let name = match (&id, self.describe) {
            (Some(id), Some(describe)) => describe(row, first, id),
            (Some(id), None) => id.clone(),
            (None, _) => unreadable(),
        };
        let mismatch = Mismatch { kind: self.kind, id, name };
        Err(Error::FromSqlConversionFailure(first + self.columns, Type::Integer, mismatch.into()))
    }
}

/// Computes the checksum of the place of a message: `status`, `line` and `pos`.
pub(super) fn place(columns: &[&dyn ToSql; 3]) -> Result<i64> {
    let mut sum = Sum::<PENDING_BYTES_APART>::new();
    for column in columns {
        sum.add(value_ref(&column.to_sql()?)?);
    }
    Ok(sum.end())
}

/// Executes a statement whose first parameters are the columns of each of `parts`, each time followed by their checksum.
pub(super) fn execute(
    statement: &mut Statement<'_>,
    parts: &[(&Layout, &[&dyn ToSql])],
    more: &[&dyn ToSql],
) -> Result<usize> {
    let mut parameter = 0;
    for (layout, columns) in parts {
        debug_assert_eq!(columns.len(), layout.columns);
        let mut sum = RowSum::new(layout);
        for (index, column) in columns.iter().enumerate() {
            let value = column.to_sql()?;
            sum.add(index, value_ref(&value)?);
            parameter += 1;
            statement.raw_bind_parameter(parameter, value)?;
        }
        parameter += 1;
        statement.raw_bind_parameter(parameter, sum.end())?;
    }
    for value in more {
        parameter += 1;
        statement.raw_bind_parameter(parameter, *value)?;
    }
    statement.raw_execute()
}

fn value_ref<'a>(output: &'a ToSqlOutput<'a>) -> Result<ValueRef<'a>> {
    match output {
        ToSqlOutput::Borrowed(value) => Ok(*value),
        ToSqlOutput::Owned(value) => Ok(value.into()),
        // Other values need features that rusqlite is built without.
        other => Err(Error::ToSqlConversionFailure(format!("{other:?} has no checksum").into())),
    }
}

/// The checksum of a row, whose columns are added in order.
struct RowSum<'a> {
    layout: &'a Layout,
    rest: Sum<PENDING_BYTES>,
    apart: Sum<PENDING_BYTES_APART>,
}

impl<'a> RowSum<'a> {
    #[inline]
    fn new(layout: &'a Layout) -> Self {
        Self { layout, rest: Sum::new(), apart: Sum::new() }
    }

    #[inline]
    fn add(&mut self, index: usize, value: ValueRef<'_>) {
        if value == ValueRef::Null && index >= self.layout.columns - self.layout.added {
            return;
        }
        match self.layout.apart.contains(&index) {
            true => self.apart.add(value),
            false => self.rest.add(value),
        }
    }

    /// Ends the sum. Borrows the sum, because moving it costs as much as a short sum.
    fn end(&mut self) -> i64 {
        let apart = if self.layout.apart.is_empty() { 0 } else { self.apart.end() };
        self.rest.end() ^ apart
    }
}

/// The CRC-32 of a sequence of values. Small ones are collected, since a short input costs as much as a longer one.
struct Sum<const PENDING: usize> {
    hasher: crc32fast::Hasher,
    pending: [u8; PENDING],
    len: usize,
}

impl<const PENDING: usize> Sum<PENDING> {
    #[inline]
    fn new() -> Self {
        Self { hasher: crc32fast::Hasher::new(), pending: [0; PENDING], len: 0 }
    }

    #[inline]
    fn add(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.push([0]),
            ValueRef::Integer(number) => self.push_number(1, number.to_le_bytes()),
            ValueRef::Real(number) => self.push_number(2, number.to_le_bytes()),
            ValueRef::Text(text) => self.add_bytes(3, text),
            ValueRef::Blob(bytes) => match <[u8; 16]>::try_from(bytes) {
                Ok(id) => {
                    self.push_number(4, 16_u64.to_le_bytes());
                    self.push(id);
                }
                Err(_) => self.add_bytes(4, bytes),
            },
        }
    }

    #[inline]
    fn push_number(&mut self, kind: u8, number: [u8; 8]) {
        let [a, b, c, d, e, f, g, h] = number;
        self.push([kind, a, b, c, d, e, f, g, h]);
    }

    #[inline]
    fn add_bytes(&mut self, kind: u8, bytes: &[u8]) {
        self.push_number(kind, (bytes.len() as u64).to_le_bytes());
        if bytes.len() > PENDING - self.len {
            self.flush();
        }
        match self.pending[self.len..].get_mut(..bytes.len()) {
            Some(pending) => {
                pending.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.hasher.update(bytes),
        }
    }

    // The length is known when this is compiled, so that copying takes few instructions and no call.
    #[inline]
    fn push<const LEN: usize>(&mut self, bytes: [u8; LEN]) {
        const { assert!(LEN <= PENDING) };
        if LEN > PENDING - self.len {
            self.flush();
        }
        if let Some(pending) = self.pending[self.len..].first_chunk_mut() {
            *pending = bytes;
            self.len += LEN;
        }
    }

    fn flush(&mut self) {
        self.hasher.update(&self.pending[..self.len]);
        self.len = 0;
    }

    /// Returns the checksum, reinterpreted so that it takes four bytes as a column.
    fn end(&mut self) -> i64 {
        self.flush();
        let sum = std::mem::take(&mut self.hasher).finalize();
        i64::from(sum.cast_signed())
    }
}

/// The result of comparing all rows with their checksums.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChecksumReport {
    /// The number of rows that were compared completely.
    pub checked: u64,
    /// The number of rows that an earlier version wrote, at least in part, without a checksum.
    pub without_checksum: u64,
    /// One sentence for each damaged row.
    pub problems: Vec<String>,
}

/// Compares every row that has a checksum with that checksum.
pub(super) fn verify(connection: &Connection) -> Result<ChecksumReport> {
    // Each kind of row has its checksums after the columns of its parts.
    let tables: [(&[&Layout], &str); 14] = [
        (&[&SESSION], concat!("SELECT ", session_columns!(), " FROM sessions")),
        (&[&RUN_REQUEST, &RUN_STATE], concat!("SELECT ", run_columns!(), " FROM runs")),
        (&[&MESSAGE], concat!("SELECT ", message_columns!(), " FROM messages")),
        (&[&EVENT], concat!("SELECT ", event_columns!(), " FROM events")),
        (&[&EFFECT], concat!("SELECT ", effect_columns!(), " FROM effects")),
        (&[&CHUNK], concat!("SELECT ", chunk_columns!(), " FROM chunks")),
        (&[&STATE], concat!("SELECT ", state_columns!(), " FROM session_state")),
        (&[&STATE], concat!("SELECT ", state_columns!(), " FROM run_state")),
        (&[&STATE], concat!("SELECT ", state_columns!(), " FROM owner_state")),
        (&[&STATE_CHANGE], concat!("SELECT ", state_change_columns!(), " FROM state_history")),
        (&[&ATTEMPT], concat!("SELECT ", attempt_columns!(), " FROM run_attempts")),
        (&[&STEP], concat!("SELECT ", step_columns!(), " FROM steps")),
        (&[&DIGEST], concat!("SELECT ", digest_columns!(), " FROM digests")),
        (&[&ARTIFACT], concat!("SELECT ", artifact_columns!(), " FROM artifacts")),
    ];
    let mut report = ChecksumReport::default();
    for (parts, sql) in tables {
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            report.add(row, parts)?;
        }
    }
    Ok(report)
}

/// Returns the key of each row of `sql` that does not match a checksum of its parts. The key is in the columns after the
/// parts.
pub(super) fn damaged(connection: &Connection, sql: &str, parts: &[&Layout]) -> Result<Vec<Vec<Value>>> {
    let mut statement = connection.prepare(sql)?;
    let (key, end) = (key_column(parts), statement.column_count());
    let mut rows = statement.query([])?;
    let mut keys = vec![];
    while let Some(row) = rows.next()? {
        let mut report = ChecksumReport::default();
        report.add(row, parts)?;
        if !report.problems.is_empty() {
            keys.push((key..end).map(|column| row.get(column)).collect::<Result<_>>()?);
        }
    }
    Ok(keys)
}

/// True if a row has all of its checksums and matches them.
pub(super) fn is_intact(row: &Row<'_>, parts: &[&Layout]) -> bool {
    let mut report = ChecksumReport::default();
    report.add(row, parts).is_ok() && report.problems.is_empty() && report.without_checksum == 0
}

/// The index of the first column after the parts and their checksums.
fn key_column(parts: &[&Layout]) -> usize {
    parts.iter().map(|layout| layout.columns + 1).sum()
}

impl ChecksumReport {
    /// Compares one row with the checksums of its parts.
    fn add(&mut self, row: &Row<'_>, parts: &[&Layout]) -> Result<()> {
        let (mut first, mut has_all) = (0, true);
        for layout in parts {
            has_all &= row.get_ref(first + layout.columns)? != ValueRef::Null;
            match layout.check(row, first, &mut []) {
                Err(Error::FromSqlConversionFailure(_, _, mismatch)) if mismatch.is::<Mismatch>() => {
                    self.problems.push(mismatch.to_string());
                }
                checked => _ = checked?,
            }
            first += layout.columns + 1;
        }
        *(if has_all { &mut self.checked } else { &mut self.without_checksum }) += 1;
        Ok(())
    }
}

mod fill;
pub(super) use fill::fill;

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(added: usize, values: &[Option<i64>]) -> i64 {
        let layout = Layout {
            columns: values.len(),
            added,
            apart: 0..0,
            kind: "row",
            id: |_, _| None,
            describe: None,
        };
        let mut sum = RowSum::new(&layout);
        for (index, value) in values.iter().enumerate() {
            sum.add(index, value.map_or(ValueRef::Null, ValueRef::Integer));
        }
        sum.end()
    }

    #[test]
    fn a_row_from_before_a_column_was_added_keeps_its_checksum() {
        let before = sum(0, &[Some(1), None]);
        assert_eq!(sum(1, &[Some(1), None, None]), before);
        assert_ne!(sum(1, &[Some(1), None, Some(0)]), before);
        assert_ne!(sum(0, &[Some(1), None, None]), before);
    }
}
