//! JSON Schemas of inputs and answers. Each is self-contained: models and MCP clients resolve no references.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// The start of a reference to another schema.
const REFERENCE: &str = "#/components/schemas/";

/// Returns the schema of `T` without references.
pub(crate) fn self_contained<T: ToSchema>() -> Map<String, Value> {
    let mut parts = vec![];
    T::schemas(&mut parts);
    let encode = |schema| serde_json::to_value(schema).unwrap_or_default();
    let parts: HashMap<String, Value> = parts.into_iter().map(|(name, part)| (name, encode(part))).collect();
    let mut schema = encode(T::schema());
    inline(&mut schema, &parts);
    let mut schema = match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    // The tool's own description says what the schema is for.
    schema.remove("description");
    schema
}

/// Returns the schema of the answer of a call that succeeds with `T`.
pub(crate) fn answer<T: ToSchema>() -> Map<String, Value> {
    let mut schema = self_contained::<T>();
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.insert(
            "ok".into(),
            json!({"type": "boolean", "const": true, "description": "The call succeeded."}),
        );
    }
    if let Some(required) = schema.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        required.push("ok".into());
    }
    schema
}

/// Replaces each reference by the schema that it names, without that schema's description: every list of tools contains
/// these schemas, so they must be short.
fn inline(value: &mut Value, parts: &HashMap<String, Value>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| inline(item, parts)),
        Value::Object(fields) => {
            let name =
                fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(REFERENCE));
            if let Some(Value::Object(part)) = name.and_then(|name| parts.get(name)) {
                fields.remove("$ref");
                // A field is described by its name or its own description, not by that of its type.
                for (key, value) in part.iter().filter(|(key, _)| *key != "description") {
                    fields.entry(key).or_insert_with(|| value.clone());
                }
            }
            fields.values_mut().for_each(|field| inline(field, parts));
            merge_null(fields);
        }
        _ => {}
    }
}

/// Replaces the `oneOf` of null and one simple type by a list of both types.
fn merge_null(fields: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = fields.get("oneOf") else { return };
    let null = json!({"type": "null"});
    let is_simple = |choice: &&Value| choice["type"].is_string() && choice.get("enum").is_none();
    let other = match choices.as_slice() {
        [first, second] if *first == null => second,
        [first, second] if *second == null => first,
        _ => return,
    };
    if let Some(Value::Object(mut other)) = Some(other).filter(is_simple).cloned() {
        other.insert("type".into(), json!([other["type"], "null"]));
        fields.remove("oneOf");
        other.extend(std::mem::take(fields));
        *fields = other;
    }
}
