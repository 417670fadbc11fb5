//! Writes and reads feedback on messages.

use mainspring_core::{Feedback, MessageId, SessionId};
use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, params};

use super::columns::{Id, blob, json};
use super::read::{query_all, sql_limit};
use super::write::WriteResult;

/// Stores feedback in place of the earlier one of the same reader on the same message.
pub(super) fn feedback_write(connection: &Connection, feedback: &Feedback) -> WriteResult {
    let sql = "INSERT INTO feedback (session_id, message_id, owner_id, feedback_json) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (session_id, message_id, owner_id) DO UPDATE SET feedback_json = ?4";
    let (session, message) = (feedback.session.bytes(), feedback.message.bytes());
    let json = json(feedback)?;
    connection.prepare_cached(sql)?.execute(params![session, message, feedback.owner, json])?;
    Ok(())
}

pub(super) fn feedback_list(
    connection: &Connection,
    session: SessionId,
    message: Option<MessageId>,
    limit: usize,
) -> Result<Vec<Feedback>, StoreError> {
    let sql =
        "SELECT feedback_json FROM feedback WHERE session_id = ?1 AND message_id = coalesce(?2, message_id)
               ORDER BY message_id, owner_id LIMIT ?3";
    let params = params![session.bytes(), blob(message), sql_limit(limit)];
    query_all(connection, sql, params, |columns| columns.json())
}
