//! A PostgreSQL database as the source or the target of a copy, and as a snapshot that is backed up or verified.

use std::sync::Arc;

use mainspring_core::{Attempt, Binding, SessionId, Step};
use mainspring_kernel::store::{Row as StoreRow, StoreError};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Row};

use super::PostgresError;
use super::batch::statements;
use super::connect::{Connector, address};
use super::error::{describe, read_error, write_error};
use super::migrate::{self, SCHEMA_VERSION, migrate};
use super::read::{self, MESSAGE, RUN, RUN_COLUMNS, SESSION};
use super::rows::{Op, row_ops};
use super::server;
use super::values::{Cell, Column, Param, columns, get, get_id, get_json, get_maybe_json, to_json, typed};
use crate::Verification;
use crate::copy::{
    Column as TableColumn, CopyError, CopyTable, Each, Mark, Position, Reads, Record, Source, SourceState,
    TABLES, Target, UNFINISHED_COPY, Value, failed,
};

/// The number of rows that are fetched at once.
const FETCH: usize = 500;

/// The mode of a transaction that sees the database at one instant.
const READ_ONLY: &str = "ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// The longest time that a snapshot waits for writers to commit. Writers that begin meanwhile wait for the snapshot.
const SNAPSHOT_WAIT_MS: u64 = 5_000;

/// Tables that hold the data of users. All of them are empty before a copy.
const USER_TABLES: &[&str] = &[
    "sessions",
    "lines",
    "api_keys",
    "owners",
    "agents",
    "goal_types",
    "webhooks",
    "owner_state",
    "requests",
    "native_owners",
    "edge_records",
];

/// Columns that the database numbers and that a copy keeps: new numbers begin after the highest one copied.
const NUMBERED_COLUMNS: &[(&str, &str)] =
    &[("lines", "id"), ("inbox", "id"), ("session_state", "id"), ("histories", "id")];

/// A connection to the source or the target of a copy, or to a snapshot. Unless it is a snapshot, it holds the lock of
/// the server.
pub(crate) struct PostgresDatabase {
    client: Client,
    /// The address for messages.
    address: String,
    /// Dropped last: the connection runs on it.
    runtime: Runtime,
}

impl PostgresDatabase {
    /// Opens the source of a copy.
    pub(crate) fn source(url: &str) -> Result<Self, CopyError> {
        let database = Self::reach(url)?;
        database.migrate()?;
        database.batch(&begin(READ_ONLY))?;
        Ok(database)
    }

    /// Opens an unfinished copy.
    pub(crate) fn unfinished(url: &str) -> Result<Self, CopyError> {
        let database = Self::reach(url)?;
        match database.run(migrate::check(&database.client)) {
            Err(CopyError::Postgres(PostgresError::UnfinishedCopy)) => {}
            Ok(_) => return Err(CopyError::NotACopy(database.name())),
            Err(error) => return Err(error),
        }
        database.run(server::lock(&database.client))?;
        Ok(database)
    }

    /// Opens an unfinished copy, or a database without data, and makes its tables.
    pub(crate) fn target(url: &str) -> Result<Self, CopyError> {
        let database = Self::reach(url)?;
        match database.migrate() {
            Err(CopyError::Postgres(PostgresError::UnfinishedCopy)) => {}
            migrated => migrated?,
        }
        let used: Vec<String> =
            USER_TABLES.iter().map(|table| format!("EXISTS (SELECT 1 FROM {table})")).collect();
        if !database.is_unfinished()? && database.query_one(&format!("SELECT {}", used.join(" OR ")))? {
            return Err(CopyError::NotEmpty(database.name()));
        }
        Ok(database)
    }

    /// Opens a database to read it as of one instant, even while servers use it. Returns `None` if it has no tables.
    pub(super) fn snapshot(url: &str) -> Result<Option<Self>, PostgresError> {
        let database = Self::connect(url)?;
        if !database.runtime.block_on(migrate::check(&database.client))? {
            return Ok(None);
        }
        let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
        database.runtime.block_on(begin_snapshot(url, &database)).map_err(fail)??;
        Ok(Some(database))
    }

    /// Takes the lock of a server and makes the tables. Fails if a server uses the database, and then changes
    /// nothing, except that it updates tables from before `node_leases`: the lock needs that table.
    fn migrate(&self) -> Result<(), CopyError> {
        let has_tables: bool = self.query_one("SELECT to_regclass('node_leases') IS NOT NULL")?;
        if has_tables {
            self.run(server::lock(&self.client))?;
        }
        let migrated = self.run(migrate(&self.client));
        if !has_tables {
            self.run(server::lock(&self.client))?;
        }
        migrated
    }

    /// Connects to a database. The error contains the database's address.
    fn reach(url: &str) -> Result<Self, CopyError> {
        Self::connect(url).map_err(|source| CopyError::Unreachable { address: address(url), source })
    }

    fn connect(url: &str) -> Result<Self, PostgresError> {
        let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = built.map_err(|error| PostgresError::Database(error.to_string()))?;
        let connector = Connector::new(url, runtime.handle().clone())?;
        let client = runtime.block_on(connector.connect());
        let client = client.map_err(|error| PostgresError::Database(describe(&error)))?;
        Ok(Self { client, runtime, address: address(url) })
    }

    fn run<T>(&self, work: impl Future<Output = Result<T, PostgresError>>) -> Result<T, CopyError> {
        Ok(self.runtime.block_on(work)?)
    }

    fn batch(&self, sql: &str) -> Result<(), CopyError> {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        done.map_err(|error| database_error(&error))
    }

    pub(super) fn query_one<T: for<'a> tokio_postgres::types::FromSql<'a>>(
        &self,
        sql: &str,
    ) -> Result<T, CopyError> {
        let row = self.runtime.block_on(self.client.query_typed_one(sql, &[]));
        let value = row.and_then(|row| row.try_get(0));
        value.map_err(|error| database_error(&error))
    }

    fn is_unfinished(&self) -> Result<bool, CopyError> {
        let found = self.runtime.block_on(migrate::is_unfinished_copy(&self.client));
        found.map_err(|error| database_error(&error))
    }

    /// Runs a statement whose parameters are columns of rows.
    fn execute(&self, sql: &str, columns: &[Column]) -> Result<(), StoreError> {
        let params: Vec<&dyn Param> = columns.iter().map(Column::param).collect();
        let done = self.runtime.block_on(self.client.query_typed(sql, &typed(&params)));
        done.map(drop).map_err(|error| write_error(&error))
    }

    fn values_write(&self, table: &CopyTable, rows: Vec<Vec<Cell>>) -> Result<(), StoreError> {
        let names: Vec<&str> = table.columns().iter().map(|column| column.postgres).collect();
        let marks: Vec<String> = (1..=names.len()).map(|at| format!("${at}")).collect();
        let (names, marks) = (names.join(", "), marks.join(", "));
        let sql = match table.name {
            // The row of an event also has the owner of its session, so that an owner's events are found.
            "events" => format!(
                "INSERT INTO events ({names}, owner_id) SELECT u.*, s.owner_id FROM unnest({marks}) AS u({names})
                   JOIN sessions AS s ON s.session_id = u.session_id"
            ),
            name => {
                format!("INSERT INTO {name} ({names}) OVERRIDING SYSTEM VALUE SELECT * FROM unnest({marks})")
            }
        };
        self.execute(&sql, &columns(rows))
    }

    /// Runs a statement, and returns its rows.
    pub(super) fn rows(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.runtime.block_on(self.client.query_typed(sql, &typed(params)))
    }

    /// Calls `each` with each row of a statement, and holds at most [`FETCH`] rows in memory. Errors name `table`.
    pub(super) fn each_row(
        &self,
        table: &'static str,
        sql: &str,
        params: &[&dyn Param],
        each: &mut dyn FnMut(&Row) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let failed = |source| CopyError::Store { table, source };
        let run = |sql: &str, params: &[&dyn Param]| {
            self.rows(sql, params).map_err(|error| failed(read_error(&error)))
        };
        run(&format!("DECLARE copied NO SCROLL CURSOR FOR {sql}"), params)?;
        loop {
            let rows = run(&format!("FETCH {FETCH} FROM copied"), &[])?;
            rows.iter().try_for_each(&mut *each)?;
            if rows.len() < FETCH {
                break;
            }
        }
        run("CLOSE copied", &[]).map(drop)
    }

    /// Writes the mark in the transaction that is open.
    fn mark_write(&self, mark: &Mark) -> Result<(), CopyError> {
        let failed = |source| CopyError::Store { table: "the unfinished copy", source };
        let text = vec![vec![Cell::Text(Some(to_json(mark).map_err(failed)?))]];
        let sql =
            "WITH old AS (DELETE FROM mainspring_copy) INSERT INTO mainspring_copy SELECT * FROM unnest($1)";
        self.execute(sql, &columns(text)).map_err(failed)
    }

    /// Empties the tables that are copied, in the transaction that is open. A database of an earlier version may lack
    /// some of them.
    fn truncate(&self) -> Result<(), CopyError> {
        let names: Vec<String> = TABLES.iter().map(|table| format!("'{}'", table.name)).collect();
        let sql = format!(
            "SELECT string_agg(name, ', ') FROM unnest(ARRAY[{}]) AS name WHERE to_regclass(name) IS NOT NULL",
            names.join(", ")
        );
        let found: Option<String> = self.query_one(&sql)?;
        found.map_or(Ok(()), |found| self.batch(&format!("TRUNCATE {found} CASCADE")))
    }
}

/// Begins a transaction at an instant at which no writer is about to commit events. Otherwise an event that is missing
/// in the snapshot could have a lower cursor than the last event in the snapshot. After a restore, the position of a
/// reader that has read the missing event would wrongly count as part of the restored history.
///
/// A writer locks rows of `leases` before it gets a transaction id, and keeps the locks to the end of its transaction.
/// So a second connection locks that table while the snapshot is taken.
async fn begin_snapshot(
    url: &str,
    database: &PostgresDatabase,
) -> Result<Result<(), PostgresError>, tokio_postgres::Error> {
    let begin = begin(READ_ONLY);
    let is_replica =
        database.client.query_typed_one("SELECT pg_is_in_recovery()", &[]).await?.try_get::<_, bool>(0)?;
    if is_replica {
        // A replica has no writers, and refuses the lock.
        return database.client.batch_execute(&begin).await.map(Ok);
    }
    let connector = match Connector::new(url, database.runtime.handle().clone()) {
        Ok(connector) => connector,
        Err(error) => return Ok(Err(error)),
    };
    let locker = connector.connect().await?;
    let lock = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL lock_timeout = {SNAPSHOT_WAIT_MS};
         LOCK TABLE leases IN EXCLUSIVE MODE"
    );
    locker.batch_execute(&lock).await?;
    let snapshot: String = locker.query_typed_one("SELECT pg_export_snapshot()", &[]).await?.try_get(0)?;
    database.client.batch_execute(&format!("{begin}; SET TRANSACTION SNAPSHOT '{snapshot}'")).await?;
    locker.batch_execute("COMMIT").await.map(Ok)
}

/// Returns SQL that begins a transaction without timeouts: it may last as long as the copy, and idle while the other
/// database is slow.
fn begin(mode: &str) -> String {
    format!(
        "BEGIN {mode}; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0"
    )
}

fn database_error(error: &tokio_postgres::Error) -> CopyError {
    PostgresError::Database(describe(error)).into()
}

impl Reads for PostgresDatabase {
    fn read(
        &mut self,
        table: &CopyTable,
        after: Option<&Position>,
        each: &mut Each<'_>,
    ) -> Result<(), CopyError> {
        let ((columns, from), read) = select(table);
        let key = table.key();
        let names = key.iter().map(|column| column.postgres).collect::<Vec<_>>().join(", ");
        let condition = after.map_or_else(String::new, |after| {
            let marks: Vec<String> = (1..=after.len()).map(|at| format!("${at}")).collect();
            format!(" AND ({names}) > ({})", marks.join(", "))
        });
        let sql = format!("SELECT {columns}, {names} FROM {from}{condition} ORDER BY {names}");
        let after: Vec<Cell> = after.into_iter().flatten().cloned().map(cell).collect();
        let params: Vec<&dyn Param> = after.iter().map(cell_param).collect();
        self.each_row(table.name, &sql, &params, &mut |row| {
            let position = values(row, row.len() - key.len(), &key).map_err(failed(table))?;
            each(read(table, row).map_err(failed(table))?, position)
        })
    }
}

impl Source for PostgresDatabase {
    fn state(&mut self) -> Result<SourceState, CopyError> {
        let history: String =
            self.query_one("SELECT coalesce((SELECT token FROM histories ORDER BY id DESC LIMIT 1), '')")?;
        let last_cursor = self.query_one(
            "SELECT greatest((SELECT max(cursor) FROM events), (SELECT value FROM meta WHERE name = 'last_cursor'), 0)",
        )?;
        Ok(SourceState { history, last_cursor, changes: 0 })
    }

    fn has_history(&mut self, token: &str) -> Result<bool, CopyError> {
        let sql = "SELECT 1 FROM histories WHERE token = $1";
        let found = self.runtime.block_on(self.client.query_typed(sql, &typed(&[&token])));
        Ok(!found.map_err(|error| database_error(&error))?.is_empty())
    }
}

impl Target for PostgresDatabase {
    fn name(&self) -> String {
        self.address.clone()
    }

    fn schema(&self) -> u64 {
        SCHEMA_VERSION as u64
    }

    fn mark(&mut self) -> Result<Option<Mark>, CopyError> {
        if !self.is_unfinished()? {
            return Ok(None);
        }
        let text: String = self.query_one("SELECT mark FROM mainspring_copy")?;
        let corrupt = |error: serde_json::Error| StoreError::Corrupt(format!("its mark: {error}"));
        let mark: Result<Mark, _> = serde_json::from_str(&text).map_err(corrupt);
        let mark = mark.map_err(|source| CopyError::Store { table: "the unfinished copy", source })?;
        match usize::try_from(mark.schema).unwrap_or(usize::MAX) {
            found if found > SCHEMA_VERSION => {
                Err(PostgresError::Newer { found, known: SCHEMA_VERSION }.into())
            }
            _ => Ok(Some(mark)),
        }
    }

    fn begin(&mut self, mark: &Mark) -> Result<(), CopyError> {
        self.batch(&begin(""))?;
        self.truncate()?;
        self.run(migrate::apply(&self.client))?;
        self.batch(&format!(
            "CREATE TABLE IF NOT EXISTS mainspring_copy (mark text NOT NULL);
             DELETE FROM mainspring_schema WHERE version = {UNFINISHED_COPY};
             INSERT INTO mainspring_schema VALUES ({UNFINISHED_COPY})"
        ))?;
        self.keep(mark)
    }

    fn resume(&mut self) -> Result<(), CopyError> {
        self.batch(&begin(""))
    }

    fn write(&mut self, table: &CopyTable, records: Vec<Record>) -> Result<(), CopyError> {
        let (mut ops, mut rows): (Vec<Op>, Vec<Vec<Cell>>) = (vec![], vec![]);
        for record in records {
            record_ops(record, &mut ops, &mut rows).map_err(failed(table))?;
        }
        if !rows.is_empty() && table.name != "api_keys" {
            return self.values_write(table, rows).map_err(failed(table));
        }
        if !rows.is_empty() {
            let sql = "INSERT INTO api_keys (key_id, owner_id, org_id, hash, created_at, body)
                       SELECT * FROM unnest($1, $2, $3, $4, $5, $6)";
            return self.execute(sql, &columns(rows)).map_err(failed(table));
        }
        for statement in statements(vec![ops]) {
            self.execute(statement.sql, &statement.columns).map_err(failed(table))?;
        }
        Ok(())
    }

    fn keep(&mut self, mark: &Mark) -> Result<(), CopyError> {
        self.mark_write(mark)?;
        self.batch(&format!("COMMIT; {}", begin("")))
    }

    fn finish(&mut self, last: i64) -> Result<(), CopyError> {
        for (table, column) in NUMBERED_COLUMNS {
            self.batch(&format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}"
            ))?;
        }
        // A server that starts assigns cursors after the last one.
        self.batch(&format!(
            "INSERT INTO meta VALUES ('last_cursor', {last})
               ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value, excluded.value);
             DROP TABLE mainspring_copy;
             DELETE FROM mainspring_schema WHERE version = {UNFINISHED_COPY};
             COMMIT"
        ))
    }

    fn verify(&mut self) -> Result<Vec<Verification>, CopyError> {
        // The planner knows nothing about the new tables.
        self.batch("ANALYZE")?;
        self.batch(&begin(READ_ONLY))?;
        let verified = self.verify_all()?;
        self.batch("COMMIT")?;
        Ok(verified)
    }

    fn discard(&mut self) -> Result<(), CopyError> {
        self.batch(&begin(""))?;
        self.truncate()?;
        self.batch(&format!(
            "DROP TABLE mainspring_copy; DELETE FROM mainspring_schema WHERE version = {UNFINISHED_COPY}; COMMIT"
        ))
    }
}

pub(super) type ReadRow = fn(&CopyTable, &Row) -> Result<Record, StoreError>;

/// Returns the columns of a table's records, the text after `FROM`, and the function that reads a row. The text after
/// `FROM` ends with a `WHERE` clause, so that callers can append conditions with `AND`.
pub(super) fn select(table: &CopyTable) -> ((String, String), ReadRow) {
    let all = |columns: &str, from: &str| (columns.to_owned(), format!("{from} WHERE true"));
    let body = || all("body", table.name);
    match table.name {
        "api_keys" => {
            (all("body, hash", "api_keys"), |_, row| Ok(Record::Key(Box::new(read::access::key(row)?))))
        }
        "sessions" => {
            (all(SESSION, "sessions AS s"), |_, row| Ok(Record::Session(Box::new(read::session(row)?))))
        }
        "runs" => (all(&format!("{RUN}, r.created_cursor"), "runs AS r"), |_, row| {
            Ok(Record::Run(Box::new(read::run(row, 0)?), get(row, RUN_COLUMNS)?))
        }),
        "attempts" => (body(), |_, row| Ok(Record::Attempt(Box::new(get_json::<Attempt>(row, 0)?)))),
        "messages" => (all(MESSAGE, "messages AS m"), |_, row| Ok(Record::Message(read::message(row)?))),
        "steps" => (all("body, private", "steps"), |_, row| {
            let step: Step = get_json(row, 0)?;
            Ok(Record::Step(Box::new(Step { private: get_maybe_json(row, 1)?, ..step })))
        }),
        "digests" => (
            all(
                "line, pos, message_id, prompt_id, summary, left_out, below_tokens, made_at, session_id",
                "digests",
            ),
            |_, row| {
                let digest = Box::new(read::tree::read_digest(row)?);
                Ok(Record::Digest(SessionId::from_bytes(get_id(row, 8)?), digest))
            },
        ),
        "effects" => (
            all("run_id, tool_use_id, started_at, message_id, name, result, session_id", "effects"),
            |_, row| {
                let call = Box::new(read::sessions::effect(row)?);
                Ok(Record::Effect(SessionId::from_bytes(get_id(row, 6)?), call))
            },
        ),
        "bindings" => (body(), |_, row| {
            // The instance names a process of the source, so it is not copied.
            let binding: Binding = get_json(row, 0)?;
            Ok(Record::Binding(Box::new(Binding { instance: None, ..binding })))
        }),
        "grants" => (all("g.body, g.revoked_at, g.revoked_by", "grants AS g"), |_, row| {
            Ok(Record::Grant(Box::new(read::records::grant(row)?)))
        }),
        "artifacts" => (body(), |_, row| Ok(Record::Artifact(Box::new(get_json(row, 0)?)))),
        // Delegations of sessions that are being deleted are not copied.
        "delegations" => {
            let live = "parent_session_id IN (SELECT session_id FROM sessions WHERE status <> 'deleted')";
            (("body".into(), format!("delegations WHERE {live}")), |_, row| {
                Ok(Record::Delegation(Box::new(get_json(row, 0)?)))
            })
        }
        name => {
            let names: Vec<&str> = table.columns().iter().map(|column| column.postgres).collect();
            (all(&names.join(", "), name), |table, row| Ok(Record::Values(values(row, 0, &table.columns())?)))
        }
    }
}

/// Reads the values of columns, which begin at `at`.
pub(super) fn values(row: &Row, at: usize, columns: &[TableColumn<'_>]) -> Result<Vec<Value>, StoreError> {
    let value = |(at, kind): (usize, u8)| {
        Ok(match kind {
            b'i' => Value::Int(get(row, at)?),
            b'f' => Value::Bool(get(row, at)?),
            b'b' | b'x' => Value::Bytes(get(row, at)?),
            _ => Value::Text(get(row, at)?),
        })
    };
    columns.iter().enumerate().map(|(index, column)| value((at + index, column.kind))).collect()
}

fn cell(value: Value) -> Cell {
    match value {
        Value::Int(number) => Cell::Int(number),
        Value::Text(text) => Cell::Text(text),
        Value::Bytes(bytes) => Cell::Bytes(bytes),
        Value::Bool(flag) => Cell::Bool(flag),
    }
}

fn cell_param(cell: &Cell) -> &dyn Param {
    match cell {
        Cell::Int(number) => number,
        Cell::Text(text) => text,
        Cell::Bytes(bytes) => bytes,
        Cell::Bool(flag) => flag,
    }
}

/// Adds the operations that write a record to `ops`. Keys and plain values have no operation: they are added to `rows`.
pub(super) fn record_ops(
    record: Record,
    ops: &mut Vec<Op>,
    rows: &mut Vec<Vec<Cell>>,
) -> Result<(), StoreError> {
    let none = SessionId::from_bytes([0; 16]);
    let (session, row, before) = match record {
        Record::Key(key) => {
            rows.push(vec![
                Cell::Bytes(Some(key.id.as_bytes().to_vec())),
                Cell::Text(Some(key.owner.clone())),
                Cell::Text(key.org.clone()),
                Cell::Bytes(Some(key.hash.to_vec())),
                Cell::Int(Some(key.created_at.0)),
                Cell::Text(Some(to_json(&*key)?)),
            ]);
            return Ok(());
        }
        Record::Values(values) => {
            rows.push(values.into_iter().map(cell).collect());
            return Ok(());
        }
        Record::Session(session) => (session.id, StoreRow::Session(Arc::from(session)), 0),
        Record::Run(run, before) => (run.session, StoreRow::Run(Arc::from(run)), before.cast_unsigned()),
        Record::Attempt(attempt) => (none, StoreRow::Attempt(attempt), 0),
        Record::Message(placed) => {
            (placed.message.session, StoreRow::Message(placed.message, placed.point), 0)
        }
        Record::Step(step) => (none, StoreRow::Step(step), 0),
        Record::Effect(session, call) => (session, StoreRow::ToolCall(call), 0),
        Record::Digest(session, digest) => (session, StoreRow::Digest(digest), 0),
        Record::Binding(binding) => (binding.session, StoreRow::Binding(binding), 0),
        Record::Grant(grant) => (grant.session, StoreRow::Grant(grant), 0),
        Record::Artifact(artifact) => (artifact.session, StoreRow::Artifact(artifact), 0),
        Record::Delegation(delegation) => (delegation.child_session, StoreRow::Delegation(delegation), 0),
    };
    row_ops(session, &row, before, ops)
}
