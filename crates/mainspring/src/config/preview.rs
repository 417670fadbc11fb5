//! Preview: the effects of a folder's file, for the person who decides whether to trust it.

use std::path::Path;

use mainspring_agent::tool::mcp::McpConfig;
use serde::Serialize;

use super::adapters::AdapterConfig;
use super::{Origin, Resolved};

/// One effect of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Effect {
    /// The kind of the effect.
    pub kind: EffectKind,
    /// The setting or table that has the effect.
    pub key: String,
    /// The effect: a command, a server with the keys that it gets, or a value.
    pub value: String,
}

/// The kind of an effect, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// A program is run.
    Runs,
    /// Prompts, calls of tools, keys or variables are sent.
    Sends,
    /// A setting has another value.
    Sets,
}

impl Resolved {
    /// Lists the effects of the configuration file, the most severe first.
    pub fn file_effects(&self) -> Vec<Effect> {
        let Some(file) = &self.file else { return vec![] };
        let mut effects = Vec::new();
        for (name, adapter) in &self.config.adapters {
            effects.extend(adapter_effects(name, adapter));
        }
        for (name, server) in &self.config.models.mcp {
            effects.extend(server_effects(name, server));
        }
        for (name, provider) in &self.config.models.providers {
            let server = provider.base_url.as_deref().unwrap_or("the official server of its kind");
            let key = match (&provider.key_env, &provider.key_file) {
                (Some(variable), _) => format!(", with the key in {variable}"),
                (None, Some(file)) => format!(", with the key in {}", file.display()),
                (None, None) => ", with the stored key of this provider".to_owned(),
            };
            effects.push(effect(
                EffectKind::Sends,
                format!("providers.{name}"),
                format!("prompts to {server}{key}"),
            ));
        }
        if matches!(self.origins.get("on_attention"), Some(Origin::File { path, .. }) if path == file) {
            let command = command_line(&self.config.on_attention);
            effects.push(effect(EffectKind::Runs, "on_attention".to_owned(), command));
        }
        effects.extend(self.settings_of(file));
        effects.sort_by_key(|effect| effect.kind);
        effects
    }

    /// Lists the settings that `file` sets, without those that another effect names.
    fn settings_of(&self, file: &Path) -> impl Iterator<Item = Effect> {
        let is_of_file = move |origin: &Origin| matches!(origin, Origin::File { path, .. } if path == file);
        let is_named = |key: &str| {
            let of_adapter = [".command", ".pass_env"].iter().any(|end| key.ends_with(end));
            key == "on_attention"
                || (key.starts_with("adapters.") && of_adapter)
                || ["providers.", "mcp."].iter().any(|start| key.starts_with(start))
        };
        let rows = self.rows().into_iter();
        rows.filter(move |row| is_of_file(&row.origin) && !is_named(&row.key))
            .map(|row| effect(EffectKind::Sets, row.key, row.value.to_string()))
    }
}

fn effect(kind: EffectKind, key: String, value: String) -> Effect {
    Effect { kind, key, value }
}

fn adapter_effects(name: &str, adapter: &AdapterConfig) -> Vec<Effect> {
    let key = |setting: &str| format!("adapters.{name}.{setting}");
    let default = || adapter.kind.map(|kind| kind.command().iter().map(ToString::to_string).collect());
    let command: Option<Vec<String>> = adapter.command.clone().or_else(default);
    let runs = command.map(|command| effect(EffectKind::Runs, key("command"), command_line(&command)));
    let passed = adapter.pass_env.as_ref().filter(|names| !names.is_empty()).map(|names| {
        effect(EffectKind::Sends, key("pass_env"), format!("{} to the agent", names.join(", ")))
    });
    runs.into_iter().chain(passed).collect()
}

fn server_effects(name: &str, server: &McpConfig) -> Vec<Effect> {
    let variables = server.pass_env.iter().chain(server.headers_env.values()).chain(&server.key_env);
    let variables: Vec<&str> = variables.map(String::as_str).collect();
    let target = match (&server.command, &server.url) {
        (Some(_), _) => "the server".to_owned(),
        (None, url) => url.clone().unwrap_or_default(),
    };
    let runs = server.command.iter().map(|command| {
        let words: Vec<String> = std::iter::once(command).chain(&server.args).cloned().collect();
        effect(EffectKind::Runs, format!("mcp.{name}.command"), command_line(&words))
    });
    let sends = match (variables.is_empty(), &server.url) {
        (true, None) => None,
        (true, Some(url)) => Some(format!("calls of tools to {url}")),
        (false, _) => Some(format!("{} to {target}", variables.join(", "))),
    };
    let sends = sends.map(|value| effect(EffectKind::Sends, format!("mcp.{name}"), value));
    let env = (!server.env.is_empty()).then(|| {
        let names = server.env.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        effect(EffectKind::Sets, format!("mcp.{name}.env"), names)
    });
    runs.chain(sends).chain(env).collect()
}

/// Writes a command with its words quoted where needed, as in a shell.
fn command_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@,+%".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
