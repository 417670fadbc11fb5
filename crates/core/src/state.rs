//! State: versioned key-value data of a run, a session or an owner.
//!
//! Every change of a key increments its version, even after the key was removed and created again. A version
//! therefore identifies one value for ever, and a write that expects the version it has read never overwrites another
//! write.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::{AttemptId, KeyId, RunId, Time};

/// Maximum bytes of a value, as JSON, that a `state.changed` event carries.
pub const EVENT_VALUE_BYTES: usize = 4 << 10;

/// Number of changes that the history of a key keeps; older changes are dropped.
pub const HISTORY_CHANGES: usize = 50;

/// The scope of a state key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateScope {
    /// A single run.
    Run,
    /// A session. A branch or a fork sees the values as of its starting point.
    Session,
    /// An owner, across sessions.
    Owner,
}
names!(StateScope { Run => "run", Session => "session", Owner => "owner" });

/// The author of a state change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateAuthor {
    /// A caller of the API.
    Caller,
    /// The attempt named in the event.
    Agent,
}

/// The party that changed a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StateWriter {
    /// A caller of the API.
    #[serde(rename_all = "camelCase")]
    Caller {
        /// The API key of the caller, if it used one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_id: Option<KeyId>,
    },
    /// An agent.
    #[serde(rename_all = "camelCase")]
    Agent {
        /// The run.
        run_id: RunId,
        /// The attempt of the run.
        attempt_id: AttemptId,
        /// The tool that made the change, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
    },
}

impl StateWriter {
    /// The author, as events name it.
    pub fn author(&self) -> StateAuthor {
        match self {
            Self::Caller { .. } => StateAuthor::Caller,
            Self::Agent { .. } => StateAuthor::Agent,
        }
    }
}

/// One change of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StateChange {
    /// The key.
    pub key: String,
    /// The version that the change made.
    pub version: u64,
    /// True if the key was removed.
    pub deleted: bool,
    /// The value. Absent if the key was removed, or if the value is larger than 4 KiB as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_value")]
    pub value: Option<Value>,
    /// When the change was made.
    #[serde(rename = "changedAtMs")]
    pub changed_at: Time,
    /// The party that made the change.
    pub by: StateWriter,
}

impl StateChange {
    /// Describes the change of `key` to `value`, or the removal of `key` if `value` is `None`. A large value is left
    /// out.
    pub fn new(key: &str, version: u64, value: Option<&Value>, at: Time, by: StateWriter) -> Self {
        let small = value.filter(|value| value.to_string().len() <= EVENT_VALUE_BYTES);
        Self { key: key.into(), version, deleted: value.is_none(), value: small.cloned(), changed_at: at, by }
    }
}

/// Deserializes a value that is present, so that null becomes `Some(Null)`.
fn some_value<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// A state key and its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StateEntry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The version. It grows with each change and is never reused.
    pub version: u64,
    /// When the value last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

/// The stored data of a key: its entry and its highest version so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StateSlot {
    /// The current entry; `None` if the key is absent.
    pub entry: Option<StateEntry>,
    /// The highest version so far; 0 if the key never existed.
    pub version: u64,
}

impl StateSlot {
    /// The version of the current entry; 0 if the key is absent.
    fn current_version(&self) -> u64 {
        self.entry.as_ref().map_or(0, |entry| entry.version)
    }
}

/// A precondition on the current version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expect {
    /// No precondition.
    #[default]
    Any,
    /// The key must be absent.
    Absent,
    /// The key must be present.
    Present,
    /// The key must have this version.
    Version(u64),
}

/// The error for a precondition that is not met. Version 0 stands for an absent key. If an absent key must be present,
/// `expected` is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("version {expected} was expected, but the version is {current}")]
pub struct VersionMismatch {
    /// The expected version.
    pub expected: u64,
    /// The current version.
    pub current: u64,
}

/// Decides the effect of setting a key to `value`, or of removing the key if `value` is `None`. Returns the new
/// version, or `None` if nothing changes.
pub fn decide(
    slot: &StateSlot,
    value: Option<&Value>,
    expect: Expect,
) -> Result<Option<u64>, VersionMismatch> {
    let current = slot.current_version();
    let expected = match expect {
        Expect::Any => current,
        Expect::Absent => 0,
        Expect::Present => current.max(1),
        Expect::Version(version) => version,
    };
    if expected != current {
        return Err(VersionMismatch { expected, current });
    }
    let same = slot.entry.as_ref().map(|entry| &entry.value) == value;
    Ok((!same).then_some(slot.version.max(current) + 1))
}

/// The result of a state change.
#[derive(Debug, Clone, PartialEq)]
pub struct StateOutcome {
    /// The entry after the change.
    pub entry: Option<StateEntry>,
    /// True when the change created the key.
    pub created: bool,
}

impl StateOutcome {
    /// Builds the result of setting `key` to `value` with `version`; the slot is unchanged if `version` is `None`.
    pub fn of(slot: StateSlot, key: &str, value: Option<Value>, version: Option<u64>, at: Time) -> Self {
        let Some(version) = version else {
            return Self { entry: slot.entry, created: false };
        };
        let entry = value.map(|value| StateEntry { key: key.into(), value, version, updated_at: at });
        Self { created: entry.is_some() && slot.entry.is_none(), entry }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Builds a slot that holds `value` at version `now`, with `version` as the highest version so far.
    fn slot(value: Option<Value>, now: u64, version: u64) -> StateSlot {
        let entry =
            value.map(|value| StateEntry { key: "k".into(), value, version: now, updated_at: Time(0) });
        StateSlot { entry, version }
    }

    #[test]
    fn a_change_whose_precondition_is_not_met_is_refused() {
        let (empty, one, gone) = (slot(None, 0, 0), slot(Some(json!(1)), 3, 3), slot(None, 0, 4));
        let (set, null) = (Some(json!(2)), Some(Value::Null));
        let refused = |expected, current| Err(VersionMismatch { expected, current });
        for (slot, value, expect, decided) in [
            (&empty, &set, Expect::Any, Ok(Some(1))),
            (&empty, &set, Expect::Absent, Ok(Some(1))),
            (&empty, &set, Expect::Present, refused(1, 0)),
            (&empty, &set, Expect::Version(1), refused(1, 0)),
            (&empty, &null, Expect::Any, Ok(Some(1))),
            (&empty, &None, Expect::Any, Ok(None)),
            (&one, &set, Expect::Any, Ok(Some(4))),
            (&one, &set, Expect::Absent, refused(0, 3)),
            (&one, &set, Expect::Present, Ok(Some(4))),
            (&one, &set, Expect::Version(3), Ok(Some(4))),
            (&one, &set, Expect::Version(2), refused(2, 3)),
            (&one, &None, Expect::Version(3), Ok(Some(4))),
            (&one, &Some(json!(1)), Expect::Any, Ok(None)),
            // A key that is created again never reuses an old version.
            (&gone, &set, Expect::Absent, Ok(Some(5))),
        ] {
            assert_eq!(decide(slot, value.as_ref(), expect), decided, "{slot:?} {value:?} {expect:?}");
        }
    }

    #[test]
    fn a_change_has_its_public_form() {
        let caller = StateWriter::Caller { key_id: None };
        let agent = StateWriter::Agent {
            run_id: RunId::from_random([1; 16]),
            attempt_id: AttemptId::from_random([2; 16]),
            tool: Some("state_set".into()),
        };
        let large = json!("x".repeat(EVENT_VALUE_BYTES));
        let changes = [
            StateChange::new("k", 1, Some(&Value::Null), Time(5), caller.clone()),
            StateChange::new("k", 2, Some(&large), Time(6), agent),
            StateChange::new("k", 3, None, Time(7), caller),
        ];
        let json = serde_json::to_string(&changes).unwrap();
        insta::assert_snapshot!(json, @r#"[{"key":"k","version":1,"deleted":false,"value":null,"changedAtMs":5,"by":{"kind":"caller"}},{"key":"k","version":2,"deleted":false,"changedAtMs":6,"by":{"kind":"agent","runId":"run_01010101010141018101010101010101","attemptId":"att_02020202020242028202020202020202","tool":"state_set"}},{"key":"k","version":3,"deleted":true,"changedAtMs":7,"by":{"kind":"caller"}}]"#);
        assert_eq!(serde_json::from_str::<Vec<StateChange>>(&json).unwrap(), changes);
    }
}
