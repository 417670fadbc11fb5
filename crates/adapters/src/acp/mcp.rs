//! MCP servers that an agent is given with each native session: it starts or asks them itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_client_protocol::v1::schema::McpCapabilities;
use mainspring_core::Failure;
use mainspring_kernel::adapter::AttemptHandle;
use serde_json::{Value, json};

/// An MCP server as an agent is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpServer {
    /// A program that the agent starts, beneath its own guard.
    Stdio {
        /// Its path, absolute.
        command: PathBuf,
        /// Its arguments.
        args: Vec<String>,
        /// What the agent is to put into its environment.
        env: BTreeMap<String, String>,
    },
    /// Mainspring's own control tools, for the owner and the session of the run.
    Own {
        /// Our own program, absolute.
        command: PathBuf,
        /// Its arguments; what follows them are `--owner NAME --session ID`.
        args: Vec<String>,
    },
    /// A server that the agent asks.
    Http {
        /// Where it is.
        url: String,
        /// What requests have in their headers.
        headers: BTreeMap<String, String>,
    },
}

/// The servers that are configured, as an agent of these capabilities is told of them. What it cannot be told is
/// refused: it would lack tools that somebody counts on, and nobody would know.
pub(super) fn told(
    servers: &[(String, Result<McpServer, String>)],
    can: &McpCapabilities,
    attempt: &AttemptHandle,
) -> Result<Vec<Value>, Failure> {
    let pairs = |pairs: &BTreeMap<String, String>| -> Vec<Value> {
        pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let told = servers.iter().map(|(name, server)| match server {
        // Every agent takes those.
        Ok(McpServer::Stdio { command, args, env }) => {
            Ok(json!({"name": name, "command": command, "args": args, "env": pairs(env)}))
        }
        Ok(McpServer::Own { command, args }) => {
            let session = &attempt.assignment().session;
            let (owner, session) = (session.owner.clone(), session.id.to_string());
            let whose = ["--owner".to_owned(), owner, "--session".to_owned(), session];
            let args: Vec<&String> = args.iter().chain(&whose).collect();
            Ok(json!({"name": name, "command": command, "args": args, "env": []}))
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
    told.collect()
}
