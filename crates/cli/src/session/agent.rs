//! `mainspring session agent`, `set-agent`, `add-tool` and `remove-tool`

use std::path::{Path, PathBuf};

use clap::Args;
use mainspring_client::{AgentChange, AgentSource, NewTool, SessionAgent};
use serde_json::Value;

use super::print_changed;
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::excerpt;
use crate::{Context, file};

/// A tool to add to a session.
#[derive(Args)]
pub(crate) struct ToolArgs {
    /// Session key, or id (ses_…) or its beginning
    pub(super) session: String,
    /// Name of the tool
    name: String,
    /// Description for the model
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// File with the JSON Schema of the arguments; `-` for standard input [default: any object]
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
}

/// `session agent`
pub(super) async fn show(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
) -> Result<(), CliError> {
    let agent = connection.request(async |client| client.session_agent(session).await).await?;
    let output = context.output;
    if output.json {
        return Ok(output.print_json(&agent)?);
    }
    output.print_table(&["part", "value", "from"], rows(&agent))?;
    for problem in &agent.problems {
        output.print_note(format!("the next run would fail: {problem}"))?;
    }
    Ok(())
}

fn rows(agent: &SessionAgent) -> Vec<Vec<String>> {
    let row = |part: String, value: String, from: AgentSource| vec![part, value, source(from).to_owned()];
    let texts = [
        ("agent", Some(&agent.agent_definition)),
        ("model", agent.model.as_ref()),
        ("profile", agent.model_profile.as_ref()),
        ("system", agent.system_prompt.as_ref()),
    ];
    let mut rows = vec![row("adapter".into(), agent.adapter.clone(), AgentSource::Session)];
    for (part, text) in texts {
        rows.extend(text.map(|text| row(part.into(), excerpt(&text.value, 60), text.from)));
    }
    for (name, option) in &agent.model_options {
        rows.push(row(format!("option {name}"), option.value.to_string(), option.from));
    }
    for (name, limit) in &agent.limits {
        rows.push(row(format!("limit {name}"), limit.value.to_string(), limit.from));
    }
    for tool in &agent.tools {
        let what = excerpt(&tool.tool.description, 60);
        rows.push(row(format!("tool {}", tool.tool.name), what, tool.from));
    }
    for servers in &agent.mcp_servers {
        rows.push(row("MCP servers".into(), servers.clone(), AgentSource::AgentDefinition));
    }
    rows
}

fn source(from: AgentSource) -> &'static str {
    match from {
        AgentSource::Session => "session",
        AgentSource::AgentDefinition => "agent definition",
        AgentSource::ModelProfile => "model profile",
        AgentSource::Server => "server",
    }
}

/// `session set-agent`
pub(super) async fn set(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    change: &Path,
) -> Result<(), CliError> {
    let text = String::from_utf8(file::read_file(change)?)
        .map_err(|error| CliError::bad_request(format!("{} is no UTF-8: {error}", change.display())))?;
    let parsed: Result<AgentChange, String> = mainspring_client::request::parse(&text);
    let parsed = parsed.map_err(|reason| CliError::bad_request(format!("{}: {reason}", change.display())))?;
    let changed =
        connection.request(async |client| client.session_agent_set(session, &parsed, None).await).await?;
    print_changed(context, &changed, "changed the agent of")
}

/// `session add-tool`
pub(super) async fn add_tool(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    args: ToolArgs,
) -> Result<(), CliError> {
    let input_schema: Value = match &args.schema {
        None => serde_json::json!({"type": "object"}),
        Some(path) => serde_json::from_slice(&file::read_file(path)?)
            .map_err(|error| CliError::bad_request(format!("{}: {error}", path.display())))?,
    };
    let tool = NewTool { description: args.description, input_schema, ..NewTool::default() };
    let (session, name) = (&args.session, &args.name);
    let changed =
        connection.request(async |client| client.session_tool_put(session, name, &tool).await).await?;
    print_changed(context, &changed, &format!("added {name} to"))
}

/// `session remove-tool`
pub(super) async fn remove_tool(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    name: &str,
) -> Result<(), CliError> {
    let changed = connection.request(async |client| client.session_tool_delete(session, name).await).await?;
    print_changed(context, &changed, &format!("removed {name} from"))
}
