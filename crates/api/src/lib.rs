//! The wire contract: every request and answer of the HTTP API, the JSON lines of a host and of an agent in both
//! directions, and the inputs and answers of the control tools.
//!
//! The server and the client both use these types, so that neither can drift from the other. The types of the domain
//! (sessions, runs, messages, events) are defined in `mainspring-core`; this crate adds the envelopes around them. It
//! holds types and conversions between them: no rules, no I/O.
//!
//! With the feature `schema`, each type describes itself for the OpenAPI document; its doc comments are the descriptions
//! there.

#![cfg_attr(feature = "schema", allow(unused_qualifications, reason = "derived code has them"))]

mod adapter;
mod agent;
mod append;
mod artifact;
mod audit;
mod binding;
mod card;
mod change;
mod cluster;
pub mod control;
mod delegation;
mod event;
mod feed;
mod goal;
mod grant;
pub mod header_name;
mod host_call;
mod id;
mod json;
pub mod jsonl;
mod key;
mod listener;
mod network;
mod page;
mod problem;
pub mod request;
mod run;
mod search;
mod session;
mod session_agent;
mod sign_in;
mod state;
mod stderr;
mod step;
pub mod threads;
mod tree;
mod usage;
mod wait;
mod webhook;

pub use adapter::{Capabilities, FailedSession, Health, Login, RestartBehavior};
pub use agent::{Agent, AgentListQuery, AgentScope, NewAgent};
pub use append::{Appended, MessageAppend, ResultMessage, ResultsAppend};
pub use artifact::{ArtifactListQuery, ArtifactQuery};
pub use audit::{AuditActor, AuditKind, AuditListQuery, AuditOrigin, AuditRecord};
pub use binding::{BindingAdoption, BindingListQuery, SessionAdopted, SessionAdoption};
pub use card::{CardLine, SessionCard, SessionView};
pub use change::{ChangesQuery, ChangesState, FileChange, SessionChanges, TurnChanges};
pub use cluster::{Cluster, ClusterServer, ClusterWaiting};
pub use delegation::{Delegate, Delegated, DelegationView, RunDelegations};
pub use event::{CaughtUp, EventsQuery, OwnerEventsQuery, StoreNotice, SubscriptionMode, Thought};
pub use feed::{FeedItem, FeedSnapshot, LiveChange, LiveSession, LiveStatus};
pub use goal::{GoalTypeRecord, GoalsQuery, GoalsSnapshot, SessionGoal};
pub use grant::GrantListQuery;
pub use host_call::{HostCall, HostCallAnswered, HostCallQuery, HostCallResult};
pub use id::{FoundIds, IdQuery};
pub use json::ToJson;
pub use key::{KeyListQuery, MadeKey, NewKey};
pub use listener::Listener;
pub use network::{MemberCall, MemberTotal, RouteDecision, RunRoute};
pub use page::Page;
pub use problem::Problem;
pub use run::{AcceptedRun, CancelOutcome, Prompt, PromptContent, RetryOptions, RunListQuery, WaitAnswer};
pub use search::{SearchHit, SearchQuery};
pub use session::{
    ClosedSession, Compacted, Compaction, KeptForForks, ListedSession, MessageListQuery, NewName, OpenBlock,
    OpenText, OpenedSession, Opening, Scope, SessionDetails, SessionListQuery, SessionPatch, SessionTarget,
    SessionUsage, Snapshot,
};
pub use session_agent::{
    AgentChange, AgentSource, AgentTool, NewTool, SessionAgent, SourcedText, SourcedValue,
};
pub use sign_in::{Me, OidcAnswer, OidcSignIn, OidcToken, PageSecret, SignInWays, Ticket, TicketRedemption};
pub use state::{StateHistoryQuery, StateListQuery, StateQuery};
pub use stderr::AttemptStderr;
pub use step::{AnsweredCall, StepResult};
pub use tree::{Fork, MessageView, Navigation, TreeNode, TreeQuery};
pub use usage::{UsageGroup, UsageQuery, UsageReport};
pub use wait::{OpenWait, WaitListQuery};
pub use webhook::{DeadLetterQuery, MadeWebhook, NewWebhook, WebhookDelivery, WebhookTest};

/// Distinguishes a field that was sent as null from one that was not sent.
fn present_or_null<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    serde::Deserialize::deserialize(deserializer).map(Some)
}
