//! Replaces damaged rows with the intact rows of a backup.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Result, params_from_iter};

use super::checksum::{self, Layout};
use crate::sqlite::read::{
    artifact_columns, attempt_columns, digest_columns, effect_columns, event_columns, message_columns,
    run_columns, session_columns, state_change_columns, state_columns, step_columns,
};

/// A kind of row that can be restored from a backup.
struct Table {
    name: &'static str,
    /// The columns that identify a row, in the database and in the backup.
    key: &'static [&'static str],
    columns: &'static str,
    /// The groups of columns, each with its own checksum.
    parts: &'static [&'static Layout],
    /// The condition that the row `m` has not changed since it was backed up as `b`. If the compared values
    /// are damaged, the condition is false, and the row is not restored.
    unchanged: &'static str,
}

/// The session's version and time of change are those of the backup, or the session has had no event since.
const SAME_SESSION: &str = "(m.version = b.version AND m.updated_at_ms = b.updated_at_ms) OR
  (SELECT max(event_seq) FROM main.events AS e WHERE e.session_id = b.session_id)
    IS (SELECT max(event_seq) FROM backup.events AS e WHERE e.session_id = b.session_id)";
/// The run's time of change is that of the backup, or the run has had no event since.
const SAME_RUN: &str = "(m.session_id = b.session_id AND m.updated_at_ms = b.updated_at_ms) OR
  (SELECT max(event_seq) FROM main.events AS e WHERE e.session_id = b.session_id AND e.run_id = b.run_id)
    IS (SELECT max(event_seq) FROM backup.events AS e WHERE e.session_id = b.session_id AND e.run_id = b.run_id)";

/// The attempt has had no event since the backup.
const SAME_ATTEMPT: &str = "m.attempt_id = b.attempt_id AND
  (SELECT max(event_seq) FROM main.events AS e JOIN main.runs AS r USING (session_id)
    WHERE r.run_id = b.run_id AND e.attempt_id = b.attempt_id)
    IS (SELECT max(event_seq) FROM backup.events AS e JOIN backup.runs AS r USING (session_id)
    WHERE r.run_id = b.run_id AND e.attempt_id = b.attempt_id)";

const TABLES: [Table; 13] = [
    Table {
        name: "sessions",
        key: &["session_id"],
        columns: session_columns!(),
        parts: &[&checksum::SESSION],
        unchanged: SAME_SESSION,
    },
    Table {
        name: "runs",
        key: &["run_id"],
        columns: run_columns!(),
        parts: &[&checksum::RUN_REQUEST, &checksum::RUN_STATE],
        unchanged: SAME_RUN,
    },
    // The content of a message never changes, its position may.
    Table {
        name: "messages",
        key: &["message_id"],
        columns: message_columns!(),
        parts: &[&checksum::MESSAGE],
        unchanged: "(m.line, m.pos) IS (b.line, b.pos)",
    },
    // Another history may have another event with the same number.
    Table {
        name: "events",
        key: &["event_seq"],
        columns: event_columns!(),
        parts: &[&checksum::EVENT],
        unchanged: "(m.event_id, m.session_id) IS (b.event_id, b.session_id)",
    },
    Table {
        name: "effects",
        key: &["id"],
        columns: effect_columns!(),
        parts: &[&checksum::EFFECT],
        unchanged: "m.session_id = b.session_id AND (m.tool_use_id, m.message_id) IS (b.tool_use_id, b.message_id)",
    },
    // An entry of a session's state never changes, except for its position.
    Table {
        name: "session_state",
        key: &["id"],
        columns: state_columns!(),
        parts: &[&checksum::STATE],
        unchanged: "(m.session_id, m.line, m.pos, m.seq) IS (b.session_id, b.line, b.pos, b.seq)",
    },
    Table {
        name: "run_state",
        key: &["run_id", "key"],
        columns: state_columns!(),
        parts: &[&checksum::STATE],
        unchanged: "m.version = b.version",
    },
    Table {
        name: "owner_state",
        key: &["owner_id", "key"],
        columns: state_columns!(),
        parts: &[&checksum::STATE],
        unchanged: "m.version = b.version",
    },
    Table {
        name: "state_history",
        key: &["place", "key", "version"],
        columns: state_change_columns!(),
        parts: &[&checksum::STATE_CHANGE],
        unchanged: "m.version = b.version",
    },
    Table {
        name: "run_attempts",
        key: &["run_id", "attempt_no"],
        columns: attempt_columns!(),
        parts: &[&checksum::ATTEMPT],
        unchanged: SAME_ATTEMPT,
    },
    // The columns of a step are written once.
    Table {
        name: "steps",
        key: &["run_id", "step_no", "step_id"],
        columns: step_columns!(),
        parts: &[&checksum::STEP],
        unchanged: "m.attempt_id = b.attempt_id OR m.completed_at_ms = b.completed_at_ms",
    },
    // A digest that replaces another one has another time.
    Table {
        name: "digests",
        key: &["line", "pos", "session_id"],
        columns: digest_columns!(),
        parts: &[&checksum::DIGEST],
        unchanged: "m.made_at_ms = b.made_at_ms",
    },
    // Only the decision about a memory candidate changes an artifact: a restored candidate may be undecided again.
    Table {
        name: "artifacts",
        key: &["artifact_id"],
        columns: artifact_columns!(),
        parts: &[&checksum::ARTIFACT],
        unchanged: "m.session_id = b.session_id",
    },
];

/// Replaces damaged rows with those of the attached backup. Returns their number.
pub(super) fn rows_restore(connection: &Connection) -> Result<u64> {
    let mut restored = 0;
    for table in &TABLES {
        let Table { name, key, columns, parts, unchanged } = table;
        let keys = key.join(", ");
        let key_matches = |row: &str| {
            let equal = |(at, column): (usize, &&str)| format!("{row}{column} = ?{}", at + 1);
            key.iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
        };
        let intact = format!("SELECT {columns} FROM backup.{name} WHERE {}", key_matches(""));
        let restore = format!(
            "UPDATE main.{name} AS m SET ({columns}) = (SELECT {columns} FROM backup.{name} WHERE {})
             WHERE {} AND EXISTS (SELECT 1 FROM backup.{name} AS b WHERE {} AND ({unchanged}))",
            key_matches(""),
            key_matches("m."),
            key_matches("b."),
        );
        let all = format!("SELECT {columns}, {keys} FROM main.{name}");
        for damaged in checksum::damaged(connection, &all, parts)? {
            let damaged: Vec<Value> = damaged;
            let is_intact = connection
                .query_row(&intact, params_from_iter(&damaged), |row| Ok(checksum::is_intact(row, parts)));
            if is_intact.optional()? == Some(true) {
                restored += connection.execute(&restore, params_from_iter(&damaged))? as u64;
            }
        }
    }
    Ok(restored)
}
