//! MCP servers: tools of other programs, over stdio or HTTP.
//!
//! A server is started when a run first needs it. If it has ended, the next run or call that needs it starts
//! it again. Its tools are named `SERVER__TOOL`, so that the names of two servers never collide. Each call
//! carries its stable id in `_meta`, so that a server can recognize a repeated call, and the ids of its
//! session and run.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock, EmbeddedResource, MetaObject,
    PingRequest, RequestMetaObject, ResourceContents,
};
use rmcp::service::RunningService;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{RoleClient, ServiceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::Mutex;

use super::{Tool, ToolCall, ToolContext, ToolError, ToolTraits, Toolbox, matches_pattern};
use crate::provider::{ToolSpec, install_tls};

/// The separator between the names of a server and of its tool.
const NAME_SEPARATOR: &str = "__";
/// The key of a call's id in `_meta`.
const CALL_ID_KEY: &str = "mainspring/toolUseId";

/// The keys of the session and the run in the `_meta` of a call, so that a server can reach their state over the API.
const SESSION_ID_KEY: &str = "mainspring/sessionId";
const RUN_ID_KEY: &str = "mainspring/runId";
/// How long a server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The environment variables that the processes of servers without a guard inherit.
const INHERITED_ENV: [&str; 6] = ["PATH", "HOME", "LANG", "TMPDIR", "USER", "SHELL"];

/// The configuration of an MCP server: `command` and its arguments, or `url`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The program to start.
    pub command: Option<String>,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Environment variables, in addition to the inherited ones.
    pub env: BTreeMap<String, String>,
    /// More environment variables to inherit.
    pub pass_env: Vec<String>,
    /// The working directory of the program.
    pub cwd: Option<PathBuf>,
    /// The URL of an HTTP server.
    pub url: Option<String>,
    /// HTTP headers of requests.
    pub headers: BTreeMap<String, String>,
    /// HTTP headers with secret values: for each, the environment variable that holds the value.
    pub headers_env: BTreeMap<String, String>,
    /// The environment variable that holds the bearer token.
    pub key_env: Option<String>,
    /// The timeout of a call in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Tools whose calls may be repeated after a crash: their names at the server, in which `*` matches anything.
    pub idempotent: Vec<String>,
}

/// True for a command line that starts mainspring's own MCP server.
fn is_own_server(command: &str, args: &[String]) -> bool {
    let is_mainspring = Path::new(command).file_name().is_some_and(|name| name == "mainspring");
    is_mainspring && args.iter().any(|arg| arg == "mcp")
}

impl McpConfig {
    /// Checks the configuration.
    pub fn check(&self) -> Result<(), String> {
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => Err("give command or url, not both".into()),
            (None, None) => Err("give command, for a program, or url, for a server".into()),
            // Started by the native agent, the server would act for the owner of the process, not for that of the run.
            (Some(command), None) if is_own_server(command, &self.args) => Err(
                "starts mainspring's own MCP server, whose tools are built in: name them in the `tools` of an agent \
                 definition, or give an ACP adapter mcp = [\"mainspring\"]"
                    .into(),
            ),
            (None, Some(url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
                Err(format!("{url:?} must start with http:// or https://"))
            }
            _ => match self.headers.keys().chain(self.headers_env.keys()).find(|name| !is_header(name)) {
                Some(name) => Err(format!("{name:?} is not a valid header name")),
                None => Ok(()),
            },
        }
    }

    /// Returns the environment variables of the process, in addition to those that every server inherits.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let inherited =
            self.pass_env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        // Configured values take precedence.
        inherited.chain(self.env.clone()).collect()
    }

    /// Returns the HTTP headers with their secrets. The error names a missing environment variable.
    pub fn request_headers(&self) -> Result<BTreeMap<String, String>, String> {
        let mut headers = self.headers.clone();
        let bearer = self.key_env.iter().map(|variable| ("Authorization", "Bearer ", variable));
        let secret = self.headers_env.iter().map(|(name, variable)| (name.as_str(), "", variable));
        for (name, prefix, variable) in bearer.chain(secret) {
            let value = std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
            let value = value.ok_or_else(|| format!("set the environment variable {variable}"))?;
            headers.insert(name.to_owned(), format!("{prefix}{}", value.trim()));
        }
        Ok(headers)
    }
}

fn is_header(name: &str) -> bool {
    HeaderName::try_from(name).is_ok()
}

/// The health of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// The server has not been needed yet, or it has ended.
    Stopped,
    /// The server runs.
    Running {
        /// The number of its tools.
        tools: usize,
    },
    /// The server could not be started.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// How the processes of servers are started.
#[derive(Debug, Clone, Default)]
pub struct ServerProcesses {
    /// The command line of the guard, to which the server's command line is appended. The guard passes its input on to
    /// the server and kills the server's process tree when the input ends, for example because mainspring was killed.
    /// Empty if servers have no guard.
    pub guard: Vec<OsString>,
    /// Variables of the environment of every server.
    pub env: Vec<(OsString, OsString)>,
    /// The environment variable that marks the processes of a server, and the prefix of its value. The rest of the value
    /// is the server's name.
    pub mark: Option<(String, String)>,
}

impl ServerProcesses {
    /// Servers without a guard, with the inherited variables of this process.
    fn unguarded() -> Self {
        let env = INHERITED_ENV.iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        Self { guard: vec![], env: env.collect(), mark: None }
    }

    fn command(&self, name: &str, config: &McpConfig, program: &str) -> tokio::process::Command {
        let words = self.guard.iter().cloned().chain([program.into()]);
        let mut words = words.chain(config.args.iter().map(OsString::from));
        let mut process = tokio::process::Command::new(words.next().unwrap_or_default());
        process.args(words).env_clear().envs(self.env.iter().cloned()).envs(config.environment());
        process.envs(self.mark.iter().map(|(variable, prefix)| (variable, format!("{prefix}{name}"))));
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A guard ends its process tree when its input ends. A killed guard could not do that.
        process.kill_on_drop(self.guard.is_empty());
        if let Some(cwd) = &config.cwd {
            process.current_dir(cwd);
        }
        process
    }
}

/// The configured servers.
#[derive(Debug, Clone, Default)]
pub struct McpServers {
    servers: BTreeMap<String, Arc<Server>>,
}

#[derive(Debug)]
struct Server {
    name: String,
    config: McpConfig,
    processes: Arc<ServerProcesses>,
    state: Mutex<ServerState>,
}

#[derive(Debug, Default)]
enum ServerState {
    #[default]
    Stopped,
    Running(Arc<RunningServer>),
    Failed(String),
}

/// A running server. Dropping it ends the server.
#[derive(Debug)]
struct RunningServer {
    service: RunningService<RoleClient, ()>,
    /// The process of the server or of its guard.
    process: Option<parking_lot::Mutex<Child>>,
    tools: Vec<rmcp::model::Tool>,
}

impl RunningServer {
    /// True if the server has closed its output, or its process or its guard has ended.
    fn has_ended(&self) -> bool {
        let is_gone = |process: &parking_lot::Mutex<Child>| !matches!(process.lock().try_wait(), Ok(None));
        self.service.is_transport_closed() || self.process.as_ref().is_some_and(is_gone)
    }
}

impl McpServers {
    /// Creates the servers without starting them. Their processes have no guard.
    pub fn new(configs: &BTreeMap<String, McpConfig>) -> Self {
        Self::with_processes(configs, ServerProcesses::unguarded())
    }

    /// Creates the servers without starting them.
    pub fn with_processes(configs: &BTreeMap<String, McpConfig>, processes: ServerProcesses) -> Self {
        let processes = Arc::new(processes);
        let server = |(name, config): (&String, &McpConfig)| {
            let (name, config) = (name.clone(), config.clone());
            let server =
                Server { name: name.clone(), config, processes: processes.clone(), state: Mutex::default() };
            (name, Arc::new(server))
        };
        Self { servers: configs.iter().map(server).collect() }
    }

    /// Returns true if no server is configured.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns the health of each server.
    pub async fn health(&self) -> BTreeMap<String, Health> {
        let mut all = BTreeMap::new();
        for (name, server) in &self.servers {
            all.insert(name.clone(), server.health().await);
        }
        all
    }

    /// Returns the names of the servers that match `patterns` and are processes of this machine.
    pub fn processes(&self, patterns: &[String]) -> Vec<&str> {
        let matching = self.servers.values().filter(|server| server.is_named_by(patterns));
        matching.filter(|server| server.config.command.is_some()).map(|server| server.name.as_str()).collect()
    }

    /// Returns the tools of the servers whose names match `patterns`, starting the servers as needed, and the problems. A
    /// run that must be confined gets none of the servers that are processes, since nothing confines those.
    pub async fn tools(&self, patterns: &[String], is_confined: bool) -> (Toolbox, Vec<String>) {
        let (mut tools, mut problems) = (Toolbox::default(), vec![]);
        for (name, server) in &self.servers {
            if !server.is_named_by(patterns) {
                continue;
            }
            if is_confined && server.config.command.is_some() {
                problems.push(format!(
                    "the MCP server {name:?} cannot be used: nothing confines it, and the run that delegated this one is \
                     confined"
                ));
                continue;
            }
            match server.verified().await {
                Err(reason) => problems.push(format!("the MCP server {name:?} cannot be used: {reason}")),
                Ok(running) => {
                    for tool in &running.tools {
                        let added = tools.add(Arc::new(McpTool::new(server, tool)));
                        problems.extend(added.err().map(|error| format!("the MCP server {name:?}: {error}")));
                    }
                }
            }
        }
        problems.extend(patterns.iter().filter(|pattern| !pattern.contains('*')).filter_map(|name| {
            let known = self.servers.contains_key(name);
            (!known).then(|| format!("no MCP server {name:?}; write [mcp.{name}]"))
        }));
        (tools, problems)
    }
}

impl Server {
    fn is_named_by(&self, patterns: &[String]) -> bool {
        patterns.iter().any(|pattern| matches_pattern(pattern, &self.name))
    }

    async fn health(&self) -> Health {
        match &*self.state.lock().await {
            ServerState::Running(running) if !running.has_ended() => {
                Health::Running { tools: running.tools.len() }
            }
            ServerState::Running(_) | ServerState::Stopped => Health::Stopped,
            ServerState::Failed(reason) => Health::Failed { reason: reason.clone() },
        }
    }

    /// Returns the running server. A server over HTTP is pinged: after a restart it no longer knows our session, and the
    /// connection does not show that.
    async fn verified(&self) -> Result<Arc<RunningServer>, String> {
        let running = self.running().await?;
        if self.config.url.is_none() {
            return Ok(running);
        }
        let ping = running.service.send_request(ClientRequest::PingRequest(PingRequest::default()));
        if let Ok(Ok(_)) = tokio::time::timeout(PING_TIMEOUT, ping).await {
            return Ok(running);
        }
        *self.state.lock().await = ServerState::Stopped;
        self.running().await
    }

    /// Returns the running server, starting it if necessary.
    async fn running(&self) -> Result<Arc<RunningServer>, String> {
        let mut state = self.state.lock().await;
        if let ServerState::Running(running) = &*state
            && !running.has_ended()
        {
            return Ok(running.clone());
        }
        match self.start().await {
            Ok(running) => {
                let running = Arc::new(running);
                *state = ServerState::Running(running.clone());
                Ok(running)
            }
            Err(reason) => {
                *state = ServerState::Failed(reason.clone());
                Err(reason)
            }
        }
    }

    async fn start(&self) -> Result<RunningServer, String> {
        self.config.check()?;
        let (service, process) = match (&self.config.command, &self.config.url) {
            (Some(program), _) => {
                let mut command = self.processes.command(&self.name, &self.config, program);
                let mut process = command.spawn().map_err(|error| error.to_string())?;
                let pipes = process.stdout.take().zip(process.stdin.take());
                let pipes = pipes.ok_or("its input and output could not be opened")?;
                (().serve(pipes).await.map_err(|error| error.to_string())?, Some(process))
            }
            (None, Some(url)) => {
                let mut headers = HashMap::new();
                for (name, value) in self.config.request_headers()? {
                    let value = HeaderValue::try_from(value);
                    let value =
                        value.map_err(|_| format!("the value of its header {name:?} is not valid"))?;
                    headers.insert(HeaderName::try_from(name).map_err(|error| error.to_string())?, value);
                }
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                config = config.custom_headers(headers);
                install_tls();
                let transport = StreamableHttpClientTransport::from_config(config);
                (().serve(transport).await.map_err(|error| error.to_string())?, None)
            }
            (None, None) => return Err("it has no command and no url".into()),
        };
        let tools = service.list_all_tools().await.map_err(|error| error.to_string())?;
        Ok(RunningServer { service, process: process.map(parking_lot::Mutex::new), tools })
    }
}

/// A tool of an MCP server.
struct McpTool {
    server: Arc<Server>,
    /// The name at the server.
    name: String,
    spec: ToolSpec,
    traits: ToolTraits,
}

impl McpTool {
    fn new(server: &Arc<Server>, tool: &rmcp::model::Tool) -> Self {
        let name = tool.name.to_string();
        let idempotent = server.config.idempotent.iter().any(|pattern| matches_pattern(pattern, &name));
        let spec = ToolSpec {
            name: format!("{}{NAME_SEPARATOR}{name}", server.name),
            description: tool.description.as_deref().unwrap_or_default().to_owned(),
            schema: Value::Object((*tool.input_schema).clone()),
        };
        let timeout_ms = server.config.timeout_ms.unwrap_or(60_000);
        let traits = ToolTraits { idempotent, timeout_ms, ..ToolTraits::default() };
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
        meta.0.insert(CALL_ID_KEY.into(), json!(call.id));
        meta.0.insert(SESSION_ID_KEY.into(), json!(call.session));
        meta.0.insert(RUN_ID_KEY.into(), json!(call.run));
        params.meta = Some(RequestMetaObject(meta));
        let result = running.service.call_tool(params).await;
        let result =
            result.map_err(|error| ToolError(format!("the MCP server {:?}: {error}", self.server.name)))?;
        let text = result_text(&result, &call.context).await;
        if result.is_error == Some(true) { Err(ToolError(text)) } else { Ok(text) }
    }
}

/// Converts the result of a call to text, and adds its images, sounds and resources as files.
async fn result_text(result: &CallToolResult, context: &ToolContext) -> String {
    if let (Some(value), true) = (&result.structured_content, result.content.is_empty()) {
        return value.to_string();
    }
    let mut texts = vec![];
    for block in &result.content {
        let (bytes, mime_type, uri) = match block {
            ContentBlock::Text(content) => {
                texts.push(content.text.clone());
                continue;
            }
            ContentBlock::Image(image) => (decoded(&image.data), Some(image.mime_type.clone()), None),
            ContentBlock::Audio(audio) => (decoded(&audio.data), Some(audio.mime_type.clone()), None),
            ContentBlock::Resource(EmbeddedResource { resource, .. }) => match resource {
                ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                    // The model gets the text itself, not only the file.
                    texts.push(text.clone());
                    (Ok(text.clone().into_bytes()), mime_type.clone(), Some(uri))
                }
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                    (decoded(blob), mime_type.clone(), Some(uri))
                }
                _ => continue,
            },
            other => {
                texts.push(serde_json::to_string(other).unwrap_or_default());
                continue;
            }
        };
        let mime_type = mime_type.unwrap_or_else(|| "application/octet-stream".into());
        let name = uri.and_then(|uri| uri.rsplit('/').find(|part| !part.is_empty())).map(str::to_owned);
        let added = match bytes {
            Ok(bytes) => context.add_file(name, mime_type.clone(), &bytes).await.map_err(|error| error.0),
            Err(error) => Err(error),
        };
        if let Err(error) = added {
            texts.push(format!("[{mime_type}: {error}]"));
        }
    }
    texts.join("\n")
}

fn decoded(base64: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(base64.trim()).map_err(|_| "the server sent invalid base64".into())
}
