//! Writes and reads webhooks and their dead letters.

use mainspring_core::{Cursor, DeadLetter, Webhook, WebhookId};
use mainspring_kernel::store::{StoreError, WebhookChange};
use rusqlite::{Connection, params};

use super::columns::{Id, int};
use super::error::write_error;
use super::read::{query_all, sql_limit};

/// Applies a change. Returns false if it has no effect.
pub(super) fn webhook_write(connection: &Connection, change: &WebhookChange) -> Result<bool, StoreError> {
    let json =
        |text: serde_json::Result<String>| text.map_err(|error| StoreError::Corrupt(error.to_string()));
    let written = match change {
        WebhookChange::Add(webhook) => {
            let text = json(serde_json::to_string(webhook))?;
            let sql = "INSERT INTO webhooks (webhook_id, owner_id, webhook_json) VALUES (?1, ?2, ?3)";
            execute(connection, sql, params![webhook.id.bytes(), webhook.owner, text])
        }
        WebhookChange::Remove(id) => {
            execute(connection, "DELETE FROM dead_letters WHERE webhook_id = ?1", params![id.bytes()])
                .and_then(|_| {
                    execute(connection, "DELETE FROM webhooks WHERE webhook_id = ?1", params![id.bytes()])
                })
        }
        WebhookChange::Progress(webhook, letter) => {
            let text = json(serde_json::to_string(webhook))?;
            let letter =
                letter.as_ref().map(|letter| json(serde_json::to_string(letter)).map(|text| (letter, text)));
            progress(connection, webhook, &text, letter.transpose()?)
        }
        WebhookChange::Replace(letter) => {
            let text = json(serde_json::to_string(letter))?;
            let sql = "UPDATE dead_letters SET letter_json = ?3 WHERE webhook_id = ?1 AND event_seq = ?2";
            execute(connection, sql, params![letter.webhook.bytes(), int(letter.cursor.0), text])
        }
        WebhookChange::Forget(id, cursor) => {
            let sql = "DELETE FROM dead_letters WHERE webhook_id = ?1 AND event_seq = ?2";
            execute(connection, sql, params![id.bytes(), int(cursor.0)])
        }
    };
    written.map_err(|error| write_error(&error))
}

fn progress(
    connection: &Connection,
    webhook: &Webhook,
    text: &str,
    letter: Option<(&DeadLetter, String)>,
) -> rusqlite::Result<bool> {
    let sql = "UPDATE webhooks SET webhook_json = ?2 WHERE webhook_id = ?1";
    if !execute(connection, sql, params![webhook.id.bytes(), text])? {
        return Ok(false);
    }
    if let Some((letter, text)) = letter {
        let sql = "INSERT INTO dead_letters (webhook_id, event_seq, letter_json) VALUES (?1, ?2, ?3)
                   ON CONFLICT (webhook_id, event_seq) DO UPDATE SET letter_json = ?3";
        execute(connection, sql, params![letter.webhook.bytes(), int(letter.cursor.0), text])?;
    }
    Ok(true)
}

fn execute(connection: &Connection, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached(sql)?.execute(params)? > 0)
}

pub(super) fn webhooks(connection: &Connection, owner: Option<&str>) -> Result<Vec<Webhook>, StoreError> {
    let sql = "SELECT webhook_json FROM webhooks WHERE ?1 IS NULL OR owner_id = ?1 ORDER BY webhook_id";
    query_all(connection, sql, params![owner], |columns| columns.json())
}

pub(super) fn dead_letters(
    connection: &Connection,
    webhook: WebhookId,
    after: Cursor,
    limit: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let sql = "SELECT letter_json FROM dead_letters WHERE webhook_id = ?1 AND event_seq > ?2 ORDER BY event_seq LIMIT ?3";
    let params = params![webhook.bytes(), int(after.0), sql_limit(limit)];
    query_all(connection, sql, params, |columns| columns.json())
}
