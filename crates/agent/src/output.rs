//! Structured output: the JSON Schema of an answer, and its validation.

use std::sync::Arc;

use serde_json::Value;

mod work;
use work::{References, check_work};

/// The number of problems that an error message lists.
const MAX_PROBLEMS: usize = 5;

/// The JSON Schema of an answer.
#[derive(Debug, Clone)]
pub struct OutputSchema {
    schema: Value,
    validator: Arc<jsonschema::Validator>,
}

impl PartialEq for OutputSchema {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema
    }
}

impl OutputSchema {
    /// Compiles `schema`. The error says why it is invalid.
    pub fn new(schema: &Value) -> Result<Self, String> {
        Ok(Self { schema: schema.clone(), validator: Arc::new(compile(schema)?) })
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Returns the instruction for the model.
    pub fn instruction(&self) -> String {
        format!(
            "Your last message must be a single JSON value that matches this JSON Schema, without any other text and without a \
             code fence.\n{}",
            self.schema
        )
    }

    /// Validates a value. The error says what is wrong.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        validate(&self.schema, &self.validator, value)
    }

    /// Parses and validates an answer. The error says what is wrong.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let value = parse_json(text).map_err(|error| format!("it is not JSON: {error}"))?;
        self.check(&value)?;
        Ok(value)
    }
}

/// Compiles `schema`. The error says why it is invalid. Refuses references that the validator would resolve otherwise
/// than [`check_work`], which could then not count the work of a comparison.
pub(crate) fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    References::new(schema).check()?;
    jsonschema::validator_for(schema).map_err(|error| match error.kind() {
        jsonschema::error::ValidationErrorKind::Referencing(_) => {
            "a reference in the schema leads nowhere: refer to a part of the schema, such as #/$defs/NAME"
                .into()
        }
        _ => error.to_string(),
    })
}

/// Checks `value` against a schema and its validator, both of [`compile`]. The error lists the first problems with their paths.
pub(crate) fn validate(
    schema: &Value,
    validator: &jsonschema::Validator,
    value: &Value,
) -> Result<(), String> {
    check_work(schema, value)?;
    let problems: Vec<String> = validator
        .iter_errors(value)
        .take(MAX_PROBLEMS)
        .map(|error| match error.instance_path().to_string().as_str() {
            "" => error.to_string(),
            path => format!("{path}: {error}"),
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Parses `text`, or the content of a code fence in it, as JSON.
fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.trim();
    let fenced = text.strip_prefix("```").and_then(|rest| {
        let (_, rest) = rest.split_once('\n')?;
        rest.trim_end().strip_suffix("```")
    });
    serde_json::from_str(fenced.unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_valid_answer_is_parsed_and_an_invalid_one_explained() {
        let schema = OutputSchema::new(
            &json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
        );
        let schema = schema.unwrap();
        assert_eq!(schema.parse(" {\"n\": 1} "), Ok(json!({"n": 1})));
        assert_eq!(schema.parse("```json\n{\"n\": 1}\n```"), Ok(json!({"n": 1})));
        assert!(schema.parse("n is 1").unwrap_err().starts_with("it is not JSON"));
        assert!(schema.parse("{\"n\": \"x\"}").unwrap_err().starts_with("/n:"));
        assert!(schema.parse("{}").unwrap_err().contains("required"));
        assert!(OutputSchema::new(&json!({"type": "nonsense"})).is_err());
    }

    #[test]
    fn a_reference_to_another_document_is_refused_in_plain_words() {
        for outside in ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "other.json#/a"] {
            let error = OutputSchema::new(&json!({"properties": {"a": {"$ref": outside}}})).unwrap_err();
            assert!(error.contains(outside) && error.contains("nothing is fetched"), "{error}");
        }
        let nowhere = OutputSchema::new(&json!({"$ref": "#/$defs/none"})).unwrap_err();
        assert!(nowhere.contains("leads nowhere"), "{nowhere}");
        let with_id = json!({"$id": "https://example.org/s", "$ref": "https://example.org/other"});
        let error = OutputSchema::new(&with_id).unwrap_err();
        assert!(error.contains("nothing is fetched") && !error.contains("feature"), "{error}");
        let next = |name: &str| json!({"allOf": vec![json!({"$ref": format!("#/$defs/{name}")}); 10]});
        let bomb = json!({
            "$defs": {"a": next("b"), "b": next("c"), "c": next("d"), "d": next("e"), "e": next("f"), "f": {}},
            "$ref": "#/$defs/a",
        });
        let refused = OutputSchema::new(&bomb).unwrap().parse("1").unwrap_err();
        assert!(refused.contains("too much work"), "{refused}");
        assert!(
            OutputSchema::new(&json!({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"})).is_ok()
        );
    }
}
