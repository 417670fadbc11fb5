//! The filters of templates. Each charges the budget for its result before it builds the result.

use std::cmp::Ordering;

use super::TemplateError;
use super::budget::Budget;
use super::eval::{EvaluatedArguments, Evaluator};
use super::operators::{compare, display, equals, escape, float};
use super::tests_of_values;
use super::value::Value;

type Outcome<'a> = Result<Value<'a>, TemplateError>;

/// Applies the filter `name`.
pub(super) fn apply<'t, 'a>(
    evaluator: &mut Evaluator<'t, 'a>,
    name: &str,
    value: Value<'a>,
    mut given: EvaluatedArguments<'t, 'a>,
) -> Outcome<'a> {
    let budget = &mut evaluator.budget;
    match name {
        "safe" => Ok(Value::Safe(text_of(&value, budget)?.into())),
        "escape" | "e" => escaped(value, budget),
        "lower" | "upper" | "title" | "capitalize" | "trim" | "replace" | "indent" | "format" => {
            text_filter(name, &value, given, budget)
        }
        "split" | "lines" => split(name, &value, given, budget),
        "length" | "count" => match (value.as_str(), value.len()) {
            (Some(text), _) => {
                budget.bytes(text.len())?;
                Ok(int(text.chars().count()))
            }
            (None, Some(length)) => Ok(int(length)),
            (None, None) => Err(TemplateError::new(format!("a {} has no length", value.kind()))),
        },
        "default" | "d" => {
            let is_lax = given.positional.get(1).is_some_and(Value::is_true);
            match value.is_undefined() || (is_lax && !value.is_true()) {
                true => given.take(0, "default_value").map_or_else(|| Value::text("", budget), Ok),
                false => Ok(value),
            }
        }
        "round" | "abs" | "int" | "float" => number(name, &value, given, budget),
        "bool" => Ok(Value::Bool(value.is_true())),
        "string" => match value.as_str() {
            Some(_) => Ok(value),
            None => Ok(Value::Text(text_of(&value, budget)?.into())),
        },
        "pprint" => Ok(Value::Text(text_of(&value, budget)?.into())),
        "attr" => {
            let key = given.take(0, "name").unwrap_or(Value::Undefined);
            value.get(&key, budget)
        }
        "join" => join(&value, given, budget),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, &value, given, budget),
        "map" => evaluator.nested(|evaluator| map(evaluator, &value, given)),
        _ => of_items(name, &value, given, budget),
    }
}

fn int<'a>(number: usize) -> Value<'a> {
    Value::Int(i128::try_from(number).unwrap_or(i128::MAX))
}

/// The text of a value.
fn text_of(value: &Value<'_>, budget: &mut Budget) -> Result<String, TemplateError> {
    let mut text = String::new();
    display(value, &mut text, budget)?;
    Ok(text)
}

fn escaped<'a>(value: Value<'a>, budget: &mut Budget) -> Outcome<'a> {
    if matches!(value, Value::Safe(_)) {
        return Ok(value);
    }
    let mut text = String::new();
    escape(&text_of(&value, budget)?, &mut text, budget)?;
    Ok(Value::Safe(text.into()))
}

fn text_filter<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let text = text_of(value, budget)?;
    // A change of case makes a text at most three times as long.
    budget.bytes(text.len().saturating_mul(3))?;
    let made = match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "title" => title(&text),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map(|char| char.to_uppercase().collect::<String>());
            first.unwrap_or_default() + &chars.as_str().to_lowercase()
        }
        "trim" => match given.take(0, "chars") {
            Some(chars) => {
                let chars: Vec<char> = text_of(&chars, budget)?.chars().take(256).collect();
                text.trim_matches(&chars[..]).to_owned()
            }
            None => text.trim().to_owned(),
        },
        "replace" => {
            let mut argument = |at, name| match given.take(at, name) {
                Some(value) => text_of(&value, budget),
                None => Err(TemplateError::new("it takes the text to replace and the new one")),
            };
            let (from, to) = (argument(0, "old")?, argument(1, "new")?);
            let found = if from.is_empty() { text.chars().count() + 1 } else { text.matches(&from).count() };
            budget.bytes(found.saturating_mul(to.len()))?;
            text.replace(&from, &to)
        }
        "indent" => indent(&text, given, budget)?,
        _ => format(&text, given.positional, budget)?,
    };
    Ok(if matches!(value, Value::Safe(_)) { Value::Safe(made.into()) } else { Value::Text(made.into()) })
}

fn title(text: &str) -> String {
    let mut made = String::new();
    let mut capitalize = true;
    for char in text.chars() {
        if matches!(char, '-' | '(' | '{' | '[' | '<') || char.is_whitespace() {
            made.push(char);
            capitalize = true;
        } else if std::mem::take(&mut capitalize) {
            made.extend(char.to_uppercase());
        } else {
            made.extend(char.to_lowercase());
        }
    }
    made
}

/// A whole number among the arguments.
fn count(
    given: &mut EvaluatedArguments<'_, '_>,
    at: usize,
    name: &str,
    default: usize,
) -> Result<usize, TemplateError> {
    match given.take(at, name) {
        None => Ok(default),
        Some(Value::Int(number)) => {
            usize::try_from(number).map_err(|_| TemplateError::new("a number is negative or too large"))
        }
        Some(other) => Err(TemplateError::new(format!("it takes a whole number, not a {}", other.kind()))),
    }
}

fn indent(
    text: &str,
    mut given: EvaluatedArguments<'_, '_>,
    budget: &mut Budget,
) -> Result<String, TemplateError> {
    let width = count(&mut given, 0, "width", 4)?;
    let first = given.take(1, "first").is_some_and(|value| value.is_true());
    let blank = given.take(2, "blank").is_some_and(|value| value.is_true());
    let text = text.strip_suffix('\n').map_or(text, |rest| rest.strip_suffix('\r').unwrap_or(rest));
    let lines = text.matches('\n').count() + 1;
    budget.bytes(lines.saturating_mul(width.saturating_add(1)))?;
    let mut made = String::new();
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            made.push('\n');
        }
        let is_blank = line.is_empty() || line == "\r";
        if (at > 0 || first) && (!is_blank || blank) {
            made.extend(std::iter::repeat_n(' ', width));
        }
        made.push_str(line);
    }
    Ok(made)
}

/// Formats like `printf`: `%s`, `%d`, `%f`, `%.2f` and `%%`.
fn format(text: &str, arguments: Vec<Value<'_>>, budget: &mut Budget) -> Result<String, TemplateError> {
    let mut made = String::new();
    let mut arguments = arguments.into_iter();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        made.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            made.push('%');
            rest = after;
            continue;
        }
        let end = after.find(|char: char| !char.is_ascii_digit() && char != '.');
        let conversion = end.and_then(|end| after[end..].chars().next().map(|kind| (end, kind)));
        let Some((end, kind @ ('s' | 'd' | 'i' | 'f'))) = conversion else {
            return Err(TemplateError::new("it knows %s, %d, %f, %.2f and %%"));
        };
        let value =
            arguments.next().ok_or_else(|| TemplateError::new("there are fewer values than places"))?;
        let precision: Option<usize> = after[..end].strip_prefix('.').and_then(|digits| digits.parse().ok());
        if end > 0 && precision.is_none_or(|precision| precision > 64 || kind != 'f') {
            return Err(TemplateError::new("it knows %s, %d, %f, %.2f and %%"));
        }
        match (kind, &value, float(&value)) {
            ('f', _, Some(number)) => {
                budget.bytes(400)?;
                made.push_str(&format!("{number:.*}", precision.unwrap_or(6)));
            }
            // A large integer has no exact floating-point number.
            ('d' | 'i', Value::Int(number), _) => made.push_str(&number.to_string()),
            ('d' | 'i', _, Some(number)) if number.is_finite() => made.push_str(&format!("{number:.0}")),
            ('s', ..) => made.push_str(&text_of(&value, budget)?),
            _ => return Err(TemplateError::new(format!("%{kind} takes a number, not a {}", value.kind()))),
        }
        rest = &after[end + 1..];
    }
    made.push_str(rest);
    Ok(made)
}

fn split<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let text = text_of(value, budget)?;
    // One value for each character at most.
    budget.values(text.len() + 1)?;
    let mut items = |parts: &mut dyn Iterator<Item = &str>| {
        let parts: Result<Vec<Value<'a>>, TemplateError> =
            parts.map(|part| Value::text(part, budget)).collect();
        parts.and_then(|parts| Value::list(parts, false))
    };
    if name == "lines" {
        return items(&mut text.lines());
    }
    let separator = given.take(0, "sep").filter(|separator| !matches!(separator, Value::None));
    let limit = match given.take(1, "maxsplit") {
        Some(Value::Int(limit)) => usize::try_from(limit).ok().map(|limit| limit.saturating_add(1)),
        _ => None,
    };
    match (separator.as_ref().and_then(Value::as_str), limit) {
        (None, None) => items(&mut text.split_whitespace()),
        (None, Some(limit)) => items(&mut text.trim().splitn(limit, char::is_whitespace)),
        (Some(separator), None) => items(&mut text.split(separator)),
        (Some(separator), Some(limit)) => items(&mut text.splitn(limit, separator)),
    }
}

/// Rounds `number` to `precision` decimal places: up or down with the `method` `ceil` or `floor`, else to the nearest.
fn round(number: f64, precision: usize, method: Option<&str>) -> f64 {
    if !matches!(method, Some("ceil" | "floor")) {
        return format!("{number:.precision$}").parse().unwrap_or(number);
    }
    let factor = 10f64.powi(i32::try_from(precision).unwrap_or(300));
    let scaled = number * factor;
    let rounded = if method == Some("ceil") { scaled.ceil() } else { scaled.floor() };
    if scaled.is_finite() { rounded / factor } else { number }
}

fn number<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let bad = || TemplateError::new(format!("a {} is not a number", value.kind()));
    let parsed = match value.as_str() {
        Some(text) => {
            budget.bytes(text.len())?;
            text.trim().parse().map(Value::Int).or_else(|_| text.trim().parse().map(Value::Float)).ok()
        }
        None if matches!(value, Value::Undefined | Value::None) => Some(Value::Int(0)),
        None => float(value).map(|_| value.clone()),
    };
    match name {
        "abs" => match value {
            Value::Int(number) => number.checked_abs().map(Value::Int).ok_or_else(bad),
            Value::Float(number) => Ok(Value::Float(number.abs())),
            _ => Err(bad()),
        },
        "round" => {
            let precision = count(&mut given, 0, "precision", 0)?.min(300);
            let method = given.take(1, "method");
            match value {
                Value::Int(number) => Ok(Value::Int(*number)),
                Value::Float(number) => {
                    Ok(Value::Float(round(*number, precision, method.as_ref().and_then(Value::as_str))))
                }
                _ => Err(bad()),
            }
        }
        "int" => match (parsed, given.take(0, "default")) {
            (Some(Value::Float(number)), _) if number.is_finite() => Ok(Value::Int(number as i128)),
            (Some(Value::Bool(value)), _) => Ok(Value::Int(i128::from(value))),
            (Some(Value::Int(number)), _) => Ok(Value::Int(number)),
            (_, Some(default)) => Ok(default),
            _ => Err(bad()),
        },
        _ => match (parsed.as_ref().and_then(float), given.take(0, "default")) {
            (Some(number), _) => Ok(Value::Float(number)),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(bad()),
        },
    }
}

fn join<'a>(value: &Value<'a>, mut given: EvaluatedArguments<'_, 'a>, budget: &mut Budget) -> Outcome<'a> {
    let separator = given.take(0, "d").map(|value| text_of(&value, budget)).transpose()?.unwrap_or_default();
    let attribute = given.take(1, "attribute");
    let mut text = String::new();
    for (at, item) in value.items(budget)?.iter().enumerate() {
        if at > 0 {
            budget.bytes(separator.len())?;
            text.push_str(&separator);
        }
        match attribute.as_ref().and_then(Value::as_str) {
            Some(path) => display(&item.get_path(path, budget)?, &mut text, budget)?,
            None => display(item, &mut text, budget)?,
        }
    }
    Ok(Value::Text(text.into()))
}

fn select<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let by_attribute = name.ends_with("attr");
    let attribute = if by_attribute { given.take(0, "attribute") } else { None };
    let at = usize::from(by_attribute);
    let test = given.positional.get(at).cloned();
    let arguments = given.positional.get(at + 1..).unwrap_or_default();
    let mut kept = vec![];
    for item in value.items(budget)? {
        budget.step()?;
        let tested = match attribute.as_ref().and_then(Value::as_str) {
            Some(path) => item.get_path(path, budget)?,
            None => item.clone(),
        };
        let holds = match test.as_ref().and_then(Value::as_str) {
            Some(test) => tests_of_values::holds(test, &tested, arguments, budget)?,
            None => tested.is_true(),
        };
        if holds != name.starts_with("reject") {
            kept.push(item);
        }
    }
    Value::list(kept, false)
}

fn map<'t, 'a>(
    evaluator: &mut Evaluator<'t, 'a>,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'t, 'a>,
) -> Outcome<'a> {
    let items = value.items(&mut evaluator.budget)?;
    let mut made = vec![];
    if given.positional.is_empty() {
        let attribute = given.take(0, "attribute");
        let default = given.take(1, "default").unwrap_or(Value::Undefined);
        let path = attribute.as_ref().and_then(Value::as_str);
        let path =
            path.ok_or_else(|| TemplateError::new("it takes the name of a filter, or an attribute"))?;
        for item in items {
            let found = item.get_path(path, &mut evaluator.budget)?;
            made.push(if found.is_undefined() { default.clone() } else { found });
        }
        return Value::list(made, false);
    }
    let filter = given.positional.remove(0);
    let filter = filter.as_str().ok_or_else(|| TemplateError::new("the name of a filter is a text"))?;
    for item in items {
        evaluator.budget.step()?;
        evaluator.budget.values(given.positional.len() + given.named.len())?;
        let given = EvaluatedArguments { positional: given.positional.clone(), named: given.named.clone() };
        made.push(apply(evaluator, filter, item, given)?);
    }
    Value::list(made, false)
}

/// Filters of lists and maps.
fn of_items<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    match name {
        "items" => {
            let entries = value.entries(budget)?;
            pairs(entries, budget)
        }
        "dictsort" => {
            let mut entries = value.entries(budget)?;
            let order = Order::take(&mut given);
            let by_value = given.take(0, "by").is_some_and(|by| by.as_str() == Some("value"));
            sort_by(&mut entries, budget, |a, b, budget| match by_value {
                true => order.compare(&a.1, &b.1, budget),
                false => order.compare(&a.0, &b.0, budget),
            })?;
            pairs(entries, budget)
        }
        "reverse" => {
            let mut items = value.items(budget)?;
            items.reverse();
            match value.as_str() {
                Some(_) => Value::text(&items.iter().filter_map(Value::as_str).collect::<String>(), budget),
                None => Value::list(items, false),
            }
        }
        "list" => Value::list(value.items(budget)?, false),
        "first" => Ok(value.items(budget)?.into_iter().next().unwrap_or(Value::Undefined)),
        "last" => Ok(value.items(budget)?.pop().unwrap_or(Value::Undefined)),
        "min" | "max" | "sort" => ordered(name, value, given, budget),
        "sum" => {
            let mut sum = Value::Int(0);
            for item in value.items(budget)? {
                sum = super::operators::apply("+", &sum, &item, budget)?;
            }
            Ok(sum)
        }
        "unique" => unique(value, given, budget),
        "groupby" => group_by(value, given, budget),
        "chain" => {
            let mut items = value.items(budget)?;
            for other in &given.positional {
                items.extend(other.items(budget)?);
            }
            Value::list(items, false)
        }
        "zip" => {
            let mut lists = vec![value.items(budget)?];
            for other in &given.positional {
                lists.push(other.items(budget)?);
            }
            let length = lists.iter().map(Vec::len).min().unwrap_or(0);
            budget.values(length.saturating_mul(lists.len() + 1))?;
            let row = |at: usize| Value::list(lists.iter().map(|list| list[at].clone()).collect(), true);
            Value::list((0..length).map(row).collect::<Result<_, _>>()?, false)
        }
        "batch" | "slice" => {
            let size = count(&mut given, 0, "count", 0)?;
            let filler = given.take(1, "fill_with");
            chunks(name, value.items(budget)?, size, filler.as_ref(), budget)
        }
        _ => {
            let name: String = name.chars().take(40).collect();
            Err(TemplateError::new(format!("there is no filter {name:?}")))
        }
    }
}

fn pairs<'a>(entries: Vec<(Value<'a>, Value<'a>)>, budget: &mut Budget) -> Outcome<'a> {
    budget.values(entries.len().saturating_mul(3))?;
    let pairs = entries.into_iter().map(|(key, value)| Value::list(vec![key, value], true));
    Value::list(pairs.collect::<Result<_, _>>()?, false)
}

/// How values are ordered.
#[derive(Clone, Copy)]
struct Order {
    is_case_sensitive: bool,
    is_reversed: bool,
}

impl Order {
    fn take(given: &mut EvaluatedArguments<'_, '_>) -> Self {
        let mut flag = |name| given.take(usize::MAX, name).is_some_and(|value| value.is_true());
        Self { is_case_sensitive: flag("case_sensitive"), is_reversed: flag("reverse") }
    }

    fn compare<'a>(
        self,
        a: &Value<'a>,
        b: &Value<'a>,
        budget: &mut Budget,
    ) -> Result<Ordering, TemplateError> {
        let order = match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) if !self.is_case_sensitive => {
                // The comparison ends with the shorter text, so a long text costs no more than a short one.
                budget.bytes(a.len().min(b.len()) + 1)?;
                let folded = |byte: u8| byte.to_ascii_lowercase();
                a.bytes().map(folded).cmp(b.bytes().map(folded))
            }
            _ => compare(a, b, budget)?,
        };
        Ok(if self.is_reversed { order.reverse() } else { order })
    }
}

/// Sorts by a comparison that may fail; after an error the order does not matter.
fn sort_by<T>(
    items: &mut [T],
    budget: &mut Budget,
    compare: impl Fn(&T, &T, &mut Budget) -> Result<Ordering, TemplateError>,
) -> Result<(), TemplateError> {
    let mut failure = None;
    items.sort_by(|a, b| match &failure {
        Some(_) => Ordering::Equal,
        None => compare(a, b, budget).unwrap_or_else(|error| {
            failure = Some(error);
            Ordering::Equal
        }),
    });
    failure.map_or(Ok(()), Err)
}

/// Pairs each item with the key that it is ordered by: the key first.
fn keyed<'a>(
    items: Vec<Value<'a>>,
    attribute: Option<&Value<'a>>,
    budget: &mut Budget,
) -> Result<Vec<(Value<'a>, Value<'a>)>, TemplateError> {
    budget.values(items.len().saturating_mul(2))?;
    let path = attribute.and_then(Value::as_str);
    let with_key = |item: Value<'a>| match path {
        Some(path) => Ok((item.get_path(path, budget)?, item)),
        None => Ok((item.clone(), item)),
    };
    items.into_iter().map(with_key).collect()
}

fn ordered<'a>(
    name: &str,
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let order = Order::take(&mut given);
    let attribute = given.take(usize::MAX, "attribute");
    let mut items = keyed(value.items(budget)?, attribute.as_ref(), budget)?;
    sort_by(&mut items, budget, |a, b, budget| order.compare(&a.0, &b.0, budget))?;
    let mut items = items.into_iter().map(|(_, item)| item);
    match name {
        "min" => Ok(items.next().unwrap_or(Value::Undefined)),
        "max" => Ok(items.next_back().unwrap_or(Value::Undefined)),
        _ => Value::list(items.collect(), false),
    }
}

fn unique<'a>(value: &Value<'a>, mut given: EvaluatedArguments<'_, 'a>, budget: &mut Budget) -> Outcome<'a> {
    let order = Order::take(&mut given);
    let attribute = given.take(usize::MAX, "attribute");
    let mut kept: Vec<(Value<'a>, Value<'a>)> = vec![];
    for (key, item) in keyed(value.items(budget)?, attribute.as_ref(), budget)? {
        let mut is_known = false;
        for (known, _) in &kept {
            is_known = order.compare(known, &key, budget)?.is_eq();
            if is_known {
                break;
            }
        }
        if !is_known {
            kept.push((key, item));
        }
    }
    Value::list(kept.into_iter().map(|(_, item)| item).collect(), false)
}

fn group_by<'a>(
    value: &Value<'a>,
    mut given: EvaluatedArguments<'_, 'a>,
    budget: &mut Budget,
) -> Outcome<'a> {
    let attribute = given.take(0, "attribute");
    let mut items = keyed(value.items(budget)?, attribute.as_ref(), budget)?;
    sort_by(&mut items, budget, |a, b, budget| compare(&a.0, &b.0, budget))?;
    let mut groups: Vec<(Value<'a>, Vec<Value<'a>>)> = vec![];
    budget.values(items.len().saturating_mul(3))?;
    for (key, item) in items {
        match groups.last_mut() {
            Some((known, group)) if equals(known, &key, budget)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(key, items)| Value::list(vec![key, Value::list(items, false)?], true);
    Value::list(groups.into_iter().map(group).collect::<Result<_, _>>()?, false)
}

/// Splits items into chunks of a size (`batch`), or into a number of chunks (`slice`).
fn chunks<'a>(
    name: &str,
    items: Vec<Value<'a>>,
    size: usize,
    filler: Option<&Value<'a>>,
    budget: &mut Budget,
) -> Outcome<'a> {
    if size == 0 {
        return Err(TemplateError::new("it takes a number that is not 0"));
    }
    // A batch is filled up to its size; `slice` makes `size` lists, even if some are empty.
    budget.values(items.len().saturating_add(size).saturating_mul(2))?;
    let mut made = vec![];
    if name == "batch" {
        for chunk in items.chunks(size) {
            let mut chunk = chunk.to_vec();
            if let Some(filler) = filler {
                chunk.resize(size, filler.clone());
            }
            made.push(Value::list(chunk, false)?);
        }
        return Value::list(made, false);
    }
    let (per_slice, with_extra) = (items.len() / size, items.len() % size);
    let mut rest = items.into_iter();
    for at in 0..size {
        let mut slice: Vec<Value<'a>> =
            rest.by_ref().take(per_slice + usize::from(at < with_extra)).collect();
        if at >= with_extra {
            slice.extend(filler.cloned());
        }
        made.push(Value::list(slice, false)?);
    }
    Value::list(made, false)
}
