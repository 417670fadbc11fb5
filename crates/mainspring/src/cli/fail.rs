//! Exit codes, and what goes before them.

use mainspring_kernel::Error;
use serde_json::{Value, json};

use crate::config::ConfigError;
use crate::node::NodeError;

/// How the process ends. The numbers are documented and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Exit {
    Done = 0,
    RunFailed = 1,
    BadRequest = 2,
    NotFound = 3,
    Refused = 4,
    NotNow = 5,
    Owned = 6,
    Waiting = 7,
    Cancelled = 130,
}

/// A command that could not be carried out: a stable code, and a sentence that names the thing and the remedy.
#[derive(Debug)]
pub(super) struct Fail {
    pub(super) exit: Exit,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) retryable: bool,
}

impl Fail {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { exit: Exit::BadRequest, code: "invalid_request", message: message.into(), retryable: false }
    }

    pub(super) fn json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message, "retryable": self.retryable}})
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::NotFound { .. } => Exit::NotFound,
            Error::Invalid(_)
            | Error::TooLarge { .. }
            | Error::UnknownAdapter { .. }
            | Error::Unsupported { .. } => Exit::BadRequest,
            Error::NotUserMessage(_) | Error::NotAssistantMessage(_) | Error::Abandoned(_) => {
                Exit::BadRequest
            }
            Error::RequestConflict { .. } | Error::AlreadyExists { .. } | Error::Busy { .. } => Exit::Refused,
            Error::NotLatest(_) | Error::Refused(_) | Error::Changed { .. } => Exit::Refused,
            Error::Overloaded { .. } | Error::ShuttingDown | Error::Unavailable(_) | Error::Corrupt(_) => {
                Exit::NotNow
            }
        };
        Self { exit, code: error.code(), message: error.to_string(), retryable: error.is_retryable() }
    }
}

impl From<NodeError> for Fail {
    fn from(error: NodeError) -> Self {
        let (exit, code) = match &error {
            NodeError::StateDir(mainspring_store::StateDirError::Busy { .. }) => {
                (Exit::Owned, "state_dir_owned")
            }
            NodeError::StateDir(_) => (Exit::NotNow, "state_dir_unusable"),
            NodeError::Models(_) => (Exit::BadRequest, "invalid_config"),
            NodeError::Store(_) => (Exit::NotNow, "store_unusable"),
            NodeError::Kernel { source, .. } => (Exit::NotNow, source.code()),
        };
        let message = chain(&error);
        Self { exit, code, message, retryable: exit == Exit::Owned }
    }
}

impl From<ConfigError> for Fail {
    fn from(error: ConfigError) -> Self {
        Self { exit: Exit::BadRequest, code: "invalid_config", message: error.to_string(), retryable: false }
    }
}

impl From<std::io::Error> for Fail {
    fn from(error: std::io::Error) -> Self {
        Self { exit: Exit::NotNow, code: "io", message: error.to_string(), retryable: false }
    }
}

/// An error and its sources, each once.
fn chain(error: &dyn std::error::Error) -> String {
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
