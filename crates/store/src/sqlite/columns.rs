//! Converts values of `core` to and from columns.
//!
//! Ids are stored as their 16 bytes, enums as their stable names. Unsigned numbers are stored bit for bit as signed
//! ones, so that the largest reads back unchanged.

use std::ops::Range;

use mainspring_core::{
    ArtifactId, AttemptId, BindingId, Cost, DelegationId, EventId, Failure, GrantId, KeyId, LineId,
    MessageId, NodeId, Point, RunId, SessionId, StepId, Time, Usage, WebhookId,
};
use rusqlite::types::{FromSql, Type, ValueRef};
use rusqlite::{Error, Result, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::checksum::Layout;

/// An id stored as 16 bytes.
pub(super) trait Id: Copy {
    fn bytes(self) -> [u8; 16];
    fn from_column(bytes: [u8; 16]) -> Self;
}

macro_rules! ids {
    ($($id:ident)*) => {$(
        impl Id for $id {
            fn bytes(self) -> [u8; 16] {
                *self.as_bytes()
            }
            fn from_column(bytes: [u8; 16]) -> Self {
                Self::from_bytes(bytes)
            }
        }
    )*};
}
ids!(
    SessionId RunId AttemptId EventId BindingId ArtifactId DelegationId GrantId KeyId MessageId NodeId StepId WebhookId
);

/// The bytes of an optional id.
pub(super) fn blob<T: Id>(id: Option<T>) -> Option<[u8; 16]> {
    id.map(T::bytes)
}

/// The milliseconds of an optional time.
pub(super) fn ms(time: Option<Time>) -> Option<i64> {
    time.map(|time| time.0)
}

/// Reinterprets an unsigned number as a signed one.
pub(super) const fn int(number: u64) -> i64 {
    number.cast_signed()
}

/// The two columns of a point.
pub(super) fn point(point: Option<Point>) -> (Option<i64>, Option<u32>) {
    (point.map(|point| point.line.0), point.map(|point| point.pos))
}

/// The two columns of a failure.
pub(super) fn failure(failure: Option<&Failure>) -> (Option<&str>, Option<&str>) {
    (failure.map(|failure| failure.code.as_str()), failure.map(|failure| failure.message.as_str()))
}

/// Serializes a value as a JSON column.
pub(super) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::ToSqlConversionFailure(error.into()))
}

/// Serializes an object as a JSON column: NULL if it is empty.
pub(super) fn object(object: &Map<String, Value>) -> Result<Option<String>> {
    (!object.is_empty()).then(|| json(object)).transpose()
}

/// The `cost_nanos` of a usage whose cost is unknown.
const COST_UNKNOWN: i64 = -1;
/// The `cost_nanos` of a usage whose tokens are known only in part and whose cost is unknown.
const ALL_UNKNOWN: i64 = i64::MIN;

/// Converts a usage to its columns. `cost_nanos` is negative if something is unknown: -1 the cost, -2 minus the known cost
/// if the numbers are a lower bound, the least integer if both.
pub(super) fn usage_columns(usage: &Usage) -> [i64; 5] {
    let known = i64::try_from(usage.cost.0).unwrap_or(i64::MAX).min(i64::MAX - 2);
    let cost = match (usage.cost.is_known(), usage.at_least) {
        (true, false) => known,
        (false, false) => COST_UNKNOWN,
        (true, true) => -2 - known,
        (false, true) => ALL_UNKNOWN,
    };
    let tokens = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
    let [input, output, cache_read, cache_write] = tokens.map(int);
    [input, output, cache_read, cache_write, cost]
}

fn usage_from_columns(tokens: [u64; 4], cost: i64) -> Usage {
    let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens] = tokens;
    let (cost, at_least) = match cost {
        COST_UNKNOWN => (Cost::UNKNOWN, false),
        ALL_UNKNOWN => (Cost::UNKNOWN, true),
        0.. => (Cost(cost.unsigned_abs()), false),
        _ => (Cost((-2 - cost).unsigned_abs()), true),
    };
    Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost, at_least }
}

/// The number of columns that are kept after their checksum was computed: those of events and messages.
const KEPT_COLUMNS: usize = 16;

/// Reads the columns of a row from left to right.
pub(super) struct Columns<'row> {
    row: &'row Row<'row>,
    next: usize,
    /// The columns whose checksum was computed, so that SQLite is asked for each of them once.
    kept: [ValueRef<'row>; KEPT_COLUMNS],
    /// The indexes of the kept columns.
    kept_range: Range<usize>,
}

impl<'row> Columns<'row> {
    pub(super) fn new(row: &'row Row<'row>) -> Self {
        Self { row, next: 0, kept: [ValueRef::Null; KEPT_COLUMNS], kept_range: 0..0 }
    }

    pub(super) fn get<T: FromSql>(&mut self) -> Result<T> {
        self.next += 1;
        self.read(self.next - 1)
    }

    fn read<T: FromSql>(&self, index: usize) -> Result<T> {
        match self.kept(index).map(T::column_result) {
            Some(Ok(value)) => Ok(value),
            // Reads an invalid value again, to get the error of the row.
            _ => self.row.get(index),
        }
    }

    fn value(&self, index: usize) -> Result<ValueRef<'row>> {
        self.kept(index).map_or_else(|| self.row.get_ref(index), Ok)
    }

    fn kept(&self, index: usize) -> Option<ValueRef<'row>> {
        self.kept_range.contains(&index).then(|| self.kept[index - self.kept_range.start])
    }

    /// Fails if the row that begins with the next column does not match its checksum. Does not advance.
    pub(super) fn check(&mut self, layout: &Layout) -> Result<()> {
        let count = layout.check(self.row, self.next, &mut self.kept)?;
        self.kept_range = self.next..self.next + count;
        Ok(())
    }

    /// Reports whether the column at `offset` after the next one is NULL. Does not advance.
    pub(super) fn is_null(&self, offset: usize) -> Result<bool> {
        Ok(self.value(self.next + offset)? == ValueRef::Null)
    }

    /// Skips columns that are not read.
    pub(super) fn skip(&mut self, count: usize) {
        self.next += count;
    }

    /// Reads the next column without advancing.
    pub(super) fn peek<T: FromSql>(&self) -> Result<T> {
        self.read(self.next)
    }

    pub(super) fn text(&mut self) -> Result<&'row str> {
        let index = self.next;
        self.next += 1;
        self.value(index)?
            .as_str()
            .map_err(|error| Error::FromSqlConversionFailure(index, Type::Text, error.into()))
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<&'row str>> {
        let index = self.next;
        self.next += 1;
        let value = self.value(index)?.as_str_or_null();
        value.map_err(|error| Error::FromSqlConversionFailure(index, Type::Text, error.into()))
    }

    pub(super) fn id<T: Id>(&mut self) -> Result<T> {
        self.get().map(T::from_column)
    }

    pub(super) fn maybe_id<T: Id>(&mut self) -> Result<Option<T>> {
        Ok(self.get::<Option<[u8; 16]>>()?.map(T::from_column))
    }

    pub(super) fn time(&mut self) -> Result<Time> {
        self.get().map(Time)
    }

    pub(super) fn maybe_time(&mut self) -> Result<Option<Time>> {
        Ok(self.get::<Option<i64>>()?.map(Time))
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        Ok(self.get::<i64>()?.cast_unsigned())
    }

    pub(super) fn name<T>(&mut self, from_name: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let name = self.text()?;
        from_name(name).ok_or_else(|| self.invalid(format!("{name:?} is not a known value")))
    }

    pub(super) fn maybe_name<T>(&mut self, from_name: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(name) = self.maybe_text()? else { return Ok(None) };
        from_name(name).map(Some).ok_or_else(|| self.invalid(format!("{name:?} is not a known value")))
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.text()?;
        serde_json::from_str(text).map_err(|error| self.invalid(error))
    }

    pub(super) fn maybe_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.maybe_text()? else {
            return Ok(None);
        };
        serde_json::from_str(text).map(Some).map_err(|error| self.invalid(error))
    }

    pub(super) fn point(&mut self) -> Result<Option<Point>> {
        let (line, pos) = (self.get::<Option<i64>>()?, self.get::<Option<u32>>()?);
        Ok(line.zip(pos).map(|(line, pos)| Point { line: LineId(line), pos }))
    }

    pub(super) fn failure(&mut self) -> Result<Option<Failure>> {
        let (code, message) = (self.get::<Option<String>>()?, self.get::<Option<String>>()?);
        Ok(code.zip(message).map(|(code, message)| Failure::new(code, message)))
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        let tokens = [self.number()?, self.number()?, self.number()?, self.number()?];
        Ok(usage_from_columns(tokens, self.get()?))
    }

    /// Builds the error of an invalid value in the column read last.
    pub(super) fn invalid(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::FromSqlConversionFailure(self.next.saturating_sub(1), Type::Text, error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_usage_read_back_as_written() {
        for cost in [Cost(0), Cost(1), Cost(i64::MAX.unsigned_abs() - 2), Cost::UNKNOWN] {
            for at_least in [false, true] {
                let usage =
                    Usage { input_tokens: u64::MAX, output_tokens: 1, cost, at_least, ..Usage::default() };
                let [input, output, cache_read, cache_write, cost] = usage_columns(&usage);
                let tokens = [input, output, cache_read, cache_write].map(i64::cast_unsigned);
                assert_eq!(usage_from_columns(tokens, cost), usage);
            }
        }
        assert_eq!(usage_from_columns([0; 4], -1).cost, Cost::UNKNOWN, "as older versions wrote it");
    }
}
