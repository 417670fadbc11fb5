//! A SQLite database as the source or the target of a copy.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::{Binding, SessionId, Time};
use mainspring_kernel::store::StoreError;
use rusqlite::types::{ToSql, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::columns::{Columns, int, json};
use super::digests::{digest_read, digest_write};
use super::error::{read_error, write_error};
use super::migrate::{self, SCHEMA_VERSION};
use super::open::{self, folder_sync, sibling};
use super::read::{self, artifact_columns, attempt_columns, digest_columns, effect_columns, message_columns};
use super::read::{run_columns, session_columns, step_columns};
use super::steps::{step, step_write};
use super::wal::{self, Wal};
use super::write::{WriteError, attempt_write, effect_write, message_write, run_write};
use super::write_records::{artifact_write, binding_write, delegation_write, grant_write};
use super::write_records::{key_write, session_write};
use super::{SqliteOptions, SqliteStore, SqliteView, backup, checksum, event_blocks, usage};
use crate::Verification;
use crate::copy::{
    Column, CopyError, CopyTable, Each, Mark, Position, Reads, Record, Source, SourceState, Target,
    UNFINISHED_COPY, Value, failed, io_failed,
};

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<(), CopyError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_failed(path)(error)),
        _ => Ok(()),
    }
}

/// A database that is copied.
pub(crate) struct SqliteSource {
    path: PathBuf,
    view: SqliteView,
}

impl SqliteSource {
    /// Opens the database. Changes the file only if an earlier version wrote it or a process that used it was killed.
    /// Otherwise the file stays as it is, so that an interrupted copy can continue.
    pub(crate) fn open(path: &Path, now: Time) -> Result<Self, CopyError> {
        if !path.exists() {
            return Err(CopyError::NoSource(path.display().to_string()));
        }
        let is_closed = match open::inspect(path)? {
            Some(Wal::Absent) => SqliteView::open(path, false)?.schema_version()? == SCHEMA_VERSION,
            _ => false,
        };
        if !is_closed {
            SqliteStore::open(path, SqliteOptions::default(), now)?.close();
        }
        let source = Self { path: path.into(), view: SqliteView::open(path, false)? };
        source.check()?;
        Ok(source)
    }

    /// Refuses damaged records: in the copy they would get new checksums, or none, and look intact.
    fn check(&self) -> Result<(), CopyError> {
        let report = checksum::verify(self.view.connection());
        let problems = report.map_err(|error| open::failed(&self.path, error))?.problems;
        match problems.first() {
            Some(first) => Err(CopyError::Damaged {
                name: self.path.display().to_string(),
                records: problems.len(),
                first: first.clone(),
            }),
            None => Ok(()),
        }
    }
}

impl Reads for SqliteSource {
    fn read(
        &mut self,
        table: &CopyTable,
        after: Option<&Position>,
        each: &mut Each<'_>,
    ) -> Result<(), CopyError> {
        read_table(self.view.connection(), table, after, each)
    }
}

impl Source for SqliteSource {
    fn state(&mut self) -> Result<SourceState, CopyError> {
        let connection = self.view.connection();
        let latest = "SELECT token FROM histories ORDER BY id DESC LIMIT 1";
        let history = connection.query_row(latest, [], |row| row.get(0)).optional();
        let read = history.and_then(|history| Ok((history, backup::last_cursor(connection)?)));
        let (history, last) = read.map_err(|error| open::failed(&self.path, error))?;
        let changes = open::change_counter(&self.path).map_err(io_failed(&self.path))?;
        Ok(SourceState { history: history.unwrap_or_default(), last_cursor: int(last.0), changes })
    }

    fn has_history(&mut self, token: &str) -> Result<bool, CopyError> {
        let sql = "SELECT 1 FROM histories WHERE token = ?1";
        let found = self.view.connection().prepare(sql).and_then(|mut statement| statement.exists([token]));
        Ok(found.map_err(|error| open::failed(&self.path, error))?)
    }
}

/// Summarizes the content of a copy.
#[cfg(feature = "postgres")]
pub(crate) fn summary(path: &Path) -> Result<super::CopySummary, super::OpenError> {
    let summarized = backup::open_alone(path).and_then(|connection| backup::summarize(&connection));
    summarized.map_err(|error| open::failed(path, error))
}

/// The database that a copy is written to.
pub(crate) struct SqliteTarget {
    path: PathBuf,
    now: Time,
    /// The connection to an unfinished copy.
    connection: Option<Connection>,
}

impl SqliteTarget {
    /// Opens an unfinished copy at `path`. If there is no file, [`Target::begin`] creates it.
    pub(crate) fn open(path: &Path, now: Time) -> Result<Self, CopyError> {
        let mut target = Self { path: path.into(), now, connection: None };
        if !path.exists() {
            return Ok(target);
        }
        // If a copy was killed, SQLite rolls its last transaction back when the database is opened.
        let was_killed = sibling(path, "-journal").exists();
        if was_killed || open::schema_in_header(path).map_err(io_failed(path))? == UNFINISHED_COPY {
            let connection = target.connect()?;
            let version = migrate::version(&connection).map_err(|error| open::failed(path, error))?;
            target.connection = (version == UNFINISHED_COPY).then_some(connection);
        }
        match target.connection {
            Some(_) => Ok(target),
            None => Err(CopyError::NotEmpty(path.display().to_string())),
        }
    }

    fn connect(&self) -> Result<Connection, CopyError> {
        let connect = || -> rusqlite::Result<Connection> {
            let connection = backup::open_alone(&self.path)?;
            // References are checked at the end: records refer to each other in both directions.
            connection.execute_batch("PRAGMA foreign_keys = OFF")?;
            Ok(connection)
        };
        Ok(connect().map_err(|error| open::failed(&self.path, error))?)
    }

    fn connection(&self) -> Result<&Connection, CopyError> {
        self.connection.as_ref().ok_or_else(|| CopyError::NotACopy(self.path.display().to_string()))
    }

    fn batch(&self, sql: &str) -> Result<(), CopyError> {
        let done = self.connection()?.execute_batch(sql);
        Ok(done.map_err(|error| open::failed(&self.path, error))?)
    }

    fn mark_write(&self, connection: &Connection, mark: &Mark) -> Result<(), CopyError> {
        let written =
            json(mark).and_then(|mark| connection.execute("UPDATE copy_mark SET mark = ?1", [mark]));
        Ok(written.map(drop).map_err(|error| open::failed(&self.path, error))?)
    }

    /// Computes the data that is derived from other records, removes the mark and commits. Returns false if a record
    /// refers to one that does not exist.
    fn complete(connection: &Connection, last: i64) -> rusqlite::Result<bool> {
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
        if connection.prepare("PRAGMA foreign_key_check")?.exists([])? {
            return Ok(false);
        }
        connection.execute("DELETE FROM schema_migrations WHERE version = ?1", [UNFINISHED_COPY])?;
        connection.execute_batch("DROP TABLE copy_mark")?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        wal::token_renew(connection)?;
        connection.execute_batch("COMMIT")?;
        Ok(true)
    }
}

impl Reads for SqliteTarget {
    fn read(
        &mut self,
        table: &CopyTable,
        after: Option<&Position>,
        each: &mut Each<'_>,
    ) -> Result<(), CopyError> {
        read_table(self.connection()?, table, after, each)
    }
}

impl Target for SqliteTarget {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn schema(&self) -> u64 {
        SCHEMA_VERSION.into()
    }

    fn mark(&mut self) -> Result<Option<Mark>, CopyError> {
        let Some(connection) = &self.connection else { return Ok(None) };
        let text = connection.query_row("SELECT mark FROM copy_mark", [], |row| row.get::<_, String>(0));
        let text = text.map_err(|error| open::failed(&self.path, error))?;
        let corrupt = |error: serde_json::Error| StoreError::Corrupt(format!("its mark: {error}"));
        let mark = serde_json::from_str(&text).map_err(corrupt);
        mark.map(Some).map_err(|source| CopyError::Store { table: "the unfinished copy", source })
    }

    fn begin(&mut self, mark: &Mark) -> Result<(), CopyError> {
        if self.connection.is_some() {
            self.discard()?;
        }
        let fail = |error| open::failed(&self.path, error);
        // The file gets its final name after the mark is written, so that no process mistakes it for an empty store.
        let draft = sibling(&self.path, ".copying");
        remove(&draft)?;
        remove(&sibling(&draft, "-journal"))?;
        open::create(&draft, self.now)?;
        let connection = backup::open_alone(&draft).map_err(fail)?;
        let prepare = || -> rusqlite::Result<()> {
            connection.execute_batch(
                "BEGIN; CREATE TABLE copy_mark (mark TEXT NOT NULL) STRICT; INSERT INTO copy_mark VALUES ('')",
            )?;
            connection
                .execute("INSERT INTO schema_migrations VALUES (?1, ?2)", (UNFINISHED_COPY, self.now.0))?;
            connection.pragma_update(None, "user_version", UNFINISHED_COPY)
        };
        prepare().map_err(fail)?;
        self.mark_write(&connection, mark)?;
        connection.execute_batch("COMMIT").map_err(fail)?;
        drop(connection);
        // SQLite would apply a journal that another file of this name has left.
        remove(&sibling(&self.path, "-journal"))?;
        fs::rename(&draft, &self.path).map_err(io_failed(&self.path))?;
        folder_sync(&self.path).map_err(io_failed(&self.path))?;
        self.connection = Some(self.connect()?);
        self.resume()
    }

    fn resume(&mut self) -> Result<(), CopyError> {
        self.batch("BEGIN IMMEDIATE")
    }

    fn write(&mut self, table: &CopyTable, records: Vec<Record>) -> Result<(), CopyError> {
        let connection = self.connection()?;
        for record in records {
            write_record(connection, table, &record).map_err(failed(table))?;
        }
        Ok(())
    }

    fn keep(&mut self, mark: &Mark) -> Result<(), CopyError> {
        self.mark_write(self.connection()?, mark)?;
        self.batch("COMMIT; BEGIN IMMEDIATE")
    }

    fn finish(&mut self, last: i64) -> Result<(), CopyError> {
        let broken = || StoreError::Corrupt("a record refers to one that does not exist".into());
        let stored = Self::complete(self.connection()?, last).map_err(|error| write_error(&error));
        let whole = stored.and_then(|is_whole| is_whole.then_some(()).ok_or_else(broken));
        whole.map_err(|source| CopyError::Store { table: "the database", source })?;
        drop(self.connection.take());
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(io_failed(&self.path))
    }

    fn verify(&mut self) -> Result<Vec<Verification>, CopyError> {
        let verified = SqliteView::open(&self.path, false)?.verify();
        verified.map_err(|source| CopyError::Store { table: "the database", source })
    }

    fn discard(&mut self) -> Result<(), CopyError> {
        drop(self.connection.take());
        ["", "-journal"].iter().try_for_each(|suffix| remove(&sibling(&self.path, suffix)))?;
        folder_sync(&self.path).map_err(io_failed(&self.path))
    }
}

type ReadRow = fn(&mut Columns<'_>) -> rusqlite::Result<Record>;

/// Returns the statement that reads a table whose records have a type of their own, and the function that reads a row.
/// The statement includes the key columns, and further conditions can be appended to it. `None` for the other tables.
fn select(table: &CopyTable) -> Option<(&'static str, ReadRow)> {
    Some(match table.name {
        "api_keys" => (read::keys::ALL_KEYS, |row| Ok(Record::Key(Box::new(read::key(row)?)))),
        "sessions" => (concat!("SELECT ", session_columns!(), " FROM sessions WHERE true"), |row| {
            Ok(Record::Session(Box::new(read::session(row)?)))
        }),
        "runs" => (concat!("SELECT ", run_columns!(), ", created_seq FROM runs WHERE true"), |row| {
            let run = Box::new(read::run(row)?);
            // Skips the checksum.
            row.skip(1);
            Ok(Record::Run(run, row.get()?))
        }),
        "attempts" => (concat!("SELECT ", attempt_columns!(), " FROM run_attempts WHERE true"), |row| {
            Ok(Record::Attempt(Box::new(read::attempt(row)?)))
        }),
        "messages" => (concat!("SELECT ", message_columns!(), ", id FROM messages WHERE true"), |row| {
            Ok(Record::Message(read::message(row)?))
        }),
        "steps" => (concat!("SELECT ", step_columns!(), ", private FROM steps WHERE true"), |row| {
            Ok(Record::Step(Box::new(step(row)?)))
        }),
        "digests" => (concat!("SELECT ", digest_columns!(), ", session_id FROM digests WHERE true"), |row| {
            let digest = Box::new(digest_read(row)?);
            row.skip(1);
            Ok(Record::Digest(row.id()?, digest))
        }),
        "effects" => {
            (concat!("SELECT session_id, ", effect_columns!(), ", id FROM effects WHERE true"), |row| {
                let session: SessionId = row.id()?;
                Ok(Record::Effect(session, Box::new(read::effect(row)?)))
            })
        }
        "bindings" => (read::bindings::ALL_BINDINGS, |row| {
            // The instance names a process of the source, so it is not copied.
            let binding = Binding { instance: None, ..read::bindings::binding(row)? };
            Ok(Record::Binding(Box::new(binding)))
        }),
        "grants" => (read::grants::ALL_GRANTS, |row| Ok(Record::Grant(Box::new(read::grants::grant(row)?)))),
        "artifacts" => (concat!("SELECT ", artifact_columns!(), " FROM artifacts WHERE true"), |row| {
            Ok(Record::Artifact(Box::new(read::artifacts::artifact(row)?)))
        }),
        "delegations" => (read::delegations::ALL_DELEGATIONS, |row| {
            Ok(Record::Delegation(Box::new(read::delegations::delegation(row)?)))
        }),
        _ => return None,
    })
}

fn read_table(
    connection: &Connection,
    table: &CopyTable,
    after: Option<&Position>,
    each: &mut Each<'_>,
) -> Result<(), CopyError> {
    let fail = |error: rusqlite::Error| failed(table)(read_error(&error));
    let (columns, key) = (table.columns(), table.key());
    let names =
        |columns: &[Column<'_>]| columns.iter().map(|column| column.sqlite).collect::<Vec<_>>().join(", ");
    let typed = select(table);
    let mut sql = match typed {
        Some((sql, _)) => sql.to_owned(),
        None => format!("SELECT {} FROM {} WHERE true", names(&columns), table.name),
    };
    let key_names = names(&key);
    if let Some(after) = after {
        let marks: Vec<String> = (1..=after.len()).map(|at| format!("?{at}")).collect();
        sql = format!("{sql} AND ({key_names}) > ({})", marks.join(", "));
    }
    let mut statement = connection.prepare(&format!("{sql} ORDER BY {key_names}")).map_err(fail)?;
    // The key columns are found by name: in the statements of `select` they have no fixed place.
    let at = |column: &Column<'_>| statement.column_index(column.sqlite).map(|at| (at, column.kind));
    let positions = key.iter().map(at).collect::<rusqlite::Result<Vec<_>>>().map_err(fail)?;
    let params = after.into_iter().flatten().zip(&key).map(|(value, column)| param(value, column.kind));
    let mut rows = statement.query(params_from_iter(params)).map_err(fail)?;
    while let Some(row) = rows.next().map_err(fail)? {
        let record = match typed {
            Some((_, read)) => read(&mut Columns::new(row)),
            None => {
                let values = columns.iter().enumerate().map(|(at, column)| value(row, at, column.kind));
                values.collect::<rusqlite::Result<_>>().map(Record::Values)
            }
        };
        let position = positions.iter().map(|(at, kind)| value(row, *at, *kind));
        let position = position.collect::<rusqlite::Result<_>>().map_err(fail)?;
        each(record.map_err(fail)?, position)?;
    }
    Ok(())
}

/// A value as a parameter of a statement.
fn param(value: &Value, kind: u8) -> Box<dyn ToSql> {
    match value {
        Value::Int(number) => Box::new(*number),
        Value::Text(text) => Box::new(text.clone()),
        Value::Bytes(bytes) if kind == b'x' => {
            Box::new(bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
        }
        Value::Bytes(bytes) => Box::new(bytes.clone()),
        Value::Bool(flag) => Box::new(*flag),
    }
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
        // `complete` sets the column once all lines are copied.
        names.push("away");
        marks.push("0".into());
    }
    let sql = format!("INSERT INTO {} ({}) VALUES ({})", table.name, names.join(", "), marks.join(", "));
    let params = values.iter().zip(&columns).map(|(value, column)| param(value, column.kind));
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
        assert!(missing.is_empty(), "{missing:?}: add them to TABLES of copy/tables.rs");
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
