//! Bindings: the link between a session and a runtime-native session, in generations.
//!
//! ```text
//! active ──lose──▶ stale ─────────────┐
//!   │                │ invalidate     ├──replace──▶ the next generation
//!   └──invalidate──▶ invalid ─────────┘
//! ```
//!
//! No command closes a binding: only an import creates closed bindings.
//!
//! Invariants: at most one binding of a session and adapter is active; generations grow by one.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{BindingId, Body, MessageId, NodeId, Refusal, SessionId, Time};

/// A link between a session and a session of the agent runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The binding's id.
    #[serde(rename = "bindingId")]
    pub id: BindingId,
    /// The session.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The adapter that opened the runtime-native session.
    pub adapter: String,
    /// The generation: 1 for the first binding, one more for each replacement.
    pub generation: u32,
    /// The runtime's own id of its session. It is not a session id of this API.
    #[serde(rename = "adapterNativeSessionId", skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,
    /// The state that survives a restart of the runtime.
    pub fidelity: Fidelity,
    /// The status of the binding.
    pub status: BindingStatus,
    /// The mainspring process that opened or last resumed the binding. State in the runtime's memory is lost when
    /// that process ends.
    #[serde(rename = "nodeId")]
    pub node: NodeId,
    /// The process of the runtime that last served the native session. Absent if none has since mainspring started.
    #[serde(rename = "adapterInstanceId", default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The model of the native session, as the runtime names it. Absent if the runtime has not reported it.
    #[serde(rename = "modelId", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The last message in the runtime's own history.
    #[serde(rename = "messageId", skip_serializing_if = "Option::is_none")]
    pub last_message: Option<MessageId>,
    /// The folder in which the runtime-native session was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The hash of the system prompt of the runtime-native session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt_hash: Option<String>,
    /// True when the runtime-native session was seeded with the text of the path because the runtime's own history
    /// was unavailable.
    pub reconstructed: bool,
    /// Further facts that the runtime has reported about the native session.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object, required = false))]
    pub metadata: Map<String, Value>,
    /// When the binding was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the binding last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
    /// When a run last used the native session. Absent if none has.
    #[serde(rename = "lastUsedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Time>,
    /// When the binding became stale or invalid.
    #[serde(rename = "invalidatedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub invalidated_at: Option<Time>,
    /// Why the binding became stale or invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalidation_reason: Option<String>,
}

/// The part of a runtime-native session that survives a restart of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fidelity {
    /// The runtime restores its own state.
    Native,
    /// A new runtime-native session is seeded with the text of the path.
    Reconstructed,
    /// Nothing survives.
    None,
}
names!(Fidelity { Native => "native", Reconstructed => "reconstructed", None => "none" });

impl Fidelity {
    /// True when the runtime's state lives in its process, and ends with it.
    pub const fn is_process_local(self) -> bool {
        !matches!(self, Self::Native)
    }
}

/// The reason why a process-local binding of an earlier process is stale.
pub const PROCESS_GONE: &str = "its process is gone";

/// The status of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BindingStatus {
    /// The binding is in use.
    Active,
    /// The native session can no longer be resumed.
    Stale,
    /// A caller has declared the binding invalid: it must not be used again.
    Invalid,
    /// The binding was closed.
    Closed,
}
names!(BindingStatus { Active => "active", Stale => "stale", Invalid => "invalid", Closed => "closed" });

/// Characters that a runtime may ignore in the id of a session, such as the hyphens of a UUID.
const IGNORED_IN_NATIVE_IDS: [char; 7] = [' ', '\t', '\n', '\r', '-', '{', '}'];

/// Returns the form under which native session ids are compared: two spellings that a runtime may take for the same id
/// have the same form. Migration 38 computes it in SQL for earlier rows.
pub fn native_key(native: &str) -> String {
    native.replace(IGNORED_IN_NATIVE_IDS, "").to_ascii_lowercase()
}

/// The values with which a binding begins.
#[derive(Debug, Clone)]
pub struct NewBinding {
    /// The binding's id.
    pub id: BindingId,
    /// The session.
    pub session: SessionId,
    /// The adapter of the runtime-native session.
    pub adapter: String,
    /// The generation of the binding before; 0 if there is none.
    pub generation_before: u32,
    /// The runtime's own id of its session.
    pub native: Option<String>,
    /// The state that survives a restart of the runtime.
    pub fidelity: Fidelity,
    /// True when the runtime-native session was seeded with the text of the path.
    pub reconstructed: bool,
    /// The mainspring process that opens the binding.
    pub node: NodeId,
    /// The last message in the runtime's own history.
    pub last_message: Option<MessageId>,
    /// The folder in which the runtime-native session was opened.
    pub cwd: Option<String>,
    /// The hash of the system prompt of the runtime-native session.
    pub system_prompt_hash: Option<String>,
    /// True when a run opened the runtime-native session and uses it.
    pub is_used: bool,
}

impl Binding {
    /// Creates an active binding.
    pub fn open(new: NewBinding, at: Time) -> Self {
        Self {
            id: new.id,
            session: new.session,
            adapter: new.adapter,
            generation: new.generation_before + 1,
            native: new.native,
            fidelity: new.fidelity,
            status: BindingStatus::Active,
            node: new.node,
            instance: None,
            model: None,
            last_message: new.last_message,
            cwd: new.cwd,
            system_prompt_hash: new.system_prompt_hash,
            reconstructed: new.reconstructed,
            metadata: Map::new(),
            created_at: at,
            updated_at: at,
            last_used_at: new.is_used.then_some(at),
            invalidated_at: None,
            invalidation_reason: None,
        }
    }

    /// Moves an active binding to the message at which the runtime's own history ends now. Records no event.
    pub fn advance(&mut self, message: Option<MessageId>, at: Time) -> Result<(), Refusal> {
        if self.status != BindingStatus::Active {
            return Err(Refusal::WrongState { what: "binding", status: self.status.name() });
        }
        self.last_message = message;
        self.updated_at = at;
        self.last_used_at = Some(at);
        Ok(())
    }

    /// Lists the commands to the binding when its next generation `by` is opened: an active binding is lost before it is
    /// replaced. A closed one stays as it is.
    pub fn replace_commands(&self, by: BindingId) -> Vec<Command> {
        let lose = || Command::Lose { reason: "another native session was opened".into() };
        match self.status {
            BindingStatus::Active => vec![lose(), Command::Replace { by }],
            BindingStatus::Stale | BindingStatus::Invalid => vec![Command::Replace { by }],
            BindingStatus::Closed => vec![],
        }
    }
}

/// A command to a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Reuse the binding for a run.
    Resume {
        /// The process that resumes the binding.
        node: NodeId,
        /// The message above the run's prompt.
        at: Option<MessageId>,
        /// The working folder of the run.
        cwd: Option<String>,
        /// The hash of the run's system prompt.
        system_prompt_hash: Option<String>,
    },
    /// The native session can no longer be resumed.
    Lose {
        /// The reason.
        reason: String,
    },
    /// Declare the binding invalid.
    Invalidate,
    /// Replace the binding with its next generation.
    Replace {
        /// The next generation.
        by: BindingId,
    },
}

/// Decides the effect of `command` on `binding`: the event to record, or a refusal.
///
/// Resuming gives [`Body::BindingStale`] when the runtime's state was in the memory of another process, when its
/// history ends at another message, or when it was opened in another folder or with other instructions: an agent must
/// never answer from a path it is not on.
pub fn decide(binding: &Binding, command: Command) -> Result<Body, Refusal> {
    let binding_id = binding.id;
    let stale = |reason| Ok(Body::BindingStale { binding_id, status: BindingStatus::Stale, reason });
    match (binding.status, command) {
        (BindingStatus::Active, Command::Resume { node, at, cwd, system_prompt_hash }) => {
            let mismatch = if binding.fidelity.is_process_local() && binding.node != node {
                PROCESS_GONE
            } else if binding.last_message != at {
                "it stands at another message"
            } else if binding.cwd != cwd {
                "it was opened in another folder"
            } else if binding.system_prompt_hash != system_prompt_hash {
                "it was opened with other instructions"
            } else {
                return Ok(Body::BindingResumed { binding_id });
            };
            stale(mismatch.into())
        }
        (BindingStatus::Active, Command::Lose { reason }) => stale(reason),
        (BindingStatus::Active | BindingStatus::Stale, Command::Invalidate) => Ok(Body::BindingStale {
            binding_id,
            status: BindingStatus::Invalid,
            reason: "it was declared invalid".into(),
        }),
        (BindingStatus::Stale | BindingStatus::Invalid, Command::Replace { by }) => {
            Ok(Body::BindingReplaced { binding_id, by })
        }
        (status, _) => Err(Refusal::WrongState { what: "binding", status: status.name() }),
    }
}

/// Applies an event to `binding`. Infallible: the event has already been decided.
pub fn apply(binding: &mut Binding, body: &Body, node: NodeId, at: Time) {
    binding.updated_at = at;
    match body {
        Body::BindingStale { status, reason, .. } => {
            binding.status = *status;
            binding.invalidated_at = Some(at);
            binding.invalidation_reason = Some(reason.clone());
        }
        Body::BindingResumed { .. } => {
            binding.node = node;
            binding.last_used_at = Some(at);
        }
        // A replaced binding stays stale or invalid.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(fidelity: Fidelity) -> Binding {
        let new = NewBinding {
            id: BindingId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            adapter: "acp".into(),
            generation_before: 0,
            native: Some("native-1".into()),
            fidelity,
            reconstructed: false,
            node: NodeId::from_random([3; 16]),
            last_message: None,
            cwd: None,
            system_prompt_hash: None,
            is_used: false,
        };
        Binding::open(new, Time(0))
    }

    const STATUSES: [BindingStatus; 4] =
        [BindingStatus::Active, BindingStatus::Stale, BindingStatus::Invalid, BindingStatus::Closed];

    #[test]
    fn only_an_active_binding_moves_to_another_message() {
        let message = Some(MessageId::from_random([6; 16]));
        for status in STATUSES {
            let before = Binding { status, ..binding(Fidelity::Native) };
            let mut moved = before.clone();
            match status {
                BindingStatus::Active => {
                    moved.advance(message, Time(7)).unwrap();
                    let times = (moved.updated_at, moved.last_used_at);
                    assert_eq!((moved.last_message, times), (message, (Time(7), Some(Time(7)))));
                }
                _ => {
                    let refused = Refusal::WrongState { what: "binding", status: status.name() };
                    assert_eq!(moved.advance(message, Time(7)), Err(refused));
                    assert_eq!(moved, before);
                }
            }
        }
    }

    #[test]
    fn the_commands_for_a_replacement_are_accepted_in_every_status() {
        let by = BindingId::from_random([5; 16]);
        for status in STATUSES {
            let mut replaced = Binding { status, ..binding(Fidelity::Native) };
            let node = replaced.node;
            let mut events = vec![];
            for command in replaced.replace_commands(by) {
                let body = decide(&replaced, command).unwrap();
                apply(&mut replaced, &body, node, Time(1));
                events.push(body.kind());
            }
            let expected: &[&str] = match status {
                BindingStatus::Active => &["binding.stale", "binding.replaced"],
                BindingStatus::Stale | BindingStatus::Invalid => &["binding.replaced"],
                BindingStatus::Closed => &[],
            };
            assert_eq!(events, expected, "{status:?}");
            assert_ne!(replaced.status, BindingStatus::Active);
        }
    }

    fn resume(binding: &Binding, node: u8, at: Option<MessageId>) -> &'static str {
        decide(binding, resume_command(node, at)).unwrap().kind()
    }

    fn resume_command(node: u8, at: Option<MessageId>) -> Command {
        let node = NodeId::from_random([node; 16]);
        Command::Resume { node, at, cwd: None, system_prompt_hash: None }
    }

    #[test]
    fn native_ids_that_differ_only_in_case_hyphens_and_braces_have_the_same_key() {
        let id = "0198F0A2-7c1d-7000-8000-0123456789ab";
        assert_eq!(native_key(id), "0198f0a27c1d700080000123456789ab");
        for same in [
            "0198f0a2-7c1d-7000-8000-0123456789AB",
            " 0198f0a2-7c1d-7000-8000-0123456789ab\n",
            "{0198f0a2-7c1d-7000-8000-0123456789ab}",
            "0198f0a27c1d700080000123456789ab",
        ] {
            assert_eq!(native_key(same), native_key(id), "{same}");
        }
        assert_ne!(native_key("n1"), native_key("n2"));
    }

    #[test]
    fn only_native_state_survives_the_process() {
        assert!(!Fidelity::Native.is_process_local());
        assert!(Fidelity::None.is_process_local() && Fidelity::Reconstructed.is_process_local());
        assert_eq!(resume(&binding(Fidelity::Native), 9, None), "binding.resumed");
        assert_eq!(resume(&binding(Fidelity::None), 9, None), "binding.stale");
        assert_eq!(resume(&binding(Fidelity::Reconstructed), 9, None), "binding.stale");
        assert_eq!(resume(&binding(Fidelity::None), 3, None), "binding.resumed");
    }

    #[test]
    fn a_binding_at_another_message_is_not_resumed() {
        assert_eq!(
            resume(&binding(Fidelity::Native), 3, Some(MessageId::from_random([4; 16]))),
            "binding.stale"
        );
    }

    #[test]
    fn a_binding_with_another_folder_or_system_prompt_is_not_resumed() {
        let opened = Binding {
            cwd: Some("/a".into()),
            system_prompt_hash: Some("1".into()),
            ..binding(Fidelity::Native)
        };
        let resume = |cwd: Option<&str>, hash: Option<&str>| {
            let (cwd, system_prompt_hash) = (cwd.map(Into::into), hash.map(Into::into));
            let node = opened.node;
            decide(&opened, Command::Resume { node, at: None, cwd, system_prompt_hash }).unwrap().kind()
        };
        assert_eq!(resume(Some("/a"), Some("1")), "binding.resumed");
        for (cwd, hash) in
            [(Some("/b"), Some("1")), (None, Some("1")), (Some("/a"), Some("2")), (Some("/a"), None)]
        {
            assert_eq!(resume(cwd, hash), "binding.stale", "{cwd:?} {hash:?}");
        }
    }

    #[test]
    fn an_invalid_binding_is_neither_resumed_nor_invalidated_again() {
        let mut invalid = binding(Fidelity::Native);
        let body = decide(&invalid, Command::Invalidate).unwrap();
        let node = invalid.node;
        apply(&mut invalid, &body, node, Time(1));
        assert_eq!(invalid.status, BindingStatus::Invalid);
        assert!(decide(&invalid, Command::Invalidate).is_err());
        assert!(decide(&invalid, resume_command(3, None)).is_err());
        let by = BindingId::from_random([5; 16]);
        let replaced = decide(&invalid, Command::Replace { by }).unwrap();
        assert_eq!(replaced.kind(), "binding.replaced");
        apply(&mut invalid, &replaced, node, Time(2));
        assert_eq!(invalid.status, BindingStatus::Invalid, "it stays invalid");
    }

    #[test]
    fn a_binding_records_its_last_use_and_its_invalidation() {
        let mut used = binding(Fidelity::Native);
        let node = used.node;
        let resumed = decide(&used, resume_command(3, None)).unwrap();
        apply(&mut used, &resumed, node, Time(5));
        assert_eq!((used.last_used_at, used.invalidated_at), (Some(Time(5)), None));
        let lost = decide(&used, Command::Lose { reason: "unknown session".into() }).unwrap();
        apply(&mut used, &lost, node, Time(6));
        assert_eq!((used.last_used_at, used.invalidated_at), (Some(Time(5)), Some(Time(6))));
        assert_eq!(used.invalidation_reason.as_deref(), Some("unknown session"));
    }

    #[test]
    fn a_stale_binding_can_only_be_replaced() {
        let mut stale = binding(Fidelity::Native);
        let lost = decide(&stale, Command::Lose { reason: "unknown session".into() }).unwrap();
        let node = stale.node;
        apply(&mut stale, &lost, node, Time(1));
        assert!(decide(&stale, Command::Lose { reason: String::new() }).is_err());
        assert!(decide(&stale, resume_command(3, None)).is_err());
        let by = BindingId::from_random([5; 16]);
        let replaced = decide(&stale, Command::Replace { by }).unwrap();
        assert_eq!(replaced.kind(), "binding.replaced");
        apply(&mut stale, &replaced, node, Time(2));
        assert_eq!(stale.status, BindingStatus::Stale, "it stays stale");
    }
}
