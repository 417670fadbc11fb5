//! MCP servers of a native session. The agent starts or calls them itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_client_protocol::v1::schema::McpCapabilities;
use mainspring_core::Failure;
use mainspring_kernel::adapter::AttemptHandle;
use serde_json::{Value, json};

/// The variable in which mainspring's own server finds its token: a confined agent cannot read the state directory's.
const KEY_VARIABLE: &str = "MAINSPRING_KEY";

/// An MCP server that an agent can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpServer {
    /// A program that the agent starts under its own guard.
    Stdio {
        /// The absolute path of the program.
        command: PathBuf,
        /// Its arguments.
        args: Vec<String>,
        /// Variables of its environment.
        env: BTreeMap<String, String>,
    },
    /// Mainspring's control tools, acting for the owner and the session of the run.
    Control {
        /// The absolute path of mainspring.
        command: PathBuf,
        /// Its arguments; `--owner NAME --session ID` is appended to them.
        args: Vec<String>,
    },
    /// A server that the agent calls over HTTP.
    Http {
        /// Its address.
        url: String,
        /// Headers of each request.
        headers: BTreeMap<String, String>,
    },
}

/// Builds the `mcpServers` parameter for an agent of these capabilities. Fails if a server cannot be given to the agent,
/// which would otherwise silently lack its tools.
pub(super) fn server_params(
    servers: &[(String, Result<McpServer, String>)],
    can: &McpCapabilities,
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
            let session = &attempt.assignment().session;
            let (owner, session) = (session.owner.clone(), session.id.to_string());
            let identity = ["--owner".to_owned(), owner, "--session".to_owned(), session];
            let args: Vec<&String> = args.iter().chain(&identity).collect();
            let token = json!({"name": KEY_VARIABLE, "value": attempt.agent_token()});
            Ok(json!({"name": name, "command": command, "args": args, "env": [token]}))
        }
        Ok(McpServer::Http { url, headers }) if can.http => {
            Ok(json!({"type": "http", "name": name, "url": url, "headers": pairs(headers)}))
        }
        Ok(McpServer::Http { .. }) => Err(Failure::new(
            "adapter_incompatible",
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
