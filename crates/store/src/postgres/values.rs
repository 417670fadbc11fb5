//! Values of parameters and columns, with their types: statements are sent unnamed, so that they pass a pooler that gives
//! each transaction another connection.

use mainspring_core::{Damage, Point, Rows, Time};
use mainspring_kernel::store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

/// A parameter of a statement that knows its type.
pub(super) trait Param: ToSql + Sync + Send {
    /// The type.
    fn sql_type(&self) -> Type;
}

macro_rules! params {
    ($($rust:ty => $sql:ident),* $(,)?) => {
        $(impl Param for $rust {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        })*
    };
}
params! {
    i64 => INT8, Option<i64> => INT8, Vec<i64> => INT8_ARRAY, Vec<Option<i64>> => INT8_ARRAY,
    bool => BOOL, Option<bool> => BOOL, Vec<bool> => BOOL_ARRAY,
    &str => TEXT, Option<&str> => TEXT, String => TEXT, Option<String> => TEXT,
    Vec<String> => TEXT_ARRAY, Vec<Option<String>> => TEXT_ARRAY, Vec<&'static str> => TEXT_ARRAY,
    Option<Vec<&'static str>> => TEXT_ARRAY,
    &[u8] => BYTEA, Option<&[u8]> => BYTEA, Vec<u8> => BYTEA, Option<Vec<u8>> => BYTEA,
    Vec<Vec<u8>> => BYTEA_ARRAY, Vec<Option<Vec<u8>>> => BYTEA_ARRAY,
}

/// Pairs parameters with their types.
pub(super) fn typed<'a>(params: &[&'a dyn Param]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().map(|param| (*param as &(dyn ToSql + Sync), param.sql_type())).collect()
}

/// One value of a row to write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Bytes(Option<Vec<u8>>),
    Int(Option<i64>),
    Text(Option<String>),
    Bool(bool),
}

/// The values of one column of many rows.
#[derive(Debug)]
pub(super) enum Column {
    Bytes(Vec<Option<Vec<u8>>>),
    Int(Vec<Option<i64>>),
    Text(Vec<Option<String>>),
    Bool(Vec<bool>),
}

impl Column {
    fn of(cell: &Cell, rows: usize) -> Self {
        match cell {
            Cell::Bytes(_) => Self::Bytes(Vec::with_capacity(rows)),
            Cell::Int(_) => Self::Int(Vec::with_capacity(rows)),
            Cell::Text(_) => Self::Text(Vec::with_capacity(rows)),
            Cell::Bool(_) => Self::Bool(Vec::with_capacity(rows)),
        }
    }

    /// Adds a value. All rows of a statement have the same types.
    fn push(&mut self, cell: Cell) {
        match (self, cell) {
            (Self::Bytes(all), Cell::Bytes(one)) => all.push(one),
            (Self::Int(all), Cell::Int(one)) => all.push(one),
            (Self::Text(all), Cell::Text(one)) => all.push(one),
            (Self::Bool(all), Cell::Bool(one)) => all.push(one),
            (column, cell) => debug_assert!(false, "{cell:?} in {column:?}"),
        }
    }

    /// The parameter.
    pub(super) fn param(&self) -> &dyn Param {
        match self {
            Self::Bytes(all) => all,
            Self::Int(all) => all,
            Self::Text(all) => all,
            Self::Bool(all) => all,
        }
    }
}

/// Turns rows into columns.
pub(super) fn columns(rows: Vec<Vec<Cell>>) -> Vec<Column> {
    let count = rows.len();
    let mut columns: Vec<Column> =
        rows.first().into_iter().flatten().map(|cell| Column::of(cell, count)).collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.push(cell);
        }
    }
    columns
}

pub(super) fn id(bytes: &[u8; 16]) -> Cell {
    Cell::Bytes(Some(bytes.to_vec()))
}

pub(super) fn maybe_id(bytes: Option<&[u8; 16]>) -> Cell {
    Cell::Bytes(bytes.map(|bytes| bytes.to_vec()))
}

pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn number(number: impl Into<i64>) -> Cell {
    Cell::Int(Some(number.into()))
}

pub(super) fn time(at: Option<Time>) -> Cell {
    Cell::Int(at.map(|at| at.0))
}

pub(super) fn text(text: &str) -> Cell {
    Cell::Text(Some(text.to_owned()))
}

pub(super) fn maybe_text(text: Option<&str>) -> Cell {
    Cell::Text(text.map(str::to_owned))
}

pub(super) fn point(at: Option<Point>) -> [Cell; 2] {
    [Cell::Int(at.map(|at| at.line.0)), Cell::Int(at.map(|at| i64::from(at.pos)))]
}

/// Serializes a value.
pub(super) fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Corrupt(format!("cannot be serialized as JSON: {error}")))
}

pub(super) fn json(value: &impl Serialize) -> Result<Cell, StoreError> {
    Ok(Cell::Text(Some(to_json(value)?)))
}

pub(super) fn maybe_json(value: Option<&impl Serialize>) -> Result<Cell, StoreError> {
    Ok(Cell::Text(value.map(to_json).transpose()?))
}

/// Converts the maximum number of rows of a page.
pub(super) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads a column.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| corrupt(row, index, &error))
}

fn corrupt(row: &Row, index: usize, error: &dyn std::fmt::Display) -> StoreError {
    let name = row.columns().get(index).map_or("?", |column| column.name());
    StoreError::Corrupt(format!("the column {name} of a row cannot be read: {error}"))
}

/// Reads an unsigned number.
pub(super) fn get_u64(row: &Row, index: usize) -> Result<u64, StoreError> {
    Ok(get::<i64>(row, index)?.cast_unsigned())
}

pub(super) fn get_u32(row: &Row, index: usize) -> Result<u32, StoreError> {
    u32::try_from(get::<i64>(row, index)?).map_err(|error| corrupt(row, index, &error))
}

/// Reads the 16 bytes of an id.
pub(super) fn get_id(row: &Row, index: usize) -> Result<[u8; 16], StoreError> {
    let bytes: &[u8] = get(row, index)?;
    bytes.try_into().map_err(|error| corrupt(row, index, &error))
}

pub(super) fn get_maybe_id(row: &Row, index: usize) -> Result<Option<[u8; 16]>, StoreError> {
    let bytes: Option<&[u8]> = get(row, index)?;
    bytes.map(|bytes| bytes.try_into().map_err(|error| corrupt(row, index, &error))).transpose()
}

/// Reads a point of two columns.
pub(super) fn get_point(row: &Row, index: usize) -> Result<Option<Point>, StoreError> {
    let (line, pos): (Option<i64>, Option<i64>) = (get(row, index)?, get(row, index + 1)?);
    let Some((line, pos)) = line.zip(pos) else { return Ok(None) };
    let pos = u32::try_from(pos).map_err(|error| corrupt(row, index + 1, &error))?;
    Ok(Some(Point { line: mainspring_core::LineId(line), pos }))
}

/// Reads a JSON value.
pub(super) fn get_json<T: DeserializeOwned>(row: &Row, index: usize) -> Result<T, StoreError> {
    serde_json::from_str(get(row, index)?).map_err(|error| corrupt(row, index, &error))
}

pub(super) fn get_maybe_json<T: DeserializeOwned>(row: &Row, index: usize) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, index)?;
    text.map(|text| serde_json::from_str(text).map_err(|error| corrupt(row, index, &error))).transpose()
}

/// Reads rows of a list, and names those that cannot be read.
pub(super) fn list<T>(
    kind: &str,
    rows: &[Row],
    read: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Rows<T>, StoreError> {
    let damage = |message| Damage { kind: kind.into(), id: None, index: 0, message };
    let read = |row| match read(row) {
        Ok(item) => Ok(Ok(item)),
        Err(StoreError::Corrupt(message)) => Ok(Err(damage(message))),
        Err(error) => Err(error),
    };
    rows.iter().map(read).collect()
}

/// Reads all rows, or fails.
pub(super) fn all<T>(
    rows: &[Row],
    read: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    rows.iter().map(read).collect()
}
