//! Values of templates.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde_json::Value as Json;

use super::TemplateError;
use super::budget::Budget;
use super::eval::Loop;

/// The maximum nesting of lists and maps that a template builds.
const MAX_DEPTH: usize = 24;

/// The kind of a value, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Undefined,
    None,
    Bool,
    Number,
    String,
    Sequence,
    Map,
    Loop,
    Function,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "none",
            Self::Bool => "bool",
            Self::Number => "number",
            Self::String => "string",
            Self::Sequence => "sequence",
            Self::Map => "map",
            Self::Loop => "loop",
            Self::Function => "function",
        }
    }

    /// The place of the kind in the order of values of different kinds. Loops and functions have the same one.
    pub(super) fn rank(self) -> u8 {
        (self as u8).min(Self::Loop as u8)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value. Arrays and objects of the context are read in place, never copied as a whole.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<str>),
    /// A text that is not escaped again.
    Safe(Rc<str>),
    /// An array or object of the context.
    Json(&'a Json),
    List(Rc<List<'a>>),
    Map(Rc<Map<'a>>),
    Namespace(Rc<RefCell<BTreeMap<String, Value<'a>>>>),
    Loop(Rc<Loop>),
    Function(Function),
}

#[derive(Debug)]
pub(super) struct List<'a> {
    pub(super) items: Vec<Value<'a>>,
    pub(super) is_tuple: bool,
    depth: usize,
}

/// Entries sorted by their keys. A key contains no other values.
#[derive(Debug)]
pub(super) struct Map<'a> {
    pub(super) entries: Vec<(Value<'a>, Value<'a>)>,
    depth: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
}

impl<'a> Value<'a> {
    /// Reads a value of the context.
    pub(super) fn of_json(json: &'a Json, budget: &mut Budget) -> Result<Self, TemplateError> {
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i128() {
                Some(number) => Self::Int(number),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text(text, budget)?,
            Json::Array(_) | Json::Object(_) => Self::Json(json),
        })
    }

    /// Copies a text.
    pub(super) fn text(text: &str, budget: &mut Budget) -> Result<Self, TemplateError> {
        budget.bytes(text.len().saturating_add(16))?;
        Ok(Self::Text(text.into()))
    }

    /// Builds a list whose items are charged already.
    pub(super) fn list(items: Vec<Self>, is_tuple: bool) -> Result<Self, TemplateError> {
        let depth = depth_above(items.iter())?;
        Ok(Self::List(Rc::new(List { items, is_tuple, depth })))
    }

    /// Builds a map. Of entries with equal keys the last one stays.
    pub(super) fn map(entries: Vec<(Self, Self)>, budget: &mut Budget) -> Result<Self, TemplateError> {
        let depth = depth_above(entries.iter().map(|(_, value)| value))?;
        let mut sorted: Vec<(Self, Self)> = Vec::with_capacity(entries.len());
        budget.values(entries.len().saturating_mul(2))?;
        for (key, value) in entries {
            if !key.is_single() {
                return Err(TemplateError::new(format!("a {} cannot be the key of a map", key.kind())));
            }
            match search(&sorted, &key, budget)? {
                Ok(at) => sorted[at].1 = value,
                Err(at) => {
                    // Moving the entries after it is work too.
                    budget.bytes(sorted.len() - at)?;
                    sorted.insert(at, (key, value));
                }
            }
        }
        Ok(Self::Map(Rc::new(Map { entries: sorted, depth })))
    }

    /// True for a value that contains no others.
    fn is_single(&self) -> bool {
        matches!(
            self,
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Text(_) | Self::Safe(_)
        )
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Json(_) => 1,
            _ => 0,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Undefined => Kind::Undefined,
            Self::None => Kind::None,
            Self::Bool(_) => Kind::Bool,
            Self::Int(_) | Self::Float(_) => Kind::Number,
            Self::Text(_) | Self::Safe(_) => Kind::String,
            Self::Json(Json::Array(_)) | Self::List(_) => Kind::Sequence,
            Self::Json(_) | Self::Map(_) | Self::Namespace(_) => Kind::Map,
            Self::Loop(_) => Kind::Loop,
            Self::Function(_) => Kind::Function,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Safe(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    pub(super) fn is_map(&self) -> bool {
        self.kind() == Kind::Map
    }

    pub(super) fn is_sequence(&self) -> bool {
        self.kind() == Kind::Sequence
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) | Self::Safe(text) => !text.is_empty(),
            Self::Loop(_) | Self::Function(_) => true,
            _ => self.len().is_none_or(|length| length > 0),
        }
    }

    /// The number of items. `None` for a text: counting its characters is work in proportion to it.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Json(Json::Array(items)) => Some(items.len()),
            Self::Json(Json::Object(entries)) => Some(entries.len()),
            Self::List(list) => Some(list.items.len()),
            Self::Map(map) => Some(map.entries.len()),
            Self::Namespace(values) => Some(values.borrow().len()),
            _ => None,
        }
    }

    /// The value under `key`: of a map, by its key; of a list, by its index, which counts from the end if negative.
    pub(super) fn get(&self, key: &Self, budget: &mut Budget) -> Result<Self, TemplateError> {
        // A text is hashed or compared as a whole.
        budget.bytes(key.as_str().map_or(0, str::len))?;
        let index = |length: usize| match key {
            Self::Int(at) if *at >= 0 => usize::try_from(*at).ok(),
            Self::Int(at) => {
                usize::try_from(at.unsigned_abs()).ok().and_then(|back| length.checked_sub(back))
            }
            _ => None,
        };
        Ok(match self {
            Self::Json(Json::Array(items)) => match index(items.len()).and_then(|at| items.get(at)) {
                Some(item) => Self::of_json(item, budget)?,
                None => Self::Undefined,
            },
            Self::Json(Json::Object(entries)) => match key.as_str().and_then(|key| entries.get(key)) {
                Some(value) => Self::of_json(value, budget)?,
                None => Self::Undefined,
            },
            Self::List(list) => {
                index(list.items.len()).and_then(|at| list.items.get(at)).cloned().unwrap_or(Self::Undefined)
            }
            Self::Map(map) if key.is_single() => match search(&map.entries, key, budget)? {
                Ok(at) => map.entries[at].1.clone(),
                Err(_) => Self::Undefined,
            },
            Self::Namespace(values) => {
                let values = values.borrow();
                key.as_str().and_then(|key| values.get(key)).cloned().unwrap_or(Self::Undefined)
            }
            Self::Text(text) | Self::Safe(text) => {
                budget.bytes(text.len())?;
                let found = index(text.chars().count()).and_then(|at| text.chars().nth(at));
                match found {
                    Some(char) => Self::text(char.encode_utf8(&mut [0; 4]), budget)?,
                    None => Self::Undefined,
                }
            }
            Self::Loop(state) => key.as_str().map_or(Self::Undefined, |key| state.get(key)),
            _ => Self::Undefined,
        })
    }

    /// The value at a path of names and indexes, separated by dots.
    pub(super) fn get_path(&self, path: &str, budget: &mut Budget) -> Result<Self, TemplateError> {
        let mut value = self.clone();
        budget.bytes(path.len())?;
        for part in path.split('.') {
            budget.step()?;
            let key = match part.parse() {
                Ok(index) => Self::Int(index),
                Err(_) => Self::text(part, budget)?,
            };
            value = value.get(&key, budget)?;
        }
        Ok(value)
    }

    /// The items of a list, the keys of a map or the characters of a text; none of an undefined value.
    pub(super) fn items(&self, budget: &mut Budget) -> Result<Vec<Self>, TemplateError> {
        if let Some(text) = self.as_str() {
            budget.bytes(text.len().saturating_mul(64))?;
            let mut bytes = [0; 4];
            return Ok(text
                .chars()
                .map(|char| Self::Text((&*char.encode_utf8(&mut bytes)).into()))
                .collect());
        }
        budget.values(self.len().unwrap_or(0))?;
        match self {
            Self::Undefined => Ok(vec![]),
            Self::Json(Json::Array(items)) => items.iter().map(|item| Self::of_json(item, budget)).collect(),
            Self::Json(Json::Object(entries)) => {
                sorted(entries).into_iter().map(|(key, _)| Self::text(key, budget)).collect()
            }
            Self::List(list) => Ok(list.items.clone()),
            Self::Map(map) => Ok(map.entries.iter().map(|(key, _)| key.clone()).collect()),
            Self::Namespace(values) => values.borrow().keys().map(|key| Self::text(key, budget)).collect(),
            _ => Err(TemplateError::new(format!("a {} cannot be iterated over", self.kind()))),
        }
    }

    /// The entries of a map.
    pub(super) fn entries(&self, budget: &mut Budget) -> Result<Vec<(Self, Self)>, TemplateError> {
        budget.values(self.len().unwrap_or(0).saturating_mul(2))?;
        match self {
            Self::Json(Json::Object(entries)) => sorted(entries)
                .into_iter()
                .map(|(key, value)| Ok((Self::text(key, budget)?, Self::of_json(value, budget)?)))
                .collect(),
            Self::Map(map) => Ok(map.entries.clone()),
            Self::Namespace(values) => values
                .borrow()
                .iter()
                .map(|(key, value)| Ok((Self::text(key, budget)?, value.clone())))
                .collect(),
            _ => Err(TemplateError::new(format!("a {} has no pairs", self.kind()))),
        }
    }

    /// Refuses a value that could contain itself once it is stored in another.
    pub(super) fn check_storable(&self) -> Result<(), TemplateError> {
        match self {
            Self::Namespace(_) | Self::Loop(_) => {
                Err(TemplateError::new(format!("a {} cannot be stored in another value", self.name())))
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> &'static str {
        if matches!(self, Self::Namespace(_)) { "namespace" } else { self.kind().name() }
    }
}

/// The entries of an object in the order of their keys.
fn sorted(entries: &serde_json::Map<String, Json>) -> Vec<(&String, &Json)> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by_key(|(key, _)| *key);
    sorted
}

/// The depth of a value that contains `items`. Refuses namespaces, so that no value can contain itself.
fn depth_above<'v, 'a: 'v>(items: impl Iterator<Item = &'v Value<'a>>) -> Result<usize, TemplateError> {
    let mut depth = 0;
    for item in items {
        item.check_storable()?;
        depth = depth.max(item.depth());
    }
    match depth < MAX_DEPTH {
        true => Ok(depth + 1),
        false => Err(TemplateError::new(format!("lists and maps are nested more than {MAX_DEPTH} deep"))),
    }
}

/// Finds `key` among sorted entries: its index, or the index at which it belongs.
fn search<'a>(
    entries: &[(Value<'a>, Value<'a>)],
    key: &Value<'a>,
    budget: &mut Budget,
) -> Result<Result<usize, usize>, TemplateError> {
    let (mut low, mut high) = (0, entries.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        match super::operators::compare(&entries[middle].0, key, budget)? {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Equal => return Ok(Ok(middle)),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Ok(Err(low))
}
