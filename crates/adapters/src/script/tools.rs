//! The tools of the script agent: small, pure, deterministic.

use serde_json::Value;

/// Their names.
pub(super) const NAMES: &str = "add, echo, upper";

/// True for the name of one.
pub(super) fn is_own(name: &str) -> bool {
    NAMES.split(", ").any(|own| own == name)
}

/// Runs a tool: what it answers, or why it failed.
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
