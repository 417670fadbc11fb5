//! Parsing of answers and of the items of streams.

use std::sync::Arc;

use mainspring_api::control::ControlTool;
use mainspring_api::{
    AcceptedRun, Agent, Appended, AttemptStderr, AuditRecord, CancelOutcome, Capabilities, CaughtUp,
    ClosedSession, Cluster, Compacted, Delegated, DelegationView, FeedSnapshot, FoundIds, GoalTypeRecord,
    GoalsSnapshot, Health, HostCall, HostCallAnswered, KeptForForks, ListedSession, Listener, LiveChange,
    MadeKey, MadeWebhook, Me, MessageView, OidcToken, OpenWait, OpenedSession, Page, PageSecret, Problem,
    RunDelegations, RunRoute, SearchHit, SessionAdopted, SessionAgent, SessionChanges, SessionDetails,
    SessionUsage, SignInWays, Snapshot, StepResult, StoreNotice, Thought, Ticket, TreeNode, UsageReport,
    WebhookDelivery,
};
use mainspring_core::{
    ApiKey, Artifact, Attempt, AuthMethod, Binding, DeadLetter, Event, Feedback, Grant, LeftProcess,
    LiveEvent, Message, ModelList, Run, Session, StateChange, StateEntry, Step, Webhook,
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

mainspring_api::for_each_answer!(from_json);

from_json![Value];
