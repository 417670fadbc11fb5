//! The script agent's built-in tools: pure and deterministic.

use serde_json::Value;

/// The names of the tools, as error messages list them.
pub(super) const NAMES: &str = "add, echo, upper";

/// Reports whether `name` is a built-in tool.
pub(super) fn is_builtin(name: &str) -> bool {
    NAMES.split(", ").any(|builtin| builtin == name)
}

/// Runs a tool and returns its text output or its error message.
pub(super) fn run(name: &str, input: &Value) -> Result<String, String> {
    match name {
        "add" => match (input["a"].as_f64(), input["b"].as_f64()) {
            (Some(a), Some(b)) => Ok((a + b).to_string()),
            _ => Err("add needs two numbers: {\"a\": 1, \"b\": 2}".into()),
        },
        "echo" => Ok(input.to_string()),
        "upper" => input["text"]
            .as_str()
            .map(str::to_uppercase)
            .ok_or_else(|| "upper needs a text: {\"text\": \"hi\"}".into()),
        _ => Err(format!("no tool {name:?}; there is {NAMES}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_tool_answers_or_names_its_arguments() {
        for (name, input, output) in [
            ("add", json!({"a": 19, "b": 23.5}), Ok("42.5")),
            ("add", json!({"a": 19}), Err("add needs two numbers: {\"a\": 1, \"b\": 2}")),
            ("echo", json!({"x": [1]}), Ok("{\"x\":[1]}")),
            ("upper", json!({"text": "hé"}), Ok("HÉ")),
            ("upper", json!({}), Err("upper needs a text: {\"text\": \"hi\"}")),
            ("lower", json!({}), Err("no tool \"lower\"; there is add, echo, upper")),
        ] {
            let expected = output.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(run(name, &input), expected, "{name} {input}");
            assert_eq!(is_builtin(name), name != "lower");
        }
    }
}
