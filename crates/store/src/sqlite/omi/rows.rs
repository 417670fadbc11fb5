//! Reads the rows of the original's database. A column that is missing or has another type reads as `None`.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_core::{Delegation, DelegationMode, Time};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Result, Row};

use super::report::TABLES;
use super::{OmiArtifact, delegation_status, id};

/// The columns an import requires, by table.
const REQUIRED_COLUMNS: [(&str, &str); 8] = [
    ("sessions", "session_id, owner_id, created_at_ms"),
    ("runs", "run_id, session_id, input_json, final_text, status, created_at_ms"),
    ("run_attempts", "attempt_id, run_id, attempt_no"),
    ("adapter_bindings", "binding_id, session_id, adapter_id, binding_generation"),
    ("events", "event_seq, event_id, session_id, run_id, attempt_id, type, payload_json, created_at_ms"),
    ("artifacts", "artifact_id, session_id, uri"),
    ("delegations", "delegation_id, parent_run_id, child_run_id"),
    ("grants", "grant_id, session_id"),
];

/// Opens a copy of the original's database.
pub(super) fn open(copy: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(copy, flags)?;
    // Recovers the WAL, and fails if the file is not a database.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Fails with the reason if the tables are not those of the original.
pub(super) fn check(source: &Connection) -> std::result::Result<(), String> {
    for (table, columns) in REQUIRED_COLUMNS {
        let statement = source.prepare(&format!("SELECT {columns} FROM {table}"));
        statement.map_err(|error| format!("its table {table} has other columns ({error})"))?;
    }
    Ok(())
}

/// Counts the rows of a table.
pub(super) fn count(source: &Connection, table: &str) -> Result<u64> {
    let quoted = table.replace('"', "\"\"");
    source
        .query_row(&format!("SELECT count(*) FROM \"{quoted}\""), [], |row| row.get::<_, i64>(0))
        .map(unsigned)
}

/// Lists the tables that the import does not know.
pub(super) fn unknown_tables(source: &Connection) -> Result<Vec<String>> {
    let mut statement = source.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_>>()?;
    let known = |name: &String| name == "schema_migrations" || TABLES.iter().any(|(table, _)| table == name);
    Ok(names.into_iter().filter(|name| !known(name)).collect())
}

/// Returns the last event number ever assigned, including numbers of deleted events.
pub(super) fn last_seq(source: &Connection) -> Result<u64> {
    let query_number = |sql: &str| source.query_row(sql, [], |row| row.get::<_, i64>(0));
    let last = query_number("SELECT coalesce(max(event_seq), 0) FROM events")?;
    let counted =
        query_number("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'").unwrap_or(0);
    Ok(unsigned(last.max(counted)))
}

/// Lists the ids of all sessions, oldest first.
pub(super) fn sessions(source: &Connection) -> Result<Vec<String>> {
    let mut statement = source.prepare("SELECT session_id FROM sessions ORDER BY created_at_ms, rowid")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

pub(super) fn artifacts(source: &Connection) -> Result<Vec<OmiArtifact>> {
    let rows = query_fields(source, "SELECT artifact_id, uri, size_bytes FROM artifacts", None)?;
    let artifact = |row: &Fields| {
        let size = row.number("size_bytes").and_then(|size| size.try_into().ok());
        Some(OmiArtifact { id: id(row.text("artifact_id")?)?, uri: row.text("uri")?.to_owned(), size })
    };
    Ok(rows.iter().filter_map(artifact).collect())
}

/// A delegation of the original, not yet parsed.
pub(super) struct DelegationRow {
    pub(super) id: String,
    row: Fields,
}

pub(super) fn delegations(source: &Connection) -> Result<Vec<DelegationRow>> {
    let rows = query_fields(source, "SELECT * FROM delegations", None)?;
    Ok(rows.into_iter().map(|row| DelegationRow { id: row.text_or_empty("delegation_id"), row }).collect())
}

impl DelegationRow {
    /// Converts the row. `None` if its ids or its mode are not valid in this store.
    pub(super) fn delegation(&self) -> Option<Delegation> {
        let row = &self.row;
        Some(Delegation {
            id: id(&self.id)?,
            parent_session: id(row.text("parent_session_id")?)?,
            parent_run: id(row.text("parent_run_id")?)?,
            child_session: id(row.text("child_session_id")?)?,
            child_run: id(row.text("child_run_id")?)?,
            mode: DelegationMode::from_name(row.text("mode")?)?,
            status: delegation_status(row.text("status").unwrap_or_default()),
            objective: row.text_or_empty("objective"),
            request: row
                .text("request_json")
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            result: row.text("result_artifact_id").and_then(id),
            created_at: row.time("created_at_ms").unwrap_or(Time(0)),
            completed_at: row.time("completed_at_ms"),
        })
    }
}

/// The row of a session and all rows that belong to it.
pub(super) struct SessionRows {
    pub(super) session: Fields,
    pub(super) runs: Vec<Fields>,
    pub(super) attempts: Vec<Fields>,
    pub(super) bindings: Vec<Fields>,
    pub(super) events: Vec<Fields>,
    pub(super) artifacts: Vec<Fields>,
    pub(super) grants: Vec<Fields>,
}

impl SessionRows {
    pub(super) fn read(source: &Connection, session: &str) -> Result<Self> {
        let read = |sql: &str| query_fields(source, sql, Some(session));
        let mut sessions = read("SELECT * FROM sessions WHERE session_id = ?1")?;
        Ok(Self {
            session: sessions.pop().unwrap_or_default(),
            runs: read("SELECT * FROM runs WHERE session_id = ?1 ORDER BY created_at_ms, rowid")?,
            attempts: read(
                "SELECT a.* FROM run_attempts AS a JOIN runs AS r ON r.run_id = a.run_id WHERE r.session_id = ?1
                 ORDER BY a.attempt_no",
            )?,
            bindings: read(
                "SELECT * FROM adapter_bindings WHERE session_id = ?1 ORDER BY adapter_id, binding_generation",
            )?,
            // Payloads of streamed events are not read: the text is in the final texts of runs, and thoughts are private.
            events: read(
                "SELECT event_seq, event_id, run_id, attempt_id, type, created_at_ms,
                   CASE WHEN type LIKE '%delta' OR type LIKE '%thinking%' OR type = 'progress.updated' THEN NULL
                     ELSE payload_json END AS payload_json
                 FROM events WHERE session_id = ?1 ORDER BY event_seq",
            )?,
            artifacts: read("SELECT * FROM artifacts WHERE session_id = ?1 ORDER BY created_at_ms, rowid")?,
            grants: read("SELECT * FROM grants WHERE session_id = ?1 ORDER BY created_at_ms, rowid")?,
        })
    }
}

/// The values of one row, by column name.
#[derive(Default)]
pub(super) struct Fields(BTreeMap<String, Field>);

enum Field {
    Text(String),
    Number(i64),
    Real(f64),
}

impl Fields {
    fn from_row(row: &Row<'_>) -> Result<Self> {
        let names = row.as_ref().column_names();
        let mut fields = BTreeMap::new();
        for (index, name) in names.into_iter().enumerate() {
            let field = match row.get_ref(index)? {
                ValueRef::Text(text) => Field::Text(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Integer(number) => Field::Number(number),
                ValueRef::Real(number) => Field::Real(number),
                ValueRef::Null | ValueRef::Blob(_) => continue,
            };
            fields.insert(name.to_owned(), field);
        }
        Ok(Self(fields))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Field::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the text, or an empty string.
    pub(super) fn text_or_empty(&self, name: &str) -> String {
        self.text(name).unwrap_or_default().to_owned()
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        match self.0.get(name) {
            Some(Field::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// Returns the number, unless it is negative.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.number(name).and_then(|number| number.try_into().ok())
    }

    pub(super) fn real(&self, name: &str) -> Option<f64> {
        match self.0.get(name) {
            Some(Field::Real(number)) => Some(*number),
            Some(Field::Number(number)) => Some(*number as f64),
            _ => None,
        }
    }

    pub(super) fn time(&self, name: &str) -> Option<Time> {
        self.number(name).map(Time)
    }
}

/// Runs a query whose only parameter, if it has one, is `session`.
fn query_fields(source: &Connection, sql: &str, session: Option<&str>) -> Result<Vec<Fields>> {
    let mut statement = source.prepare_cached(sql)?;
    let rows = match session {
        Some(session) => statement.query_map([session], Fields::from_row)?,
        None => statement.query_map([], Fields::from_row)?,
    };
    rows.collect()
}

fn unsigned(number: i64) -> u64 {
    number.max(0).cast_unsigned()
}
