//! Parsing of answers and of the items of streams.

use std::sync::Arc;

use mainspring_api::control::ControlTool;
use mainspring_api::{
    AcceptedRun, Agent, Appended, AuditRecord, CancelOutcome, Capabilities, CaughtUp, ClosedSession,
    Compacted, Delegated, DelegationView, FeedSnapshot, FoundIds, Health, HostCall, HostCallAnswered,
    KeptForForks, ListedSession, LiveChange, MadeKey, Me, MessageView, OpenedSession, Page, PageSecret,
    Problem, RunDelegations, SearchHit, SessionAdopted, SessionUsage, Snapshot, StoreNotice, Thought, Ticket,
    TreeNode,
};
use mainspring_core::{
    ApiKey, Artifact, Attempt, AuthMethod, Binding, Event, Grant, LeftProcess, LiveEvent, Message, ModelList,
    Run, Session, StateChange, StateEntry, Step,
};
use serde_json::Value;

/// A type of the wire contract that a server sends.
///
/// Each function is compiled once, in this crate. Serde's generic functions would be compiled again in each crate that
/// awaits a method of the client.
pub(crate) trait FromJson: Sized {
    fn from_json(text: &str) -> serde_json::Result<Self>;
}

macro_rules! from_json {
    ($($name:ty),* $(,)?) => {
        $(
            impl FromJson for $name {
                #[inline(never)]
                fn from_json(text: &str) -> serde_json::Result<Self> {
                    serde_json::from_str(text)
                }
            }
        )*
    };
}

// Answers.
from_json![
    AcceptedRun,
    Agent,
    Appended,
    Arc<Message>,
    Artifact,
    Attempt,
    Binding,
    CancelOutcome,
    ClosedSession,
    Compacted,
    Delegated,
    DelegationView,
    FoundIds,
    Grant,
    Health,
    HostCallAnswered,
    KeptForForks,
    MadeKey,
    Me,
    MessageView,
    ModelList,
    OpenedSession,
    Page<Agent>,
    Page<ApiKey>,
    Page<Arc<Message>>,
    Page<Artifact>,
    Page<Attempt>,
    Page<AuditRecord>,
    Page<Binding>,
    Page<Event>,
    Page<Grant>,
    Page<LeftProcess>,
    Page<ListedSession>,
    Page<Run>,
    Page<SearchHit>,
    Page<StateChange>,
    Page<StateEntry>,
    Page<Step>,
    Page<TreeNode>,
    PageSecret,
    Problem,
    Run,
    RunDelegations,
    Session,
    SessionAdopted,
    SessionUsage,
    Snapshot,
    StateEntry,
    Ticket,
    Value,
    Vec<AuthMethod>,
    Vec<HostCall>,
    Vec<Capabilities>,
    Vec<ControlTool>,
];

// Items of streams.
from_json![CaughtUp, Event, FeedSnapshot, LiveChange, LiveEvent, StoreNotice, Thought];
