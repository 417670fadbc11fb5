//! State: versioned key-value data of a run, a session or an owner.
//!
//! Every change of a key gives it a higher version, also when it is removed and made again, so that a version names one
//! value for ever: whoever changes a key under the version it has read overwrites nobody.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;
use crate::message::names;

/// Bytes of a value up to which its event carries it, as JSON.
pub const EVENT_VALUE_BYTES: usize = 4 << 10;

/// What a piece of state lives with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateScope {
    /// One run.
    Run,
    /// A session: a branch or a fork sees what held at its point.
    Session,
    /// An owner, across sessions.
    Owner,
}
names!(StateScope { Run => "run", Session => "session", Owner => "owner" });

/// Who changed a piece of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateAuthor {
    /// Somebody who called.
    Caller,
    /// The attempt that the event names.
    Agent,
}

/// One key and what it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StateEntry {
    /// The key.
    pub key: String,
    /// What it holds.
    pub value: Value,
    /// Grows with each change; never used again for another value.
    pub version: u64,
    /// When it was last changed.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
}

/// What there is under a key, and the highest version it ever had there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StateSlot {
    /// What the key holds; none if it is not there.
    pub entry: Option<StateEntry>,
    /// The highest version so far; 0 if there was none.
    pub version: u64,
}

impl StateSlot {
    /// The version of what is there; 0 if nothing is.
    fn now(&self) -> u64 {
        self.entry.as_ref().map_or(0, |entry| entry.version)
    }
}

/// What must be there for a change to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expect {
    /// Whatever is.
    #[default]
    Any,
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// This version.
    Version(u64),
}

/// Something else is there than was expected. Version 0 is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("version {expected} was expected, it stands at {now}")]
pub struct Unexpected {
    /// What was expected.
    pub expected: u64,
    /// What there is.
    pub now: u64,
}

/// Decides what setting a key to `value` (to none: removing it) does to `slot`: the version it gets, none if nothing
/// would change.
pub fn decide(slot: &StateSlot, value: Option<&Value>, expect: Expect) -> Result<Option<u64>, Unexpected> {
    let now = slot.now();
    let expected = match expect {
        Expect::Any => now,
        Expect::Absent => 0,
        Expect::Present => now.max(1),
        Expect::Version(version) => version,
    };
    if expected != now {
        return Err(Unexpected { expected, now });
    }
    let same = slot.entry.as_ref().map(|entry| &entry.value) == value;
    Ok((!same).then_some(slot.version.max(now) + 1))
}

/// What a change left.
#[derive(Debug, Clone, PartialEq)]
pub struct StateOutcome {
    /// What the key holds now.
    pub entry: Option<StateEntry>,
    /// True when it held nothing before.
    pub created: bool,
}

impl StateOutcome {
    /// What is left of `slot` when `key` has been set to `value` under `version`; as it was if that is none.
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

    /// A slot that holds `value` in version `now` after its versions went up to `version`.
    fn slot(value: Option<Value>, now: u64, version: u64) -> StateSlot {
        let entry =
            value.map(|value| StateEntry { key: "k".into(), value, version: now, updated_at: Time(0) });
        StateSlot { entry, version }
    }

    #[test]
    fn a_change_is_made_only_where_what_was_expected_is_there() {
        let (empty, one, gone) = (slot(None, 0, 0), slot(Some(json!(1)), 3, 3), slot(None, 0, 4));
        let (set, null) = (Some(json!(2)), Some(Value::Null));
        let refused = |expected, now| Err(Unexpected { expected, now });
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
            // What was removed and is made again never has an old version.
            (&gone, &set, Expect::Absent, Ok(Some(5))),
        ] {
            assert_eq!(decide(slot, value.as_ref(), expect), decided, "{slot:?} {value:?} {expect:?}");
        }
    }
}
