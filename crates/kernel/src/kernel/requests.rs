//! What callers send and get.

pub use mainspring_api::{CancelOutcome, Opening, Scope, Snapshot};
use mainspring_core::{
    Block, ExternalRef, LegacyAlias, Mode, NewDelegation, Place, Policy, Position, RequestName, Run, RunId,
    RunOptions, RunStatus, Session, SessionId, SessionStatus, Time, Visibility,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Caller;
use super::waits::PendingWait;

/// Which session a prompt is for: the first name given that is found, else a new session with these names.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SessionTarget {
    /// By id: it must exist.
    pub id: Option<SessionId>,
    /// By the caller's key.
    pub key: Option<String>,
    /// By what it stands for.
    pub external_ref: Option<ExternalRef>,
    /// By a compatibility alias.
    pub legacy_alias: Option<LegacyAlias>,
    /// What a new session is like.
    pub new: NewSession,
}

/// What a new session is like.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct NewSession {
    /// Its title.
    pub title: Option<String>,
    /// What kind of surface opens it; `api` if not given.
    pub surface_kind: Option<String>,
    /// Its adapter; the kernel's default if not given.
    pub adapter: Option<String>,
    /// Its folder.
    pub cwd: Option<String>,
    /// Its model profile.
    pub model_profile: Option<String>,
    /// The agent definition it follows.
    pub agent_definition: Option<String>,
    /// The caller's own data: an object.
    pub metadata: Option<Value>,
    // Part of the fingerprint of requests since some were made without them: absent where nothing is said.
    /// Who may read it; nobody else if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Its options for the model's provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_options: Option<Map<String, Value>>,
}

impl SessionTarget {
    /// The same, with its maps in order, so that its hash is that of what it says.
    pub(super) fn in_order(&self) -> Self {
        let mut ordered = self.clone();
        ordered.new.model_options = in_order(&self.new.model_options);
        ordered.new.metadata.iter_mut().for_each(Value::sort_all_objects);
        ordered
    }
}

/// The same map in the order of its keys. Whether maps have that order by themselves depends on who else is in the
/// build; what is asked does not.
pub(super) fn in_order(map: &Option<Map<String, Value>>) -> Option<Map<String, Value>> {
    let mut map = map.clone();
    if let Some(map) = &mut map {
        map.sort_keys();
        map.values_mut().for_each(Value::sort_all_objects);
    }
    map
}

impl NewSession {
    /// What its runs use unless they say otherwise.
    pub(super) fn run_defaults(&self) -> RunOptions {
        RunOptions {
            system_prompt: self.system_prompt.clone(),
            model_profile: self.model_profile.clone(),
            model: self.model.clone(),
            cwd: self.cwd.clone(),
            model_options: self.model_options.clone(),
            ..RunOptions::default()
        }
    }
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunRequest {
    /// For which session.
    pub session: SessionTarget,
    /// What is said. Empty only when an earlier message is answered again.
    pub prompt: Vec<Block>,
    /// The adapter; the session's if not given.
    pub adapter: Option<String>,
    /// Whether it may act.
    pub mode: Mode,
    /// All else.
    pub options: RunOptions,
    /// Where in the tree.
    pub place: Place,
    /// What it does to a busy session.
    pub policy: Policy,
    /// The caller's names for it: the same names again give the same run.
    pub name: RequestName,
}

impl RunRequest {
    /// A prompt of plain text for the session of this key.
    pub fn text(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            session: SessionTarget { key: Some(key.into()), ..SessionTarget::default() },
            prompt: vec![Block::text(text)],
            ..Self::default()
        }
    }
}

/// A prompt that was accepted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// Its session.
    pub session: Session,
    /// Its run.
    pub run: Run,
    /// The policy that took effect.
    pub policy: Policy,
    /// Where the session's stream stood before: whoever subscribes from here sees all of the run.
    pub position: Position,
    /// True when the run existed already: this request was sent before.
    pub replayed: bool,
}

/// What an actor needs of a prompt.
#[derive(Debug)]
pub(crate) struct Accept {
    pub(crate) run: RunId,
    pub(crate) caller: Caller,
    pub(crate) prompt: Vec<Block>,
    /// The session's if not given.
    pub(crate) adapter: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) options: RunOptions,
    pub(crate) place: Place,
    pub(crate) policy: Policy,
    pub(crate) name: RequestName,
    pub(crate) fingerprint: [u8; 16],
    /// The delegation that the run is the child of.
    pub(crate) delegation: Option<Box<NewDelegation>>,
    /// Kept until the delegation is committed, if the parent waits for the run.
    pub(crate) pending_wait: Option<PendingWait>,
}

/// What of a session to change. Absent is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionPatch {
    /// Its title; none for none.
    pub title: Option<Option<String>>,
    /// Open or archived.
    pub status: Option<SessionStatus>,
    /// Whether it is kept at hand.
    pub pinned: Option<bool>,
    /// Who may read it.
    pub visibility: Option<Visibility>,
    /// Its model; none for none.
    pub model: Option<Option<String>>,
    /// Its model profile; none for none.
    pub model_profile: Option<Option<String>>,
    /// Its instructions; none for none.
    pub system_prompt: Option<Option<String>>,
    /// Its options for the model's provider, all of them; none for none.
    pub model_options: Option<Option<Map<String, Value>>>,
    /// Its folder; none for none.
    pub cwd: Option<Option<String>>,
    /// The caller's own data, all of it: an object.
    pub metadata: Option<Value>,
    /// Only if it still stands at this version.
    pub version: Option<u64>,
}

/// A session that was deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct Deleted {
    /// As it was last.
    pub session: Session,
    /// The sessions that were forked from it: what they see of it stays until they are deleted too.
    pub forks: Vec<SessionId>,
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionQuery {
    /// Whose.
    pub scope: Scope,
    /// Only those that are kept at hand, or only the others.
    pub pinned: Option<bool>,
    /// Only these.
    pub status: Option<SessionStatus>,
    /// Only these.
    pub surface_kind: Option<String>,
    /// Only those before this one.
    pub before: Option<(Time, SessionId)>,
    /// How many; 50 if not given.
    pub limit: Option<usize>,
}

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunQuery {
    /// Only this session's.
    pub session: Option<SessionId>,
    /// Only these.
    pub status: Option<RunStatus>,
    /// Only those before this one.
    pub before: Option<(Time, RunId)>,
    /// How many; 50 if not given.
    pub limit: Option<usize>,
}
