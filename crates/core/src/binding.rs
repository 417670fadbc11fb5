//! Bindings: a session's tie to a runtime-native session, in generations.
//!
//! ```text
//! active ──lose──▶ stale ──┐
//!   │ └──invalidate──▶ invalid ──┼──▶ the next generation
//!   └──close──▶ closed ────┘
//! ```
//!
//! Invariant: at most one binding of a session and adapter is active; generations grow by one.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{BindingId, Body, MessageId, NodeId, Refusal, SessionId, Time};

/// A session's tie to a runtime-native session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Its id.
    #[serde(rename = "bindingId")]
    pub id: BindingId,
    /// Its session.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The adapter that opened it.
    pub adapter: String,
    /// 1 for the first, and one more for each that took its place.
    pub generation: u32,
    /// The runtime's own id. Never shown as a session id.
    #[serde(rename = "adapterNativeSessionId", skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,
    /// What survives a restart of the runtime.
    pub fidelity: Fidelity,
    /// Whether it can be used.
    pub status: BindingStatus,
    /// The process that made it: state of the runtime's memory is gone with it.
    #[serde(rename = "nodeId")]
    pub boot: NodeId,
    /// The message the runtime's own history ends at.
    #[serde(rename = "messageId", skip_serializing_if = "Option::is_none")]
    pub stands_at: Option<MessageId>,
    /// The folder it was opened in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What its system prompt was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt_hash: Option<String>,
    /// True when it was opened with the text of the path, because the runtime's own history was not to be had.
    pub reconstructed: bool,
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When it last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

/// What of a runtime-native session survives a restart of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fidelity {
    /// The runtime resumes its own state.
    Native,
    /// The path's text is handed to a fresh one.
    Reconstructed,
    /// Nothing.
    None,
}
names!(Fidelity { Native => "native", Reconstructed => "reconstructed", None => "none" });

/// Whether a binding can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BindingStatus {
    /// It can.
    Active,
    /// The runtime no longer knows it.
    Stale,
    /// Somebody said it must not be used again.
    Invalid,
    /// It was closed in good order.
    Closed,
}
names!(BindingStatus { Active => "active", Stale => "stale", Invalid => "invalid", Closed => "closed" });

/// What may be asked of a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Use it again for a run.
    Resume {
        /// The process that asks.
        boot: NodeId,
        /// The message above the run's prompt.
        at: Option<MessageId>,
        /// The folder the run wants.
        cwd: Option<String>,
        /// What the run's system prompt is.
        system_prompt_hash: Option<String>,
    },
    /// The runtime no longer knows it.
    Lose {
        /// Why.
        reason: String,
    },
    /// It must not be used again.
    Invalidate,
    /// The next generation takes its place.
    Replace {
        /// The next generation.
        by: BindingId,
    },
}

/// Decides what `command` does to `binding`: the event to record, or a refusal.
///
/// A binding whose state was in another process's memory, that stands at another message, or that was opened in
/// another folder or with other instructions, answers a resume with [`Body::BindingStale`]: an agent never answers
/// from a path it is not on.
pub fn decide(binding: &Binding, command: Command) -> Result<Body, Refusal> {
    let binding_id = binding.id;
    let stale = |reason| Ok(Body::BindingStale { binding_id, status: BindingStatus::Stale, reason });
    match (binding.status, command) {
        (BindingStatus::Active, Command::Resume { boot, at, cwd, system_prompt_hash }) => {
            let misfit = if binding.fidelity != Fidelity::Native && binding.boot != boot {
                "its process is gone"
            } else if binding.stands_at != at {
                "it stands at another message"
            } else if binding.cwd != cwd {
                "it was opened in another folder"
            } else if binding.system_prompt_hash != system_prompt_hash {
                "it was opened with other instructions"
            } else {
                return Ok(Body::BindingResumed { binding_id });
            };
            stale(misfit.into())
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

/// Changes `binding` as `body` says. Cannot fail: what was decided happens.
pub fn apply(binding: &mut Binding, body: &Body, boot: NodeId, at: Time) {
    binding.updated_at = at;
    match body {
        Body::BindingStale { status, .. } => binding.status = *status,
        Body::BindingResumed { .. } => binding.boot = boot,
        // What must not be used again is not forgotten to be that.
        Body::BindingReplaced { .. } if binding.status == BindingStatus::Invalid => {}
        Body::BindingReplaced { .. } => binding.status = BindingStatus::Closed,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(fidelity: Fidelity) -> Binding {
        Binding {
            id: BindingId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            adapter: "acp".into(),
            generation: 1,
            native: Some("native-1".into()),
            fidelity,
            status: BindingStatus::Active,
            boot: NodeId::from_random([3; 16]),
            stands_at: None,
            cwd: None,
            system_prompt_hash: None,
            reconstructed: false,
            created_at: Time(0),
            updated_at: Time(0),
        }
    }

    fn resume(binding: &Binding, boot: u8, at: Option<MessageId>) -> &'static str {
        decide(binding, resuming(boot, at)).unwrap().kind()
    }

    fn resuming(boot: u8, at: Option<MessageId>) -> Command {
        let boot = NodeId::from_random([boot; 16]);
        Command::Resume { boot, at, cwd: None, system_prompt_hash: None }
    }

    #[test]
    fn only_native_state_survives_the_process() {
        assert_eq!(resume(&binding(Fidelity::Native), 9, None), "binding.resumed");
        assert_eq!(resume(&binding(Fidelity::None), 9, None), "binding.stale");
        assert_eq!(resume(&binding(Fidelity::Reconstructed), 9, None), "binding.stale");
        assert_eq!(resume(&binding(Fidelity::None), 3, None), "binding.resumed");
    }

    #[test]
    fn a_binding_that_stands_elsewhere_is_not_resumed() {
        assert_eq!(
            resume(&binding(Fidelity::Native), 3, Some(MessageId::from_random([4; 16]))),
            "binding.stale"
        );
    }

    #[test]
    fn a_binding_of_another_folder_or_with_other_instructions_is_not_resumed() {
        let bound = Binding {
            cwd: Some("/a".into()),
            system_prompt_hash: Some("1".into()),
            ..binding(Fidelity::Native)
        };
        let resume = |cwd: Option<&str>, hash: Option<&str>| {
            let (cwd, system_prompt_hash) = (cwd.map(Into::into), hash.map(Into::into));
            let boot = bound.boot;
            decide(&bound, Command::Resume { boot, at: None, cwd, system_prompt_hash }).unwrap().kind()
        };
        assert_eq!(resume(Some("/a"), Some("1")), "binding.resumed");
        for (cwd, hash) in
            [(Some("/b"), Some("1")), (None, Some("1")), (Some("/a"), Some("2")), (Some("/a"), None)]
        {
            assert_eq!(resume(cwd, hash), "binding.stale", "{cwd:?} {hash:?}");
        }
    }

    #[test]
    fn what_is_invalid_is_not_resumed_and_not_declared_invalid_again() {
        let mut invalid = binding(Fidelity::Native);
        let body = decide(&invalid, Command::Invalidate).unwrap();
        let boot = invalid.boot;
        apply(&mut invalid, &body, boot, Time(1));
        assert_eq!(invalid.status, BindingStatus::Invalid);
        assert!(decide(&invalid, Command::Invalidate).is_err());
        assert!(decide(&invalid, resuming(3, None)).is_err());
        let by = BindingId::from_random([5; 16]);
        let replaced = decide(&invalid, Command::Replace { by }).unwrap();
        assert_eq!(replaced.kind(), "binding.replaced");
        apply(&mut invalid, &replaced, boot, Time(2));
        assert_eq!(invalid.status, BindingStatus::Invalid, "and it stays so");
    }

    #[test]
    fn a_stale_binding_can_only_be_replaced() {
        let mut stale = binding(Fidelity::Native);
        let lost = decide(&stale, Command::Lose { reason: "unknown session".into() }).unwrap();
        let boot = stale.boot;
        apply(&mut stale, &lost, boot, Time(1));
        assert!(decide(&stale, Command::Lose { reason: String::new() }).is_err());
        assert!(decide(&stale, resuming(3, None)).is_err());
        let by = BindingId::from_random([5; 16]);
        assert_eq!(decide(&stale, Command::Replace { by }).unwrap().kind(), "binding.replaced");
    }
}
