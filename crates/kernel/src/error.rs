//! Errors of the kernel: a stable code, and a message that names the object and the remedy.

use mainspring_core::{
    BadIdPrefix, BadName, Cost, Cursor, Damage, MessageId, NodeId, NotListed, Position, Refusal, Resource,
    RunId, RunOption, RunStatus, SessionId, Spend, UsageReports, VersionMismatch,
};

use crate::folders::FolderRefusal;
use crate::store::{StoreError, Unique};

/// Why the kernel refused or failed a request. Nothing changed, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object does not exist, or the caller may not see it.
    #[error("no {what} {name:?}")]
    NotFound {
        /// Kind of object.
        what: &'static str,
        /// Name or id that was requested.
        name: String,
    },
    /// The caller may read the object, but may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The token belongs to an agent process that serves no attempt at the moment.
    #[error("the agent works on no run at the moment: an agent calls only while its turn runs")]
    NoLiveAttempt,
    /// The agent may not work in the folder.
    #[error(transparent)]
    FolderNotAllowed(#[from] FolderRefusal),
    /// The adapter, model or tool is not on the list of the caller's key, or the run must name a model.
    #[error(transparent)]
    NotListed(#[from] NotListed),
    /// The runs of the caller's key have reached its spend per day. Retry tomorrow.
    #[error(
        "the key's runs have cost {}{} today, and its spend per day is {}; try again after midnight UTC, or use another key",
        if spend.at_least { "at least " } else { "" }, spend.cost, limit
    )]
    SpendLimit {
        /// The cost of today.
        spend: Spend,
        /// The spend per day of the key.
        limit: Cost,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The name of an owner or an org could be mistaken for another name.
    #[error("{what} named \"{name}\" {reason}; choose another name")]
    UnsafeName {
        /// Kind of object.
        what: &'static str,
        /// The name, with its invisible characters escaped.
        name: String,
        /// The problem of the name.
        reason: &'static str,
    },
    /// A size limit is exceeded.
    #[error("{what} has {size} bytes; at most {limit} are allowed")]
    TooLarge {
        /// The object that is too large.
        what: &'static str,
        /// The size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A limit on a number of objects is reached.
    #[error("there are {limit} {what} already, and no more are allowed; remove some first")]
    TooMany {
        /// Kind of object.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The adapter is not registered.
    #[error("no adapter {name:?}; there is {known}")]
    UnknownAdapter {
        /// Name that was requested.
        name: String,
        /// Names of the registered adapters.
        known: String,
    },
    /// The adapter lacks a capability.
    #[error("adapter {adapter:?} cannot {what}")]
    Unsupported {
        /// The adapter.
        adapter: String,
        /// The missing capability.
        what: &'static str,
    },
    /// The adapter does not use an option of the run.
    #[error("adapter {adapter:?} does not use the option {}: leave it out{}", .option.name(), alternatives(.using))]
    UnusedOption {
        /// The adapter.
        adapter: String,
        /// The option.
        option: RunOption,
        /// Names of the adapters that use the option.
        using: String,
    },
    /// The adapter cannot keep a limit of the run.
    #[error(
        "adapter {adapter:?} cannot keep {limit}: {}; leave it out, or set bestEffort in the limits to be told afterwards",
        unkept(.limit, *.reports)
    )]
    LimitNotKept {
        /// The adapter.
        adapter: String,
        /// The limit, by its name in JSON.
        limit: &'static str,
        /// When the adapter reports usage.
        reports: UsageReports,
    },
    /// Authentication of the adapter's runtime failed.
    #[error("{adapter:?} was not authenticated: {why}")]
    LoginFailed {
        /// The adapter.
        adapter: String,
        /// Message of the runtime.
        why: String,
    },
    /// The request name was used before for a different request.
    #[error("{name} was used before for another request; use a new one, or send the same request again")]
    RequestConflict {
        /// Name of the request.
        name: String,
    },
    /// The session's key, reference or alias is taken.
    #[error("a session named {name} exists already")]
    AlreadyExists {
        /// Name of the session.
        name: String,
    },
    /// The session has, or had, a binding of the adapter; an adopted native session must be the first one.
    #[error(
        "the session is or was bound to {native} of {adapter:?} already; adopt the agent's session into a new session"
    )]
    AlreadyBound {
        /// The adapter.
        adapter: String,
        /// Id of the native session.
        native: String,
    },
    /// The version of the agent exists with different content, and versions never change.
    #[error(
        "the agent {name} says something else already, and a version never changes; make the next version"
    )]
    AgentTaken {
        /// Name and version of the agent.
        name: String,
    },
    /// A shared goal type has the same name and different content.
    #[error(
        "the goal type {name:?} is shared by all owners: it is built in, or configured; choose another name"
    )]
    GoalTypeTaken {
        /// Name of the goal type.
        name: String,
    },
    /// The request asks both for a new session and for an existing one.
    #[error("start a session as new or load one, not both")]
    AmbiguousMode,
    /// Neither the session nor the request names a model.
    #[error("no model: the session has none, and none was given; give a model or a model profile")]
    NoModel,
    /// The request brings initial messages, but a session begins without messages.
    #[error("a session begins without messages: send prompts, or import a file")]
    InitialMessages,
    /// The imported file is invalid. Nothing was imported.
    #[error("line {line}: {reason}")]
    BadImport {
        /// Number of the invalid line, from 1.
        line: u64,
        /// The problem with the line.
        reason: String,
    },
    /// The object was changed by another request. Read it again, then retry.
    #[error(
        "the object has changed meanwhile: version {expected} was expected, but its version is {now}; read it again"
    )]
    Changed {
        /// Version that the caller expected.
        expected: u64,
        /// Present version.
        now: u64,
    },
    /// The session has an active or queued run.
    #[error("the session is busy: its run is {status}")]
    Busy {
        /// Status of the run.
        status: RunStatus,
    },
    /// The message is not a user message; only user messages can be answered again.
    #[error("{0} is not a user message")]
    NotUserMessage(MessageId),
    /// The message is not an assistant message; a prompt can be edited only after one.
    #[error("{0} is not an assistant message")]
    NotAssistantMessage(MessageId),
    /// The message belongs to a branch that was rolled back. It can be read, but not continued.
    #[error("{0} is part of a branch that was rolled back; branch from a message that was not")]
    Abandoned(MessageId),
    /// The path no longer ends at the message that the results answer.
    #[error(
        "the path does not end at the message {0:?} any more; read the path, then append the results without `beneath`, \
         or move the path to that message first"
    )]
    NotAtTip(String),
    /// The run is not the last of its session; only the last run can be retried.
    #[error("{0} is not the last run of its session; only the last one can be tried again")]
    NotLatest(RunId),
    /// The requested events were pruned.
    #[error(
        "the events up to {floor} were pruned; take a snapshot and go on after its position, or read after {floor}"
    )]
    Expired {
        /// Position up to which events are gone.
        floor: Position,
    },
    /// The event at the cursor was lost when the state directory was restored from a backup, or the cursor lies ahead
    /// of all events.
    #[error(
        "the cursor {} belongs to events that are not in this state directory, for example lost with a restore; \
         read the sessions again, then go on after {}", cursor.0, last.0
    )]
    Lost {
        /// The cursor.
        cursor: Cursor,
        /// The cursor to continue after.
        last: Cursor,
    },
    /// A rule of the state machines refused the command.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A queue is full. Retry later.
    #[error("{what} is full: {limit} prompts wait already; try again later")]
    Overloaded {
        /// The full queue.
        what: &'static str,
        /// Capacity of the queue.
        limit: usize,
    },
    /// The owner has reached its quota. Retry later if the resource is one that frees itself, such as queued prompts.
    #[error("the owner has reached its quota of {limit} {}: {}", noun(*.resource), remedy(*.resource))]
    QuotaReached {
        /// The limited resource.
        resource: Resource,
        /// The limit.
        limit: u64,
    },
    /// The owner has used its share of a pool; the rest is kept for others. Retry later.
    #[error(
        "the owner has {own} {} at the same time, and only {free} more are left for everybody: {}",
        noun(*.resource),
        remedy(*.resource)
    )]
    ShareReached {
        /// The shared resource.
        resource: Resource,
        /// The owner's own use.
        own: usize,
        /// The rest that is left.
        free: usize,
    },
    /// An awaited run needs a worker of an adapter, and all are busy, perhaps with runs that wait for it. Retry later.
    #[error(
        "all {limit} workers of {adapter:?} are at work, and a run that is waited for cannot wait for one; \
         spawn it instead, or try again later"
    )]
    AdapterFull {
        /// The adapter.
        adapter: String,
        /// Number of its workers.
        limit: usize,
    },
    /// The delegation would be nested too deep.
    #[error("this would be delegation {depth} deep; at most {limit} is allowed")]
    TooDeep {
        /// Depth of the delegation.
        depth: u32,
        /// Largest allowed depth.
        limit: u32,
    },
    /// The run has as many children as one run may have. Retry once one of them has ended.
    #[error(
        "the run has {limit} children that have not ended, which is as many as one run may have; wait for one of them"
    )]
    TooManyChildren {
        /// Maximum number of children (`limits.children_per_run`).
        limit: usize,
    },
    /// Waiting for the session would be a deadlock.
    #[error(
        "{0} already waits, itself or through others, for this session: each would wait for the other; spawn instead"
    )]
    WouldDeadlock(SessionId),
    /// The process is stopping. Retry later.
    #[error("mainspring is shutting down; try again once it is back")]
    ShuttingDown,
    /// The disk is full, and nothing was changed. Retry once there is space.
    #[error("no space is left to store anything ({0}): free some, then try again")]
    StoreFull(String),
    /// The store failed, and nothing was changed. Retry later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Another server of the cluster has to carry the request out, and nothing was changed. The edge sends it there, or asks
    /// the caller to retry.
    #[error(
        "another server of the cluster is the home of this session, and was not reached from here; try again"
    )]
    Elsewhere {
        /// The server.
        node: NodeId,
    },
    /// No server of the cluster may execute the session, because of its labels or their versions, and nothing was changed.
    /// Retry when such a server has joined.
    #[error("{0}")]
    NoServer(String),
    /// The home of the session, another server of the cluster, has refused the request or does not answer.
    /// Without an answer the outcome may be unknown; the message says so then.
    #[error("{message}")]
    AtHome {
        /// The code of the home's error.
        code: &'static str,
        /// A sentence for people.
        message: String,
        /// True if the same request may succeed later.
        retryable: bool,
    },
    /// The audit log cannot be written, and nothing was changed. Retry later.
    #[error(
        "the audit log cannot be written, so nothing may be changed ({0}): free space, or set audit.on_failure to report"
    )]
    AuditFailed(String),
    /// The stored data was deleted, moved or replaced while mainspring was running.
    #[error("{0}")]
    StoreLost(String),
    /// Stored data is inconsistent.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// mainspring has failed in the work of one session. Other sessions are not affected.
    #[error(
        "mainspring has failed in the work of the session {session} ({why}): its stored data is kept, and whether this \
         request was carried out is not known. The session is loaded again at a later request; if it fails again, \
         report what the log of the server says, and install the version of mainspring that mends it"
    )]
    SessionFailed {
        /// The session.
        session: SessionId,
        /// The reason.
        why: String,
    },
}

impl Error {
    mainspring_core::codes! {
        Self::NotFound { .. } => "not_found",
        Self::QuotaReached { .. } | Self::ShareReached { .. } => "quota_reached",
        Self::Forbidden(_) => "forbidden",
        Self::NoLiveAttempt => "no_authority",
        Self::FolderNotAllowed(_) => "folder_not_allowed",
        Self::NotListed(_) => "not_allowed_by_key",
        Self::SpendLimit { .. } => "spend_limit_reached",
        Self::Invalid(_) => "invalid_request",
        Self::UnsafeName { .. } => "invalid_name",
        Self::TooLarge { .. } => "too_large",
        Self::TooMany { .. } => "too_many",
        Self::UnknownAdapter { .. } => "adapter_not_registered",
        Self::Unsupported { .. } => "adapter_incompatible",
        Self::UnusedOption { .. } => "option_not_used",
        Self::LimitNotKept { .. } => "limit_not_enforceable",
        Self::LoginFailed { .. } => "login_failed",
        Self::RequestConflict { .. } => "request_conflict",
        Self::AlreadyExists { .. } => "already_exists",
        Self::AlreadyBound { .. } => "already_exists",
        Self::AgentTaken { .. } => "agent_taken",
        Self::GoalTypeTaken { .. } => "goal_type_taken",
        Self::AmbiguousMode => "ambiguous_mode",
        Self::NoModel => "no_model",
        Self::InitialMessages => "initial_messages_not_supported",
        Self::BadImport { .. } => "invalid_import",
        Self::Changed { .. } => "version_conflict",
        Self::Busy { .. } => "session_busy",
        Self::NotUserMessage(_) => "not_user_message",
        Self::NotAssistantMessage(_) => "not_assistant_message",
        Self::Abandoned(_) => "abandoned_message",
        Self::NotAtTip(_) => "not_at_tip",
        Self::NotLatest(_) => "not_latest_run",
        Self::Expired { .. } => "cursor_expired",
        Self::Lost { .. } => "cursor_expired",
        Self::Overloaded { .. } => "overloaded",
        Self::AdapterFull { .. } => "adapter_full",
        Self::TooDeep { .. } => "delegation_too_deep",
        Self::TooManyChildren { .. } => "too_many_children",
        Self::WouldDeadlock(_) => "would_deadlock",
        Self::ShuttingDown => "shutting_down",
        Self::StoreFull(_) => "store_full",
        Self::AuditFailed(_) => "audit_failed",
        Self::Unavailable(_) | Self::Elsewhere { .. } | Self::NoServer(_) => "unavailable",
        Self::StoreLost(_) => "store_lost",
        Self::Corrupt(_) => "corrupt",
        Self::SessionFailed { .. } => "session_failed",
        ; Self::Refused(refusal) => refusal.code(),
        ; Self::AtHome { code, .. } => code,
    }

    /// True if the same request may succeed later.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Overloaded { .. }
                | Self::ShareReached { .. }
                | Self::QuotaReached {
                    resource: Resource::QueuedPrompts | Resource::Requests | Resource::Streams,
                    ..
                }
                | Self::AdapterFull { .. }
                | Self::TooManyChildren { .. }
                | Self::ShuttingDown
                | Self::StoreFull(_)
                | Self::AuditFailed(_)
                | Self::Unavailable(_)
                | Self::Elsewhere { .. }
                | Self::NoServer(_)
                | Self::AtHome { retryable: true, .. }
        )
    }

    /// Makes a [`Error::NotFound`].
    #[expect(clippy::needless_pass_by_value, reason = "ids are copied; a reference would only be noise")]
    pub fn not_found(what: &'static str, name: impl ToString) -> Self {
        Self::NotFound { what, name: name.to_string() }
    }

    /// Builds the error for a panic in the work of `session`.
    pub(crate) fn session_panicked(session: SessionId) -> Self {
        Self::SessionFailed { session, why: "it panicked, which is a bug".into() }
    }

    /// True if the error concerns the whole server, not only the session that a request names.
    pub(crate) const fn is_of_server(&self) -> bool {
        matches!(
            self,
            Self::ShuttingDown
                | Self::StoreFull(_)
                | Self::Unavailable(_)
                | Self::AuditFailed(_)
                | Self::StoreLost(_)
        )
    }

    /// The error for a native session that is bound to another session.
    pub(crate) fn native_taken() -> Self {
        Self::Invalid(
            "this native session is not one that you can adopt: a session has it already, or your runs have not opened it; \
             name one that they opened, or let the operator of the server adopt it"
                .into(),
        )
    }
}

/// The second remedy for an unused option.
fn alternatives(using: &str) -> String {
    if using.is_empty() { String::new() } else { format!(", or choose an adapter that does: {using}") }
}

/// The plural of a resource, for people.
fn noun(resource: Resource) -> &'static str {
    match resource {
        Resource::QueuedPrompts => "queued prompts",
        Resource::Requests => "requests",
        Resource::Streams => "open streams and waiting requests",
        Resource::StoredBytes => "stored bytes",
        Resource::Artifacts => "artifacts",
        Resource::Agents => "versions of agents",
    }
}

/// The remedy for an owner that has reached its limit.
fn remedy(resource: Resource) -> &'static str {
    match resource {
        Resource::QueuedPrompts => "wait until some of them have run",
        Resource::Requests => "wait until some of them are answered",
        Resource::Streams => "close some of them, or wait until they end",
        Resource::StoredBytes => "delete sessions or artifacts",
        Resource::Artifacts => "delete some of them",
        Resource::Agents => "ask the operator of the server for more",
    }
}

fn unkept(limit: &str, reports: UsageReports) -> &'static str {
    match reports {
        _ if limit == "maxSteps" => "its model calls are not counted",
        UsageReports::Live => "it does not",
        UsageReports::AtEnd => "it reports its usage only at the end",
        UsageReports::Never => "it does not report its usage",
    }
}

impl From<BadName> for Error {
    fn from(bad: BadName) -> Self {
        Self::Invalid(bad.to_string())
    }
}

impl From<BadIdPrefix> for Error {
    fn from(bad: BadIdPrefix) -> Self {
        Self::Invalid(bad.to_string())
    }
}

impl From<VersionMismatch> for Error {
    fn from(mismatch: VersionMismatch) -> Self {
        Self::Changed { expected: mismatch.expected, now: mismatch.current }
    }
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Self::Corrupt(damage.message)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::VersionMismatch(mismatch) => mismatch.into(),
            StoreError::Pruned(floor) => Self::Expired { floor },
            StoreError::HeldElsewhere { node } => Self::Elsewhere { node },
            StoreError::LaterVersion => Self::NoServer(error.to_string()),
            StoreError::Corrupt(what) => Self::Corrupt(what),
            StoreError::Lost(what) => Self::StoreLost(what),
            StoreError::Full(what) => Self::StoreFull(what),
            StoreError::Unavailable(what) => Self::Unavailable(what),
            // A caller cannot resolve this conflict by repeating or renaming anything.
            StoreError::Conflict(Unique::Other) => Self::Corrupt(error.to_string()),
            StoreError::Fenced | StoreError::Conflict(_) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Why a session actor did not create a session, a run or an artifact. Nothing was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CreateError {
    /// A unique name is taken. Look up its holder, then answer with the holder, retry or refuse.
    Taken(Unique),
    /// The request failed. Report the error to the caller.
    Failed(Error),
}

impl From<Error> for CreateError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for CreateError {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal.into())
    }
}

impl From<StoreError> for CreateError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict(unique) => Self::Taken(unique),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<CreateError> for Error {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Taken(unique) => StoreError::Conflict(unique).into(),
            CreateError::Failed(error) => error,
        }
    }
}
