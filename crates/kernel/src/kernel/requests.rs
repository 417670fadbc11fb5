//! Types that callers send to the kernel and receive from it.

pub use mainspring_api::{CancelOutcome, Opening, Scope, Snapshot};
use mainspring_api::{Prompt, PromptContent};
use mainspring_core::{
    Block, ExternalRef, LegacyAlias, Mode, NewDelegation, Place, Policy, Position, RequestName, Run, RunId,
    RunOptions, RunStatus, Session, SessionId, SessionStatus, Time, Visibility,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Caller;
use super::waits::PendingWait;
use crate::error::Error;

/// Names the session of a prompt: the first of the given names that is found, else a new session with these names.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionTarget {
    /// Id of the session, which must exist.
    pub id: Option<SessionId>,
    /// The caller's own name for the session.
    pub key: Option<String>,
    /// Object in the caller's application that the session belongs to.
    pub external_ref: Option<ExternalRef>,
    /// Compatibility alias.
    pub legacy_alias: Option<LegacyAlias>,
    /// Settings of a new session.
    pub new: NewSession,
}

/// Settings of a new session.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NewSession {
    /// Title.
    pub title: Option<String>,
    /// Kind of surface that opens the session; `api` if not given.
    pub surface_kind: Option<String>,
    /// Adapter; the kernel's default if not given.
    pub adapter: Option<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Model profile.
    pub model_profile: Option<String>,
    /// Agent definition.
    pub agent_definition: Option<String>,
    /// The caller's own data: an object.
    pub metadata: Option<Value>,
    // The following fields were added later. Absent ones are skipped, so that the fingerprints of older requests stay
    // the same.
    /// Visibility of the session; private if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// System prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Options for the model's provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_options: Option<Map<String, Value>>,
    /// Rules about what the session's agents may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Labels that a server of a cluster must have to execute the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl From<mainspring_api::SessionTarget> for SessionTarget {
    fn from(target: mainspring_api::SessionTarget) -> Self {
        Self {
            id: target.session_id,
            key: target.key,
            external_ref: target.external_ref,
            legacy_alias: target.legacy_alias,
            new: NewSession {
                title: target.title,
                surface_kind: target.surface_kind,
                adapter: target.adapter,
                cwd: target.cwd,
                model_profile: target.model_profile,
                agent_definition: target.agent_definition,
                metadata: target.metadata,
                visibility: target.visibility,
                model: target.model,
                system_prompt: target.system_prompt,
                model_options: target.model_options,
                rules: target.rules,
                labels: target.labels,
            },
        }
    }
}

impl SessionTarget {
    /// The same target with sorted map keys, so that its hash does not depend on their order.
    pub(super) fn in_order(&self) -> Self {
        let mut ordered = self.clone();
        ordered.new.model_options = in_order(&self.new.model_options);
        ordered.new.metadata.iter_mut().for_each(Value::sort_all_objects);
        ordered
    }
}

/// The same map with sorted keys. `serde_json` sorts them by itself unless another crate in the build enables
/// `preserve_order`; a request's hash must not depend on that.
pub(super) fn in_order(map: &Option<Map<String, Value>>) -> Option<Map<String, Value>> {
    let mut map = map.clone();
    if let Some(map) = &mut map {
        map.sort_keys();
        map.values_mut().for_each(Value::sort_all_objects);
    }
    map
}

impl NewSession {
    /// The options of the session's runs where a run gives none.
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunRequest {
    /// The session.
    pub session: SessionTarget,
    /// Content of the prompt. Empty only if an earlier message is answered again.
    pub prompt: Vec<Block>,
    /// Adapter; the session's if not given.
    pub adapter: Option<String>,
    /// Whether the run may act or only answer.
    pub mode: Mode,
    /// Further options of the run.
    pub options: RunOptions,
    /// True to ignore options that the adapter does not use; otherwise they are refused.
    pub ignore_unused_options: bool,
    /// Position of the prompt in the tree.
    pub place: Place,
    /// Handling of a busy session.
    pub policy: Policy,
    /// The caller's names for the request: the same names again return the same run.
    pub name: RequestName,
    /// The host that runs the tools which the run's agent does not have itself, by its secret name.
    #[serde(skip)]
    pub host: Option<String>,
}

impl RunRequest {
    /// A prompt of plain text for the session with this key.
    pub fn text(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            session: SessionTarget { key: Some(key.into()), ..SessionTarget::default() },
            prompt: vec![Block::text(text)],
            ..Self::default()
        }
    }
}

impl TryFrom<Prompt> for RunRequest {
    type Error = Error;

    fn try_from(prompt: Prompt) -> Result<Self, Error> {
        let name = request_name(prompt.client_id, prompt.request_id, prompt.idempotency_key)?;
        if prompt.session.has_start_fields() {
            return Err(Error::Invalid("a prompt does not start a session: `POST /v1/sessions` does".into()));
        }
        Ok(Self {
            session: prompt.session.into(),
            prompt: prompt.prompt.map(PromptContent::into_blocks).unwrap_or_default(),
            adapter: prompt.adapter,
            mode: prompt.mode,
            options: prompt.options,
            ignore_unused_options: prompt.ignore_unused_options,
            place: prompt.place,
            policy: prompt.policy,
            name,
            host: None,
        })
    }
}

/// Checks the names of a request: a request id belongs to a client.
pub(super) fn request_name(
    client_id: Option<String>,
    request_id: Option<String>,
    idempotency_key: Option<String>,
) -> Result<RequestName, Error> {
    if request_id.is_some() && client_id.is_none() {
        return Err(Error::Invalid(
            "a requestId is the client's own: send a clientId too, or an Idempotency-Key".into(),
        ));
    }
    Ok(RequestName { client_id, request_id, idempotency_key })
}

/// An accepted prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The session.
    pub session: Session,
    /// The run.
    pub run: Run,
    /// The policy that took effect.
    pub policy: Policy,
    /// The session's position before the run: a subscription from here sees all of it.
    pub position: Position,
    /// True if the same request had created the run before.
    pub replayed: bool,
}

/// A prompt as sent to the session's actor.
#[derive(Debug)]
pub(crate) struct Accept {
    pub(crate) run: RunId,
    pub(crate) caller: Caller,
    pub(crate) prompt: Vec<Block>,
    /// The session's adapter if none.
    pub(crate) adapter: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) options: RunOptions,
    pub(crate) ignore_unused_options: bool,
    pub(crate) place: Place,
    pub(crate) policy: Policy,
    pub(crate) name: RequestName,
    pub(crate) fingerprint: [u8; 16],
    /// The delegation that the run is the child of.
    pub(crate) delegation: Option<Box<NewDelegation>>,
    /// True if another kernel relays the prompt, and may do so again: the run may exist already.
    pub(crate) is_relayed: bool,
    /// Kept until the delegation is committed, if the parent waits for the run.
    pub(crate) pending_wait: Option<PendingWait>,
}

/// Changes of a session. Absent fields stay as they are; an inner none removes the value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionPatch {
    /// Title.
    pub title: Option<Option<String>>,
    /// Open, archived or closed.
    pub status: Option<SessionStatus>,
    /// Whether the session is pinned.
    pub pinned: Option<bool>,
    /// Visibility of the session.
    pub visibility: Option<Visibility>,
    /// Model.
    pub model: Option<Option<String>>,
    /// Model profile.
    pub model_profile: Option<Option<String>>,
    /// System prompt.
    pub system_prompt: Option<Option<String>>,
    /// Options for the model's provider; replaces all of them.
    pub model_options: Option<Option<Map<String, Value>>>,
    /// Working directory.
    pub cwd: Option<Option<String>>,
    /// The caller's own data, an object; replaces all of it.
    pub metadata: Option<Value>,
    /// Rules about what the session's agents may do; replaces all of them.
    pub rules: Option<Vec<String>>,
    /// Agent definition.
    pub agent_definition: Option<String>,
    /// Milliseconds that the idle session stays in memory; the server's setting if none.
    pub idle_unload_ms: Option<Option<u64>>,
    /// Apply the patch only if the session has this version.
    pub version: Option<u64>,
}

/// A deleted session.
#[derive(Debug, Clone, PartialEq)]
pub struct Deleted {
    /// The session, now with the status `deleted`.
    pub session: Session,
    /// Forks of the session. The messages they share with it are kept until they are deleted too.
    pub forks: Vec<SessionId>,
}

/// Selects sessions to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionQuery {
    /// The caller's own sessions, those visible to its org, or both.
    pub scope: Scope,
    /// Only pinned, or only unpinned sessions.
    pub pinned: Option<bool>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions of this kind of surface.
    pub surface_kind: Option<String>,
    /// True for only the caller's own sessions that are in memory.
    pub open: bool,
    /// Only sessions before this one.
    pub before: Option<(Time, SessionId)>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
    /// Only sessions with a run that has not ended.
    pub live: bool,
}

/// Selects runs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunQuery {
    /// Only runs of this session.
    pub session: Option<SessionId>,
    /// Only runs with this status.
    pub status: Option<RunStatus>,
    /// Only runs before this one.
    pub before: Option<(Time, RunId)>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}
