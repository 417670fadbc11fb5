//! The built-in sandboxes of known agents. Nothing can be mounted within our sandbox, so an agent's sandbox that mounts
//! something is switched to a kind that works, or off. A variable that the adapter's `env` sets stays as it is.

use std::ffi::OsString;

use serde_json::{Map, Value};

use super::folders::starts_agent;

/// Returns the variables that switch the sandbox of the agent that `command` starts. `variable` looks up a variable
/// of its environment.
pub(super) fn variables(
    command: &[String],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![];
    if starts_agent(command, "codex") {
        let config = variable("CODEX_CONFIG").and_then(|config| config.into_string().ok());
        variables.extend(codex_config(config.as_deref()).map(|config| ("CODEX_CONFIG", config)));
        // From codex 0.160 on, even the older sandbox restricts files with bubblewrap, which needs mounts.
        // So the sandbox of codex is switched off.
        if variable("INITIAL_AGENT_MODE").is_none() {
            variables.push(("INITIAL_AGENT_MODE", "agent-full-access".to_owned()));
        }
    }
    if starts_agent(command, "gemini") && variable("GEMINI_SANDBOX").is_none() {
        variables.push(("GEMINI_SANDBOX", "false".to_owned()));
    }
    variables
}

/// Enables the older sandbox of codex in its configuration: before 0.160 it was Landlock, which works within ours.
/// Returns `None` if the given configuration already decides this or cannot be read.
fn codex_config(given: Option<&str>) -> Option<String> {
    let mut config: Map<String, Value> = match given {
        Some(given) => serde_json::from_str(given).ok()?,
        None => Map::new(),
    };
    let features = config.entry("features").or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
    if features.contains_key("use_legacy_landlock") {
        return None;
    }
    features.insert("use_legacy_landlock".into(), true.into());
    Some(Value::Object(config).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_of_known_agents_is_switched_unless_it_is_configured() {
        let of = |command: &str, variable: Option<(&str, &str)>| {
            let look_up =
                |name: &str| variable.filter(|(known, _)| *known == name).map(|(_, value)| value.into());
            variables(&[command.to_owned()], &look_up)
        };
        let landlock = r#"{"features":{"use_legacy_landlock":true}}"#.to_owned();
        let full_access = ("INITIAL_AGENT_MODE", "agent-full-access".to_owned());
        assert_eq!(of("codex-acp", None), [("CODEX_CONFIG", landlock.clone()), full_access.clone()]);
        let mode = Some(("INITIAL_AGENT_MODE", "permission-profile:mine"));
        assert_eq!(of("codex-acp", mode), [("CODEX_CONFIG", landlock)]);
        let merged = of("codex-acp", Some(("CODEX_CONFIG", r#"{"model":"m","features":{"x":true}}"#)));
        let merged: Value = serde_json::from_str(&merged[0].1).unwrap();
        let expected =
            serde_json::json!({"model": "m", "features": {"x": true, "use_legacy_landlock": true}});
        assert_eq!(merged, expected);
        for decided in [r#"{"features":{"use_legacy_landlock":false}}"#, "nonsense", "[]"] {
            let switched = of("codex-acp", Some(("CODEX_CONFIG", decided)));
            assert!(switched.len() == 1 && switched[0] == full_access, "{switched:?}");
        }
        assert_eq!(of("gemini", None), [("GEMINI_SANDBOX", "false".to_owned())]);
        assert_eq!(of("gemini", Some(("GEMINI_SANDBOX", "docker"))), []);
        assert_eq!(of("opencode", None), []);
    }
}
