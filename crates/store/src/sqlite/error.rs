//! What SQLite's errors mean to the caller.

use mainspring_kernel::store::{StoreError, Unique};
use rusqlite::{Error, ErrorCode};

/// The meaning of an error of a read.
pub(super) fn of_read(error: &Error) -> StoreError {
    match error {
        Error::SqliteFailure(code, _)
            if !matches!(code.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) =>
        {
            StoreError::Unavailable(error.to_string())
        }
        _ => StoreError::Corrupt(error.to_string()),
    }
}

/// The meaning of an error of a write: as for a read, and a broken constraint is a conflict.
pub(super) fn of_write(error: &Error) -> StoreError {
    match error {
        Error::SqliteFailure(code, message) if code.code == ErrorCode::ConstraintViolation => {
            let unique = broken(message.as_deref().unwrap_or_default());
            if unique == Unique::Other {
                tracing::warn!(%error, "a commit broke a rule of the schema");
            }
            StoreError::Conflict(unique)
        }
        _ => of_read(error),
    }
}

/// SQLite names the columns of the index that was violated, not the index.
fn broken(message: &str) -> Unique {
    const NAMES: [&str; 3] = ["sessions.key", "sessions.external_ref_id", "sessions.legacy_session_key"];
    match message {
        _ if message.contains("runs.request_id") => Unique::RunRequest,
        _ if message.starts_with("UNIQUE") && NAMES.iter().any(|name| message.contains(name)) => {
            Unique::SessionName
        }
        _ => Unique::Other,
    }
}
