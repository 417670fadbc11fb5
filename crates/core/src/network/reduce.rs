//! Reducers: merge the state changes of parallel members into one change per key.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// How the state changes of parallel members are merged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// Objects are merged and lists joined, in the order of the members; of other values the last one counts. A part of
    /// an object that only one member changed has the value of that member, and what a list held before the stage is not
    /// added again.
    #[default]
    Merge,
    /// A changed key becomes the list of all values, in the order of the members.
    List,
    /// The first member that changed a key decides.
    First,
    /// The value that most members gave to a key; of equally frequent values, the earliest.
    Vote,
    /// As `list`; then this member is called to combine the values.
    Agent(String),
}

impl Reduce {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The reducers that are written as a name.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    Merge,
    List,
    First,
    Vote,
}

/// The reducer that is written as an object: it names a member.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByAgent {
    agent: String,
}

// Written by hand, so that the error names an unknown key of the object.
impl<'de> Deserialize<'de> for Reduce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReduceVisitor)
    }
}

struct ReduceVisitor;

impl<'de> Visitor<'de> for ReduceVisitor {
    type Value = Reduce;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("merge, list, first, vote, or an object with the key agent")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Reduce, E> {
        Ok(match Named::deserialize(StrDeserializer::new(name))? {
            Named::Merge => Reduce::Merge,
            Named::List => Reduce::List,
            Named::First => Reduce::First,
            Named::Vote => Reduce::Vote,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Reduce, A::Error> {
        Ok(Reduce::Agent(ByAgent::deserialize(MapAccessDeserializer::new(map))?.agent))
    }
}

/// A key of state that one of several parallel members has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberChange {
    /// The key.
    pub key: String,
    /// The new value; `None` if the member removed the key.
    pub value: Option<Value>,
}

/// Reduces the changes of members, given in the order of the members, to one value per key; `None` removes the key.
/// If any member set a key to a value, removals of the key do not count. `before` is the state that the members changed.
pub fn reduce(
    how: &Reduce,
    before: &Map<String, Value>,
    members: &[Vec<MemberChange>],
) -> BTreeMap<String, Option<Value>> {
    let mut by_key: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for change in members.iter().flatten() {
        by_key.entry(change.key.clone()).or_default().extend(change.value.clone());
    }
    let reduced = |(key, values): (String, Vec<Value>)| {
        let value = one_of(how, before.get(&key), values);
        (key, value)
    };
    by_key.into_iter().map(reduced).collect()
}

fn one_of(how: &Reduce, before: Option<&Value>, values: Vec<Value>) -> Option<Value> {
    if values.is_empty() {
        return None;
    }
    match how {
        Reduce::Merge => values.into_iter().reduce(|earlier, later| merge(before, earlier, later)),
        Reduce::List | Reduce::Agent(_) => Some(json!(values)),
        Reduce::First => values.into_iter().next(),
        Reduce::Vote => most_frequent(values),
    }
}

/// Merges two values that members made of `before`; of two that are neither objects nor lists, the later one counts.
fn merge(before: Option<&Value>, earlier: Value, later: Value) -> Value {
    match (earlier, later) {
        (Value::Object(mut all), Value::Object(more)) => {
            for (key, value) in more {
                let before = before.and_then(|before| before.get(&key));
                let merged = match all.remove(&key) {
                    Some(earlier) if before == Some(&value) => earlier,
                    Some(earlier) if before == Some(&earlier) => value,
                    Some(earlier) => merge(before, earlier, value),
                    None => value,
                };
                all.insert(key, merged);
            }
            Value::Object(all)
        }
        (Value::Array(mut all), Value::Array(more)) => {
            let kept = |before: &&Vec<Value>| all.starts_with(before) && more.starts_with(before);
            let known = before.and_then(Value::as_array).filter(kept).map_or(0, Vec::len);
            all.extend(more.into_iter().skip(known));
            Value::Array(all)
        }
        (_, later) => later,
    }
}

fn most_frequent(values: Vec<Value>) -> Option<Value> {
    let mut counted: Vec<(Value, usize)> = vec![];
    for value in values {
        match counted.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => counted.push((value, 1)),
        }
    }
    let most = counted.iter().map(|(_, count)| *count).max()?;
    counted.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value)
}
