//! `mainspring session set` and `mainspring session compact`

use clap::Args;
use mainspring_client::SessionPatch;
use mainspring_core::{Position, Visibility};
use serde_json::{Map, Value};

use super::patch_session;
use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;

/// Settings of a session's later runs. An empty value removes a setting.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Settings {
    /// Title
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Model, as PROVIDER/MODEL
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Model profile
    #[arg(long, alias = "model-profile", value_name = "NAME")]
    profile: Option<String>,
    /// System prompt of the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Working directory of the agent
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Option for the model's provider, repeatable: NAME=VALUE, where VALUE is JSON or a text; replaces all of them
    #[arg(long = "model-option", value_name = "NAME=VALUE", value_parser = parse_option)]
    model_options: Vec<(String, Value)>,
    /// Rule about what the session's agents may do, repeatable, such as "deny fs write /etc/*"; replaces all of them, an
    /// empty one removes them
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// Readers besides the owner: private or org
    #[arg(long, value_name = "WHO", value_parser = parse_visibility)]
    visibility: Option<Visibility>,
    /// Agent definition, as ID or ID@VERSION
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Milliseconds that the session stays in memory while it is idle; `default` for the server's setting
    #[arg(long, value_name = "MS", value_parser = parse_idle)]
    idle_unload_ms: Option<IdleUnload>,
    /// Metadata: a JSON object; replaces all of it
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    metadata: Option<Value>,
}

fn parse_option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as temperature=0.2")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((name.to_owned(), value))
}

/// The milliseconds that an idle session stays in memory; none for the server's setting.
#[derive(Debug, Clone, Copy)]
struct IdleUnload(Option<u64>);

fn parse_idle(text: &str) -> Result<IdleUnload, String> {
    match text {
        "default" => Ok(IdleUnload(None)),
        millis => millis
            .parse()
            .map(|millis| IdleUnload(Some(millis)))
            .map_err(|_| "a number of milliseconds, or default".into()),
    }
}

fn parse_visibility(name: &str) -> Result<Visibility, String> {
    Visibility::from_name(name).ok_or_else(|| "one of private, org".into())
}

fn parse_object(text: &str) -> Result<Value, String> {
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("a JSON object: {error}"))?;
    Ok(Value::Object(object))
}

/// `session set`
pub(super) async fn set(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    settings: Settings,
) -> Result<(), CliError> {
    // An empty text removes the setting.
    let or_null = |text: Option<String>| text.map(|text| (!text.is_empty()).then_some(text));
    let cwd = match or_null(settings.cwd) {
        Some(Some(folder)) => Some(context.folder(Some(&folder))?),
        removed => removed,
    };
    let options: Map<String, Value> = settings.model_options.into_iter().collect();
    let changes = SessionPatch {
        title: or_null(settings.title),
        model: or_null(settings.model),
        model_profile: or_null(settings.profile),
        system_prompt: or_null(settings.system),
        cwd,
        model_options: (!options.is_empty()).then_some(Some(options)),
        visibility: settings.visibility,
        metadata: settings.metadata.map(Some),
        agent_definition: settings.agent,
        idle_unload_ms: settings.idle_unload_ms.map(|idle| idle.0),
        rules: (!settings.rules.is_empty())
            .then(|| Some(settings.rules.into_iter().filter(|rule| !rule.is_empty()).collect())),
        ..SessionPatch::default()
    };
    patch_session(context, connection, session, &changes, "changed").await
}

/// `session compact`
pub(super) async fn compact(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    before: Option<Position>,
    yes: bool,
) -> Result<(), CliError> {
    if !yes {
        let question = format!("Prune the events of {session}? They are gone for good; its messages stay.");
        connection.confirm(&question).await?;
    }
    let before = match before {
        Some(before) => before,
        None => connection.request(async |client| client.session_snapshot(session).await).await?.position,
    };
    let compacted = connection.request(async |client| client.session_compact(session, before).await).await?;
    match context.output.json {
        true => Ok(context.output.print_json(&compacted)?),
        false => Ok(context.output.print_line(format_args!(
            "pruned the events of {session} up to {}; its messages stay",
            compacted.floor
        ))?),
    }
}
