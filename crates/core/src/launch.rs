//! Agents to launch: templates of the request that starts a conversation, with typed variables.
//!
//! A placeholder is `{{name}}` in a text of the template, with any spaces around the name. The placeholders of a template
//! are exactly its declared variables, so that a misspelt name is found when the template is stored, not when it is used.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A variable of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable<'a> {
    /// The name.
    pub name: &'a str,
    /// True if a launch must give a value, unless there is a default.
    pub required: bool,
    /// The value that is used if a launch gives none.
    pub default: Option<&'a str>,
    /// True if the variable names a collection.
    pub is_collection: bool,
    /// True if the variable declares the content type of its collection.
    pub has_content_type: bool,
}

/// Why a template or a launch is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// The name of a variable is not well-formed.
    #[error(
        "the variable {0:?}: a name is a letter or underscore, then letters, digits, underscores and dots"
    )]
    Name(String),
    /// Two variables have one name.
    #[error("the variable {0:?} is declared twice")]
    Twice(String),
    /// An optional variable has no default.
    #[error("the variable {0:?} is optional and needs a default")]
    NoDefault(String),
    /// A variable that is not a collection declares a content type.
    #[error("the variable {0:?} is no collection: leave collection_content_type out")]
    NoCollection(String),
    /// A placeholder is not declared.
    #[error("the template uses {0:?}, which is not declared: declare the variable, or correct the name")]
    Undeclared(String),
    /// A variable is not used.
    #[error("the variable {0:?} is not used in the template: remove it, or use it")]
    Unused(String),
    /// A placeholder is in a key.
    #[error("the key {0:?} of the template holds a placeholder: placeholders belong into values")]
    InKey(String),
    /// A launch has no value for a variable.
    #[error("the variable {0:?} needs a value")]
    Missing(String),
    /// A launch has a value for a variable that is not declared.
    #[error("the agent has no variable {0:?}")]
    Unknown(String),
}

/// Checks a template against its variables.
pub fn check(template: &Value, variables: &[Variable<'_>]) -> Result<(), BadTemplate> {
    let mut declared = BTreeSet::new();
    for variable in variables {
        let name = variable.name.to_owned();
        match () {
            () if !is_name(&name) => return Err(BadTemplate::Name(name)),
            () if !declared.insert(name.clone()) => return Err(BadTemplate::Twice(name)),
            () if !variable.required && variable.default.is_none() => {
                return Err(BadTemplate::NoDefault(name));
            }
            () if variable.has_content_type && !variable.is_collection => {
                return Err(BadTemplate::NoCollection(name));
            }
            () => {}
        }
    }
    let mut used = BTreeSet::new();
    collect(template, &mut used)?;
    if let Some(name) = used.difference(&declared).next() {
        return Err(BadTemplate::Undeclared(name.clone()));
    }
    match declared.difference(&used).next() {
        Some(name) => Err(BadTemplate::Unused(name.clone())),
        None => Ok(()),
    }
}

/// Replaces placeholders by values. Values are not searched for placeholders.
pub fn resolve(
    template: &Value,
    variables: &[Variable<'_>],
    values: &BTreeMap<String, String>,
) -> Result<Value, BadTemplate> {
    if let Some(unknown) = values.keys().find(|name| variables.iter().all(|variable| variable.name != **name))
    {
        return Err(BadTemplate::Unknown(unknown.clone()));
    }
    let mut known = BTreeMap::new();
    for variable in variables {
        let value = values.get(variable.name).map(String::as_str).or(variable.default);
        let value = value.ok_or_else(|| BadTemplate::Missing(variable.name.to_owned()))?;
        known.insert(variable.name, value);
    }
    Ok(fill(template, &known))
}

fn fill(template: &Value, values: &BTreeMap<&str, &str>) -> Value {
    match template {
        Value::String(text) => {
            let mut filled = String::new();
            for part in parts(text) {
                filled.push_str(match part {
                    Part::Text(text) => text,
                    Part::Placeholder(name, written) => values.get(name).copied().unwrap_or(written),
                });
            }
            Value::String(filled)
        }
        Value::Array(items) => items.iter().map(|item| fill(item, values)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), fill(value, values))).collect())
        }
        other => other.clone(),
    }
}

fn collect(template: &Value, used: &mut BTreeSet<String>) -> Result<(), BadTemplate> {
    let names = |text| parts(text).into_iter().filter_map(|part| part.name());
    match template {
        Value::String(text) => used.extend(names(text).map(str::to_owned)),
        Value::Array(items) => items.iter().try_for_each(|item| collect(item, used))?,
        Value::Object(fields) => {
            for (key, value) in fields {
                if names(key).next().is_some() {
                    return Err(BadTemplate::InKey(key.clone()));
                }
                collect(value, used)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A part of a text.
enum Part<'a> {
    Text(&'a str),
    /// The name of a placeholder, and the placeholder as it is written.
    Placeholder(&'a str, &'a str),
}

impl<'a> Part<'a> {
    const fn name(self) -> Option<&'a str> {
        match self {
            Self::Text(_) => None,
            Self::Placeholder(name, _) => Some(name),
        }
    }
}

/// Splits a text at its placeholders. Braces around anything but a name are plain text.
fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (vec![], text);
    let mut from = 0;
    while let Some(at) = rest[from..].find("{{").map(|at| at + from) {
        let inside = &rest[at + 2..];
        // A name holds no brace, so the search ends at the first one: no part of the text is searched twice.
        let end = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with("}}"));
        let found = end.filter(|end| is_name(inside[..*end].trim()));
        let Some(end) = found else {
            from = at + 1;
            continue;
        };
        let after = at + 2 + end + 2;
        parts.push(Part::Text(&rest[..at]));
        parts.push(Part::Placeholder(inside[..end].trim(), &rest[at..after]));
        (rest, from) = (&rest[after..], 0);
    }
    parts.push(Part::Text(rest));
    parts
}

fn is_name(name: &str) -> bool {
    let is_start = |first: char| first.is_ascii_alphabetic() || first == '_';
    name.starts_with(is_start)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variable(name: &str) -> Variable<'_> {
        Variable { name, required: true, default: None, is_collection: false, has_content_type: false }
    }

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn placeholders_are_filled_and_values_are_not_searched() {
        let template = json!({"messages": [{"text": "look at {{ dataset.id }} and {{x}}{{x}}"}], "n": 3});
        let variables = [variable("dataset.id"), variable("x")];
        check(&template, &variables).unwrap();
        let filled = resolve(&template, &variables, &values(&[("dataset.id", "{{x}}"), ("x", "é")])).unwrap();
        assert_eq!(filled, json!({"messages": [{"text": "look at {{x}} and éé"}], "n": 3}));
    }

    #[test]
    fn braces_that_are_not_a_placeholder_do_not_change() {
        let template = json!("{{{x}}} {{ }} {{1}} {{a b}} {{");
        check(&template, &[variable("x")]).unwrap();
        let filled = resolve(&template, &[variable("x")], &values(&[("x", "1")])).unwrap();
        assert_eq!(filled, json!("{1} {{ }} {{1}} {{a b}} {{"));
    }

    /// If each pair of braces searched the rest of the text, this template would take hours.
    #[test]
    fn a_long_text_of_braces_is_read_once() {
        for part in ["{", "{{x ", "{{x}"] {
            let template = json!(part.repeat(1 << 20));
            assert_eq!(check(&template, &[]), Ok(()), "{part}");
        }
    }

    #[test]
    fn every_placeholder_is_declared_and_every_variable_is_used() {
        let template = json!({"a": "{{x}}"});
        assert_eq!(check(&template, &[]), Err(BadTemplate::Undeclared("x".into())));
        let two = [variable("x"), variable("y")];
        assert_eq!(check(&template, &two), Err(BadTemplate::Unused("y".into())));
        assert_eq!(check(&template, &[variable("x"), variable("x")]), Err(BadTemplate::Twice("x".into())));
        assert_eq!(check(&json!({"{{x}}": 1}), &[variable("x")]), Err(BadTemplate::InKey("{{x}}".into())));
        assert_eq!(check(&template, &[variable("1")]), Err(BadTemplate::Name("1".into())));
        let optional = Variable { required: false, ..variable("x") };
        assert_eq!(check(&template, &[optional]), Err(BadTemplate::NoDefault("x".into())));
        let content = Variable { has_content_type: true, ..variable("x") };
        assert_eq!(check(&template, &[content]), Err(BadTemplate::NoCollection("x".into())));
    }

    #[test]
    fn a_launch_needs_its_values_and_no_others() {
        let template = json!("{{x}}");
        assert_eq!(resolve(&template, &[variable("x")], &values(&[])), Err(BadTemplate::Missing("x".into())));
        let given = values(&[("x", "1"), ("y", "2")]);
        assert_eq!(resolve(&template, &[variable("x")], &given), Err(BadTemplate::Unknown("y".into())));
        let with_default = Variable { default: Some("d"), ..variable("x") };
        assert_eq!(resolve(&template, &[with_default], &values(&[])), Ok(json!("d")));
    }
}
