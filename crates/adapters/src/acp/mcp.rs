//! MCP servers of a native session. The agent starts or calls them itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_client_protocol::v1::schema::McpCapabilities;
use mainspring_core::{Failure, FailureCode};
use mainspring_kernel::adapter::AttemptHandle;
use serde_json::{Value, json};

use crate::endpoint::{Endpoint, PIPE_VARIABLE};

/// The variable with the token of the agent's process, for calls over HTTP.
const KEY_VARIABLE: &str = "MAINSPRING_KEY";

/// An MCP server that can be offered to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpServer {
    /// A program that the agent starts. The program belongs to the process tree of the agent's guard.
    Stdio {
        /// The absolute path of the program.
        command: PathBuf,
        /// The arguments of the program.
        args: Vec<String>,
        /// Variables of the program's environment.
        env: BTreeMap<String, String>,
    },
    /// Mainspring's control tools: a relay to the endpoint of the agent's process.
    Control {
        /// The absolute path of mainspring.
        command: PathBuf,
        /// The arguments of mainspring; `--session ID` is appended to them.
        args: Vec<String>,
    },
    /// A server that the agent calls over HTTP.
    Http {
        /// The address of the server.
        url: String,
        /// Headers of each request.
        headers: BTreeMap<String, String>,
    },
}

/// Builds the `mcpServers` parameter for an agent of these capabilities. Fails if a server cannot be given to the
/// agent: otherwise the agent would silently lack the tools of that server.
pub(super) fn server_params(
    servers: &[(String, Result<McpServer, String>)],
    can: &McpCapabilities,
    endpoint: Option<&Endpoint>,
    attempt: &AttemptHandle,
) -> Result<Vec<Value>, Failure> {
    let pairs = |pairs: &BTreeMap<String, String>| -> Vec<Value> {
        pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let params = servers.iter().map(|(name, server)| match server {
        // Every agent supports stdio servers.
        Ok(McpServer::Stdio { command, args, env }) => {
            Ok(json!({"name": name, "command": command, "args": args, "env": pairs(env)}))
        }
        Ok(McpServer::Control { command, args }) => {
            // With `--session`, the relay's calls are refused while the process works for another session.
            let session = ["--session".to_owned(), attempt.assignment().session.id.to_string()];
            let args: Vec<&String> = args.iter().chain(&session).collect();
            let variables = endpoint.map(|endpoint| {
                let (token, socket) = (endpoint.token(), endpoint.socket());
                [
                    json!({"name": KEY_VARIABLE, "value": token}),
                    json!({"name": PIPE_VARIABLE, "value": socket}),
                ]
            });
            let env: Vec<Value> = variables.into_iter().flatten().collect();
            Ok(json!({"name": name, "command": command, "args": args, "env": env}))
        }
        Ok(McpServer::Http { url, headers }) if can.http => {
            Ok(json!({"type": "http", "name": name, "url": url, "headers": pairs(headers)}))
        }
        Ok(McpServer::Http { .. }) => Err(Failure::new(
            FailureCode::AdapterIncompatible,
            format!(
                "the agent takes no MCP servers over HTTP, and {name:?} is one: take it out of the adapter's mcp"
            ),
        )),
        Err(reason) => {
            Err(Failure::new("mcp_unavailable", format!("the MCP server {name:?} cannot be used: {reason}")))
        }
    });
    params.collect()
}
