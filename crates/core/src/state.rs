//! State: versioned key-value data of a run, a session or an owner.
//!
//! Every change of a key increments its version, even after the key was removed and created again. A version
//! therefore identifies one value for ever, and a write that expects the version it has read never overwrites another
//! write.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;
use crate::message::names;

/// Maximum bytes of a value, as JSON, that a `state.changed` event carries.
pub const EVENT_VALUE_BYTES: usize = 4 << 10;

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

/// A precondition was not met. Version 0 stands for an absent key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("version {expected} was expected, it stands at {current}")]
pub struct VersionMismatch {
    /// The expected version.
    pub expected: u64,
    /// The current version.
    pub current: u64,
}

/// Decides the effect of setting a key to `value`, or of removing it if that is `None`: the new version, or `None` if
/// nothing changes.
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
    /// True when the key was absent before.
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
    fn a_change_needs_its_precondition() {
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
}
