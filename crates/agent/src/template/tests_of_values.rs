//! Jinja's tests: `value is NAME`.

use super::TemplateError;
use super::budget::Budget;
use super::operators::{compare, contains, equals};
use super::value::{Kind, Value};

/// True if the test `name` holds for `value`.
pub(super) fn holds<'a>(
    name: &str,
    value: &Value<'a>,
    arguments: &[Value<'a>],
    budget: &mut Budget,
) -> Result<bool, TemplateError> {
    let first =
        || arguments.first().ok_or_else(|| TemplateError::new(format!("the test {name} needs an argument")));
    let text = value.as_str();
    Ok(match name {
        "undefined" => value.is_undefined(),
        "defined" => !value.is_undefined(),
        "none" => matches!(value, Value::None),
        "safe" | "escaped" => matches!(value, Value::Safe(_)),
        "boolean" => matches!(value, Value::Bool(_)),
        "odd" => matches!(value, Value::Int(number) if number % 2 != 0),
        "even" => matches!(value, Value::Int(number) if number % 2 == 0),
        "divisibleby" => match (value, first()?) {
            (Value::Int(number), Value::Int(by)) => number.checked_rem(*by) == Some(0),
            _ => false,
        },
        "number" => value.kind() == Kind::Number,
        "integer" | "int" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "string" => text.is_some(),
        "sequence" => value.is_sequence(),
        "iterable" => value.is_sequence() || value.is_map() || text.is_some(),
        "mapping" => value.is_map(),
        "startingwith" | "endingwith" => match text.zip(first()?.as_str()) {
            Some((text, part)) => {
                budget.bytes(part.len())?;
                if name == "startingwith" { text.starts_with(part) } else { text.ends_with(part) }
            }
            None => false,
        },
        "lower" | "upper" => {
            budget.bytes(text.map_or(0, str::len))?;
            let is_upper = name == "upper";
            let fits = |char: char| if is_upper { char.is_uppercase() } else { char.is_lowercase() };
            text.is_some_and(|text| text.chars().all(fits))
        }
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "eq" | "equalto" | "sameas" => equals(value, first()?, budget)?,
        "ne" => !equals(value, first()?, budget)?,
        "lt" | "lessthan" => compare(value, first()?, budget)?.is_lt(),
        "le" => compare(value, first()?, budget)?.is_le(),
        "gt" | "greaterthan" => compare(value, first()?, budget)?.is_gt(),
        "ge" => compare(value, first()?, budget)?.is_ge(),
        "in" => contains(first()?, value, budget)?,
        _ => {
            let name: String = name.chars().take(40).collect();
            return Err(TemplateError::new(format!("there is no test {name:?}")));
        }
    })
}
