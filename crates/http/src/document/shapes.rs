//! Rewrites the schemas of the document so that generators of clients can use all of them.
//!
//! - An alternative of a union is a schema with a name: `Block` with the type `tool_use` is `BlockToolUse`.
//! - An object that embeds a union, such as a run and its state, is one plain object: a property that only some
//!   alternatives have is optional. The union itself stays in the document.
//! - The items of a page refer to their schema.

use serde_json::{Map, Value, json};

const SCHEMAS: &str = "#/components/schemas/";

pub(super) type Schemas = Map<String, Value>;

/// Rewrites all schemas.
pub(super) fn rewrite(schemas: &mut Schemas) {
    refer_to_items(schemas);
    unwrap_single_parts(schemas);
    flatten_alternatives(schemas);
    flatten_unions(schemas);
    name_alternatives(schemas);
}

/// Replaces the copy of `X` in each `Page_X` by a reference to `X`.
fn refer_to_items(schemas: &mut Schemas) {
    let names: Vec<String> =
        schemas.keys().filter_map(|name| name.strip_prefix("Page_")).map(String::from).collect();
    for item in names.into_iter().filter(|name| schemas.contains_key(name)).collect::<Vec<_>>() {
        if let Some(items) = schemas[&format!("Page_{item}")].pointer_mut("/properties/items/items") {
            *items = json!({"$ref": format!("{SCHEMAS}{item}")});
        }
    }
}

/// Replaces an `allOf` with one part by that part, everywhere.
fn unwrap_single_parts(schemas: &mut Schemas) {
    fn visit(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::Array(parts)) = fields.get_mut("allOf")
                    && let [part] = &mut parts[..]
                    && let Value::Object(part) = part.take()
                {
                    fields.remove("allOf");
                    fields.extend(part);
                }
                fields.values_mut().for_each(visit);
            }
            Value::Array(items) => items.iter_mut().for_each(visit),
            _ => {}
        }
    }
    schemas.values_mut().for_each(visit);
}

/// Turns each alternative of a union that embeds other schemas into a plain object.
fn flatten_alternatives(schemas: &mut Schemas) {
    let embeds = |schema: &Value| !parts(schema, "allOf").is_empty();
    let is_affected = |schema: &Value| parts(schema, "oneOf").iter().any(embeds);
    let names: Vec<String> =
        schemas.iter().filter(|(_, schema)| is_affected(schema)).map(|(name, _)| name.clone()).collect();
    for name in names {
        let flatten = |alternative: &Value| match embeds(alternative) {
            true => {
                let mut flat = flat(schemas, alternative);
                let is_strict = |part: &Value| resolve(schemas, part)["additionalProperties"] == false;
                if parts(alternative, "allOf").iter().any(is_strict) {
                    flat["additionalProperties"] = false.into();
                }
                flat
            }
            false => alternative.clone(),
        };
        let alternatives: Vec<Value> = parts(&schemas[&name], "oneOf").iter().map(flatten).collect();
        schemas[&name]["oneOf"] = alternatives.into();
    }
}

/// Merges the parts of a schema into one plain object.
fn flat(schemas: &Schemas, schema: &Value) -> Value {
    let mut merged = Object::default();
    for part in parts(schema, "allOf") {
        merged.add(Object::of(schemas, part));
    }
    merged.into_schema(schemas, &schema["description"])
}

/// Turns each schema that embeds a union into a plain object.
fn flatten_unions(schemas: &mut Schemas) {
    let embeds_union = |schema: &Value| parts(schema, "allOf").iter().any(|part| is_union(schemas, part));
    let names: Vec<String> =
        schemas.iter().filter(|(_, schema)| embeds_union(schema)).map(|(name, _)| name.clone()).collect();
    for name in names {
        let flat = flat(schemas, &schemas[&name]);
        schemas.insert(name, flat);
    }
}

/// Gives each alternative of a tagged union a schema name of its own.
fn name_alternatives(schemas: &mut Schemas) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let Some(tag) = tag_of(parts(&schemas[&name], "oneOf")) else { continue };
        let alternatives = parts(&schemas[&name], "oneOf").to_vec();
        let (mut references, mut mapping) = (vec![], Map::new());
        for alternative in alternatives {
            let value = tag_value(&alternative, &tag).unwrap_or_default().to_owned();
            let own = format!("{name}{}", camel_case(&value));
            references.push(json!({"$ref": format!("{SCHEMAS}{own}")}));
            mapping.insert(value, format!("{SCHEMAS}{own}").into());
            schemas.insert(own, alternative);
        }
        schemas[&name]["oneOf"] = references.into();
        schemas[&name]["discriminator"] = json!({"propertyName": tag, "mapping": mapping});
    }
}

/// The properties of an object, and the names of the required ones.
#[derive(Default)]
struct Object {
    properties: Map<String, Value>,
    required: Vec<Value>,
}

impl Object {
    /// Builds the object that a schema describes.
    fn of(schemas: &Schemas, schema: &Value) -> Self {
        let schema = resolve(schemas, schema);
        let mut object = Self {
            properties: schema["properties"].as_object().cloned().unwrap_or_default(),
            required: schema["required"].as_array().cloned().unwrap_or_default(),
        };
        parts(schema, "allOf").iter().for_each(|part| object.add(Self::of(schemas, part)));
        let alternatives = parts(schema, "oneOf").iter().map(|part| Self::of(schemas, part));
        object.add(alternatives.reduce(Self::or).unwrap_or_default());
        object
    }

    fn add(&mut self, other: Self) {
        self.properties.extend(other.properties);
        self.required.extend(other.required);
    }

    /// Combines two alternatives: a property is required only if both require it.
    fn or(mut self, other: Self) -> Self {
        self.required.retain(|name| other.required.contains(name));
        for (name, schema) in other.properties {
            match self.properties.get_mut(&name) {
                Some(known) => *known = either(known, &schema),
                None => {
                    self.properties.insert(name, schema);
                }
            }
        }
        self
    }

    fn into_schema(mut self, schemas: &Schemas, description: &Value) -> Value {
        for property in self.properties.values_mut() {
            let known = schemas
                .iter()
                .find(|(_, schema)| property["enum"].is_array() && schema["enum"] == property["enum"]);
            if let Some((name, _)) = known {
                *property = json!({"$ref": format!("{SCHEMAS}{name}")});
            }
        }
        json!({
            "type": "object", "description": description, "required": self.required, "properties": self.properties,
        })
    }
}

/// Combines the schemas that a property has in two alternatives.
fn either(one: &Value, other: &Value) -> Value {
    match (&one["enum"], &other["enum"]) {
        _ if one == other || (one["$ref"].is_string() && one["$ref"] == other["$ref"]) => one.clone(),
        (Value::Array(values), Value::Array(more)) => {
            let values: Vec<&Value> =
                values.iter().chain(more.iter().filter(|value| !values.contains(value))).collect();
            json!({"type": "string", "enum": values})
        }
        _ => {
            json!({"type": "object", "additionalProperties": true, "description": "Its fields depend on the type."})
        }
    }
}

/// The parts of a schema that is composed with `keyword`.
fn parts<'a>(schema: &'a Value, keyword: &str) -> &'a [Value] {
    schema[keyword].as_array().map_or(&[], Vec::as_slice)
}

/// Follows references.
fn resolve<'a>(schemas: &'a Schemas, mut schema: &'a Value) -> &'a Value {
    while let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix(SCHEMAS)) {
        schema = &schemas[name];
    }
    schema
}

/// True if a schema is a tagged union: one of several objects.
fn is_union(schemas: &Schemas, schema: &Value) -> bool {
    tag_of(parts(resolve(schemas, schema), "oneOf")).is_some()
}

/// Returns the property that identifies an alternative: each alternative has it, with a single value.
fn tag_of(alternatives: &[Value]) -> Option<String> {
    let first = alternatives.first()?["properties"].as_object()?;
    let is_tag = |name: &&String| alternatives.iter().all(|schema| tag_value(schema, name).is_some());
    first.keys().find(is_tag).cloned()
}

fn tag_value<'a>(alternative: &'a Value, tag: &str) -> Option<&'a str> {
    match alternative["properties"][tag]["enum"].as_array()?.as_slice() {
        [value] => value.as_str(),
        _ => None,
    }
}

/// `run.waiting_input` → `RunWaitingInput`.
fn camel_case(name: &str) -> String {
    let words = name.split(|char: char| !char.is_alphanumeric());
    let capitalised = |word: &str| {
        let mut chars = word.chars();
        chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect::<String>()
    };
    words.map(capitalised).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas(value: Value) -> Schemas {
        let Value::Object(mut schemas) = value else { unreachable!() };
        rewrite(&mut schemas);
        schemas
    }

    fn tagged(tag: &str, properties: Value) -> Value {
        let mut properties = properties;
        properties["kind"] = json!({"type": "string", "enum": [tag]});
        json!({"type": "object", "required": ["kind"], "properties": properties})
    }

    #[test]
    fn alternatives_get_names() {
        let rewritten = schemas(json!({
            "Place": {"oneOf": [tagged("tip", json!({})), tagged("answer_again", json!({"messageId": {"type": "string"}}))]},
        }));
        assert_eq!(
            rewritten["Place"],
            json!({
                "oneOf": [{"$ref": "#/components/schemas/PlaceTip"}, {"$ref": "#/components/schemas/PlaceAnswerAgain"}],
                "discriminator": {"propertyName": "kind", "mapping": {
                    "tip": "#/components/schemas/PlaceTip", "answer_again": "#/components/schemas/PlaceAnswerAgain",
                }},
            })
        );
        assert_eq!(rewritten["PlaceTip"], tagged("tip", json!({})));
    }

    #[test]
    fn an_object_that_embeds_a_union_is_a_plain_object() {
        let text = json!({"type": "string"});
        let rewritten = schemas(json!({
            "Kind": {"type": "string", "enum": ["asks", "done"]},
            "State": {"oneOf": [tagged("asks", json!({"wait": text, "data": {"type": "object"}})), tagged("done", json!({"data": text}))]},
            "Run": {"description": "A run.", "allOf": [
                {"$ref": "#/components/schemas/State"},
                {"type": "object", "required": ["id"], "properties": {"id": text}},
            ]},
            "Page_Run": {"properties": {"items": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/State"}]}}}},
        }));
        assert_eq!(
            rewritten["Run"],
            json!({
                "type": "object", "description": "A run.", "required": ["kind", "id"],
                "properties": {
                    "kind": {"$ref": "#/components/schemas/Kind"},
                    "wait": text,
                    "data": {"type": "object", "additionalProperties": true, "description": "Its fields depend on the type."},
                    "id": text,
                },
            })
        );
        let items = &rewritten["Page_Run"]["properties"]["items"]["items"];
        assert_eq!(*items, json!({"$ref": "#/components/schemas/Run"}));
    }
}
