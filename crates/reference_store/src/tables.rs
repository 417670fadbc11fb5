//! The tables of the reference store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainspring_core::{
    ApiKey, Artifact, ArtifactId, Attempt, Binding, BindingId, DeadLetter, Delegation, DelegationId, Digest,
    Event, Feedback, Grant, GrantId, KeyId, Line, LineId, Message, MessageId, Point, Position, Run, RunId,
    Session, SessionId, Spend, StateChange, StateEntry, StateSlot, Step, StepId, Time, Webhook, WebhookId,
};
use mainspring_kernel::store::{
    AgentRow, Chunk, EdgeRecord, GoalTypeRow, InboxItem, OpenToolCall, OwnerUsage, PlacedMessage, Request,
};

use super::data::{LineOrigin, StateRecord};

/// A version of an agent: its hash, and its row unless it was deleted.
pub(super) type AgentVersion = ([u8; 32], Option<AgentRow>);

/// Maps by key, and lists where the order of insertion matters.
#[derive(Debug, Clone, Default)]
pub(super) struct Tables {
    /// The last cursor assigned.
    pub(super) seq: u64,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) runs: BTreeMap<RunId, Run>,
    /// The last cursor assigned before each run was created.
    pub(super) created_seq: BTreeMap<RunId, u64>,
    /// The position up to which the events of a session are to be pruned, and whether they have been removed.
    pub(super) floors: BTreeMap<SessionId, (Position, bool)>,
    pub(super) attempts: BTreeMap<(RunId, u32), Attempt>,
    pub(super) steps: BTreeMap<(RunId, u32, StepId), Step>,
    /// Inputs of steps, as JSON, by session and hash.
    pub(super) step_inputs: BTreeMap<(SessionId, String), String>,
    pub(super) digests: BTreeMap<(Point, SessionId), Digest>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) messages: BTreeMap<MessageId, PlacedMessage>,
    /// The order in which messages were inserted.
    pub(super) message_order: BTreeMap<MessageId, u64>,
    /// The lines, each with its session, oldest first.
    pub(super) lines: Vec<(SessionId, Line)>,
    pub(super) cursors: BTreeMap<(SessionId, Point), LineId>,
    pub(super) chunks: BTreeMap<(SessionId, u64), Chunk>,
    pub(super) effects: Vec<(SessionId, OpenToolCall)>,
    pub(super) requests: BTreeMap<(String, String, String), Request>,
    pub(super) inbox: Vec<(SessionId, InboxItem)>,
    pub(super) bindings: BTreeMap<BindingId, Binding>,
    pub(super) grants: BTreeMap<GrantId, Grant>,
    pub(super) artifacts: BTreeMap<ArtifactId, Artifact>,
    pub(super) delegations: BTreeMap<DelegationId, Delegation>,
    pub(super) line_origins: BTreeMap<LineId, LineOrigin>,
    pub(super) session_states: Vec<StateRecord>,
    pub(super) run_states: BTreeMap<(RunId, String), StateSlot>,
    pub(super) owner_states: BTreeMap<(String, String), StateEntry>,
    /// The highest version of each owner's state.
    pub(super) owner_versions: BTreeMap<String, u64>,
    /// The changes of each key, by place and key, then by version.
    pub(super) state_history: BTreeMap<(String, String), BTreeMap<u64, StateChange>>,
    /// The content hashes of removed artifacts. Other artifacts may have the same content.
    pub(super) loose_blobs: BTreeSet<String>,
    pub(super) keys: BTreeMap<KeyId, ApiKey>,
    /// The org of each claimed owner.
    pub(super) owners: BTreeMap<String, Option<String>>,
    /// The owner of each native session, by adapter and native id.
    pub(super) native_owners: BTreeMap<(String, String), String>,
    /// By key and day.
    pub(super) spends: BTreeMap<(KeyId, i64), Spend>,
    pub(super) webhooks: BTreeMap<WebhookId, Webhook>,
    /// By webhook and the cursor of the event.
    pub(super) dead_letters: BTreeMap<(WebhookId, u64), DeadLetter>,
    /// By session, message and reader.
    pub(super) feedback: BTreeMap<(SessionId, MessageId, String), Feedback>,
    /// By fork and artifact.
    pub(super) inherited: BTreeMap<(SessionId, ArtifactId), Artifact>,
    /// When a reader pinned a session, by reader and session.
    pub(super) pins: BTreeMap<(String, SessionId), Time>,
    /// By kind, scope and id.
    pub(super) edge_records: BTreeMap<(&'static str, String, String), EdgeRecord>,
    /// By owner and name.
    pub(super) goal_types: BTreeMap<(String, String), GoalTypeRow>,
    /// By owner, agent id and version.
    pub(super) agents: BTreeMap<(String, String, u32), AgentVersion>,
}

impl Tables {
    pub(super) fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.iter().map(|(_, line)| line).find(|line| line.id == id)
    }

    /// Returns the position up to which the events of a session are pruned.
    pub(super) fn floor(&self, id: SessionId) -> Option<Position> {
        self.floors.get(&id).map(|(floor, _)| *floor)
    }

    /// Returns the line if it belongs to this session.
    pub(super) fn line_own(&self, session: SessionId, id: LineId) -> Option<Line> {
        self.lines.iter().find(|(by, line)| *by == session && line.id == id).map(|(_, line)| *line)
    }

    /// Returns the session unless it is deleted.
    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        use mainspring_core::SessionStatus::Deleted;
        self.sessions.get(&id).filter(|session| session.status != Deleted)
    }

    /// Sums the stored data of an owner.
    pub(super) fn owner_usage(&self, owner: &str) -> OwnerUsage {
        let is_own =
            |session: &SessionId| self.sessions.get(session).is_some_and(|session| session.owner == owner);
        let messages = self.messages.values().map(|placed| &placed.message);
        let messages = messages.filter(|message| is_own(&message.session));
        let size = |message: &Arc<Message>| serde_json::to_vec(&message.content).map_or(0, |json| json.len());
        let artifacts: Vec<&Artifact> =
            self.artifacts.values().filter(|artifact| is_own(&artifact.session)).collect();
        let artifact_bytes: u64 = artifacts.iter().filter_map(|artifact| artifact.size_bytes).sum();
        OwnerUsage {
            bytes: messages.map(|message| size(message) as u64).sum::<u64>() + artifact_bytes,
            artifacts: artifacts.len() as u64,
        }
    }
}
