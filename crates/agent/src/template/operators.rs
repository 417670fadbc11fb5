//! Operators, comparison and display of values. Work that grows with the values is charged to the budget.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::TemplateError;
use super::budget::Budget;
use super::value::{Kind, Value};

/// Applies a binary operator.
pub(super) fn apply<'a>(
    symbol: &str,
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Budget,
) -> Result<Value<'a>, TemplateError> {
    match symbol {
        "~" => {
            let mut text = String::new();
            display(left, &mut text, budget)?;
            display(right, &mut text, budget)?;
            Value::text(&text, budget)
        }
        "+" => add(left, right, budget),
        "*" => multiply(left, right, budget),
        _ => arithmetic(symbol, left, right),
    }
}

fn add<'a>(left: &Value<'a>, right: &Value<'a>, budget: &mut Budget) -> Result<Value<'a>, TemplateError> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        budget.bytes(left.len() + right.len())?;
        return Value::text(&[left, right].concat(), budget);
    }
    if left.is_sequence() && right.is_sequence() {
        let is_tuple = |value: &Value<'_>| matches!(value, Value::List(list) if list.is_tuple);
        if is_tuple(left) != is_tuple(right) {
            return Err(impossible("+", left, right));
        }
        let mut items = left.items(budget)?;
        items.extend(right.items(budget)?);
        return Value::list(items, is_tuple(left));
    }
    arithmetic("+", left, right)
}

fn multiply<'a>(
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Budget,
) -> Result<Value<'a>, TemplateError> {
    let (repeated, count) = match (left, right) {
        (count @ (Value::Int(_) | Value::Bool(_)), other) => (other, count),
        (other, count) => (other, count),
    };
    let count = match count {
        Value::Int(count) => usize::try_from((*count).max(0)).unwrap_or(usize::MAX),
        _ => return arithmetic("*", left, right),
    };
    if let Some(text) = repeated.as_str() {
        budget.bytes(text.len().saturating_mul(count))?;
        return Value::text(&text.repeat(count), budget);
    }
    if repeated.is_sequence() {
        let items = repeated.items(budget)?;
        budget.values(items.len().saturating_mul(count))?;
        let is_tuple = matches!(repeated, Value::List(list) if list.is_tuple);
        // An empty list stays empty, however often it is repeated.
        let count = if items.is_empty() { 0 } else { count };
        return Value::list(items.iter().cycle().take(items.len() * count).cloned().collect(), is_tuple);
    }
    arithmetic("*", left, right)
}

/// Two operands as numbers of one kind: integers if both are integers or booleans, else floating-point numbers.
enum Numbers {
    Ints(i128, i128),
    Floats(f64, f64),
}

fn numbers(left: &Value<'_>, right: &Value<'_>) -> Option<Numbers> {
    let int = |value: &Value<'_>| match value {
        Value::Int(number) => Some(*number),
        Value::Bool(value) => Some(i128::from(*value)),
        _ => None,
    };
    match (int(left), int(right)) {
        (Some(left), Some(right)) => Some(Numbers::Ints(left, right)),
        _ => Some(Numbers::Floats(float(left)?, float(right)?)),
    }
}

/// Converts a number or a boolean to a floating-point number; `None` for any other value.
pub(super) fn float(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        _ => None,
    }
}

fn arithmetic<'a>(symbol: &str, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>, TemplateError> {
    let numbers = numbers(left, right).ok_or_else(|| impossible(symbol, left, right))?;
    let no_result = || TemplateError::new(format!("`{symbol}` has no result for these numbers"));
    if symbol == "/" {
        let (left, right) = (float(left).unwrap_or(f64::NAN), float(right).unwrap_or(f64::NAN));
        return if right == 0.0 { Err(no_result()) } else { Ok(Value::Float(left / right)) };
    }
    match numbers {
        Numbers::Ints(left, right) => {
            let result = match symbol {
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                "//" => floor_div(left, right),
                // The product may overflow, the result does not.
                "%" => floor_div(left, right).map(|quotient| left.wrapping_sub(quotient.wrapping_mul(right))),
                "**" if right < 0 && left != 0 => {
                    return Ok(Value::Float((left as f64).powf(right as f64)));
                }
                _ => u32::try_from(right).ok().and_then(|right| left.checked_pow(right)),
            };
            result.map(Value::Int).ok_or_else(no_result)
        }
        Numbers::Floats(left, right) => Ok(Value::Float(match symbol {
            "+" => left + right,
            "-" => left - right,
            "*" => left * right,
            "//" if right != 0.0 => (left / right).floor(),
            "%" if right != 0.0 => left - (left / right).floor() * right,
            "**" if left != 0.0 || right >= 0.0 => left.powf(right),
            _ => return Err(no_result()),
        })),
    }
}

fn floor_div(left: i128, right: i128) -> Option<i128> {
    let quotient = left.checked_div(right)?;
    let is_rounded_up = left % right != 0 && (left < 0) != (right < 0);
    Some(quotient - i128::from(is_rounded_up))
}

fn impossible(symbol: &str, left: &Value<'_>, right: &Value<'_>) -> TemplateError {
    TemplateError::new(format!("`{symbol}` cannot be used on a {} and a {}", left.kind(), right.kind()))
}

/// Negates a number.
pub(super) fn negate<'a>(value: &Value<'a>) -> Result<Value<'a>, TemplateError> {
    match value {
        Value::Int(number) => number.checked_neg().map(Value::Int),
        Value::Float(number) => Some(Value::Float(-number)),
        _ => None,
    }
    .ok_or_else(|| TemplateError::new(format!("a {} cannot be negated", value.kind())))
}

/// True if the values are equal.
pub(super) fn equals<'a>(
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Budget,
) -> Result<bool, TemplateError> {
    budget.bytes(1)?;
    match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => return Ok(true),
        _ => {}
    }
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        if left.len() != right.len() {
            return Ok(false);
        }
        budget.bytes(left.len())?;
        return Ok(left == right);
    }
    if let Some(numbers) = numbers(left, right) {
        return Ok(match numbers {
            Numbers::Ints(left, right) => left == right,
            Numbers::Floats(left, right) => left == right,
        });
    }
    if left.kind() != right.kind() || left.len() != right.len() {
        return Ok(false);
    }
    match left.kind() {
        Kind::Sequence => {
            let (left, right) = (left.items(budget)?, right.items(budget)?);
            for (left, right) in left.iter().zip(&right) {
                if !equals(left, right, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Kind::Map => {
            for (key, value) in left.entries(budget)? {
                if !equals(&value, &right.get(&key, budget)?, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Orders two values; those of different kinds by their kind.
pub(super) fn compare<'a>(
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Budget,
) -> Result<Ordering, TemplateError> {
    budget.bytes(1)?;
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        budget.bytes(left.len().min(right.len()))?;
        return Ok(left.cmp(right));
    }
    if left.kind() == right.kind() {
        if let Some(numbers) = numbers(left, right) {
            return Ok(match numbers {
                Numbers::Ints(left, right) => left.cmp(&right),
                Numbers::Floats(left, right) => left.total_cmp(&right),
            });
        }
        if left.is_sequence() || left.is_map() {
            let (left_items, right_items) = (left.items(budget)?, right.items(budget)?);
            for (left, right) in left_items.iter().zip(&right_items) {
                let order = compare(left, right, budget)?;
                if order != Ordering::Equal {
                    return Ok(order);
                }
            }
            return Ok(left_items.len().cmp(&right_items.len()));
        }
    }
    Ok(left.kind().rank().cmp(&right.kind().rank()))
}

/// True if `container` contains `value`.
pub(super) fn contains<'a>(
    container: &Value<'a>,
    value: &Value<'a>,
    budget: &mut Budget,
) -> Result<bool, TemplateError> {
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = container.as_str() {
        let mut wanted = String::new();
        display(value, &mut wanted, budget)?;
        budget.bytes(text.len())?;
        return Ok(text.contains(&wanted));
    }
    if container.is_map() {
        return Ok(match container {
            Value::Json(serde_json::Value::Object(entries)) => {
                budget.bytes(value.as_str().map_or(0, str::len))?;
                value.as_str().is_some_and(|key| entries.contains_key(key))
            }
            _ => !container.get(value, budget)?.is_undefined(),
        });
    }
    if !container.is_sequence() {
        return Err(TemplateError::new(format!("a {} contains nothing", container.kind())));
    }
    for item in container.items(budget)? {
        if equals(&item, value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Appends a value as a template renders it.
pub(super) fn display<'a>(
    value: &Value<'a>,
    text: &mut String,
    budget: &mut Budget,
) -> Result<(), TemplateError> {
    let rendered = match value {
        Value::Undefined => return Ok(()),
        Value::Text(part) | Value::Safe(part) => {
            budget.bytes(part.len())?;
            text.push_str(part);
            return Ok(());
        }
        Value::None => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => float_text(*number),
        Value::Loop(_) => "<loop>".to_owned(),
        Value::Function(_) => "<function>".to_owned(),
        _ if value.is_sequence() => return display_items(value, text, budget),
        _ => {
            text.push('{');
            for (at, (key, value)) in value.entries(budget)?.iter().enumerate() {
                if at > 0 {
                    text.push_str(", ");
                }
                display_inner(key, text, budget)?;
                text.push_str(": ");
                display_inner(value, text, budget)?;
            }
            text.push('}');
            return Ok(());
        }
    };
    budget.bytes(rendered.len())?;
    text.push_str(&rendered);
    Ok(())
}

fn display_items<'a>(value: &Value<'a>, text: &mut String, budget: &mut Budget) -> Result<(), TemplateError> {
    let items = value.items(budget)?;
    let is_tuple = matches!(value, Value::List(list) if list.is_tuple);
    text.push(if is_tuple { '(' } else { '[' });
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        display_inner(item, text, budget)?;
    }
    if is_tuple && items.len() == 1 {
        text.push(',');
    }
    text.push(if is_tuple { ')' } else { ']' });
    Ok(())
}

/// Appends a value as a template renders it within a list or map: texts are quoted.
fn display_inner<'a>(value: &Value<'a>, text: &mut String, budget: &mut Budget) -> Result<(), TemplateError> {
    let Some(part) = value.as_str() else {
        return match value {
            Value::Undefined => {
                text.push_str("undefined");
                Ok(())
            }
            value => display(value, text, budget),
        };
    };
    budget.bytes(part.len().saturating_mul(2))?;
    let quote = if part.contains('\'') && !part.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for char in part.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            _ if char == quote => text.extend(['\\', quote]),
            _ if char.is_control() => {
                // Writing to a String does not fail.
                let _ = write!(text, "\\x{:02x}", u32::from(char));
            }
            _ => text.push(char),
        }
    }
    text.push(quote);
    Ok(())
}

fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// Appends `part`, escaped for HTML.
pub(super) fn escape(part: &str, text: &mut String, budget: &mut Budget) -> Result<(), TemplateError> {
    budget.bytes(part.len().saturating_mul(6))?;
    for char in part.chars() {
        match char {
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '&' => text.push_str("&amp;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#x27;"),
            '/' => text.push_str("&#x2f;"),
            _ => text.push(char),
        }
    }
    Ok(())
}
