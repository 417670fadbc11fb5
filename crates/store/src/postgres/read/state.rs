//! Reads state: of a session along a path, of a run, of an owner.

use std::collections::{BTreeMap, HashMap};

use mainspring_core::{LineId, Point, Rows, SessionId, StateChange, StateEntry, StateSlot, Time};
use mainspring_kernel::store::{StateAt, StateHistoryOf, StoreError};
use serde_json::Value;
use tokio_postgres::Row;

use super::super::values::{all, get, get_id, get_json, get_maybe_json, get_point, get_u64, int};
use super::Reader;

/// Greater than every cursor.
const UNBOUNDED: i64 = i64::MAX;

/// The parts of a line that decide which state is visible: its parent, the session that opened it, and the event up to
/// which state above it is visible.
struct Opened {
    parent: Option<Point>,
    by: SessionId,
    cursor: i64,
}

/// A row of a session's state.
struct Record {
    session: SessionId,
    at: Option<Point>,
    aside: bool,
    cursor: i64,
    key: String,
    version: u64,
    updated_at: Time,
    value: Option<Value>,
}

impl Record {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            session: SessionId::from_bytes(get_id(row, 0)?),
            at: get_point(row, 1)?,
            aside: get(row, 3)?,
            cursor: get(row, 4)?,
            key: get(row, 5)?,
            version: get_u64(row, 6)?,
            updated_at: Time(get(row, 7)?),
            value: get_maybe_json(row, 8)?,
        })
    }

    fn entry(&self) -> Option<StateEntry> {
        let (key, version, updated_at) = (self.key.clone(), self.version, self.updated_at);
        self.value.clone().map(|value| StateEntry { key, value, version, updated_at })
    }
}

const RECORD: &str = "session_id, line, pos, aside, cursor, key, version, updated_at, value";

/// A part of the path from a point to the root, with the event up to which state on it is visible.
struct Segment {
    /// The line and the last position; none at the root, before the first message.
    point: Option<Point>,
    /// The session that opened the line, whose state is visible up to `bound`.
    owner: SessionId,
    bound: i64,
    /// The session that opened the line below, whose state on this line is visible up to `child_bound`.
    child: SessionId,
    child_bound: i64,
}

impl Segment {
    fn contains(&self, record: &Record) -> bool {
        let own = record.session == self.owner && record.cursor <= self.bound;
        let Some(point) = self.point else { return record.at.is_none() && own };
        let is_here = record.at.is_some_and(|at| {
            at.line == point.line && at.pos <= point.pos && (at.pos == point.pos || !record.aside)
        });
        let of_child =
            record.session != self.owner && record.session == self.child && record.cursor <= self.child_bound;
        is_here && (own || of_child)
    }
}

/// The segments from a point to the root, nearest first.
async fn segments(
    reader: &Reader,
    session: SessionId,
    at: Option<Point>,
) -> Result<Vec<Segment>, StoreError> {
    let lines = match at {
        Some(at) => opened_above(reader, at.line).await?,
        None => HashMap::new(),
    };
    let (mut next, mut owner, mut bound) = (at, session, UNBOUNDED);
    let (mut child, mut child_bound) = (session, UNBOUNDED);
    if at.and_then(|at| lines.get(&at.line)).is_some_and(|line| line.by != session) {
        // A fork without a line of its own sees the state at the time of its creation.
        let sql = "SELECT min(cursor) - 1 FROM events WHERE session_id = $1";
        let row = reader.row(sql, &[&session.as_bytes().as_slice()]).await?;
        bound = row.map_or(Ok(None), |row| get(&row, 0))?.unwrap_or(UNBOUNDED);
    }
    let mut segments = vec![];
    while let Some(point) = next {
        let missing = || StoreError::Corrupt(format!("line {} is missing", point.line.0));
        let line = lines.get(&point.line).ok_or_else(missing)?;
        owner = line.by;
        segments.push(Segment { point: Some(point), owner, bound, child, child_bound });
        (child, child_bound, bound) = (owner, bound, bound.min(line.cursor));
        next = line.parent;
    }
    segments.push(Segment { point: None, owner, bound, child, child_bound });
    Ok(segments)
}

async fn opened_above(reader: &Reader, id: LineId) -> Result<HashMap<LineId, Opened>, StoreError> {
    let sql = "WITH RECURSIVE above AS (
        SELECT line, parent_line, parent_pos, opened_by, opened_cursor FROM lines WHERE line = $1
        UNION
        SELECT l.line, l.parent_line, l.parent_pos, l.opened_by, l.opened_cursor FROM lines AS l JOIN above AS a
          ON l.line = a.parent_line)
      SELECT * FROM above";
    let lines = all(&reader.rows(sql, &[&id.0]).await?, |row| {
        let by = SessionId::from_bytes(get_id(row, 3)?);
        Ok((LineId(get(row, 0)?), Opened { parent: get_point(row, 1)?, by, cursor: get(row, 4)? }))
    })?;
    Ok(lines.into_iter().collect())
}

/// The rows visible from a point, nearest first. With `key`, only rows of that key.
async fn visible(
    reader: &Reader,
    session: SessionId,
    at: Option<Point>,
    key: Option<&str>,
) -> Result<Vec<Record>, StoreError> {
    let segments = segments(reader, session, at).await?;
    let lines: Vec<i64> =
        segments.iter().filter_map(|segment| segment.point).map(|point| point.line.0).collect();
    let root = segments.last().map_or(session, |segment| segment.owner);
    let sql = format!(
        "SELECT {RECORD} FROM session_state WHERE (line = ANY ($1) OR (line IS NULL AND session_id = $2))
           AND ($3::text IS NULL OR key = $3)"
    );
    let rows = reader.rows(&sql, &[&lines, &root.as_bytes().as_slice(), &key]).await?;
    let found = all(&rows, Record::read)?;
    let mut placed: Vec<(usize, Record)> = found
        .into_iter()
        .filter_map(|record| Some((segments.iter().position(|segment| segment.contains(&record))?, record)))
        .collect();
    placed.sort_by(|(a, one), (b, other)| {
        a.cmp(b).then_with(|| (other.at, other.version).cmp(&(one.at, one.version)))
    });
    Ok(placed.into_iter().map(|(_, record)| record).collect())
}

pub(in super::super) async fn state_get(
    reader: &Reader,
    at: &StateAt,
    key: &str,
) -> Result<StateSlot, StoreError> {
    match at {
        StateAt::Session { session, at } => {
            let nearest = visible(reader, *session, *at, Some(key)).await?.into_iter().next();
            let sql =
                "SELECT coalesce(max(version), 0) FROM session_state WHERE session_id = $1 AND key = $2";
            let highest = reader.row(sql, &[&session.as_bytes().as_slice(), &key]).await?;
            let highest = highest.map_or(Ok(0), |row| get_u64(&row, 0))?;
            let version = nearest.as_ref().map_or(0, |record| record.version).max(highest);
            Ok(StateSlot { entry: nearest.as_ref().and_then(Record::entry), version })
        }
        StateAt::Run(run) => {
            let sql = "SELECT version, updated_at, value FROM run_state WHERE run_id = $1 AND key = $2";
            let Some(row) = reader.row(sql, &[&run.as_bytes().as_slice(), &key]).await? else {
                return Ok(StateSlot::default());
            };
            let (version, updated_at) = (get_u64(&row, 0)?, Time(get(&row, 1)?));
            let value: Option<Value> = get_maybe_json(&row, 2)?;
            let entry = value.map(|value| StateEntry { key: key.into(), value, version, updated_at });
            Ok(StateSlot { entry, version })
        }
        StateAt::Owner(owner) => {
            let sql =
                "SELECT key, value, version, updated_at FROM owner_state WHERE owner_id = $1 AND key = $2";
            let found = reader.row(sql, &[&owner.as_str(), &key]).await?;
            let entry = found.map(|row| entry(&row)).transpose()?;
            Ok(StateSlot { version: entry.as_ref().map_or(0, |entry| entry.version), entry })
        }
    }
}

/// Reads an entry from `key, value, version, updated_at`.
pub(in super::super) fn entry(row: &Row) -> Result<StateEntry, StoreError> {
    let (version, updated_at) = (get_u64(row, 2)?, Time(get(row, 3)?));
    Ok(StateEntry { key: get(row, 0)?, value: get_json(row, 1)?, version, updated_at })
}

pub(in super::super) async fn state_page(
    reader: &Reader,
    at: &StateAt,
    after: Option<&str>,
    limit: usize,
) -> Result<Rows<StateEntry>, StoreError> {
    match at {
        StateAt::Session { session, at } => {
            let mut keys: BTreeMap<String, Record> = BTreeMap::new();
            for record in visible(reader, *session, *at, None).await? {
                keys.entry(record.key.clone()).or_insert(record);
            }
            let later =
                keys.into_values().filter(|record| after.is_none_or(|after| record.key.as_str() > after));
            Ok(later.filter_map(|record| record.entry()).take(limit).collect::<Vec<_>>().into())
        }
        StateAt::Run(run) => {
            let sql = "SELECT key, value, version, updated_at FROM run_state
                       WHERE run_id = $1 AND value IS NOT NULL AND ($2::text IS NULL OR key > $2) ORDER BY key";
            reader.page("state", sql, &[&run.as_bytes().as_slice(), &after], limit, entry).await
        }
        StateAt::Owner(owner) => {
            let sql = "SELECT key, value, version, updated_at FROM owner_state
                       WHERE owner_id = $1 AND ($2::text IS NULL OR key > $2) ORDER BY key";
            reader.page("state", sql, &[&owner.as_str(), &after], limit, entry).await
        }
    }
}

/// Counts the keys that have a value.
pub(in super::super) async fn state_count(reader: &Reader, at: &StateAt) -> Result<usize, StoreError> {
    match at {
        StateAt::Owner(owner) => {
            let sql = "SELECT keys FROM owner_state_versions WHERE owner_id = $1";
            let kept = reader.row(sql, &[&owner.as_str()]).await?;
            let kept = kept.map_or(Ok(0), |row| get_u64(&row, 0))?;
            Ok(usize::try_from(kept).unwrap_or(usize::MAX))
        }
        StateAt::Run(_) | StateAt::Session { .. } => {
            Ok(state_page(reader, at, None, usize::MAX).await?.len())
        }
    }
}

pub(in super::super) async fn state_history(
    reader: &Reader,
    of: &StateHistoryOf,
    key: &str,
    before: Option<u64>,
    limit: usize,
) -> Result<Rows<StateChange>, StoreError> {
    let sql = "SELECT change FROM state_history WHERE place = $1 AND key = $2 AND version < $3
               ORDER BY version DESC";
    let before = before.map_or(i64::MAX, int);
    reader.page("state", sql, &[&of.place(), &key, &before], limit, |row| get_json(row, 0)).await
}
