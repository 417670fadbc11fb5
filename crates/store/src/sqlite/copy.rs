//! A SQLite database as an end of a copy.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::{Binding, SessionId, Time};
use mainspring_kernel::store::StoreError;
use rusqlite::types::{ToSql, ValueRef};
use rusqlite::{Connection, OpenFlags, Row, params_from_iter};

use super::columns::{Columns, int, json};
use super::digests::{digest_read, digest_write};
use super::error::{read_error, write_error};
use super::open::{HISTORY, sibling};
use super::read::{self, artifact_columns, attempt_columns, digest_columns, effect_columns, message_columns};
use super::read::{run_columns, session_columns, step_columns};
use super::steps::{step, step_write};
use super::write::{WriteError, attempt_write, effect_write, message_write, run_write};
use super::write_records::{artifact_write, binding_write, delegation_write, grant_write};
use super::write_records::{key_write, session_write};
use super::{SqliteOptions, SqliteStore, backup, checksum, event_blocks, usage};
use crate::copy::{CopyError, CopyTable, Each, End, Record, Value, failed, io_failed};

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<(), CopyError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_failed(path)(error)),
        _ => Ok(()),
    }
}

/// A database that is copied.
pub(crate) struct Source {
    connection: Connection,
}

impl Source {
    /// Opens the database, and migrates it if an earlier version wrote it.
    pub(crate) fn open(path: &Path, now: Time) -> Result<Self, CopyError> {
        if !path.exists() {
            return Err(CopyError::NoSource(path.display().to_string()));
        }
        SqliteStore::open(path, SqliteOptions::default(), now)?.close();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags);
        Ok(Self { connection: connection.map_err(|error| super::open::failed(path, error))? })
    }
}

/// A new database. It has another name until it is complete.
pub(crate) struct Target {
    path: PathBuf,
    draft: PathBuf,
    connection: Option<Connection>,
}

impl Target {
    pub(crate) fn create(path: &Path, now: Time) -> Result<Self, CopyError> {
        if path.exists() {
            return Err(CopyError::NotEmpty(path.display().to_string()));
        }
        let draft = sibling(path, ".copying");
        // An interrupted copy may have left files.
        for suffix in ["", "-wal", "-shm", "-journal", HISTORY] {
            remove(&sibling(&draft, suffix))?;
        }
        SqliteStore::open(&draft, SqliteOptions::default(), now)?.close();
        let begin = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(&draft)?;
            // References are checked at the end: records refer to each other in both directions.
            connection.execute_batch(
                "PRAGMA journal_mode = DELETE; PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE; DELETE FROM histories",
            )?;
            Ok(connection)
        };
        let connection = begin().map_err(|error| super::open::failed(path, error))?;
        Ok(Self { path: path.into(), draft, connection: Some(connection) })
    }

    fn connection(&self) -> Result<&Connection, CopyError> {
        self.connection.as_ref().ok_or_else(|| CopyError::NoSource(self.draft.display().to_string()))
    }

    /// Computes the data that is derived from other records: sums, indexes, checksums.
    fn complete(connection: &Connection, last: i64) -> Result<(), CopyError> {
        let complete = || -> rusqlite::Result<bool> {
            connection.execute(
                "UPDATE session_state SET away =
                   coalesce((SELECT opened_by <> session_state.session_id FROM lines
                             WHERE lines.line = session_state.line), 1)",
                [],
            )?;
            connection.execute(
                "INSERT INTO meta VALUES ('event_seq', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1",
                [last],
            )?;
            usage::recount(connection)?;
            event_blocks::rebuild(connection)?;
            checksum::fill(connection)?;
            let is_broken = connection.prepare("PRAGMA foreign_key_check")?.exists([])?;
            connection.execute_batch("COMMIT")?;
            Ok(!is_broken)
        };
        let broken = || StoreError::Corrupt("a record refers to one that does not exist".into());
        let stored = complete().map_err(|error| write_error(&error));
        let whole = stored.and_then(|is_whole| is_whole.then_some(()).ok_or_else(broken));
        whole.map_err(|source| CopyError::Store { table: "the database", source })
    }
}

impl End for Source {
    fn read(&mut self, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError> {
        read_table(&self.connection, table, each)
    }

    fn write(&mut self, table: &CopyTable, _: Vec<Record>) -> Result<(), CopyError> {
        Err(failed(table)(StoreError::Unavailable("the source of a copy is not written".into())))
    }

    fn last_cursor(&mut self) -> Result<i64, CopyError> {
        let last = backup::last_cursor(&self.connection).map_err(|error| read_error(&error));
        let last = last.map_err(|source| CopyError::Store { table: "events", source })?;
        Ok(int(last.0))
    }

    fn finish(&mut self, _: i64) -> Result<(), CopyError> {
        Ok(())
    }
}

impl End for Target {
    fn read(&mut self, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError> {
        read_table(self.connection()?, table, each)
    }

    fn write(&mut self, table: &CopyTable, records: Vec<Record>) -> Result<(), CopyError> {
        let connection = self.connection()?;
        for record in records {
            write_record(connection, table, &record).map_err(failed(table))?;
        }
        Ok(())
    }

    fn last_cursor(&mut self) -> Result<i64, CopyError> {
        Ok(0)
    }

    fn finish(&mut self, last: i64) -> Result<(), CopyError> {
        Self::complete(self.connection()?, last)?;
        drop(self.connection.take());
        let failed = io_failed(&self.draft);
        File::open(&self.draft).and_then(|file| file.sync_all()).map_err(&failed)?;
        remove(&sibling(&self.draft, HISTORY))?;
        fs::rename(&self.draft, &self.path).map_err(&failed)?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_failed(folder))
    }
}

type ReadRow = fn(&mut Columns<'_>) -> rusqlite::Result<Record>;

/// Reads records by a statement.
fn select(
    connection: &Connection,
    table: &CopyTable,
    sql: &str,
    each: &mut Each<'_>,
    read: ReadRow,
) -> Result<(), CopyError> {
    let fail = |error: rusqlite::Error| failed(table)(read_error(&error));
    let mut statement = connection.prepare(sql).map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    while let Some(row) = rows.next().map_err(fail)? {
        each(read(&mut Columns::new(row)).map_err(fail)?)?;
    }
    Ok(())
}

fn read_table(connection: &Connection, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError> {
    let mut select = |sql: &str, read: ReadRow| select(connection, table, sql, each, read);
    match table.name {
        "api_keys" => select(read::keys::ALL_KEYS, |row| Ok(Record::Key(Box::new(read::key(row)?)))),
        "sessions" => {
            select(concat!("SELECT ", session_columns!(), " FROM sessions ORDER BY session_id"), |row| {
                Ok(Record::Session(Box::new(read::session(row)?)))
            })
        }
        "runs" => {
            select(concat!("SELECT ", run_columns!(), ", created_seq FROM runs ORDER BY run_id"), |row| {
                let run = Box::new(read::run(row)?);
                // Skips the checksum.
                row.skip(1);
                Ok(Record::Run(run, row.get()?))
            })
        }
        "attempts" => select(
            concat!("SELECT ", attempt_columns!(), " FROM run_attempts ORDER BY run_id, attempt_no"),
            |row| Ok(Record::Attempt(Box::new(read::attempt(row)?))),
        ),
        "messages" => select(concat!("SELECT ", message_columns!(), " FROM messages ORDER BY id"), |row| {
            Ok(Record::Message(read::message(row)?))
        }),
        "steps" => select(
            concat!("SELECT ", step_columns!(), ", private FROM steps ORDER BY run_id, step_no, step_id"),
            |row| Ok(Record::Step(Box::new(step(row)?))),
        ),
        "digests" => select(
            concat!("SELECT ", digest_columns!(), ", session_id FROM digests ORDER BY line, pos, session_id"),
            |row| {
                let digest = Box::new(digest_read(row)?);
                row.skip(1);
                Ok(Record::Digest(row.id()?, digest))
            },
        ),
        "effects" => {
            select(concat!("SELECT session_id, ", effect_columns!(), " FROM effects ORDER BY id"), |row| {
                let session: SessionId = row.id()?;
                Ok(Record::Effect(session, Box::new(read::effect(row)?)))
            })
        }
        "bindings" => select(read::bindings::ALL_BINDINGS, |row| {
            // The instance names a process of the source, so it is not copied.
            let binding = Binding { instance: None, ..read::bindings::binding(row)? };
            Ok(Record::Binding(Box::new(binding)))
        }),
        "grants" => {
            select(read::grants::ALL_GRANTS, |row| Ok(Record::Grant(Box::new(read::grants::grant(row)?))))
        }
        "artifacts" => {
            select(concat!("SELECT ", artifact_columns!(), " FROM artifacts ORDER BY artifact_id"), |row| {
                Ok(Record::Artifact(Box::new(read::artifacts::artifact(row)?)))
            })
        }
        "delegations" => select(read::delegations::ALL_DELEGATIONS, |row| {
            Ok(Record::Delegation(Box::new(read::delegations::delegation(row)?)))
        }),
        _ => read_values(connection, table, each),
    }
}

fn read_values(connection: &Connection, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError> {
    let columns = table.columns();
    let names: Vec<&str> = columns.iter().map(|column| column.sqlite).collect();
    let (all, key) = (names.join(", "), names[..table.key].join(", "));
    let fail = |error: rusqlite::Error| failed(table)(read_error(&error));
    let sql = format!("SELECT {all} FROM {} ORDER BY {key}", table.name);
    let mut statement = connection.prepare(&sql).map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    while let Some(row) = rows.next().map_err(fail)? {
        let values = columns.iter().enumerate().map(|(at, column)| value(row, at, column.kind));
        each(Record::Values(values.collect::<rusqlite::Result<_>>().map_err(fail)?))?;
    }
    Ok(())
}

fn value(row: &Row<'_>, at: usize, kind: u8) -> rusqlite::Result<Value> {
    Ok(match kind {
        b'i' => Value::Int(row.get(at)?),
        b'f' => Value::Bool(row.get(at)?),
        b'b' => Value::Bytes(row.get(at)?),
        b'x' => Value::Bytes(match row.get_ref(at)? {
            ValueRef::Text(text) | ValueRef::Blob(text) => Some(text.to_vec()),
            _ => None,
        }),
        _ => Value::Text(row.get(at)?),
    })
}

fn write_record(connection: &Connection, table: &CopyTable, record: &Record) -> Result<(), StoreError> {
    let written = match record {
        Record::Key(key) => key_write(connection, key),
        Record::Session(session) => session_write(connection, session),
        Record::Run(run, before) => run_write(connection, run, before.cast_unsigned()),
        Record::Attempt(attempt) => attempt_write(connection, attempt),
        Record::Message(placed) => {
            let content = json(&placed.message.content).map_err(|error| write_error(&error))?;
            message_write(connection, &placed.message, placed.point, &content)
        }
        Record::Step(step) => step_write(connection, step),
        Record::Effect(session, call) => effect_write(connection, *session, call),
        Record::Digest(session, digest) => digest_write(connection, *session, digest),
        Record::Binding(binding) => binding_write(connection, binding),
        Record::Grant(grant) => grant_write(connection, grant),
        Record::Artifact(artifact) => artifact_write(connection, artifact),
        Record::Delegation(delegation) => delegation_write(connection, delegation),
        Record::Values(values) => values_write(connection, table, values).map_err(WriteError::Sqlite),
    };
    written.map_err(StoreError::from)
}

fn values_write(connection: &Connection, table: &CopyTable, values: &[Value]) -> rusqlite::Result<()> {
    let columns = table.columns();
    let mut names: Vec<&str> = columns.iter().map(|column| column.sqlite).collect();
    let mut marks: Vec<String> = (1..=names.len()).map(|at| format!("?{at}")).collect();
    if table.name == "session_state" {
        // The column is set when all lines have been copied.
        names.push("away");
        marks.push("0".into());
    }
    let sql = format!("INSERT INTO {} ({}) VALUES ({})", table.name, names.join(", "), marks.join(", "));
    let params = values.iter().zip(&columns).map(|(value, column)| -> Box<dyn ToSql> {
        match value {
            Value::Int(number) => Box::new(*number),
            Value::Text(text) => Box::new(text.clone()),
            Value::Bytes(bytes) if column.kind == b'x' => {
                Box::new(bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
            }
            Value::Bytes(bytes) => Box::new(bytes.clone()),
            Value::Bool(flag) => Box::new(*flag),
        }
    });
    connection.prepare_cached(&sql)?.execute(params_from_iter(params))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::copy::TABLES;
    use crate::sqlite::migrate;

    /// Tables that are derived from others, or that belong to one file.
    const NOT_COPIED: &[&str] =
        &["event_blocks", "meta", "owner_usage", "schema_migrations", "sqlite_sequence", "wal_token"];

    fn names(connection: &Connection, sql: &str) -> BTreeSet<String> {
        let mut statement = connection.prepare(sql).unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names.collect::<rusqlite::Result<_>>().unwrap()
    }

    #[test]
    fn every_table_and_column_is_copied() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(0)).unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'search%'";
        let all = names(&connection, sql);
        let copied = TABLES.iter().map(|table| match table.name {
            "attempts" => "run_attempts",
            "bindings" => "adapter_bindings",
            name => name,
        });
        let known: BTreeSet<String> = copied.chain(NOT_COPIED.iter().copied()).map(str::to_owned).collect();
        let missing: Vec<&String> = all.difference(&known).collect();
        assert!(missing.is_empty(), "{missing:?}: add them to TABLES of copy.rs");
        for table in TABLES.iter().filter(|table| !table.columns.is_empty()) {
            let sql = format!("SELECT name FROM pragma_table_info('{}')", table.name);
            let mut columns = names(&connection, &sql);
            columns.retain(|name| name != "checksum" && name != "away");
            let copied: BTreeSet<String> =
                table.columns().iter().map(|column| column.sqlite.to_owned()).collect();
            assert_eq!(columns, copied, "{}", table.name);
        }
    }
}
