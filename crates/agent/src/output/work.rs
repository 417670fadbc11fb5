//! The work of comparing a value with a JSON Schema, counted before the validator does it.
//!
//! A few references that refer to each other several times multiply the work at each step, and the validator cannot be
//! interrupted. A caller chooses the schema, and through the agent also the value, so both together are counted.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The most comparisons of a schema with a part of a value.
const MAX_COMPARISONS: u32 = 100_000;

/// The deepest nesting of comparisons, including those that follow a reference.
const MAX_DEPTH: u32 = 400;

/// The error of a value whose comparison takes too much work.
const TOO_MUCH: &str = "comparing it takes too much work: simplify the references of the schema";

/// Keywords whose schemas apply to the same value.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// The references of a schema that can be followed.
pub(super) struct References<'a> {
    root: &'a Value,
    /// The id of the schema, by which it may refer to itself.
    id: Option<&'a str>,
    anchors: HashMap<&'a str, &'a Value>,
    /// An anchor that two parts have.
    repeated_anchor: Option<&'a str>,
    /// True if a part of the schema follows draft 4, in which `id` is the keyword for `$id`.
    has_draft_4: bool,
}

impl<'a> References<'a> {
    /// Collects the anchors of a schema.
    pub(super) fn new(root: &'a Value) -> Self {
        let id = root.get("$id").and_then(Value::as_str);
        let mut references = Self {
            root,
            id: id.map(|id| id.trim_end_matches('#')),
            anchors: HashMap::new(),
            repeated_anchor: None,
            has_draft_4: false,
        };
        references.collect(root);
        references
    }

    fn collect(&mut self, schema: &'a Value) {
        match schema {
            Value::Object(fields) => {
                for name in ["$anchor", "$dynamicAnchor"] {
                    if let Some(anchor) = fields.get(name).and_then(Value::as_str) {
                        let other = self.anchors.insert(anchor, schema);
                        let is_repeated = other.is_some_and(|other| !std::ptr::eq(other, schema));
                        self.repeated_anchor = self.repeated_anchor.or(is_repeated.then_some(anchor));
                    }
                }
                let draft = fields.get("$schema").and_then(Value::as_str);
                self.has_draft_4 |= draft.is_some_and(|draft| draft.contains("json-schema.org/draft-04/"));
                // A keyword cannot be told from a property of the same name, so data is walked like schemas.
                fields.values().for_each(|part| self.collect(part));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            _ => {}
        }
    }

    /// Refuses a schema with a reference that cannot be resolved within it, with two parts of one anchor, or with an id
    /// in one of its parts, which would change how references are resolved.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.repeated_anchor {
            Some(anchor) => {
                Err(format!("two parts of the schema have the anchor {anchor:?}: rename one of them"))
            }
            None => self.check_part(self.root, true),
        }
    }

    fn check_part(&self, schema: &Value, is_root: bool) -> Result<(), String> {
        match schema {
            Value::Object(fields) => {
                let keywords = if self.has_draft_4 { &["$id", "id"][..] } else { &["$id"] };
                let id = keywords.iter().find(|id| fields.get(**id).is_some_and(Value::is_string));
                if let Some(id) = id.filter(|_| !is_root) {
                    return Err(format!(
                        "a part of the schema has an {id}: leave it out, and refer to the part as #/$defs/NAME"
                    ));
                }
                for reference in references_of(fields) {
                    if self.target(reference).is_none() {
                        return Err(self.refused(reference));
                    }
                }
                fields.values().try_for_each(|part| self.check_part(part, false))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.check_part(item, false)),
            _ => Ok(()),
        }
    }

    fn refused(&self, reference: &str) -> String {
        let shown: String = reference.chars().take(200).collect();
        match self.fragment(reference) {
            Some(_) => {
                format!("$ref {shown:?} leads nowhere: refer to a part of the schema, such as #/$defs/NAME")
            }
            None => format!(
                "$ref {shown:?} is outside of the schema, and nothing is fetched: put it under $defs, and refer to it as \
                 #/$defs/NAME"
            ),
        }
    }

    /// The fragment of a reference into this schema; none if the reference leads out of it.
    fn fragment<'r>(&self, reference: &'r str) -> Option<&'r str> {
        let own = reference.strip_prefix('#');
        own.or_else(|| match reference.strip_prefix(self.id?)? {
            "" => Some(""),
            rest => rest.strip_prefix('#'),
        })
    }

    fn target(&self, reference: &str) -> Option<&'a Value> {
        let fragment = percent_decoded(self.fragment(reference)?);
        match fragment.as_str() {
            "" => Some(self.root),
            pointer if pointer.starts_with('/') => self.root.pointer(pointer),
            anchor => self.anchors.get(anchor).copied(),
        }
    }
}

/// The references of one object of a schema.
fn references_of(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = ["$ref", "$dynamicRef", "$recursiveRef"];
    names.into_iter().filter_map(|name| fields.get(name).and_then(Value::as_str))
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        let (byte, used) = match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => (byte, 3),
            None => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Refuses a value whose comparison with the schema takes too much work.
pub(super) fn check_work(schema: &Value, value: &Value) -> Result<(), String> {
    let mut work = Work { references: References::new(schema), left: MAX_COMPARISONS };
    work.compare(schema, value, 0)
}

struct Work<'a> {
    references: References<'a>,
    left: u32,
}

impl<'a> Work<'a> {
    /// Counts the comparison of `schema` with `value`. All alternatives count, as if each were tried.
    fn compare(&mut self, schema: &'a Value, value: &Value, depth: u32) -> Result<(), String> {
        self.left = self.left.checked_sub(1).filter(|_| depth < MAX_DEPTH).ok_or(TOO_MUCH)?;
        let Value::Object(fields) = schema else { return Ok(()) };
        // The validator tries the parts again to learn what they have evaluated.
        let again = fields.contains_key("unevaluatedProperties") || fields.contains_key("unevaluatedItems");
        for _ in 0..=usize::from(again) {
            self.compare_in_place(fields, value, depth + 1)?;
        }
        match value {
            Value::Object(members) => members
                .iter()
                .try_for_each(|(name, member)| self.compare_member(fields, name, member, depth + 1)),
            Value::Array(items) => {
                (0..).zip(items).try_for_each(|(at, item)| self.compare_item(fields, at, item, depth + 1))
            }
            _ => Ok(()),
        }
    }

    fn compare_in_place(
        &mut self,
        fields: &'a Map<String, Value>,
        value: &Value,
        depth: u32,
    ) -> Result<(), String> {
        for reference in references_of(fields) {
            if let Some(target) = self.references.target(reference) {
                self.compare(target, value, depth)?;
            }
        }
        for part in IN_PLACE.iter().filter_map(|name| fields.get(*name)) {
            match part {
                Value::Array(parts) => parts.iter().try_for_each(|part| self.compare(part, value, depth))?,
                part => self.compare(part, value, depth)?,
            }
        }
        let dependent =
            ["dependentSchemas", "dependencies"].into_iter().filter_map(|name| fields.get(name)?.as_object());
        for part in dependent.flat_map(Map::values) {
            self.compare(part, value, depth)?;
        }
        Ok(())
    }

    fn compare_member(
        &mut self,
        fields: &'a Map<String, Value>,
        name: &str,
        member: &Value,
        depth: u32,
    ) -> Result<(), String> {
        if let Some(part) = fields.get("properties").and_then(|parts| parts.get(name)) {
            self.compare(part, member, depth)?;
        }
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        for part in patterns.into_iter().flat_map(Map::values) {
            self.compare(part, member, depth)?;
        }
        for name in ["additionalProperties", "unevaluatedProperties"] {
            fields.get(name).map_or(Ok(()), |part| self.compare(part, member, depth))?;
        }
        fields.get("propertyNames").map_or(Ok(()), |part| self.compare(part, &Value::Null, depth))
    }

    fn compare_item(
        &mut self,
        fields: &'a Map<String, Value>,
        at: usize,
        item: &Value,
        depth: u32,
    ) -> Result<(), String> {
        for name in ["prefixItems", "items", "additionalItems", "contains", "unevaluatedItems"] {
            match fields.get(name) {
                Some(Value::Array(parts)) => {
                    parts.get(at).map_or(Ok(()), |part| self.compare(part, item, depth))?;
                }
                Some(part) => self.compare(part, item, depth)?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema with `length` definitions, each of which refers to the next one `width` times.
    fn doubling(length: usize, width: usize) -> Value {
        let definition = |at: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            (format!("d{at}"), json!({"allOf": vec![next; width]}))
        };
        let mut definitions: Map<String, Value> = (0..length).map(definition).collect();
        definitions.insert(format!("d{length}"), json!({"type": "string"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"})
    }

    #[test]
    fn references_that_multiply_are_too_much_work() {
        assert_eq!(check_work(&doubling(3, 10), &json!("x")), Ok(()));
        assert_eq!(check_work(&doubling(12, 10), &json!("x")), Err(TOO_MUCH.into()));
        // The work grows with the depth of the value, too.
        let twice =
            json!({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]});
        let nested = (0..60).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(check_work(&twice, &nested), Err(TOO_MUCH.into()));
        assert_eq!(check_work(&json!({"$ref": "#"}), &json!(1)), Err(TOO_MUCH.into()));
        let anchored = json!({"$anchor": "a", "anyOf": [{"$ref": "#a"}, {"$ref": "#a"}]});
        assert_eq!(check_work(&anchored, &json!(1)), Err(TOO_MUCH.into()));
    }

    #[test]
    fn a_tree_and_a_long_list_are_little_work() {
        let tree = json!({"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let value = (0..10).fold(json!({}), |inner, _| json!({"left": inner, "right": inner}));
        assert_eq!(check_work(&tree, &value), Ok(()));
        let list =
            json!({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}});
        assert_eq!(check_work(&list, &json!(vec![json!({"n": 1}); 10_000])), Ok(()));
    }

    #[test]
    fn references_are_followed_by_pointer_anchor_and_id() {
        let check = |schema: Value| References::new(&schema).check();
        let defs = json!({"a b": {"type": "string", "$anchor": "x"}});
        for reference in ["#", "#/$defs/a%20b", "#x", "https://example.org/s", "https://example.org/s#x"] {
            let schema = json!({"$id": "https://example.org/s", "$defs": defs, "properties": {"p": {"$ref": reference}}});
            assert_eq!(check(schema), Ok(()), "{reference}");
        }
        for reference in ["#/$defs/none", "#none", "https://example.org/s#/none"] {
            let schema = json!({"$id": "https://example.org/s", "$ref": reference});
            assert!(check(schema).unwrap_err().contains("leads nowhere"), "{reference}");
        }
        let within = json!({"$defs": {"a": {"$id": "https://example.org/other"}}});
        assert!(check(within).unwrap_err().contains("has an $id"));
        let mut within = json!({"definitions": {"a": {"id": "https://example.org/other"}}});
        assert_eq!(check(within.clone()), Ok(()), "not a keyword");
        within["$schema"] = json!("http://json-schema.org/draft-04/schema#");
        assert!(check(within).unwrap_err().contains("has an id"));
        let twice = json!({"$defs": {"a": {"$anchor": "x"}, "b": {"const": {"$anchor": "x"}}}});
        assert!(check(twice).unwrap_err().contains("have the anchor \"x\""));
        assert_eq!(check(json!({"$anchor": "x", "$dynamicAnchor": "x"})), Ok(()));
        assert_eq!(check(json!({"properties": {"$ref": {"type": "string"}}})), Ok(()));
    }
}
