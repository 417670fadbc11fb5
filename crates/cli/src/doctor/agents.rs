//! Checks of agents and models: programs exist and start, keys are there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mainspring::config::{AdapterConfig, AdapterKind, Config};
use mainspring_adapters::process::inherited_environment;
use mainspring_agent::Models;
use mainspring_agent::models::{DEFAULT_MODELS, stored_keys};
use mainspring_core::{KeyPresence, ModelProfile};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::{Health, Report};
use crate::output::excerpt;

/// The longest wait for the first answer of an agent.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an agent's standard error that are read for the reason of a failure.
const MAX_STDERR_BYTES: u64 = 4096;

/// Checks each configured agent: its program exists, starts and answers.
pub(super) async fn check_agents(config: &Config, report: &mut Report) {
    for (name, adapter) in &config.adapters {
        let Some(kind) = adapter.kind else { continue };
        let default = || kind.command().iter().map(ToString::to_string).collect();
        let command: Vec<String> = adapter.command.clone().unwrap_or_else(default);
        let Some((program, arguments)) = command.split_first() else {
            let missing = format!("{name}: it has no command; set adapters.{name}.command");
            report.add(Health::Bad, "agent", missing);
            continue;
        };
        if find_program(program, adapter).is_none() {
            let missing = format!(
                "{name}: there is no program {program:?}; install it, or change adapters.{name}.command"
            );
            report.add(Health::Bad, "agent", missing);
            continue;
        }
        match start(program, arguments, adapter, kind).await {
            Ok(answer) => report.add(Health::Ok, "agent", format!("{name}: {program} starts{answer}")),
            Err(reason) => {
                report.add(Health::Bad, "agent", format!("{name}: {program} does not start: {reason}"));
            }
        }
    }
}

/// Finds a program as the agent's process would.
fn find_program(program: &str, adapter: &AdapterConfig) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let own = adapter.env.as_ref().and_then(|env| env.get("PATH").map(OsString::from));
    let path = own.or_else(|| std::env::var_os("PATH"))?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Starts an agent under a guard, sends the first request of its protocol and waits for the answer.
async fn start(
    program: &str,
    arguments: &[String],
    adapter: &AdapterConfig,
    kind: AdapterKind,
) -> Result<String, String> {
    let guard = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(guard);
    command.args(["guard", "--grace-ms", "500", "--", program]).args(arguments);
    // The same environment as in a run: an agent that would fail there for lack of a variable must fail here too.
    command.env_clear().envs(inherited_environment(adapter.pass_env.as_deref().unwrap_or_default()));
    command.envs(adapter.env.clone().unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir(adapter.cwd.as_deref().unwrap_or(Path::new("."))).process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let outcome = tokio::time::timeout(START_TIMEOUT, handshake(&mut child, kind)).await;
    // The guard ends the agent when its standard input is closed.
    drop(child.stdin.take());
    let _ = tokio::time::timeout(Duration::from_secs(2), child.wait()).await;
    outcome.unwrap_or_else(|_| {
        Err(format!(
            "no answer within {} s; does the command speak the protocol {}?",
            START_TIMEOUT.as_secs(),
            kind.keyword()
        ))
    })
}

async fn handshake(child: &mut Child, kind: AdapterKind) -> Result<String, String> {
    let request = match kind {
        AdapterKind::Acp => json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {"protocolVersion": 1, "clientCapabilities": {}},
        }),
        AdapterKind::Pi => json!({"id": "0", "type": "get_state"}),
    };
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("no pipes".into());
    };
    // The write fails if the agent has ended. Then its output ends too, and the loop below reports that.
    let _ = input.write_all(format!("{request}\n").as_bytes()).await;
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer: Value = serde_json::from_str(&line).unwrap_or_default();
        match kind {
            AdapterKind::Acp if answer["error"].is_object() => {
                return Err(answer["error"]["message"].as_str().unwrap_or("it refused").to_owned());
            }
            AdapterKind::Acp if answer["result"].is_object() => {
                let info = &answer["result"]["agentInfo"];
                let version = info["version"].as_str().map(|version| format!(" (version {version})"));
                return Ok(version.unwrap_or_default());
            }
            AdapterKind::Pi if answer["type"] == "response" => return Ok(String::new()),
            _ => {}
        }
    }
    let mut stderr = vec![];
    if let Some(pipe) = child.stderr.take() {
        let _ = pipe.take(MAX_STDERR_BYTES).read_to_end(&mut stderr).await;
    }
    let stderr = String::from_utf8_lossy(&stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended without a message");
    Err(excerpt(last, 200))
}

/// Checks that each configured model has its key, or, if none is configured, that a default model has one.
pub(super) fn check_models(config: &Config, is_served: bool, report: &mut Report) {
    let list = match Models::with_stored_keys(&config.models, Some(&config.keys_dir())) {
        Ok(models) => models.list(),
        Err(error) => return report.add(Health::Bad, "models", error.to_string()),
    };
    // The process that serves may have keys in its environment that this process lacks.
    let missing = if is_served { Health::Note } else { Health::Bad };
    for ModelProfile { profile, provider, model, key, .. } in &list.profiles {
        match key {
            KeyPresence::Missing => {
                let remedy =
                    stored_keys(&config.models).into_iter().find(|known| known.provider == *provider);
                let remedy = match remedy {
                    Some(known) => format!(
                        "run `mainspring auth add {provider}`, or set {}",
                        known.variable.unwrap_or_default()
                    ),
                    None => format!("check providers.{provider}.key_file"),
                };
                report.add(missing, "model", format!("{profile}: {provider}/{model} has no key; {remedy}"));
            }
            _ => report.add(Health::Ok, "model", format!("{profile}: {provider}/{model}")),
        }
    }
    if list.profiles.is_empty() {
        let has_key = |name: &str| {
            list.providers.iter().any(|known| known.provider == name && known.key == KeyPresence::Present)
        };
        match DEFAULT_MODELS.into_iter().find(|(provider, _)| has_key(provider)) {
            Some((provider, model)) => {
                report.add(Health::Ok, "model", format!("none configured; {provider}/{model} is used"));
            }
            None => {
                let none = "none configured, and no key; run `mainspring auth add PROVIDER` for one";
                report.add(Health::Note, "model", none.into());
            }
        }
    }
}
