//! Exit codes, and the errors behind them.

use std::borrow::Cow;

use mainspring_kernel::Error;
use serde_json::{Value, json};

use mainspring::NodeError;
use mainspring::ServeError;
use mainspring::backup::BackupError;
use mainspring::config::ConfigError;
use mainspring::store_copy::StoreCopyError;

/// How the process ends. The numbers are documented and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Exit {
    Done = 0,
    RunFailed = 1,
    BadRequest = 2,
    NotFound = 3,
    Refused = 4,
    Unavailable = 5,
    StateDirInUse = 6,
    Waiting = 7,
    Cancelled = 130,
}

/// Error of a command: a stable code, and a message that names the object and the remedy.
#[derive(Debug)]
pub(super) struct CliError {
    pub(super) exit: Exit,
    pub(super) code: Cow<'static, str>,
    pub(super) message: String,
    pub(super) retryable: bool,
}

impl CliError {
    /// Code for invalid arguments.
    pub(super) const INVALID_REQUEST: &str = "invalid_request";

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::BadRequest,
            code: Self::INVALID_REQUEST.into(),
            message: message.into(),
            retryable: false,
        }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit: Exit::NotFound, code: "not_found".into(), message, retryable: false }
    }

    /// The error for a database that this version cannot use as it is.
    pub(super) fn unusable(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit: Exit::Unavailable, code: "store_unusable".into(), message, retryable: false }
    }

    pub(super) fn json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message, "retryable": self.retryable}})
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::NotFound { .. } => Exit::NotFound,
            Error::Invalid(_)
            | Error::UnsafeName { .. }
            | Error::TooLarge { .. }
            | Error::UnknownAdapter { .. }
            | Error::Unsupported { .. }
            | Error::UnusedOption { .. }
            | Error::LimitNotKept { .. } => Exit::BadRequest,
            Error::BadImport { .. }
            | Error::AmbiguousMode
            | Error::NoModel
            | Error::InitialMessages
            | Error::NotUserMessage(_)
            | Error::NotAssistantMessage(_)
            | Error::Abandoned(_) => Exit::BadRequest,
            Error::RequestConflict { .. } | Error::AlreadyExists { .. } | Error::AlreadyBound { .. } => {
                Exit::Refused
            }
            Error::Busy { .. } => Exit::Refused,
            Error::TooMany { .. } | Error::AgentTaken { .. } | Error::GoalTypeTaken { .. } => Exit::Refused,
            Error::NotLatest(_)
            | Error::NotAtTip(_)
            | Error::Expired { .. }
            | Error::Lost { .. }
            | Error::Refused(_) => Exit::Refused,
            Error::Forbidden(_)
            | Error::NoLiveAttempt
            | Error::FolderNotAllowed(_)
            | Error::NotListed(_)
            | Error::SpendLimit { .. }
            | Error::Changed { .. } => Exit::Refused,
            Error::LoginFailed { .. } | Error::TooDeep { .. } | Error::WouldDeadlock(_) => Exit::Refused,
            Error::Overloaded { .. }
            | Error::QuotaReached { .. }
            | Error::ShareReached { .. }
            | Error::AdapterFull { .. }
            | Error::TooManyChildren { .. }
            | Error::ShuttingDown => Exit::Unavailable,
            Error::StoreFull(_)
            | Error::AuditFailed(_)
            | Error::Elsewhere { .. }
            | Error::NoServer(_)
            | Error::AtHome { .. }
            | Error::Unavailable(_)
            | Error::StoreLost(_)
            | Error::Corrupt(_)
            | Error::SessionFailed { .. } => Exit::Unavailable,
        };
        Self { exit, code: error.code().into(), message: error.to_string(), retryable: error.is_retryable() }
    }
}

impl From<mainspring_client::Error> for CliError {
    fn from(error: mainspring_client::Error) -> Self {
        use mainspring_client::Error as E;
        let exit = match &error {
            E::Refused(problem) => match problem.status {
                404 => Exit::NotFound,
                401 | 403 | 409 | 410 | 412 => Exit::Refused,
                429 | 500.. => Exit::Unavailable,
                _ => Exit::BadRequest,
            },
            E::Unreachable { .. } | E::Broken { .. } | E::NoResponse { .. } | E::Protocol { .. } => {
                Exit::Unavailable
            }
            E::Invalid(_) => Exit::BadRequest,
        };
        let code = error.code().to_owned().into();
        Self { exit, code, message: chain(&error), retryable: error.is_retryable() }
    }
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        Self {
            exit: Exit::Unavailable,
            code: error.code().into(),
            message: error.to_string(),
            retryable: true,
        }
    }
}

impl From<NodeError> for CliError {
    fn from(error: NodeError) -> Self {
        let exit = match &error {
            NodeError::StateDir(mainspring_store::StateDirError::Busy { .. }) => Exit::StateDirInUse,
            NodeError::Models(_) | NodeError::ArtifactStore(_) => Exit::BadRequest,
            _ => Exit::Unavailable,
        };
        let message = chain(&error);
        Self { exit, code: error.code().to_owned().into(), message, retryable: exit == Exit::StateDirInUse }
    }
}

impl From<BackupError> for CliError {
    fn from(error: BackupError) -> Self {
        let exit = match &error {
            BackupError::Exists { .. }
            | BackupError::Database { source: mainspring_store::CopyError::NotEmpty(_), .. } => Exit::Refused,
            BackupError::Nothing { .. } => Exit::NotFound,
            BackupError::NotABackup { .. }
            | BackupError::ArtifactsElsewhere { .. }
            | BackupError::ArtifactsHere { .. } => Exit::BadRequest,
            BackupError::StateDir(mainspring_store::StateDirError::Busy { .. }) => Exit::StateDirInUse,
            _ => Exit::Unavailable,
        };
        let retryable = exit == Exit::StateDirInUse;
        Self { exit, code: error.code().into(), message: chain(&error), retryable }
    }
}

impl From<StoreCopyError> for CliError {
    fn from(error: StoreCopyError) -> Self {
        use mainspring_store::{CopyError, StateDirError};
        let message = chain(&error);
        let (exit, code) = match error {
            StoreCopyError::StateDir(StateDirError::Busy { .. }) => (Exit::StateDirInUse, "state_dir_owned"),
            StoreCopyError::Same(_) => (Exit::BadRequest, Self::INVALID_REQUEST),
            StoreCopyError::Copy(CopyError::NotEmpty(_)) => (Exit::Refused, "store_not_empty"),
            StoreCopyError::Copy(CopyError::OfAnother(_)) => (Exit::Refused, "copy_of_another"),
            StoreCopyError::Copy(CopyError::Damaged { .. }) => (Exit::Unavailable, "corrupt"),
            StoreCopyError::Copy(CopyError::NoSource(_) | CopyError::NotACopy(_)) => {
                (Exit::NotFound, "not_found")
            }
            _ => (Exit::Unavailable, "store_unusable"),
        };
        Self { exit, code: code.into(), message, retryable: exit == Exit::StateDirInUse }
    }
}

impl From<mainspring_store::OpenError> for CliError {
    fn from(error: mainspring_store::OpenError) -> Self {
        NodeError::from(error).into()
    }
}

impl From<mainspring_store::StateDirError> for CliError {
    fn from(error: mainspring_store::StateDirError) -> Self {
        NodeError::from(error).into()
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self {
            exit: Exit::BadRequest,
            code: "invalid_config".into(),
            message: error.to_string(),
            retryable: false,
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self { exit: Exit::Unavailable, code: "io".into(), message: error.to_string(), retryable: false }
    }
}

/// Joins the messages of an error and its sources, each once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
