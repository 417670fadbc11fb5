//! Errors of PostgreSQL as errors of the store.

use mainspring_kernel::store::{StoreError, Unique};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The code with which `expect_rows` fails.
const EXPECTATION: &str = "MS001";

/// Converts an error of a read.
pub(super) fn read_error(error: &Error) -> StoreError {
    match error.code().is_some_and(|code| code.code().starts_with("22")) {
        // A value that PostgreSQL cannot hold, such as U+0000 in a name.
        true => StoreError::Corrupt(describe(error)),
        false => StoreError::Unavailable(describe(error)),
    }
}

/// True if the server has refused a statement and keeps the connection. A server that ends a connection, possibly in
/// the middle of a COMMIT, reports an error of the classes 57 or 08.
pub(super) fn is_refusal(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| !["08", "57", "58", "XX"].contains(&code.code().get(..2).unwrap_or_default()))
}

/// Converts the error of a write. If the server has answered, nothing was changed; otherwise the outcome is unknown.
pub(super) fn write_error(error: &Error) -> StoreError {
    let Some(problem) = error.as_db_error() else { return StoreError::Unavailable(describe(error)) };
    let code = problem.code();
    if code.code() == EXPECTATION {
        return StoreError::Conflict(conflict(problem.message()));
    }
    if *code == SqlState::UNIQUE_VIOLATION {
        return StoreError::Conflict(conflict(problem.constraint().unwrap_or_default()));
    }
    let class = code.code().get(..2).unwrap_or_default();
    match class {
        // Another constraint, or two rows of one commit for the same id.
        "23" | "21" => {
            tracing::warn!(error = %describe(error), "PostgreSQL refused rows that contradict others");
            StoreError::Conflict(Unique::Other)
        }
        "53" if *code == SqlState::DISK_FULL => StoreError::Full(describe(error)),
        // A value that PostgreSQL cannot hold, such as U+0000 in a name.
        "22" => StoreError::Corrupt(describe(error)),
        _ => StoreError::Unavailable(describe(error)),
    }
}

/// The unique value that a constraint protects.
fn conflict(name: &str) -> Unique {
    match name {
        "sessions_key_uq" | "sessions_external_uq" | "sessions_legacy_uq" => Unique::SessionName,
        "runs_request_uq" => Unique::RunRequest,
        "requests_pkey" | "request" => Unique::RequestKey,
        "id" => Unique::Id,
        "agents_pkey" => Unique::Agent,
        _ => Unique::Other,
    }
}

/// Returns the message with its cause, on one line. The error itself says only "db error".
pub(super) fn describe(error: &Error) -> String {
    if let Some(problem) = error.as_db_error() {
        let detail = problem.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("PostgreSQL: {}{detail} [{}]", problem.message(), problem.code().code());
    }
    let mut message = format!("PostgreSQL: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    message
}
