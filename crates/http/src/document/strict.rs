//! Marks the objects of request bodies as closed: the server refuses unknown keys in them.
//!
//! Answers stay open, since they may get further keys. Where a request and an answer use the same type, the request gets
//! a closed copy of it, named `…Request`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

const SCHEMAS: &str = "#/components/schemas/";

/// Closes the schemas of all request bodies.
pub(super) fn close_requests(paths: &mut Map<String, Value>, schemas: &mut Map<String, Value>) {
    let operations = || ["get", "post", "put", "patch", "delete"].into_iter();
    let responses = paths.values().flat_map(|path| operations().map(|method| &path[method]["responses"]));
    let mut shared = BTreeSet::new();
    responses.for_each(|response| collect(response, schemas, &mut shared));
    let mut closed = BTreeSet::new();
    for path in paths.values_mut().filter_map(Value::as_object_mut) {
        for operation in path.values_mut() {
            if let Some(body) = operation.get_mut("requestBody") {
                close(body, schemas, &shared, &mut closed);
            }
        }
    }
}

/// Collects the names of all schemas that `value` refers to.
fn collect(value: &Value, schemas: &Map<String, Value>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(SCHEMAS));
            if let Some(name) = name
                && found.insert(name.to_owned())
                && let Some(schema) = schemas.get(name)
            {
                collect(schema, schemas, found);
            }
            fields.values().for_each(|value| collect(value, schemas, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, schemas, found)),
        _ => {}
    }
}

/// Closes the objects of a schema and of the schemas that it refers to. Schemas in `shared` are copied first.
fn close(
    value: &mut Value,
    schemas: &mut Map<String, Value>,
    shared: &BTreeSet<String>,
    closed: &mut BTreeSet<String>,
) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("properties") {
                fields.insert("additionalProperties".into(), json!(false));
            }
            if let Some(reference) = fields.get_mut("$ref") {
                close_reference(reference, schemas, shared, closed);
            }
            fields.values_mut().for_each(|value| close(value, schemas, shared, closed));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| close(item, schemas, shared, closed)),
        _ => {}
    }
}

fn close_reference(
    reference: &mut Value,
    schemas: &mut Map<String, Value>,
    shared: &BTreeSet<String>,
    closed: &mut BTreeSet<String>,
) {
    let Some(name) = reference.as_str().and_then(|name| name.strip_prefix(SCHEMAS)).map(str::to_owned) else {
        return;
    };
    let Some(mut schema) = schemas.get(&name).cloned() else { return };
    let own = match shared.contains(&name) && has_objects(&schema) {
        true => format!("{name}Request"),
        false => name,
    };
    *reference = json!(format!("{SCHEMAS}{own}"));
    if closed.insert(own.clone()) {
        close(&mut schema, schemas, shared, closed);
        schemas.insert(own, schema);
    }
}

/// True if the schema is or holds an object with fields, or may refer to one. A name or a number needs no copy.
fn has_objects(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.contains_key("properties")
                || fields.contains_key("$ref")
                || fields.values().any(has_objects)
        }
        Value::Array(items) => items.iter().any(has_objects),
        _ => false,
    }
}
