//! Records of the audit log.

use std::net::SocketAddr;

use mainspring_core::{Approval, AttemptId, KeyId, RunId, SessionId, Time};
use serde::{Deserialize, Serialize};

/// One record of the audit log: who did what, from where, and with what outcome. It holds ids, names and sizes, never
/// secrets, prompts or the inputs and results of tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// The number of the record; the numbers of the log have no gaps. For callers who read only a part of the log, a
    /// number that identifies the record and reveals nothing about others.
    pub seq: u64,
    /// When the record was written.
    pub at_ms: Time,
    /// The kind of the record.
    pub kind: AuditKind,
    /// The operation: its id in the HTTP API, or `-` if the request named none. Decisions: `approval`;
    /// sign-ins: `sign_in`; records of the log about itself: `audit_…`.
    pub operation: String,
    /// The party that acted.
    pub by: AuditActor,
    /// The owner that the record concerns; absent if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The org that the record concerns; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
    /// The ids and names of the objects that the record is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<String>,
    /// The origin of the request; absent for records without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<AuditOrigin>,
    /// The status of the response; absent if no response was sent, and for records without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The code of the problem, or of the fact that the log reports about itself; absent for a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The decision on a request for permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Approval>,
    /// The number of records that this record sums up, or that were left out before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The BLAKE3 hash of the record before this one and of this record, in hexadecimal. Only for callers who read the whole
    /// log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

impl AuditRecord {
    /// Makes a record that has neither a request nor an outcome. The log sets the number, the time and the hash.
    pub fn new(kind: AuditKind, operation: impl Into<String>, by: AuditActor) -> Self {
        Self {
            seq: 0,
            at_ms: Time(0),
            kind,
            operation: operation.into(),
            owner_id: by.owner().map(str::to_owned),
            by,
            org_id: None,
            about: vec![],
            from: None,
            status: None,
            code: None,
            decision: None,
            count: None,
            hash: String::new(),
        }
    }
}

/// The kind of an audit record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// A request that changes something and was not refused.
    Change,
    /// A decision on a request for permission, by a person, a rule or a setting.
    Decision,
    /// The first use of a credential from one network address or local user within 15 minutes.
    SignIn,
    /// A request that was refused.
    Refusal,
    /// A record of the log about itself.
    System,
}

/// The party that acted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditActor {
    /// The holder of an API key.
    #[serde(rename_all = "camelCase")]
    Key {
        /// The owner of the key.
        owner_id: String,
        /// The key.
        key_id: KeyId,
    },
    /// A person without a key, such as the holder of the state directory's token.
    #[serde(rename_all = "camelCase")]
    Person {
        /// The owner that the person acts for.
        owner_id: String,
    },
    /// An agent, for an attempt.
    #[serde(rename_all = "camelCase")]
    Agent {
        /// The owner of the run.
        owner_id: String,
        /// The session of the run.
        session_id: SessionId,
        /// The run.
        run_id: RunId,
        /// The attempt.
        attempt_id: AttemptId,
    },
    /// A rule of the server, the owner, the adapter, the agent definition or the session, or of a run above.
    #[serde(rename_all = "camelCase")]
    Rule {
        /// The rule.
        rule: String,
    },
    /// A setting that decides without a rule.
    #[serde(rename_all = "camelCase")]
    Policy {
        /// The setting.
        policy: String,
    },
    /// A client without a valid credential.
    #[serde(rename_all = "camelCase")]
    Anonymous {},
    /// This server.
    #[serde(rename_all = "camelCase")]
    Server {},
}

impl AuditActor {
    /// Returns the owner that the party acts for.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::Key { owner_id, .. } | Self::Person { owner_id } | Self::Agent { owner_id, .. } => {
                Some(owner_id)
            }
            Self::Rule { .. } | Self::Policy { .. } | Self::Anonymous {} | Self::Server {} => None,
        }
    }
}

/// Formats the party for people.
impl std::fmt::Display for AuditActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key { owner_id, key_id } => write!(f, "{owner_id} ({key_id})"),
            Self::Person { owner_id } => f.write_str(owner_id),
            Self::Agent { owner_id, attempt_id, .. } => write!(f, "agent of {owner_id} ({attempt_id})"),
            Self::Rule { rule } => write!(f, "rule {rule:?}"),
            Self::Policy { policy } => write!(f, "policy {policy}"),
            Self::Anonymous {} => f.write_str("anonymous"),
            Self::Server {} => f.write_str("server"),
        }
    }
}

/// The origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditOrigin {
    /// A TCP connection. Behind a proxy, this is the proxy.
    #[serde(rename_all = "camelCase")]
    Tcp {
        /// The address and port of the peer.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        address: SocketAddr,
    },
    /// A connection to the socket of the state directory.
    #[serde(rename_all = "camelCase")]
    Unix {
        /// The user of the peer.
        uid: u32,
        /// The process of the peer, where the system reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
    /// A call within the server, without a connection.
    #[serde(rename_all = "camelCase")]
    Inside {},
}

/// Formats the origin for people.
impl std::fmt::Display for AuditOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { address } => write!(f, "{address}"),
            Self::Unix { uid, pid: Some(pid) } => write!(f, "uid {uid}, pid {pid}"),
            Self::Unix { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Inside {} => f.write_str("inside"),
        }
    }
}

impl From<SocketAddr> for AuditOrigin {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp { address }
    }
}

/// Selects audit records. Records that do not concern the caller are never returned.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditListQuery {
    /// Only records after this number; the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The number of records; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only records from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Time>,
    /// Only records of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub kind: Option<AuditKind>,
    /// Only records of this operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(min_length = 1, max_length = 512))]
    pub operation: Option<String>,
    /// Only records that concern this owner. Admins may name any owner of their org.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(min_length = 1, max_length = 512))]
    pub owner: Option<String>,
    /// Only records about the object with this id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(min_length = 1, max_length = 512))]
    pub about: Option<String>,
}
