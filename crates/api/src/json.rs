//! Serialization of the wire types.

use std::sync::Arc;

use mainspring_core::{
    AgentDefinition, ApiKey, Artifact, Attempt, AuthMethod, Binding, Body, DeadLetter, Delegation, Event,
    Feedback, GoalType, Grant, LeftProcess, LiveEvent, Message, ModelList, NewFeedback, Run, Session,
    SessionChange, StateChange, StateEntry, Step, Wait, Webhook,
};
use serde_json::Value;

use crate::control::ControlTool;
use crate::{
    AcceptedRun, Agent, AgentChange, Appended, AttemptStderr, AuditRecord, BindingAdoption, CancelOutcome,
    Capabilities, CaughtUp, ClosedSession, Cluster, Compacted, Compaction, Delegate, Delegated,
    DelegationView, FeedSnapshot, Fork, FoundIds, GoalTypeRecord, GoalsSnapshot, Health, HostCall,
    HostCallAnswered, HostCallResult, KeptForForks, ListedSession, Listener, LiveChange, Login, MadeKey,
    MadeWebhook, Me, MessageAppend, MessageView, Navigation, NewKey, NewTool, NewWebhook, OidcAnswer,
    OidcToken, OpenWait, OpenedSession, Page, PageSecret, Problem, Prompt, ResultsAppend, RetryOptions,
    RunDelegations, RunRoute, SearchHit, SessionAdopted, SessionAdoption, SessionAgent, SessionChanges,
    SessionDetails, SessionPatch, SessionTarget, SessionUsage, SignInWays, Snapshot, StepResult, StoreNotice,
    Thought, Ticket, TicketRedemption, TreeNode, UsageReport, WaitAnswer, WebhookDelivery, WebhookTest,
};

/// A type of the wire contract that is sent as JSON.
///
/// Serde's functions are generic: every crate that calls them compiles them again for each type. The functions of this
/// trait are compiled once, in this crate.
pub trait ToJson {
    /// Serializes the value.
    fn to_json(&self) -> serde_json::Result<String>;
}

macro_rules! to_json {
    ($($name:ty),* $(,)?) => {
        $(
            impl ToJson for $name {
                #[inline(never)]
                fn to_json(&self) -> serde_json::Result<String> {
                    serde_json::to_string(self)
                }
            }
        )*
    };
}

// Requests, and the bodies that a server posts to webhooks.
to_json![
    AgentChange,
    AgentDefinition,
    BindingAdoption,
    Compaction,
    Delegate,
    Fork,
    GoalType,
    HostCallResult,
    Login,
    MessageAppend,
    Navigation,
    NewFeedback,
    NewKey,
    NewTool,
    NewWebhook,
    OidcAnswer,
    Prompt,
    ResultsAppend,
    RetryOptions,
    SessionAdoption,
    SessionPatch,
    SessionTarget,
    TicketRedemption,
    Value,
    WaitAnswer,
    WebhookTest,
];

/// Calls the macro `$each` with the types that a server sends: its answers, and the items of its streams. This crate
/// uses it to serialize them, the client to parse them. The caller must import the types.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_answer {
    ($each:ident) => {
        $each![
            AcceptedRun,
            Agent,
            Appended,
            Arc<Message>,
            Artifact,
            Attempt,
            AttemptStderr,
            Binding,
            CancelOutcome,
            ClosedSession,
            Compacted,
            Delegated,
            DelegationView,
            Feedback,
            FoundIds,
            GoalTypeRecord,
            GoalsSnapshot,
            Grant,
            Health,
            HostCallAnswered,
            KeptForForks,
            Listener,
            MadeKey,
            MadeWebhook,
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
            Page<DeadLetter>,
            Page<Event>,
            Page<Feedback>,
            Page<GoalTypeRecord>,
            Page<Grant>,
            Page<LeftProcess>,
            Page<ListedSession>,
            Page<OpenWait>,
            Page<Run>,
            Page<SearchHit>,
            Page<StateChange>,
            Page<StateEntry>,
            Page<Step>,
            Page<TreeNode>,
            Page<Webhook>,
            OidcToken,
            PageSecret,
            Problem,
            Run,
            RunDelegations,
            Session,
            SessionAdopted,
            SessionAgent,
            SessionChanges,
            SessionDetails,
            SessionUsage,
            RunRoute,
            SignInWays,
            Snapshot,
            StateEntry,
            StepResult,
            Ticket,
            UsageReport,
            Cluster,
            WebhookDelivery,
            Vec<AuthMethod>,
            Vec<HostCall>,
            Vec<Capabilities>,
            Vec<ControlTool>,
            // Items of streams.
            CaughtUp,
            Event,
            FeedSnapshot,
            LiveChange,
            LiveEvent,
            StoreNotice,
            Thought,
        ];
    };
}

for_each_answer!(to_json);

// Items of lists and parts of answers, which the command line prints.
to_json![
    ApiKey,
    AuditRecord,
    AuthMethod,
    Body,
    Capabilities,
    DeadLetter,
    Delegation,
    LeftProcess,
    ListedSession,
    Message,
    OpenWait,
    SearchHit,
    SessionChange,
    StateChange,
    Step,
    TreeNode,
    Wait,
    Webhook,
];
