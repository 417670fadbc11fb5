//! Maps errors of SQLite to errors of the store.

use mainspring_kernel::contain::Panic;
use mainspring_kernel::store::{StoreError, Unique};
use rusqlite::{Error, ErrorCode};

use super::checksum::Mismatch;

/// Maps the error of a read.
pub(super) fn read_error(error: &Error) -> StoreError {
    match error {
        Error::SqliteFailure(code, _) if code.code == ErrorCode::DiskFull => {
            StoreError::Full(error.to_string())
        }
        Error::SqliteFailure(code, _)
            if !matches!(code.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) =>
        {
            StoreError::Unavailable(error.to_string())
        }
        // The mismatch names the row. The column adds nothing.
        Error::FromSqlConversionFailure(_, _, cause) if cause.is::<Mismatch>() => {
            StoreError::Corrupt(cause.to_string())
        }
        _ => StoreError::Corrupt(error.to_string()),
    }
}

/// The error of a read or a write that has panicked. The message of the panic may quote data, so it is only logged.
pub(super) fn panicked(what: &str, panic: &Panic) -> StoreError {
    tracing::error!(%panic, "{what} of the database panicked");
    StoreError::Corrupt(format!(
        "{what} of the database panicked, which is a bug or damage: the log says where; `mainspring doctor --thorough` checks the file"
    ))
}

/// Maps the error of a write like [`read_error`], except that a violated constraint is a conflict.
pub(super) fn write_error(error: &Error) -> StoreError {
    match error {
        Error::SqliteFailure(code, message) if code.code == ErrorCode::ConstraintViolation => {
            let unique = violated(message.as_deref().unwrap_or_default());
            if unique == Unique::Other {
                tracing::warn!(%error, "a commit violated a constraint of the schema");
            }
            StoreError::Conflict(unique)
        }
        _ => read_error(error),
    }
}

/// Maps the error of beginning or ending a transaction. The outcome of the transaction is unknown.
pub(super) fn transaction_error(error: &Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// Finds the violated index in the message, which names its columns.
fn violated(message: &str) -> Unique {
    const NAMES: [&str; 3] = ["sessions.key", "sessions.external_ref_id", "sessions.legacy_session_key"];
    match message {
        _ if message.contains("runs.request_id") => Unique::RunRequest,
        _ if message.starts_with("UNIQUE") && NAMES.iter().any(|name| message.contains(name)) => {
            Unique::SessionName
        }
        _ => Unique::Other,
    }
}
