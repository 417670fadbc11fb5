//! MCP servers: tools that other programs offer, over stdio or over HTTP.
//!
//! A server is started when a run first needs it, and started again for the next run that needs it after it has ended.
//! Its tools are named `SERVER__TOOL`, so that those of two servers are never the same. Each call carries its stable id
//! in `_meta`, for servers that recognise a call made again.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock, MetaObject, PingRequest,
    RequestMetaObject,
};
use rmcp::service::RunningService;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{RoleClient, ServiceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Tool, ToolCall, ToolError, ToolTraits, Toolbox, matches_pattern};
use crate::provider::{ToolSpec, install_tls};

/// What stands between a server's name and its tool's.
const BETWEEN: &str = "__";
/// The key of a call's id in `_meta`.
const CALL_ID: &str = "mainspring/toolUseId";
/// How long a server may take to say that it is there.
const PING: Duration = Duration::from_secs(5);
/// What a server's process may see of our environment.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "LANG", "TMPDIR", "USER", "SHELL"];

/// An MCP server as it is configured: `command` and its arguments, or `url`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The program to start.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// What its environment has beside the few variables that are passed on.
    pub env: BTreeMap<String, String>,
    /// Variables of our own environment that it may see besides.
    pub pass_env: Vec<String>,
    /// The folder it runs in.
    pub cwd: Option<PathBuf>,
    /// Where it serves HTTP.
    pub url: Option<String>,
    /// What requests to it have in their headers.
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are secrets: for each, the environment variable that holds it.
    pub headers_env: BTreeMap<String, String>,
    /// The environment variable that holds its bearer token.
    pub key_env: Option<String>,
    /// Milliseconds that a call may take.
    pub timeout_ms: Option<u64>,
    /// Tools that may be called again after a crash: their names at the server, in which `*` stands for anything.
    pub idempotent: Vec<String>,
}

impl McpConfig {
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => Err("give command or url, not both".into()),
            (None, None) => Err("give command, for a program, or url, for a server".into()),
            (None, Some(url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
                Err(format!("{url:?} must start with http:// or https://"))
            }
            _ => match self.headers.keys().chain(self.headers_env.keys()).find(|name| !is_header(name)) {
                Some(name) => Err(format!("{name:?} cannot name a header")),
                None => Ok(()),
            },
        }
    }

    /// What its process finds in its environment besides what every server does, as things are now.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let passed = self.pass_env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        // What is written down wins.
        passed.chain(self.env.clone()).collect()
    }

    /// The headers of requests to it, secrets among them, as things are now; or which secret is missing.
    pub fn request_headers(&self) -> Result<BTreeMap<String, String>, String> {
        let mut headers = self.headers.clone();
        let bearer = self.key_env.iter().map(|variable| ("Authorization", "Bearer ", variable));
        let secret = self.headers_env.iter().map(|(name, variable)| (name.as_str(), "", variable));
        for (name, before, variable) in bearer.chain(secret) {
            let value = std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
            let value = value.ok_or_else(|| format!("set the environment variable {variable}"))?;
            headers.insert(name.to_owned(), format!("{before}{}", value.trim()));
        }
        Ok(headers)
    }
}

fn is_header(name: &str) -> bool {
    HeaderName::try_from(name).is_ok()
}

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// Nobody has needed it yet, or it has ended.
    Stopped,
    /// It runs.
    Running {
        /// How many tools it offers.
        tools: usize,
    },
    /// It could not be started.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The servers there are.
#[derive(Debug, Clone, Default)]
pub struct McpServers {
    servers: BTreeMap<String, Arc<Server>>,
}

#[derive(Debug)]
struct Server {
    name: String,
    config: McpConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Stopped,
    Running(Arc<Running>),
    Failed(String),
}

/// A server that runs. Dropping it ends it.
#[derive(Debug)]
struct Running {
    service: RunningService<RoleClient, ()>,
    tools: Vec<rmcp::model::Tool>,
}

impl McpServers {
    /// The servers that are configured.
    pub fn new(configs: &BTreeMap<String, McpConfig>) -> Self {
        let server = |(name, config): (&String, &McpConfig)| {
            let server = Server { name: name.clone(), config: config.clone(), state: Mutex::default() };
            (name.clone(), Arc::new(server))
        };
        Self { servers: configs.iter().map(server).collect() }
    }

    /// True when none is configured.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// How each server is.
    pub async fn health(&self) -> BTreeMap<String, Health> {
        let mut all = BTreeMap::new();
        for (name, server) in &self.servers {
            all.insert(name.clone(), server.health().await);
        }
        all
    }

    /// The tools of the servers whose names `wanted` fits, started as needed; and what could not be started.
    pub async fn tools(&self, wanted: &[String]) -> (Toolbox, Vec<String>) {
        let (mut tools, mut problems) = (Toolbox::default(), vec![]);
        for (name, server) in &self.servers {
            if !wanted.iter().any(|pattern| matches_pattern(pattern, name)) {
                continue;
            }
            match server.answering().await {
                Err(reason) => problems.push(format!("the MCP server {name:?} cannot be used: {reason}")),
                Ok(running) => {
                    for tool in &running.tools {
                        let offered = tools.add(Arc::new(McpTool::new(server, tool)));
                        problems
                            .extend(offered.err().map(|bad| format!("of the MCP server {name:?}: {bad}")));
                    }
                }
            }
        }
        problems.extend(wanted.iter().filter(|pattern| !pattern.contains('*')).filter_map(|name| {
            let known = self.servers.contains_key(name);
            (!known).then(|| format!("no MCP server {name:?}; write [mcp.{name}]"))
        }));
        (tools, problems)
    }
}

impl Server {
    async fn health(&self) -> Health {
        match &*self.state.lock().await {
            State::Running(running) if !running.service.is_transport_closed() => {
                Health::Running { tools: running.tools.len() }
            }
            State::Running(_) | State::Stopped => Health::Stopped,
            State::Failed(reason) => Health::Failed { reason: reason.clone() },
        }
    }

    /// The server, which answers now. One over HTTP is asked: it may have been started anew and not know us any more, which
    /// a connection cannot tell.
    async fn answering(&self) -> Result<Arc<Running>, String> {
        let running = self.running().await?;
        if self.config.url.is_none() {
            return Ok(running);
        }
        let ping = running.service.send_request(ClientRequest::PingRequest(PingRequest::default()));
        if let Ok(Ok(_)) = tokio::time::timeout(PING, ping).await {
            return Ok(running);
        }
        *self.state.lock().await = State::Stopped;
        self.running().await
    }

    /// The server, started if it does not run.
    async fn running(&self) -> Result<Arc<Running>, String> {
        let mut state = self.state.lock().await;
        if let State::Running(running) = &*state
            && !running.service.is_transport_closed()
        {
            return Ok(running.clone());
        }
        match self.start().await {
            Ok(running) => {
                let running = Arc::new(running);
                *state = State::Running(running.clone());
                Ok(running)
            }
            Err(reason) => {
                *state = State::Failed(reason.clone());
                Err(reason)
            }
        }
    }

    async fn start(&self) -> Result<Running, String> {
        self.config.check()?;
        let service = match (&self.config.command, &self.config.url) {
            (Some(command), _) => {
                let transport =
                    TokioChildProcess::new(self.process(command)).map_err(|error| error.to_string())?;
                ().serve(transport).await.map_err(|error| error.to_string())?
            }
            (None, Some(url)) => {
                let mut headers = HashMap::new();
                for (name, value) in self.config.request_headers()? {
                    let value = HeaderValue::try_from(value);
                    let value =
                        value.map_err(|_| format!("its header {name:?} has a value that none can"))?;
                    headers.insert(HeaderName::try_from(name).map_err(|error| error.to_string())?, value);
                }
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                config = config.custom_headers(headers);
                install_tls();
                let transport = StreamableHttpClientTransport::from_config(config);
                ().serve(transport).await.map_err(|error| error.to_string())?
            }
            (None, None) => return Err("it has no command and no url".into()),
        };
        let tools = service.list_all_tools().await.map_err(|error| error.to_string())?;
        Ok(Running { service, tools })
    }

    fn process(&self, command: &str) -> tokio::process::Command {
        let mut process = tokio::process::Command::new(command);
        process.args(&self.config.args).env_clear().kill_on_drop(true);
        process.envs(PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        process.envs(self.config.environment());
        if let Some(cwd) = &self.config.cwd {
            process.current_dir(cwd);
        }
        process
    }
}

/// A tool of an MCP server.
struct McpTool {
    server: Arc<Server>,
    /// Its name at the server.
    name: String,
    spec: ToolSpec,
    traits: ToolTraits,
}

impl McpTool {
    fn new(server: &Arc<Server>, tool: &rmcp::model::Tool) -> Self {
        let name = tool.name.to_string();
        let idempotent = server.config.idempotent.iter().any(|pattern| matches_pattern(pattern, &name));
        let spec = ToolSpec {
            name: format!("{}{BETWEEN}{name}", server.name),
            description: tool.description.as_deref().unwrap_or_default().to_owned(),
            schema: Value::Object((*tool.input_schema).clone()),
        };
        let traits = ToolTraits { idempotent, timeout_ms: server.config.timeout_ms.unwrap_or(60_000) };
        Self { server: server.clone(), name, spec, traits }
    }
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn traits(&self) -> ToolTraits {
        self.traits
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        let running = self.server.running().await.map_err(ToolError)?;
        let mut params = CallToolRequestParams::new(self.name.clone());
        params.arguments = call.input.as_object().cloned();
        let mut meta = MetaObject::default();
        meta.0.insert(CALL_ID.into(), json!(call.id));
        params.meta = Some(RequestMetaObject(meta));
        let result = running.service.call_tool(params).await;
        let result =
            result.map_err(|error| ToolError(format!("the MCP server {:?}: {error}", self.server.name)))?;
        let text = text_of(&result);
        if result.is_error == Some(true) { Err(ToolError(text)) } else { Ok(text) }
    }
}

/// What a server answered, as text.
fn text_of(result: &CallToolResult) -> String {
    let shown = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    match (&result.structured_content, result.content.is_empty()) {
        (Some(value), true) => value.to_string(),
        _ => result.content.iter().map(shown).collect::<Vec<_>>().join("\n"),
    }
}
