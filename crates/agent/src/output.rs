//! Structured output: the form an answer has, and whether it has it.

use std::sync::Arc;

use serde_json::Value;

/// The form that answers have: a JSON Schema.
#[derive(Debug, Clone)]
pub struct Form {
    schema: Value,
    validator: Arc<jsonschema::Validator>,
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema
    }
}

impl Form {
    /// The form that `schema` describes; or why it describes none.
    pub fn new(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
        Ok(Self { schema: schema.clone(), validator: Arc::new(validator) })
    }

    /// What the model is told of it.
    pub fn instruction(&self) -> String {
        format!(
            "Your last message must be a single JSON value that fits this JSON Schema, and nothing else: no text around \
             it, no code fence.\n{}",
            self.schema
        )
    }

    /// The value in `text`; or what is wrong with it.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        let value = parse(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let problems: Vec<String> = self
            .validator
            .iter_errors(&value)
            .take(5)
            .map(|error| match error.instance_path().to_string().as_str() {
                "" => error.to_string(),
                at => format!("{at}: {error}"),
            })
            .collect();
        if problems.is_empty() { Ok(value) } else { Err(problems.join("; ")) }
    }
}

/// The JSON in `text`: all of it, or what a code fence holds.
fn parse(text: &str) -> Result<Value, serde_json::Error> {
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
    fn a_value_is_read_or_its_faults_are_named() {
        let form = Form::new(
            &json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
        );
        let form = form.unwrap();
        assert_eq!(form.read(" {\"n\": 1} "), Ok(json!({"n": 1})));
        assert_eq!(form.read("```json\n{\"n\": 1}\n```"), Ok(json!({"n": 1})));
        assert!(form.read("n is 1").unwrap_err().starts_with("it is not JSON"));
        assert!(form.read("{\"n\": \"x\"}").unwrap_err().starts_with("/n:"));
        assert!(form.read("{}").unwrap_err().contains("required"));
        assert!(Form::new(&json!({"type": "nonsense"})).is_err());
    }
}
