//! Removes deleted data in small steps, so that other jobs do not wait long for the writer.
//!
//! Events are removed first, messages last. A line that a fork reads outlives its session, until the last fork that reads
//! the line is purged.

use mainspring_core::{SessionId, Time};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::{Id, int};
use super::search::messages_delete;

/// The most rows one step removes.
const STEP_ROWS: i64 = 1000;

/// Statements that delete the rows of one session.
const DELETE_SESSION_ROWS: [&str; 13] = [
    "DELETE FROM events WHERE event_seq IN (SELECT event_seq FROM events WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM retention WHERE session_id IN (SELECT session_id FROM retention WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM chunks WHERE (session_id, pos) IN (SELECT session_id, pos FROM chunks WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM effects WHERE id IN (SELECT id FROM effects WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM cursors WHERE (session_id, line, pos) IN
       (SELECT session_id, line, pos FROM cursors WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM digests WHERE (line, pos, session_id) IN
       (SELECT line, pos, session_id FROM digests WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM step_inputs WHERE (session_id, hash) IN
       (SELECT session_id, hash FROM step_inputs WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM artifacts WHERE artifact_id IN (SELECT artifact_id FROM artifacts WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM inherited_artifacts WHERE (session_id, artifact_id) IN
       (SELECT session_id, artifact_id FROM inherited_artifacts WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM grants WHERE grant_id IN (SELECT grant_id FROM grants WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM adapter_bindings WHERE binding_id IN
       (SELECT binding_id FROM adapter_bindings WHERE session_id = ?1 LIMIT ?2)",
    "DELETE FROM delegations WHERE delegation_id IN
       (SELECT delegation_id FROM delegations WHERE parent_session_id = ?1 LIMIT ?2)",
];

/// Removes up to [`STEP_ROWS`] rows of a deleted session. Returns true while there are more.
pub(super) fn session_purge(connection: &Connection, session: SessionId, seq: u64) -> Result<bool> {
    let deleted = "SELECT 1 FROM sessions WHERE session_id = ?1 AND status = 'deleted'";
    if !connection.prepare_cached(deleted)?.exists([session.bytes()])? {
        return Ok(false);
    }
    seq_save(connection, seq)?;
    let mut left = STEP_ROWS;
    for sql in DELETE_SESSION_ROWS {
        left -= delete_some(connection, sql, session, left)?;
        if left == 0 {
            return Ok(true);
        }
    }
    // Foreign keys delete the attempts, steps and state of the runs.
    let runs = "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE session_id = ?1 LIMIT ?2)";
    left -= delete_some(connection, runs, session, left)?;
    let unplaced = "SELECT id FROM messages WHERE session_id = ?1 AND line IS NULL LIMIT ?2";
    left -= messages_delete(connection, unplaced, params![session.bytes(), left])?;
    let has_more_lines =
        left == 0 || lines_purge(connection, session, &mut left)? || lines_trim(connection, session, left)?;
    if has_more_lines || away_state_purge(connection, session)? {
        return Ok(true);
    }
    let title =
        "DELETE FROM search_titles WHERE rowid = (SELECT searched_row FROM sessions WHERE session_id = ?1)";
    connection.prepare_cached(title)?.execute([session.bytes()])?;
    connection.prepare_cached("DELETE FROM sessions WHERE session_id = ?1")?.execute([session.bytes()])?;
    Ok(false)
}

/// Removes up to [`STEP_ROWS`] pruned events of a session. Returns true while there are more. The first event stays: it
/// marks the creation of the session, which decides what a fork sees of its source's state.
pub(super) fn events_prune(connection: &Connection, session: SessionId, seq: u64) -> Result<bool> {
    let floor = "SELECT floor_seq FROM retention WHERE session_id = ?1 AND pruned = 0";
    let floor = connection
        .prepare_cached(floor)?
        .query_row([session.bytes()], |row| row.get::<_, i64>(0))
        .optional()?;
    let Some(floor) = floor else { return Ok(false) };
    seq_save(connection, seq)?;
    let removed = connection
        .prepare_cached(
            "DELETE FROM events WHERE event_seq IN
               (SELECT event_seq FROM events WHERE session_id = ?1 AND event_seq <= ?2
                  AND event_seq > (SELECT min(event_seq) FROM events WHERE session_id = ?1)
                ORDER BY event_seq LIMIT ?3)",
        )?
        .execute(params![session.bytes(), floor, STEP_ROWS])? as i64;
    if removed == STEP_ROWS {
        return Ok(true);
    }
    connection
        .prepare_cached("UPDATE retention SET pruned = 1 WHERE session_id = ?1")?
        .execute([session.bytes()])?;
    Ok(false)
}

/// Saves the last cursor, so that it is not reused if the events with the highest cursors are removed.
fn seq_save(connection: &Connection, seq: u64) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO meta VALUES ('event_seq', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1",
        )?
        .execute([int(seq)])?;
    Ok(())
}

/// True if requests were made before `before`.
pub(super) fn has_expired_requests(connection: &Connection, before: Time) -> Result<bool> {
    connection.prepare_cached("SELECT 1 FROM requests WHERE created_at_ms < ?1 LIMIT 1")?.exists([before.0])
}

/// Removes up to [`STEP_ROWS`] requests made before `before`. Returns true while there are more.
pub(super) fn requests_forget(connection: &Connection, before: Time) -> Result<bool> {
    let removed = connection
        .prepare_cached(
            "DELETE FROM requests WHERE (owner_id, operation, key) IN
               (SELECT owner_id, operation, key FROM requests WHERE created_at_ms < ?1 LIMIT ?2)",
        )?
        .execute(params![before.0, STEP_ROWS])?;
    Ok(removed as i64 == STEP_ROWS)
}

/// Runs one of the statements that delete up to `left` rows of a session.
fn delete_some(connection: &Connection, sql: &str, session: SessionId, left: i64) -> Result<i64> {
    Ok(connection.prepare_cached(sql)?.execute(params![session.bytes(), left])? as i64)
}

/// Removes lines that no session reads, leaves first. Returns true if `left` is used up.
fn lines_purge(connection: &Connection, session: SessionId, left: &mut i64) -> Result<bool> {
    // If the session is a fork, its source may be gone, except for the lines that the fork reads.
    line_adopt(connection, session, "SELECT base_line FROM sessions WHERE session_id = ?1", session.bytes())?;
    loop {
        // Newest first, because the newest line most likely has no children.
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
        *left -= messages_delete(connection, messages, params![line, *left])?;
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
        line_adopt(connection, session, "SELECT parent_line FROM lines WHERE line = ?1", line)?;
        let opener = connection
            .prepare_cached("DELETE FROM lines WHERE line = ?1 RETURNING opened_by")?
            .query_row([line], |row| row.get::<_, Option<[u8; 16]>>(0))?;
        let opener = opener.map(SessionId::from_bytes).filter(|opener| *opener != session);
        if let Some(opener) = opener {
            opener_state_purge(connection, opener)?;
        }
        *left -= 1;
        if *left == 0 {
            return Ok(true);
        }
    }
}

/// Removes state that a session wrote on lines of other sessions, unless its own lines are still read. Returns true
/// while there is more.
fn away_state_purge(connection: &Connection, session: SessionId) -> Result<bool> {
    let removed = connection
        .prepare_cached(
            "DELETE FROM session_state WHERE id IN (SELECT id FROM session_state WHERE session_id = ?1 AND away = 1 LIMIT ?2)
               AND NOT EXISTS (SELECT 1 FROM lines WHERE opened_by = ?1)",
        )?
        .execute(params![session.bytes(), STEP_ROWS])?;
    Ok(removed as i64 == STEP_ROWS)
}

/// Removes the state that a session wrote on lines of other sessions, if it was purged earlier and its own last line
/// was removed now.
fn opener_state_purge(connection: &Connection, opener: SessionId) -> Result<()> {
    let exists = "SELECT 1 FROM sessions WHERE session_id = ?1";
    if !connection.prepare_cached(exists)?.exists([opener.bytes()])? {
        while away_state_purge(connection, opener)? {}
    }
    Ok(())
}

/// Removes the messages that no fork reads from lines that are still read. Returns true if `left` is used up.
fn lines_trim(connection: &Connection, session: SessionId, mut left: i64) -> Result<bool> {
    loop {
        let untrimmed = connection
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
        let Some((line, read_to)) = untrimmed else { return Ok(false) };
        let beyond = "SELECT id FROM messages WHERE line = ?1 AND pos > ?2 LIMIT ?3";
        left -= messages_delete(connection, beyond, params![line, read_to, left])?;
        if left <= 0 {
            return Ok(true);
        }
        connection
            .prepare_cached("UPDATE lines SET end_pos = ?2 + 1 WHERE line = ?1")?
            .execute(params![line, read_to])?;
    }
}

/// Assigns the line that `select_line` returns to this session if its own session is gone, so that the purge removes it.
fn line_adopt(
    connection: &Connection,
    session: SessionId,
    select_line: &str,
    key: impl rusqlite::ToSql,
) -> Result<()> {
    let sql = format!(
        "UPDATE lines SET session_id = ?1 WHERE line = ({})
           AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = lines.session_id)",
        select_line.replace("?1", "?2"),
    );
    connection.prepare_cached(&sql)?.execute(params![session.bytes(), key])?;
    Ok(())
}
