//! What the kernel says when it will not do as asked: a stable code, the thing, the remedy.

use mainspring_core::{BadName, MessageId, Position, Refusal, RunId, RunStatus, SessionId, VersionMismatch};

use crate::store::StoreError;

/// Why the kernel did not do as asked. Nothing changed, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such thing, or none that the caller may see.
    #[error("no {what} {name:?}")]
    NotFound {
        /// What kind of thing.
        what: &'static str,
        /// What was asked for.
        name: String,
    },
    /// The caller may see it, and may not do this with it.
    #[error("{0}")]
    Forbidden(String),
    /// The request does not make sense.
    #[error("{0}")]
    Invalid(String),
    /// Something is larger than allowed.
    #[error("{what} has {size} bytes; at most {limit} are allowed")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// There are as many as there may be.
    #[error("there are {limit} {what} already, and no more are allowed; remove some first")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// The adapter is not one of ours.
    #[error("no adapter {name:?}; there is {known}")]
    UnknownAdapter {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The adapter cannot do this.
    #[error("adapter {adapter:?} cannot {what}")]
    Unsupported {
        /// Which adapter.
        adapter: String,
        /// What it cannot do.
        what: &'static str,
    },
    /// The adapter's runtime was not authenticated.
    #[error("{adapter:?} was not authenticated: {why}")]
    LoginFailed {
        /// Which adapter.
        adapter: String,
        /// What its runtime says.
        why: String,
    },
    /// The same request name was used before for something else.
    #[error("{name} was used before for another request; use a new one, or send the same request again")]
    RequestConflict {
        /// The name.
        name: String,
    },
    /// The session's key, reference or alias is taken.
    #[error("a session named {name} exists already")]
    AlreadyExists {
        /// The name.
        name: String,
    },
    /// A version of an agent never changes.
    #[error(
        "the agent {name} says something else already, and a version never changes; make the next version"
    )]
    AgentTaken {
        /// Its name.
        name: String,
    },
    /// A session cannot be both made and loaded.
    #[error("start a session as new or load one, not both")]
    AmbiguousMode,
    /// Neither the session nor whoever starts it names a model.
    #[error("no model: the session has none, and none was given; give a model or a model profile")]
    NoModel,
    /// A session begins without messages.
    #[error("a session begins without messages: send prompts, or import a file")]
    InitialMessages,
    /// A file that was to be imported makes no sense. Nothing of it is there.
    #[error("line {line}: {reason}")]
    BadImport {
        /// Which line of the file, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else has changed it meanwhile. Look again, then try again.
    #[error("it was changed meanwhile: version {expected} was expected, it stands at {now}")]
    Changed {
        /// The version the caller knew.
        expected: u64,
        /// The version it has.
        now: u64,
    },
    /// This is only possible while no run of the session is active or queued.
    #[error("the session is busy: its run is {status}")]
    Busy {
        /// Where the run stands.
        status: RunStatus,
    },
    /// Only a user message can be answered again.
    #[error("{0} is not a user message")]
    NotUserMessage(MessageId),
    /// Only beneath an assistant message can a prompt be edited.
    #[error("{0} is not an assistant message")]
    NotAssistantMessage(MessageId),
    /// What was rolled back is kept to be read, and is not gone on from.
    #[error("{0} is part of a branch that was rolled back; branch from a message that was not")]
    Abandoned(MessageId),
    /// Only the session's last run can be tried again.
    #[error("{0} is not the last run of its session; only the last one can be tried again")]
    NotLatest(RunId),
    /// The events that were asked for are gone: they were pruned.
    #[error(
        "the events up to {floor} were pruned; take a snapshot and go on after its position, or read after {floor}"
    )]
    Expired {
        /// Up to where events are gone.
        floor: Position,
    },
    /// A rule said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too much is waiting already. Try again later.
    #[error("{what} is full: {limit} prompts wait already; try again later")]
    Overloaded {
        /// Which queue.
        what: &'static str,
        /// How many it holds.
        limit: usize,
    },
    /// Whoever is waited for needs a worker, and those who wait have them all. Try again later.
    #[error(
        "all {limit} workers of {adapter:?} are at work, and a run that is waited for cannot wait for one; \
         spawn it instead, or try again later"
    )]
    AdapterFull {
        /// Which adapter.
        adapter: String,
        /// How many workers it has.
        limit: usize,
    },
    /// Whoever was delegated to has delegated, and so on.
    #[error("this would be delegation {depth} deep; at most {limit} is allowed")]
    TooDeep {
        /// How deep it would be.
        depth: u32,
        /// How deep it may be.
        limit: u32,
    },
    /// Those who wait for each other wait for ever.
    #[error("{0} waits, itself or through others, for the session that would wait for it; spawn instead")]
    WouldDeadlock(SessionId),
    /// The process is stopping. Try again later.
    #[error("mainspring is shutting down; try again once it is back")]
    ShuttingDown,
    /// The store did not do its part. Whether a change was made was looked up: it was not. Try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// What is stored does not make sense.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
}

impl Error {
    mainspring_core::codes! {
        Self::NotFound { .. } => "not_found",
        Self::Forbidden(_) => "forbidden",
        Self::Invalid(_) => "invalid_request",
        Self::TooLarge { .. } => "too_large",
        Self::TooMany { .. } => "too_many",
        Self::UnknownAdapter { .. } => "adapter_not_registered",
        Self::Unsupported { .. } => "adapter_incompatible",
        Self::LoginFailed { .. } => "login_failed",
        Self::RequestConflict { .. } => "request_conflict",
        Self::AlreadyExists { .. } => "already_exists",
        Self::AgentTaken { .. } => "agent_taken",
        Self::AmbiguousMode => "ambiguous_mode",
        Self::NoModel => "no_model",
        Self::InitialMessages => "initial_messages_not_supported",
        Self::BadImport { .. } => "invalid_import",
        Self::Changed { .. } => "version_conflict",
        Self::Busy { .. } => "session_busy",
        Self::NotUserMessage(_) => "not_user_message",
        Self::NotAssistantMessage(_) => "not_assistant_message",
        Self::Abandoned(_) => "abandoned_message",
        Self::NotLatest(_) => "not_latest_run",
        Self::Expired { .. } => "cursor_expired",
        Self::Overloaded { .. } => "overloaded",
        Self::AdapterFull { .. } => "adapter_full",
        Self::TooDeep { .. } => "delegation_too_deep",
        Self::WouldDeadlock(_) => "would_deadlock",
        Self::ShuttingDown => "shutting_down",
        Self::Unavailable(_) => "unavailable",
        Self::Corrupt(_) => "corrupt",
        ; Self::Refused(refusal) => refusal.code(),
    }

    /// True when the same request may succeed later.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Overloaded { .. } | Self::AdapterFull { .. } | Self::ShuttingDown | Self::Unavailable(_)
        )
    }

    /// There is no such thing, or none that the caller may see.
    #[expect(clippy::needless_pass_by_value, reason = "ids are copied; a reference would only be noise")]
    pub fn not_found(what: &'static str, name: impl ToString) -> Self {
        Self::NotFound { what, name: name.to_string() }
    }

    /// A native session is one session's.
    pub(crate) fn native_taken() -> Self {
        Self::Invalid("this native session belongs to another session already".into())
    }
}

impl From<BadName> for Error {
    fn from(bad: BadName) -> Self {
        Self::Invalid(bad.to_string())
    }
}

impl From<VersionMismatch> for Error {
    fn from(mismatch: VersionMismatch) -> Self {
        Self::Changed { expected: mismatch.expected, now: mismatch.current }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Pruned(floor) => Self::Expired { floor },
            StoreError::Corrupt(what) => Self::Corrupt(what),
            StoreError::Unavailable(what) => Self::Unavailable(what),
            StoreError::Fenced | StoreError::Conflict(_) => Self::Unavailable(error.to_string()),
        }
    }
}
