//! Recomputes the parts of a database that can be derived from other parts, and names each row that disagrees. Changes
//! nothing.
//!
//! The rules are those of SQLite (`sqlite/verify.rs`), as far as PostgreSQL keeps the data. Rules about the content of JSON are
//! applied here: PostgreSQL refuses to look into JSON with U+0000.

use std::fmt::Write as _;

use mainspring_core::{Body, MessageId, Run, RunId, RunStatus, SessionId};
use mainspring_kernel::store::StoreError;
use serde::de::IgnoredAny;
use serde_json::Value as Json;
use tokio_postgres::Row;

use super::copy::{PostgresDatabase, select, values};
use super::read::{self, RUN, RUN_COLUMNS, SESSION, SESSION_COLUMNS};
use super::rows::Op;
use super::tables::Table;
use super::values::{Cell, Param, get, get_id, to_json};
use crate::copy::{CopyError, CopyTable, Position, Record, TABLES, Value};
use crate::{Verification, Verified};

mod rules;

/// Maximum findings that a query of `rules` returns. [`Findings::add`] drops findings beyond this number.
const MAX_FINDINGS: usize = 100;
/// Rows that are looked up at once.
const LOOKUP: usize = 500;
/// Columns with JSON in tables whose records are read as plain values, not as a type of their own.
const JSON_COLUMNS: &[&str] = &["body", "payload", "value", "definition", "change", "note", "input"];
/// Columns from which the record itself is read: they cannot differ from it.
const OWN_COLUMNS: &[&str] = &["body", "fixed", "wait", "private", "summary", "result", "name", "revoked_by"];

impl PostgresDatabase {
    /// Verifies the whole database, in the transaction that is open.
    pub(crate) fn verify_all(&self) -> Result<Vec<Verification>, CopyError> {
        let (mut events, mut trees) = (Findings::default(), Findings::default());
        let records = self.verify_records()?;
        self.verify_runs(&mut events, &mut trees)?;
        self.verify_sessions(&mut events)?;
        self.verify_state(&mut events)?;
        self.apply(rules::EVENT_RULES, &mut events)?;
        self.apply(rules::TREE_RULES, &mut trees)?;
        let count = |table: &str| self.query_one::<i64>(&format!("SELECT count(*) FROM {table}"));
        let (of_events, of_messages) = (count("events")?.cast_unsigned(), count("messages")?.cast_unsigned());
        Ok(vec![
            records,
            events.verification(Verified::Events, of_events),
            trees.verification(Verified::Trees, of_messages),
        ])
    }

    /// Reads every record, and compares it with the other columns of its row, by which it is found.
    fn verify_records(&self) -> Result<Verification, CopyError> {
        let (mut checked, mut all) = (0, Findings::default());
        for table in TABLES {
            let mut findings = Findings::default();
            let ((columns, from), read) = select(table);
            let key = table.key();
            let names: Vec<&str> = key.iter().map(|column| column.postgres).collect();
            let written =
                written_table(table.name).map_or_else(Vec::new, |table| written_columns(table.sql()));
            let all_columns = [vec![columns.as_str()], written.clone(), names].concat().join(", ");
            let at = columns.split(',').count();
            self.each(table.name, &format!("SELECT {all_columns} FROM {from}"), &mut |row| {
                checked += 1;
                let problem = match read(table, row) {
                    Ok(record) => problem(table, record, row, at, &written)?,
                    Err(StoreError::Corrupt(problem)) => Some(problem),
                    Err(error) => return Err(error),
                };
                if let Some(problem) = problem {
                    let position = values(row, row.len() - key.len(), &key)?;
                    findings.add(format!("{} {}: {problem}", table.name, position_text(&position)));
                }
                Ok(())
            })?;
            all.0.append(&mut findings.0);
        }
        Ok(all.verification(Verified::Records, checked))
    }

    /// Compares runs with their last events, their attempts and their prompts.
    fn verify_runs(&self, events: &mut Findings, trees: &mut Findings) -> Result<(), CopyError> {
        let sql = format!(
            "WITH last AS (
               SELECT DISTINCT ON (run_id) run_id, type, cursor, payload FROM events
               WHERE run_id IS NOT NULL AND type IN ('run.queued', 'run.starting', 'run.running', 'run.waiting_input',
                 'run.waiting_approval', 'run.cancelling', 'run.succeeded', 'run.failed', 'run.cancelled',
                 'run.timed_out', 'run.orphaned')
               ORDER BY run_id, cursor DESC)
             SELECT {RUN}, s.status, (SELECT count(*) FROM attempts AS a WHERE a.run_id = r.run_id),
                    last.type, last.cursor, last.payload
             FROM runs AS r JOIN sessions AS s ON s.session_id = r.session_id
               LEFT JOIN last ON last.run_id = r.run_id"
        );
        let mut prompts = vec![];
        self.each("runs", &sql, &mut |row| {
            // `verify_records` reports records that cannot be read.
            let Ok(run) = read::run(row, 0) else { return Ok(()) };
            let is_deleted = get::<&str>(row, RUN_COLUMNS)? == "deleted";
            let attempts: i64 = get(row, RUN_COLUMNS + 1)?;
            if !is_deleted && i64::from(run.attempts) != attempts {
                let counted = run.attempts;
                events.add(format!("{} counts {counted} attempts, but has {attempts}", run.id));
            }
            if let Some(kind) = get::<Option<&str>>(row, RUN_COLUMNS + 2)? {
                let (cursor, payload): (i64, &str) = (get(row, RUN_COLUMNS + 3)?, get(row, RUN_COLUMNS + 4)?);
                if run.merged_into.is_none() {
                    events.0.extend(end_problem(&run, kind, cursor, payload));
                }
            }
            if let Some(prompt) = run.prompt.filter(|_| !is_deleted) {
                prompts.push((run.id, prompt));
            }
            if prompts.len() >= LOOKUP {
                self.verify_prompts(&std::mem::take(&mut prompts), trees)?;
            }
            Ok(())
        })?;
        let checked = self.verify_prompts(&prompts, trees);
        checked.map_err(|source| CopyError::Store { table: "runs", source })
    }

    fn verify_prompts(
        &self,
        prompts: &[(RunId, MessageId)],
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let wanted: Vec<Vec<u8>> = prompts.iter().map(|(_, prompt)| prompt.as_bytes().to_vec()).collect();
        let sql = "SELECT message_id FROM messages WHERE message_id = ANY ($1)";
        let rows = self.query(sql, &[&wanted])?;
        let found: Vec<[u8; 16]> = rows.iter().map(|row| get_id(row, 0)).collect::<Result<_, _>>()?;
        for (run, prompt) in prompts.iter().filter(|(_, prompt)| !found.contains(prompt.as_bytes())) {
            findings.add(format!("{run} answers prompt {prompt}, which is missing"));
        }
        Ok(())
    }

    /// Compares the title and the status of sessions with the events that changed them last.
    fn verify_sessions(&self, findings: &mut Findings) -> Result<(), CopyError> {
        let sql = format!(
            "SELECT {SESSION}, e.cursor, e.payload FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id
             WHERE e.type = 'session.updated' AND s.status <> 'deleted' ORDER BY e.session_id, e.cursor DESC"
        );
        let mut seen: Option<(SessionId, Vec<String>)> = None;
        self.each("sessions", &sql, &mut |row| {
            let Ok(session) = read::session(row) else { return Ok(()) };
            let Some(change) = json(get(row, SESSION_COLUMNS + 1)?) else { return Ok(()) };
            let cursor: i64 = get(row, SESSION_COLUMNS)?;
            let changed = change["changed"].as_str().unwrap_or_default().to_owned();
            let (_, known) = match seen.take() {
                Some(seen_of) if seen_of.0 == session.id => seen.insert(seen_of),
                _ => seen.insert((session.id, vec![])),
            };
            if known.contains(&changed) {
                return Ok(());
            }
            let is_same = match changed.as_str() {
                "title" => change["title"].as_str() == session.title.as_deref(),
                "status" => change["status"].as_str() == Some(session.status.name()),
                _ => true,
            };
            if !is_same {
                findings
                    .add(format!("{} has another {changed} than its last change at {cursor}", session.id));
            }
            known.push(changed);
            Ok(())
        })
    }

    /// Compares the state of sessions with the events that changed it.
    fn verify_state(&self, findings: &mut Findings) -> Result<(), CopyError> {
        let sql =
            "SELECT session_id, cursor, payload FROM events WHERE type = 'state.changed' ORDER BY cursor";
        let mut changes = vec![];
        self.each("session_state", sql, &mut |row| {
            let Some(change) = json(get(row, 2)?) else { return Ok(()) };
            let (key, version) = (change["key"].as_str(), change["version"].as_i64());
            if let (Some("session"), Some(key), Some(version), Some(value)) =
                (change["scope"].as_str(), key, version, change.get("value"))
            {
                let session = SessionId::from_bytes(get_id(row, 0)?);
                changes.push((session, key.to_owned(), version, get::<i64>(row, 1)?, value.clone()));
            }
            if changes.len() >= LOOKUP {
                self.verify_changes(&std::mem::take(&mut changes), findings)?;
            }
            Ok(())
        })?;
        let checked = self.verify_changes(&changes, findings);
        checked.map_err(|source| CopyError::Store { table: "session_state", source })
    }

    fn verify_changes(
        &self,
        changes: &[(SessionId, String, i64, i64, Json)],
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let sessions: Vec<Vec<u8>> = changes.iter().map(|change| change.0.as_bytes().to_vec()).collect();
        let keys: Vec<String> = changes.iter().map(|change| change.1.clone()).collect();
        let versions: Vec<i64> = changes.iter().map(|change| change.2).collect();
        let sql =
            "SELECT u.n, s.value FROM unnest($1, $2, $3) WITH ORDINALITY AS u(session_id, key, version, n)
                   JOIN session_state AS s USING (session_id, key, version)";
        for row in self.query(sql, &[&sessions, &keys, &versions])? {
            let at = usize::try_from(get::<i64>(&row, 0)? - 1).unwrap_or(usize::MAX);
            let Some((session, key, _, cursor, value)) = changes.get(at) else { continue };
            if get::<Option<&str>>(&row, 1)?.and_then(json).as_ref() != Some(value) {
                findings.add(format!("state {key:?} of {session} differs from event {cursor}"));
            }
        }
        Ok(())
    }

    /// Runs rules that return a sentence per finding.
    fn apply(&self, rules: &[&str], findings: &mut Findings) -> Result<(), CopyError> {
        for rule in rules {
            let rows = self.query(&format!("{rule} LIMIT {MAX_FINDINGS}"), &[]);
            let sentences = rows.and_then(|rows| rows.iter().map(|row| get(row, 0)).collect());
            let sentences: Vec<String> =
                sentences.map_err(|source| CopyError::Store { table: "the database", source })?;
            findings.0.extend(sentences);
        }
        Ok(())
    }

    /// Calls `each` with the rows of a statement.
    fn each(
        &self,
        table: &'static str,
        sql: &str,
        each: &mut dyn FnMut(&Row) -> Result<(), StoreError>,
    ) -> Result<(), CopyError> {
        let failed = |source| CopyError::Store { table, source };
        self.each_row(table, sql, &[], &mut |row| each(row).map_err(failed))
    }

    /// Runs a statement that returns few rows.
    fn query(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, StoreError> {
        self.rows(sql, params).map_err(|error| super::error::read_error(&error))
    }
}

/// The findings of one rule or part.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn add(&mut self, finding: String) {
        if self.0.len() < MAX_FINDINGS {
            self.0.push(finding);
        }
    }

    fn verification(self, part: Verified, checked: u64) -> Verification {
        Verification { part, checked, unknown: 0, findings: self.0 }
    }
}

fn json(text: &str) -> Option<Json> {
    serde_json::from_str(text).ok()
}

/// Describes the difference between a run and its last event with a status.
fn end_problem(run: &Run, kind: &str, cursor: i64, payload: &str) -> Option<String> {
    let status = run.state.status();
    if Body::run_status_of(kind) != Some(status) {
        let status = status.name();
        return Some(format!("{} is {status}, but its last event is {kind} at {cursor}", run.id));
    }
    let event = json(payload).filter(|_| RunStatus::is_ended(status))?;
    let counted = |name: &str| event["usage"][name].as_u64().unwrap_or(0);
    let counted = ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"].map(counted);
    let usage = &run.usage;
    let used = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
    (counted != used).then(|| {
        let ([input, output, ..], [event_input, event_output, ..]) = (used, counted);
        format!(
            "{} has used {input} and {output} tokens, but its last event at {cursor} says {event_input} and {event_output}",
            run.id
        )
    })
}

/// Returns the [`Table`] whose statement writes the rows of `table`, if its records have a type of their own.
fn written_table(table: &str) -> Option<Table> {
    Some(match table {
        "sessions" => Table::Sessions,
        "runs" => Table::Runs,
        "attempts" => Table::Attempts,
        "messages" => Table::Messages,
        "steps" => Table::Steps,
        "digests" => Table::Digests,
        "effects" => Table::Effects,
        "bindings" => Table::Bindings,
        "grants" => Table::Grants,
        "artifacts" => Table::Artifacts,
        "delegations" => Table::Delegations,
        _ => return None,
    })
}

/// The columns that a statement of [`Table`] inserts, in the order of the cells of an [`Op`].
fn written_columns(sql: &'static str) -> Vec<&'static str> {
    let columns = sql.split_once("INSERT INTO").and_then(|(_, rest)| rest.split_once('('));
    let columns = columns.and_then(|(_, rest)| rest.split_once(')')).map_or("", |(columns, _)| columns);
    columns.split(',').map(str::trim).collect()
}

/// Describes the difference between a record and the columns of its row, which begin at `at`.
fn problem(
    table: &CopyTable,
    record: Record,
    row: &Row,
    at: usize,
    written: &[&str],
) -> Result<Option<String>, StoreError> {
    if let Record::Values(values) = &record {
        return Ok(json_problem(table, values));
    }
    if written.is_empty() {
        return Ok(None);
    }
    // An earlier version may have written the same content in more or fewer bytes than this version.
    let is_content = match &record {
        Record::Message(placed) => get::<&str>(row, 0)?.contains(&to_json(&placed.message.content)?),
        _ => false,
    };
    let mut ops: Vec<Op> = vec![];
    super::copy::record_ops(record, &mut ops, &mut vec![])?;
    let cells = ops.into_iter().next().map_or_else(Vec::new, |op| op.cells);
    for (index, (name, cell)) in written.iter().zip(&cells).enumerate() {
        let is_part = OWN_COLUMNS.contains(name) || (*name == "content_bytes" && !is_content);
        if !is_part && !is_equal(row, at + index, cell)? {
            return Ok(Some(format!("its column {name} differs from the record")));
        }
    }
    Ok(None)
}

fn json_problem(table: &CopyTable, values: &[Value]) -> Option<String> {
    let columns = table.columns();
    let named = columns.iter().map(|column| column.postgres).zip(values);
    // Records of edges may have any text.
    let checked = named.filter(|(name, _)| JSON_COLUMNS.contains(name) && table.name != "edge_records");
    checked.into_iter().find_map(|(name, value)| {
        let Value::Text(Some(text)) = value else { return None };
        let error = serde_json::from_str::<IgnoredAny>(text).err()?;
        Some(format!("the column {name} is not JSON: {error}"))
    })
}

fn is_equal(row: &Row, at: usize, cell: &Cell) -> Result<bool, StoreError> {
    Ok(match cell {
        Cell::Int(number) => get::<Option<i64>>(row, at)? == *number,
        Cell::Text(text) => get::<Option<&str>>(row, at)? == text.as_deref(),
        Cell::Bytes(bytes) => get::<Option<&[u8]>>(row, at)? == bytes.as_deref(),
        Cell::Bool(flag) => get::<bool>(row, at)? == *flag,
    })
}

/// Formats a position for people.
fn position_text(position: &Position) -> String {
    let show = |value: &Value| match value {
        Value::Int(number) => number.map(|number| number.to_string()).unwrap_or_default(),
        Value::Text(text) => text.clone().unwrap_or_default(),
        Value::Bytes(bytes) => bytes.iter().flatten().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
        Value::Bool(flag) => flag.to_string(),
    };
    position.iter().map(show).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_names_its_columns() {
        for table in TABLES {
            let Some(written) = written_table(table.name) else { continue };
            let columns = written_columns(written.sql());
            let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(columns.len() > 3 && columns.iter().all(is_name), "{}: {columns:?}", table.name);
        }
    }
}
