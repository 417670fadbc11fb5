//! Removal in small steps, so that the writer is never away for long.
//!
//! Events go first and text last. A line that a fork still reads outlives its session; the purge of the last fork
//! that reads it takes it along.

use mainspring_core::{SessionId, Time};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::{Id, int};
use super::search::messages_remove;

/// Rows that one step removes.
const STEP: i64 = 1000;

/// What belongs to one session alone.
const OWNED: [&str; 11] = [
    "DELETE FROM events WHERE event_seq IN (SELECT event_seq FROM events WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM retention WHERE session_id IN (SELECT session_id FROM retention WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM chunks WHERE (session_id, pos) IN (SELECT session_id, pos FROM chunks WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM effects WHERE id IN (SELECT id FROM effects WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM cursors WHERE (session_id, line, pos) IN
       (SELECT session_id, line, pos FROM cursors WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM digests WHERE (line, pos, session_id) IN
       (SELECT line, pos, session_id FROM digests WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM artifacts WHERE artifact_id IN (SELECT artifact_id FROM artifacts WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM grants WHERE grant_id IN (SELECT grant_id FROM grants WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM adapter_bindings WHERE binding_id IN
       (SELECT binding_id FROM adapter_bindings WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM delegations WHERE delegation_id IN
       (SELECT delegation_id FROM delegations WHERE parent_session_id = ?1 LIMIT ?2)",
];

/// Removes up to [`STEP`] rows of a deleted session; true while there is more.
pub(super) fn session_purge(connection: &Connection, session: SessionId, seq: u64) -> Result<bool> {
    let deleted = "SELECT 1 FROM sessions WHERE session_id = ?1 AND status = 'deleted'";
    if !connection.prepare_cached(deleted)?.exists([session.bytes()])? {
        return Ok(false);
    }
    seq_keep(connection, seq)?;
    let mut left = STEP;
    for sql in OWNED {
        left -= step(connection, sql, session, left)?;
        if left == 0 {
            return Ok(true);
        }
    }
    // Attempts go with their run.
    let runs = "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE session_id = ?1 LIMIT ?2)";
    left -= step(connection, runs, session, left)?;
    let unplaced = "SELECT id FROM messages WHERE session_id = ?1 AND line IS NULL LIMIT ?2";
    left -= messages_remove(connection, unplaced, params![session.bytes(), left])?;
    let lines =
        left == 0 || lines_purge(connection, session, &mut left)? || lines_trim(connection, session, left)?;
    if lines || away_purge(connection, session)? {
        return Ok(true);
    }
    let title =
        "DELETE FROM search_titles WHERE rowid = (SELECT searched_row FROM sessions WHERE session_id = ?1)";
    connection.prepare_cached(title)?.execute([session.bytes()])?;
    connection.prepare_cached("DELETE FROM sessions WHERE session_id = ?1")?.execute([session.bytes()])?;
    Ok(false)
}

/// Removes up to [`STEP`] events that the session has pruned; true while there are more. Its first one stays: it
/// tells when the session was made, and so what a fork sees of its source's state.
pub(super) fn events_prune(connection: &Connection, session: SessionId, seq: u64) -> Result<bool> {
    let floor = "SELECT floor_seq FROM retention WHERE session_id = ?1 AND pruned = 0";
    let floor = connection
        .prepare_cached(floor)?
        .query_row([session.bytes()], |row| row.get::<_, i64>(0))
        .optional()?;
    let Some(floor) = floor else { return Ok(false) };
    seq_keep(connection, seq)?;
    let removed = connection
        .prepare_cached(
            "DELETE FROM events WHERE event_seq IN
               (SELECT event_seq FROM events WHERE session_id = ?1 AND event_seq <= ?2
                  AND event_seq > (SELECT min(event_seq) FROM events WHERE session_id = ?1)
                ORDER BY event_seq LIMIT ?3)",
        )?
        .execute(params![session.bytes(), floor, STEP])? as i64;
    if removed == STEP {
        return Ok(true);
    }
    connection
        .prepare_cached("UPDATE retention SET pruned = 1 WHERE session_id = ?1")?
        .execute([session.bytes()])?;
    Ok(false)
}

/// The events that carry the highest cursors may be about to go: no cursor is given out twice.
fn seq_keep(connection: &Connection, seq: u64) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO meta VALUES ('event_seq', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1",
        )?
        .execute([int(seq)])?;
    Ok(())
}

/// Forgets up to [`STEP`] requests made before `before`; true while there are more.
pub(super) fn requests_forget(connection: &Connection, before: Time) -> Result<bool> {
    let forgotten = connection
        .prepare_cached(
            "DELETE FROM requests WHERE (owner_id, operation, key) IN
               (SELECT owner_id, operation, key FROM requests WHERE created_at_ms < ?1 LIMIT ?2)",
        )?
        .execute(params![before.0, STEP])?;
    Ok(forgotten as i64 == STEP)
}

fn step(connection: &Connection, sql: &str, session: SessionId, left: i64) -> Result<i64> {
    Ok(connection.prepare_cached(sql)?.execute(params![session.bytes(), left])? as i64)
}

/// Removes lines that nobody reads, leaves first; true when it ran out of `left`.
fn lines_purge(connection: &Connection, session: SessionId, left: &mut i64) -> Result<bool> {
    // What a fork sees may be all that is left of its source.
    adopt(connection, session, "SELECT base_line FROM sessions WHERE session_id = ?1", session.bytes())?;
    loop {
        // The newest first: nothing hangs beneath it, most likely.
        let unread = connection
            .prepare_cached(
                "SELECT line FROM lines AS l WHERE session_id = ?1
                   AND NOT EXISTS (SELECT 1 FROM lines AS c WHERE c.parent_line = l.line)
                   AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.base_line = l.line AND s.session_id <> ?1)
                 ORDER BY id DESC LIMIT 1",
            )?
            .query_row([session.bytes()], |row| row.get::<_, i64>(0))
            .optional()?;
        let Some(line) = unread else { return Ok(false) };
        let messages = "SELECT id FROM messages WHERE line = ?1 LIMIT ?2";
        *left -= messages_remove(connection, messages, params![line, *left])?;
        if *left == 0 {
            return Ok(true);
        }
        *left -= connection
            .prepare_cached(
                "DELETE FROM session_state WHERE id IN (SELECT id FROM session_state WHERE line = ?1 LIMIT ?2)",
            )?
            .execute(params![line, *left])? as i64;
        if *left == 0 {
            return Ok(true);
        }
        adopt(connection, session, "SELECT parent_line FROM lines WHERE line = ?1", line)?;
        let opener = connection
            .prepare_cached("DELETE FROM lines WHERE line = ?1 RETURNING opened_by")?
            .query_row([line], |row| row.get::<_, Option<[u8; 16]>>(0))?;
        let opener = opener.map(SessionId::from_bytes).filter(|opener| *opener != session);
        if let Some(opener) = opener {
            opener_purge(connection, opener)?;
        }
        *left -= 1;
        if *left == 0 {
            return Ok(true);
        }
    }
}

/// Removes state of a session that is on no line of its own, unless lines of it are still read; true while there is
/// more.
fn away_purge(connection: &Connection, session: SessionId) -> Result<bool> {
    let removed = connection
        .prepare_cached(
            "DELETE FROM session_state WHERE id IN (SELECT id FROM session_state WHERE session_id = ?1 AND away = 1 LIMIT ?2)
               AND NOT EXISTS (SELECT 1 FROM lines WHERE opened_by = ?1)",
        )?
        .execute(params![session.bytes(), STEP])?;
    Ok(removed as i64 == STEP)
}

/// The same for a session that was purged before and whose last line has gone now.
fn opener_purge(connection: &Connection, opener: SessionId) -> Result<()> {
    let lives = "SELECT 1 FROM sessions WHERE session_id = ?1";
    if !connection.prepare_cached(lives)?.exists([opener.bytes()])? {
        while away_purge(connection, opener)? {}
    }
    Ok(())
}

/// Removes what no fork sees from the lines that are still read; true when it ran out of `left`.
fn lines_trim(connection: &Connection, session: SessionId, mut left: i64) -> Result<bool> {
    loop {
        let long = connection
            .prepare_cached(
                "SELECT line, read_to FROM (
                   SELECT line, end_pos, max(
                     coalesce((SELECT max(parent_pos) FROM lines AS c WHERE c.parent_line = l.line), 0),
                     coalesce((SELECT max(base_pos) FROM sessions AS s WHERE s.base_line = l.line AND s.session_id <> ?1), 0)
                   ) AS read_to FROM lines AS l WHERE session_id = ?1)
                 WHERE end_pos > read_to + 1 LIMIT 1",
            )?
            .query_row([session.bytes()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
            .optional()?;
        let Some((line, read_to)) = long else { return Ok(false) };
        let beyond = "SELECT id FROM messages WHERE line = ?1 AND pos > ?2 LIMIT ?3";
        left -= messages_remove(connection, beyond, params![line, read_to, left])?;
        if left <= 0 {
            return Ok(true);
        }
        connection
            .prepare_cached("UPDATE lines SET end_pos = ?2 + 1 WHERE line = ?1")?
            .execute(params![line, read_to])?;
    }
}

/// Makes the line that `which` selects this session's own if its session is gone, so that it can go as well.
fn adopt(connection: &Connection, session: SessionId, which: &str, key: impl rusqlite::ToSql) -> Result<()> {
    let sql = format!(
        "UPDATE lines SET session_id = ?1 WHERE line = ({})
           AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = lines.session_id)",
        which.replace("?1", "?2"),
    );
    connection.prepare_cached(&sql)?.execute(params![session.bytes(), key])?;
    Ok(())
}
