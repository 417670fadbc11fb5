//! Converts values of `core` to and from columns.
//!
//! Ids are stored as their 16 bytes, enums as their stable names. Unsigned numbers are stored bit for bit as signed
//! ones, so that the largest reads back unchanged.

use mainspring_core::{
    ArtifactId, AttemptId, BindingId, Cost, DelegationId, EventId, Failure, GrantId, KeyId, LineId,
    MessageId, NodeId, Point, RunId, SessionId, StepId, Time, Usage,
};
use rusqlite::types::{FromSql, Type};
use rusqlite::{Error, Result, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
ids!(SessionId RunId AttemptId EventId BindingId ArtifactId DelegationId GrantId KeyId MessageId NodeId StepId);

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

/// Reads the columns of a row from left to right.
pub(super) struct Columns<'row> {
    row: &'row Row<'row>,
    next: usize,
}

impl<'row> Columns<'row> {
    pub(super) fn new(row: &'row Row<'row>) -> Self {
        Self { row, next: 0 }
    }

    pub(super) fn get<T: FromSql>(&mut self) -> Result<T> {
        self.next += 1;
        self.row.get(self.next - 1)
    }

    /// Fails if the row that begins with the next column does not match its checksum. Does not advance.
    pub(super) fn check(&self, layout: &Layout) -> Result<()> {
        layout.check(self.row, self.next)
    }

    /// Skips columns that are not read.
    pub(super) fn skip(&mut self, count: usize) {
        self.next += count;
    }

    /// Reads the next column without advancing.
    pub(super) fn peek<T: FromSql>(&self) -> Result<T> {
        self.row.get(self.next)
    }

    pub(super) fn text(&mut self) -> Result<&'row str> {
        let index = self.next;
        self.next += 1;
        self.row
            .get_ref(index)?
            .as_str()
            .map_err(|error| Error::FromSqlConversionFailure(index, Type::Text, error.into()))
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<&'row str>> {
        let index = self.next;
        self.next += 1;
        let value = self.row.get_ref(index)?.as_str_or_null();
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
        Ok(code.zip(message).map(|(code, message)| Failure { code, message }))
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        Ok(Usage {
            input_tokens: self.number()?,
            output_tokens: self.number()?,
            cache_read_tokens: self.number()?,
            cache_write_tokens: self.number()?,
            cost: Cost(self.number()?),
        })
    }

    /// Builds the error of an invalid value in the column read last.
    pub(super) fn invalid(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::FromSqlConversionFailure(self.next.saturating_sub(1), Type::Text, error.into())
    }
}
