//! Adds checksums to rows of versions without checksums. Damage of such a row cannot be detected, so only rows that
//! can be read get a checksum.

use rusqlite::types::Value;
use rusqlite::{Connection, Result, Row, params_from_iter};

use super::{
    ARTIFACT, ATTEMPT, CHUNK, DIGEST, EFFECT, EVENT, Layout, MESSAGE, RUN_REQUEST, RUN_STATE, RowSum,
    SESSION, STATE, STATE_CHANGE, STEP, key_column,
};
use crate::sqlite::columns::Columns;
use crate::sqlite::digests::digest_read;
use crate::sqlite::read::{
    self, artifact_columns, attempt_columns, chunk_columns, digest_columns, effect_columns, event_columns,
    message_columns, run_columns, session_columns, state_change_columns, state_columns, step_columns,
};

/// A kind of row, and how it is read.
struct Table {
    name: &'static str,
    key: &'static str,
    columns: &'static str,
    /// The parts of the columns, each with the name of its checksum.
    parts: &'static [(&'static Layout, &'static str)],
    /// Fails if the row cannot be read.
    read: fn(&Row<'_>) -> Result<()>,
}

const STATES: &[(&Layout, &str)] = &[(&STATE, "checksum")];

const TABLES: [Table; 14] = [
    Table {
        name: "sessions",
        key: "session_id",
        columns: session_columns!(),
        parts: &[(&SESSION, "checksum")],
        read: |row| read::session(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "runs",
        key: "run_id",
        columns: run_columns!(),
        parts: &[(&RUN_REQUEST, "checksum"), (&RUN_STATE, "state_checksum")],
        read: |row| read::run(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "messages",
        key: "message_id",
        columns: message_columns!(),
        parts: &[(&MESSAGE, "checksum")],
        read: |row| read::message(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "events",
        key: "event_seq",
        columns: event_columns!(),
        parts: &[(&EVENT, "checksum")],
        read: |row| json_check(row, 9),
    },
    Table {
        name: "effects",
        key: "id",
        columns: effect_columns!(),
        parts: &[(&EFFECT, "checksum")],
        read: |row| read::effect(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "chunks",
        key: "session_id, pos",
        columns: chunk_columns!(),
        parts: &[(&CHUNK, "checksum")],
        read: |_| Ok(()),
    },
    Table {
        name: "session_state",
        key: "id",
        columns: state_columns!(),
        parts: STATES,
        read: |row| json_check(row, 3),
    },
    Table {
        name: "run_state",
        key: "run_id, key",
        columns: state_columns!(),
        parts: STATES,
        read: |row| json_check(row, 3),
    },
    Table {
        name: "owner_state",
        key: "owner_id, key",
        columns: state_columns!(),
        parts: STATES,
        read: |row| json_check(row, 3),
    },
    Table {
        name: "state_history",
        key: "place, key, version",
        columns: state_change_columns!(),
        parts: &[(&STATE_CHANGE, "checksum")],
        read: |row| json_check(row, 2),
    },
    Table {
        name: "run_attempts",
        key: "run_id, attempt_no",
        columns: attempt_columns!(),
        parts: &[(&ATTEMPT, "checksum")],
        read: |row| read::attempt(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "steps",
        key: "run_id, step_no, step_id",
        columns: step_columns!(),
        parts: &[(&STEP, "checksum")],
        read: |row| json_check(row, 20),
    },
    Table {
        name: "digests",
        key: "line, pos, session_id",
        columns: digest_columns!(),
        parts: &[(&DIGEST, "checksum")],
        read: |row| digest_read(&mut Columns::new(row)).map(drop),
    },
    Table {
        name: "artifacts",
        key: "artifact_id",
        columns: artifact_columns!(),
        parts: &[(&ARTIFACT, "checksum")],
        read: |row| read::artifacts::artifact(&mut Columns::new(row)).map(drop),
    },
];

/// Fails if a column holds neither JSON nor NULL.
fn json_check(row: &Row<'_>, column: usize) -> Result<()> {
    let mut columns = Columns::new(row);
    columns.skip(column);
    columns.maybe_json::<serde::de::IgnoredAny>().map(drop)
}

/// Computes missing checksums. Returns the number of rows that got one.
pub(in crate::sqlite) fn fill(connection: &Connection) -> Result<u64> {
    let mut filled = 0;
    for table in &TABLES {
        let Table { name, key, columns, parts, read } = table;
        let layouts: Vec<&Layout> = parts.iter().map(|(layout, _)| *layout).collect();
        let missing: Vec<String> = parts.iter().map(|(_, checksum)| format!("{checksum} IS NULL")).collect();
        let missing = missing.join(" OR ");
        let select = format!("SELECT {columns}, {key} FROM {name} WHERE {missing}");
        let set: Vec<String> = (1..)
            .zip(*parts)
            .map(|(at, (_, checksum))| format!("{checksum} = coalesce({checksum}, ?{at})"))
            .collect();
        let of_key: Vec<String> = (parts.len() + 1..)
            .zip(key.split(", "))
            .map(|(at, column)| format!("{column} = ?{at}"))
            .collect();
        let update = format!("UPDATE {name} SET {} WHERE {}", set.join(", "), of_key.join(" AND "));
        let mut statement = connection.prepare(&select)?;
        let (first_key, end) = (key_column(&layouts), statement.column_count());
        let mut rows = statement.query([])?;
        let mut sums = vec![];
        while let Some(row) = rows.next()? {
            if read(row).is_err() {
                continue;
            }
            let mut values = row_sums(row, &layouts)?;
            for column in first_key..end {
                values.push(row.get(column)?);
            }
            sums.push(values);
        }
        let mut update = connection.prepare(&update)?;
        for values in sums {
            filled += update.execute(params_from_iter(values))? as u64;
        }
    }
    Ok(filled)
}

/// Computes the checksum of each part of a row.
fn row_sums(row: &Row<'_>, layouts: &[&Layout]) -> Result<Vec<Value>> {
    let (mut sums, mut first) = (vec![], 0);
    for layout in layouts {
        let mut sum = RowSum::new(layout);
        for index in 0..layout.columns {
            sum.add(index, row.get_ref(first + index)?);
        }
        sums.push(Value::Integer(sum.end()));
        first += layout.columns + 1;
    }
    Ok(sums)
}
