//! A PostgreSQL as an end of a copy.

use std::sync::Arc;

use mainspring_core::{Attempt, Binding, SessionId, Step};
use mainspring_kernel::store::{Row as StoreRow, StoreError};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Row};

use super::PostgresError;
use super::batch::statements;
use super::connect::Connector;
use super::error::{describe, read_error, write_error};
use super::migrate::migrate;
use super::read::{self, MESSAGE, RUN, RUN_COLUMNS, SESSION};
use super::rows::{Op, row_ops};
use super::server;
use super::values::{Cell, Column, Param, columns, get, get_id, get_json, get_maybe_json, to_json, typed};
use crate::copy::{CopyError, CopyTable, Each, End, Record, Value, failed};

/// Rows that are read at once.
const FETCH: usize = 500;

/// Tables that hold the data of users. All of them are empty before a copy.
const DATA: &[&str] = &[
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
];

/// Tables whose rows are numbered by the database, with the column of the number.
const NUMBERED: &[(&str, &str)] =
    &[("lines", "id"), ("inbox", "id"), ("session_state", "id"), ("histories", "id")];

/// A database that is copied, or copied into. It holds the lock of a server.
pub(crate) struct PostgresEnd {
    client: Client,
    /// Dropped last: the connection lives on it.
    runtime: Runtime,
}

impl PostgresEnd {
    /// Opens a database that is copied.
    pub(crate) fn source(url: &str) -> Result<Self, CopyError> {
        let end = Self::open(url)?;
        end.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        Ok(end)
    }

    /// Opens a database that is copied into, and makes its tables. Refuses one that has data.
    pub(crate) fn target(url: &str) -> Result<Self, CopyError> {
        let end = Self::open(url)?;
        let used: Vec<String> = DATA.iter().map(|table| format!("EXISTS (SELECT 1 FROM {table})")).collect();
        if end.query_one(&format!("SELECT {}", used.join(" OR ")))? {
            return Err(CopyError::NotEmpty("the PostgreSQL".into()));
        }
        end.batch("BEGIN; DELETE FROM histories; DELETE FROM lost_events")?;
        Ok(end)
    }

    fn open(url: &str) -> Result<Self, CopyError> {
        let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = built.map_err(|error| PostgresError::Database(error.to_string()))?;
        let connector = Connector::new(url, runtime.handle().clone())?;
        let client = runtime.block_on(async {
            let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
            let client = connector.connect().await.map_err(fail)?;
            migrate(&client).await?;
            server::lock(&client).await?;
            Ok::<_, PostgresError>(client)
        })?;
        Ok(Self { client, runtime })
    }

    fn batch(&self, sql: &str) -> Result<(), CopyError> {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        Ok(done.map_err(|error| PostgresError::Database(describe(&error)))?)
    }

    fn query_one<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> Result<T, CopyError> {
        let row = self.runtime.block_on(self.client.query_typed_one(sql, &[]));
        let value = row.and_then(|row| row.try_get(0));
        Ok(value.map_err(|error| PostgresError::Database(describe(&error)))?)
    }

    /// Writes columns of rows by a statement.
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
            // An event has the owner of its session, by which it is found.
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
}

impl End for PostgresEnd {
    fn read(&mut self, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError> {
        let fail = |error: tokio_postgres::Error| failed(table)(read_error(&error));
        let (sql, read) = select(table);
        let declare = format!("DECLARE copied NO SCROLL CURSOR FOR {sql}");
        self.runtime.block_on(self.client.batch_execute(&declare)).map_err(fail)?;
        loop {
            let fetch = format!("FETCH {FETCH} FROM copied");
            let rows = self.runtime.block_on(self.client.query_typed(&fetch, &[])).map_err(fail)?;
            for row in &rows {
                each(read(table, row).map_err(failed(table))?)?;
            }
            if rows.len() < FETCH {
                break;
            }
        }
        self.runtime.block_on(self.client.batch_execute("CLOSE copied")).map_err(fail)
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

    fn last_cursor(&mut self) -> Result<i64, CopyError> {
        self.query_one(
            "SELECT greatest((SELECT max(cursor) FROM events), (SELECT value FROM meta WHERE name = 'last_cursor'), 0)",
        )
    }

    fn finish(&mut self, last: i64) -> Result<(), CopyError> {
        for (table, column) in NUMBERED {
            self.batch(&format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}"
            ))?;
        }
        // A server that starts assigns cursors after this one.
        self.batch(&format!(
            "INSERT INTO meta VALUES ('last_cursor', {last})
               ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value, excluded.value); COMMIT"
        ))
    }
}

type ReadRow = fn(&CopyTable, &Row) -> Result<Record, StoreError>;

/// The statement that reads the records of a table, and how a row of it is read.
fn select(table: &CopyTable) -> (String, ReadRow) {
    let body = |order: &str| format!("SELECT body FROM {} ORDER BY {order}", table.name);
    match table.name {
        "api_keys" => ("SELECT body, hash FROM api_keys ORDER BY key_id".into(), |_, row| {
            Ok(Record::Key(Box::new(read::access::key(row)?)))
        }),
        "sessions" => (format!("SELECT {SESSION} FROM sessions AS s ORDER BY s.session_id"), |_, row| {
            Ok(Record::Session(Box::new(read::session(row)?)))
        }),
        "runs" => (format!("SELECT {RUN}, r.created_cursor FROM runs AS r ORDER BY r.run_id"), |_, row| {
            Ok(Record::Run(Box::new(read::run(row, 0)?), get(row, RUN_COLUMNS)?))
        }),
        "attempts" => (body("run_id, attempt_no"), |_, row| {
            Ok(Record::Attempt(Box::new(get_json::<Attempt>(row, 0)?)))
        }),
        "messages" => (format!("SELECT {MESSAGE} FROM messages AS m ORDER BY m.arrival"), |_, row| {
            Ok(Record::Message(read::message(row)?))
        }),
        "steps" => ("SELECT body, private FROM steps ORDER BY run_id, step_no, step_id".into(), |_, row| {
            let step: Step = get_json(row, 0)?;
            Ok(Record::Step(Box::new(Step { private: get_maybe_json(row, 1)?, ..step })))
        }),
        "digests" => (
            "SELECT line, pos, message_id, prompt_id, summary, left_out, below_tokens, made_at, session_id
             FROM digests ORDER BY line, pos, session_id"
                .into(),
            |_, row| {
                let digest = Box::new(read::tree::read_digest(row)?);
                Ok(Record::Digest(SessionId::from_bytes(get_id(row, 8)?), digest))
            },
        ),
        "effects" => (
            "SELECT run_id, tool_use_id, started_at, message_id, name, result, session_id FROM effects ORDER BY id"
                .into(),
            |_, row| {
                let call = Box::new(read::sessions::effect(row)?);
                Ok(Record::Effect(SessionId::from_bytes(get_id(row, 6)?), call))
            },
        ),
        "bindings" => (body("binding_id"), |_, row| {
            // The instance names a process of the source, so it is not copied.
            let binding: Binding = get_json(row, 0)?;
            Ok(Record::Binding(Box::new(Binding { instance: None, ..binding })))
        }),
        "grants" => (
            "SELECT g.body, g.revoked_at, g.revoked_by FROM grants AS g ORDER BY g.grant_id".into(),
            |_, row| Ok(Record::Grant(Box::new(read::records::grant(row)?))),
        ),
        "artifacts" => {
            (body("artifact_id"), |_, row| Ok(Record::Artifact(Box::new(get_json(row, 0)?))))
        }
        // Delegations of sessions that are being deleted are not copied.
        "delegations" => (
            "SELECT body FROM delegations
             WHERE parent_session_id IN (SELECT session_id FROM sessions WHERE status <> 'deleted')
             ORDER BY created_at, delegation_id"
                .into(),
            |_, row| Ok(Record::Delegation(Box::new(get_json(row, 0)?))),
        ),
        name => {
            let columns = table.columns();
            let names: Vec<&str> = columns.iter().map(|column| column.postgres).collect();
            let (all, key) = (names.join(", "), names[..table.key].join(", "));
            (format!("SELECT {all} FROM {name} ORDER BY {key}"), values_read)
        }
    }
}

fn values_read(table: &CopyTable, row: &Row) -> Result<Record, StoreError> {
    let value = |(at, kind): (usize, u8)| {
        Ok(match kind {
            b'i' => Value::Int(get(row, at)?),
            b'f' => Value::Bool(get(row, at)?),
            b'b' | b'x' => Value::Bytes(get(row, at)?),
            _ => Value::Text(get(row, at)?),
        })
    };
    let kinds = table.columns().into_iter().map(|column| column.kind).enumerate();
    Ok(Record::Values(kinds.map(value).collect::<Result<_, StoreError>>()?))
}

/// Adds the operations that write a record, or its values.
fn record_ops(record: Record, ops: &mut Vec<Op>, rows: &mut Vec<Vec<Cell>>) -> Result<(), StoreError> {
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
            let cell = |value| match value {
                Value::Int(number) => Cell::Int(number),
                Value::Text(text) => Cell::Text(text),
                Value::Bytes(bytes) => Cell::Bytes(bytes),
                Value::Bool(flag) => Cell::Bool(flag),
            };
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
