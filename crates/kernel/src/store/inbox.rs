//! The inbox of a session: notes that other sessions left about delegated work.

use mainspring_core::{Delegation, EventId, RunId, Time};
use serde::{Deserialize, Serialize};

/// A note in a session's inbox.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxItem {
    /// The item's id.
    pub id: EventId,
    /// When the note was left.
    pub at: Time,
    /// The note. A stored note that cannot be read is [`super::StoreError::Corrupt`].
    pub note: Note,
}

/// The content of a note. Stores keep it as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// A run of the receiving session has delegated work.
    Delegated {
        /// The new delegation.
        delegation: Box<Delegation>,
    },
    /// A delegation of the receiving session is settled.
    Settled {
        /// The settled delegation.
        delegation: Box<Delegation>,
    },
    /// A run of the receiving session must stop, because its parent no longer needs it.
    Cancel {
        /// The run to stop.
        run: RunId,
    },
}

#[cfg(test)]
mod tests {
    use mainspring_core::{DelegationId, DelegationMode, NewDelegation, SessionId, StoredRequest};
    use serde_json::{Value, json};

    use super::*;

    /// Databases hold notes in this form.
    #[test]
    fn the_stored_form_of_notes_stays_readable() {
        let (id, run) = (DelegationId::from_random([1; 16]), RunId::from_random([2; 16]));
        let (parent, child) = (SessionId::from_random([3; 16]), SessionId::from_random([4; 16]));
        let new = NewDelegation {
            id,
            parent_session: parent,
            parent_run: run,
            child_run: run,
            mode: DelegationMode::Spawn,
            objective: "count".into(),
            request: StoredRequest::default(),
            state: serde_json::Map::new(),
        };
        let delegation = Box::new(new.accept(child, Time(7)));
        let stored = json!({
            "delegationId": id, "parentSessionId": parent, "parentRunId": run, "childSessionId": child,
            "childRunId": run, "mode": "spawn", "status": "pending", "objective": "count", "createdAtMs": 7,
        });
        for (note, form) in [
            (Note::Cancel { run }, json!({"note": "cancel", "run": run})),
            (
                Note::Delegated { delegation: delegation.clone() },
                json!({"note": "delegated", "delegation": stored}),
            ),
            (Note::Settled { delegation }, json!({"note": "settled", "delegation": stored})),
        ] {
            assert_eq!(serde_json::to_value(&note).unwrap(), form);
            assert_eq!(serde_json::from_value::<Note>(form).unwrap(), note);
        }
        assert!(serde_json::from_value::<Note>(json!({"note": "hologram"})).is_err());
        assert!(serde_json::from_value::<Note>(Value::Null).is_err());
    }
}
