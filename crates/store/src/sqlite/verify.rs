//! Recomputes the parts of a database that can be derived from other parts, and names each row that disagrees.
//! Changes nothing.
//!
//! Each rule is one query that returns a sentence per finding. Rows of deleted sessions are left out: they are removed
//! in steps.

use rusqlite::Connection;

use super::check;
use super::checksum;
use super::error::read_error;
use super::event_blocks;
use super::usage;
use super::view::SqliteView;
use mainspring_kernel::store::StoreError;

/// The maximum number of findings that one rule reports.
const MAX_FINDINGS: usize = 100;

/// A part of the database that is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verified {
    /// Pages, indexes and references, as SQLite checks them.
    Structure,
    /// Rows, compared with their checksums.
    Checksums,
    /// Rows, compared with the events that changed them.
    Events,
    /// Paths, lines and cursors of message trees.
    Trees,
    /// Records of a PostgreSQL database, which have no checksums: their form, and the columns by which they are found.
    Records,
}

impl Verified {
    /// The name of the part.
    pub fn name(self) -> &'static str {
        match self {
            Self::Structure => "structure",
            Self::Checksums => "checksums",
            Self::Events => "events",
            Self::Trees => "trees",
            Self::Records => "records",
        }
    }
}

/// The result of verifying one part.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// The part.
    pub part: Verified,
    /// The number of rows that were compared.
    pub checked: u64,
    /// The number of rows without a checksum, which earlier versions wrote.
    pub unknown: u64,
    /// One sentence for each finding.
    pub findings: Vec<String>,
}

impl SqliteView {
    /// Verifies the whole database. It must have the schema of this version.
    pub fn verify(&self) -> Result<Vec<Verification>, StoreError> {
        let connection = self.connection();
        let fail = |error: rusqlite::Error| read_error(&error);
        // All parts see the same snapshot.
        connection.execute_batch("BEGIN").map_err(fail)?;
        let verified = verify(connection).map_err(fail);
        let ended = connection.execute_batch("COMMIT").map_err(fail);
        // As for reads: the first error says why.
        let verified = verified?;
        ended.map(|()| verified)
    }
}

fn verify(connection: &Connection) -> rusqlite::Result<Vec<Verification>> {
    let structure = check::check(connection, true, 0)?;
    let sums = checksum::verify(connection)?;
    Ok(vec![
        Verification {
            part: Verified::Structure,
            checked: structure.pages,
            unknown: 0,
            findings: structure.problems,
        },
        Verification {
            part: Verified::Checksums,
            checked: sums.checked,
            unknown: sums.without_checksum,
            findings: sums.problems,
        },
        compare(connection, Verified::Events, "events", EVENT_RULES)?,
        compare(connection, Verified::Trees, "messages", TREE_RULES)?,
    ])
}

/// Runs the rules of one part.
fn compare(
    connection: &Connection,
    part: Verified,
    table: &str,
    rules: &[&str],
) -> rusqlite::Result<Verification> {
    let count = format!("SELECT count(*) FROM {table}");
    let checked = connection.query_row(&count, [], |row| row.get::<_, i64>(0))?.cast_unsigned();
    let mut findings = vec![];
    for rule in rules {
        let mut statement = connection.prepare(rule)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0))?;
        for finding in found.take(MAX_FINDINGS) {
            findings.push(finding?);
        }
    }
    Ok(Verification { part, checked, unknown: 0, findings })
}

/// Rows that disagree with the events that changed them.
const EVENT_RULES: &[&str] = &[
    event_blocks::ROWS_RULE,
    // The status of a run is that of its last event that sets a status. Runs whose events are pruned are not compared.
    "WITH last AS (
       SELECT run_id, max(event_seq) AS seq FROM events
       WHERE run_id IS NOT NULL AND type IN ('run.queued', 'run.starting', 'run.running', 'run.waiting_input',
         'run.waiting_approval', 'run.cancelling', 'run.succeeded', 'run.failed', 'run.cancelled', 'run.timed_out',
         'run.orphaned')
       GROUP BY run_id)
     SELECT 'run_' || lower(hex(runs.run_id)) || ' is ' || runs.status || ', but its last event is ' || events.type
            || ' at ' || event_seq
     FROM last JOIN events ON event_seq = last.seq JOIN runs ON runs.run_id = last.run_id
     WHERE runs.status <> substr(events.type, 5) AND runs.merged_into_run_id IS NULL",
    "SELECT 'run_' || lower(hex(runs.run_id)) || ' counts ' || attempts || ' attempts, but has '
            || (SELECT count(*) FROM run_attempts WHERE run_attempts.run_id = runs.run_id)
     FROM runs JOIN sessions USING (session_id)
     WHERE sessions.status <> 'deleted'
       AND attempts <> (SELECT count(*) FROM run_attempts WHERE run_attempts.run_id = runs.run_id)",
    // The event that ends a run holds the usage of all of its attempts.
    "WITH last AS (
       SELECT run_id, max(event_seq) AS seq FROM events
       WHERE run_id IS NOT NULL AND type IN ('run.queued', 'run.succeeded', 'run.failed', 'run.cancelled',
         'run.timed_out', 'run.orphaned')
       GROUP BY run_id)
     SELECT 'run_' || lower(hex(runs.run_id)) || ' has used ' || input_tokens || ' and ' || output_tokens
            || ' tokens, but its last event at ' || event_seq || ' says '
            || coalesce(payload ->> '$.usage.inputTokens', 0) || ' and ' || coalesce(payload ->> '$.usage.outputTokens', 0)
     FROM last JOIN events ON event_seq = last.seq JOIN runs ON runs.run_id = last.run_id
     WHERE events.type <> 'run.queued' AND runs.merged_into_run_id IS NULL AND json_valid(payload)
       AND (input_tokens, output_tokens, cache_read_tokens, cache_write_tokens) <> (
         coalesce(payload ->> '$.usage.inputTokens', 0), coalesce(payload ->> '$.usage.outputTokens', 0),
         coalesce(payload ->> '$.usage.cacheReadTokens', 0), coalesce(payload ->> '$.usage.cacheWriteTokens', 0))",
    "WITH last AS (
       SELECT session_id, payload ->> '$.changed' AS changed, max(event_seq) AS seq FROM events
       WHERE type = 'session.updated' AND json_valid(payload) AND payload ->> '$.changed' IN ('title', 'status')
       GROUP BY session_id, changed)
     SELECT 'ses_' || lower(hex(sessions.session_id)) || ' has another ' || last.changed || ' than its last change at '
            || event_seq
     FROM last JOIN events ON event_seq = last.seq JOIN sessions ON sessions.session_id = last.session_id
     WHERE sessions.status <> 'deleted' AND CASE last.changed
       WHEN 'title' THEN payload ->> '$.title' IS NOT sessions.title
       ELSE payload ->> '$.status' IS NOT sessions.status END",
    "SELECT 'state ' || json_quote(state.key) || ' of ses_' || lower(hex(state.session_id)) || ' differs from event '
            || event_seq
     FROM events CROSS JOIN session_state AS state ON state.session_id = events.session_id
       AND state.key = payload ->> '$.key' AND state.version = payload ->> '$.version'
     WHERE events.type = 'state.changed' AND json_valid(payload) AND payload ->> '$.scope' = 'session'
       AND payload -> '$.value' IS NOT NULL AND (NOT json_valid(state.value) OR json(state.value) <> payload -> '$.value')",
    "SELECT 'event ' || event_seq || ' completes msg_' || lower(hex(events.message_id)) || ', which is missing'
     FROM events JOIN sessions USING (session_id)
     WHERE sessions.status <> 'deleted' AND type = 'message.completed' AND events.message_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.message_id = events.message_id)",
    "SELECT 'event ' || event_seq || ' is at position ' || pos || ', before the event ahead of it'
     FROM (SELECT event_seq, pos, lag(pos) OVER (PARTITION BY session_id ORDER BY event_seq) AS earlier FROM events)
     WHERE pos < earlier",
    "SELECT 'event ' || event_seq || ' has a cursor that was lost with a restore'
     FROM events JOIN lost_events ON event_seq > after_seq AND event_seq <= until_seq",
];

/// Trees that are not connected, and wrong counts of what an owner stores.
const TREE_RULES: &[&str] = &[
    usage::COUNTS_RULE,
    "SELECT 'the state of ' || quote(owner_id) || ' counts ' || keys || ' keys instead of ' || found FROM (
       SELECT owner_id, keys, (SELECT count(*) FROM owner_state WHERE owner_state.owner_id = versions.owner_id) AS found
       FROM owner_state_versions AS versions)
     WHERE keys <> found",
    "SELECT 'line ' || line || ' begins beneath a message that is missing'
     FROM lines WHERE parent_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages WHERE messages.line = lines.parent_line AND messages.pos = lines.parent_pos)",
    "SELECT 'line ' || line || ' has ' || found || ' messages instead of ' || wanted FROM (
       SELECT line, end_pos - coalesce(parent_pos + 1, 0) AS wanted,
              (SELECT count(*) FROM messages WHERE messages.line = lines.line) AS found FROM lines
       WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = lines.session_id AND status = 'deleted'))
     WHERE found <> wanted",
    "SELECT 'msg_' || lower(hex(message_id)) || ' lies outside its line ' || messages.line
     FROM messages JOIN lines ON lines.line = messages.line
     WHERE messages.pos < coalesce(parent_pos + 1, 0) OR messages.pos >= end_pos",
    "SELECT 'ses_' || lower(hex(session_id)) || ' ends at a message that is missing'
     FROM sessions WHERE status <> 'deleted' AND tip_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages WHERE messages.line = tip_line AND messages.pos = tip_pos
         AND (tip_message_id IS NULL OR messages.message_id = tip_message_id))",
    "SELECT 'ses_' || lower(hex(session_id)) || ' continues another one after a message that is missing'
     FROM sessions WHERE status <> 'deleted' AND base_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages WHERE messages.line = base_line AND messages.pos = base_pos)",
    "SELECT 'ses_' || lower(hex(cursors.session_id)) || ' chose line ' || to_line || ', which is missing'
     FROM cursors JOIN sessions USING (session_id)
     WHERE sessions.status <> 'deleted' AND NOT EXISTS (SELECT 1 FROM lines WHERE lines.line = cursors.to_line)",
    "SELECT 'run_' || lower(hex(run_id)) || ' answers prompt msg_' || lower(hex(prompt_message_id)) || ', which is missing'
     FROM runs JOIN sessions USING (session_id)
     WHERE sessions.status <> 'deleted' AND prompt_message_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM messages WHERE message_id = prompt_message_id)",
];
