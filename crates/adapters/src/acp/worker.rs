//! A worker: one ACP agent process with an initialised connection and its capabilities.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use agent_client_protocol::ErrorCode;
use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, AuthMethod, Implementation, InitializeRequest, InitializeResponse,
};
use mainspring_core::{Failure, FailureCode};
use mainspring_kernel::adapter::Death;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::ClientFeatures;
use super::settings::{SessionInfo, Setting, SettingOffer};
use super::wire::{CallError, Connection};
use crate::driver::{
    AgentWorker, Cause, ModelError, ProcessContext, SetupError, find_models, process_ended, start_process,
    with_last_output,
};
use crate::pool::PooledWorker;
use crate::process::{Launch, Process};

/// The JSON pointer to the fork capability in the result of `initialize`.
const FORK_CAPABILITY: &str = "/agentCapabilities/sessionCapabilities/fork";

/// Error codes of `initialize` that mean a permanently incompatible agent: no common version, unknown method, or
/// invalid parameters.
const INCOMPATIBLE: [ErrorCode; 3] =
    [ErrorCode::new(-32022), ErrorCode::METHOD_NOT_FOUND, ErrorCode::INVALID_PARAMS];

/// One ACP agent process.
pub(crate) struct AcpWorker {
    process: Process,
    pub(super) connection: Connection,
    pub(super) capabilities: AgentCapabilities,
    pub(super) auth_methods: Vec<AuthMethod>,
    /// The methods that resume native sessions, as far as is known. The first one that works is used.
    resume_methods: Mutex<Vec<&'static str>>,
    /// Read separately: the protocol's draft has the capability, but its library does not have it yet.
    can_fork: bool,
    /// The native sessions that the process has in memory.
    sessions: Mutex<HashMap<String, SessionInfo>>,
    /// The worker's name, which is unique among the agent's processes.
    name: String,
    agent_info: Option<Value>,
    registry: Arc<AgentRegistry>,
}

/// State shared by the processes of one agent.
pub(super) struct AgentRegistry {
    /// The adapter's name.
    pub(super) adapter: String,
    /// The name of the process that served each native session last.
    pub(super) last_process: Mutex<HashMap<String, String>>,
}

/// The methods with which an agent offers to resume a native session. An agent that loads a session repeats its
/// history, which is ignored.
fn resume_methods(can: &AgentCapabilities) -> Vec<&'static str> {
    let resume = can.session_capabilities.resume.is_some().then_some("session/resume");
    let load = can.load_session.then_some("session/load");
    resume.into_iter().chain(load).collect()
}

/// Why an agent could not be initialised.
enum InitializeError {
    /// The agent speaks another version of the protocol.
    OtherVersion(Value),
    Call(CallError),
}

impl From<CallError> for InitializeError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl AcpWorker {
    /// Starts an agent process and initialises the connection.
    pub(super) async fn start(
        launch: &Launch,
        features: ClientFeatures,
        registry: &Arc<AgentRegistry>,
        context: &ProcessContext,
    ) -> Result<Self, SetupError> {
        let (process, pipes) = start_process(launch, context)?;
        let connect = async {
            let (pipes, log) = ((pipes.stdin, pipes.stdout), launch.log.clone());
            let connection = Connection::open(pipes, log, features, context).await?;
            let (response, can_fork) = initialize(&connection, features).await?;
            Ok((connection, response, can_fork))
        };
        let connected = process.read_to_end(connect).await;
        let connected = connected.unwrap_or_else(|| Err(CallError::Disconnected.into()));
        let (connection, response, can_fork) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                // After the kill, the log holds everything the agent wrote.
                process.kill().await;
                return Err(start_error(error, &process));
            }
        };
        Ok(Self {
            process,
            connection,
            resume_methods: Mutex::new(resume_methods(&response.agent_capabilities)),
            capabilities: response.agent_capabilities,
            auth_methods: response.auth_methods,
            can_fork,
            sessions: Mutex::default(),
            name: launch.name.clone(),
            agent_info: response.agent_info.map(|info| json!({"name": info.name, "version": info.version})),
            registry: registry.clone(),
        })
    }

    /// Sends a request and waits for its result. If the agent disconnects instead, its log is complete.
    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<T, CallError> {
        let result = self.connection.call(method, params).await;
        if matches!(result, Err(CallError::Disconnected)) {
            self.disconnected().await;
        }
        result
    }

    pub(super) async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        let known: Vec<String> = self.auth_methods.iter().map(|method| method.id().to_string()).collect();
        if !known.iter().any(|known| known == method) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!("the agent has no way to authenticate named {method:?}; it has {known}");
            return Err(Failure::new(FailureCode::Authentication, message));
        }
        let result = self.call::<Value>("authenticate", json!({"methodId": method})).await;
        result.map(drop).map_err(|error| Failure::new(FailureCode::Authentication, error.to_string()))
    }

    /// Opens a new native session in `cwd`, with MCP servers.
    pub(super) async fn open(&self, cwd: &Path, servers: &[Value]) -> Result<String, SetupError> {
        let params = json!({"cwd": cwd, "mcpServers": servers});
        let info = self.call("session/new", params).await.map_err(|error| SetupError {
            failure: self.failure(&error),
            retryable: matches!(error, CallError::Disconnected),
        })?;
        self.keep_new_session(info).ok_or_else(|| {
            Failure::new(FailureCode::BindingFailed, "the agent opened a session without an id").into()
        })
    }

    /// Forks a native session, with MCP servers.
    pub(super) async fn fork(
        &self,
        native: &str,
        cwd: &Path,
        servers: &[Value],
    ) -> Result<String, CallError> {
        let params = json!({"sessionId": native, "cwd": cwd, "mcpServers": servers});
        let info = self.call("session/fork", params).await?;
        let reason = "it has no id".to_owned();
        self.keep_new_session(info).ok_or(CallError::InvalidResponse { method: "session/fork", reason })
    }

    /// Requests that the agent frees a native session.
    pub(super) async fn close(&self, native: &str) {
        self.sessions.lock().remove(native);
        let closed = self.call::<Value>("session/close", json!({"sessionId": native})).await;
        if let Err(error) = closed {
            tracing::debug!(%error, native, "an agent did not close a session");
        }
    }

    /// Registers a newly opened session. Returns its id.
    fn keep_new_session(&self, mut info: SessionInfo) -> Option<String> {
        let native = info.session_id.take()?;
        self.keep_session(&native, info);
        Some(native)
    }

    /// Registers a session as up to date in this process only.
    fn keep_session(&self, native: &str, info: SessionInfo) {
        self.sessions.lock().insert(native.to_owned(), info);
        self.registry.last_process.lock().insert(native.to_owned(), self.name.clone());
    }

    /// Resumes a native session that is not in memory, or not up to date there.
    pub(super) async fn resume(&self, native: &str, cwd: &Path, servers: &[Value]) -> Result<(), CallError> {
        // Some agents refuse to open a session twice, others would duplicate its history.
        if self.has_session(native) {
            return Ok(());
        }
        let is_outdated = self.sessions.lock().contains_key(native);
        if is_outdated && self.can_close() {
            self.close(native).await;
        }
        let params = json!({"sessionId": native, "cwd": cwd, "mcpServers": servers});
        let message = "the agent cannot resume a session of an earlier process".to_owned();
        let mut error = CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, message };
        let methods = self.resume_methods.lock().clone();
        for method in methods {
            error = match self.call::<Option<SessionInfo>>(method, &params).await {
                // The result may be null.
                Ok(info) => {
                    self.keep_session(native, info.unwrap_or_default().resumed());
                    return Ok(());
                }
                // Some agents advertise the method but do not implement it.
                Err(error @ CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. }) => {
                    self.resume_methods.lock().retain(|known| *known != method);
                    error
                }
                Err(error) if matches!(error.cause(), Cause::Disconnected) => return Err(error),
                Err(error @ CallError::Refused { code: ErrorCode::AUTH_REQUIRED, .. }) => return Err(error),
                // One method may work where the other does not.
                Err(error) => error,
            };
        }
        Err(error)
    }

    /// Sets the model or mode of a native session. Fails if the agent does not offer the setting or the value.
    pub(super) async fn configure(&self, native: &str, setting: Setting, value: &str) -> Result<(), Failure> {
        let (value, offer) = {
            let mut sessions = self.sessions.lock();
            let info = sessions.entry(native.to_owned()).or_default();
            info.apply_changes(self.connection.take_changes(native));
            let offer = info.offer(setting, native, value);
            // `value` may be another name of an offered model.
            let equivalent = offer.as_ref().and_then(|offer| equivalent_model(setting, offer, value));
            match equivalent {
                Some(equivalent) => (equivalent.clone(), info.offer(setting, native, &equivalent)),
                None => (value.to_owned(), offer),
            }
        };
        let name = setting.name();
        let unsupported = || {
            Failure::new(
                FailureCode::AdapterIncompatible,
                format!("the agent does not let the {name} be chosen"),
            )
        };
        let offer = offer.ok_or_else(unsupported)?;
        if offer.current == value {
            return Ok(());
        }
        if !offer.values.contains(&value) {
            let message = format!("the agent has no {name} {value:?}; it has {}", offer.values.join(", "));
            return Err(Failure::new("invalid_request", message));
        }
        let (method, params) = offer.request;
        let response = self.call::<Option<SessionInfo>>(method, params).await;
        let response = response.map_err(|error| match error {
            CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. } => unsupported(),
            error => self.failure(&error),
        })?;
        if let Some(info) = self.sessions.lock().get_mut(native) {
            info.apply_setting(setting, &value, response.unwrap_or_default());
        }
        Ok(())
    }

    /// The model of a native session, as far as the agent reports it or has accepted it.
    pub(super) fn current_model(&self, native: &str) -> Option<String> {
        let mut sessions = self.sessions.lock();
        let info = sessions.get_mut(native)?;
        info.apply_changes(self.connection.take_changes(native));
        info.current_model()
    }

    /// Describes how to log in to the agent.
    fn login_remedy(&self) -> String {
        let methods: Vec<String> = self.auth_methods.iter().map(|it| it.id().to_string()).collect();
        let [first, others @ ..] = &methods[..] else { return "it names no way to".into() };
        let others = match others {
            [] => String::new(),
            others => format!(" (or {})", others.join(", ")),
        };
        let adapter = &self.registry.adapter;
        format!("log in with `mainspring adapter login {adapter} {first}`{others}, or set its auth_method")
    }

    /// Converts the error of a request to the failure of an attempt.
    pub(super) fn failure(&self, error: &CallError) -> Failure {
        match error {
            CallError::Refused { code: ErrorCode::AUTH_REQUIRED, message } => {
                let remedy = self.login_remedy();
                Failure::new(
                    FailureCode::Authentication,
                    format!("the agent wants authentication ({message}): {remedy}"),
                )
            }
            CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. } => {
                Failure::new(FailureCode::AdapterIncompatible, error.to_string())
            }
            CallError::Refused { message, .. } => ModelError::of(message).failure(message),
            CallError::InvalidResponse { .. } => {
                Failure::new(FailureCode::AdapterExecutionFailed, error.to_string())
            }
            CallError::Disconnected => process_ended(self),
        }
    }
}

/// Returns the offered model that has `value` as another name.
fn equivalent_model(setting: Setting, offer: &SettingOffer, value: &str) -> Option<String> {
    if setting != Setting::Model {
        return None;
    }
    match find_models(value, offer.values.iter().map(String::as_str))[..] {
        [equivalent] if equivalent != value => Some(equivalent.to_owned()),
        _ => None,
    }
}

/// Initialises the connection. Returns the agent's response and whether the agent can fork sessions.
async fn initialize(
    connection: &Connection,
    features: ClientFeatures,
) -> Result<(InitializeResponse, bool), InitializeError> {
    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(features.capabilities())
        .client_info(Implementation::new("mainspring", env!("CARGO_PKG_VERSION")));
    let response: Value = connection.call("initialize", request).await?;
    // The other fields are parsed only for this version: another version may give them another form.
    let version = response.get("protocolVersion").cloned().unwrap_or_default();
    if version != json!(ProtocolVersion::V1) {
        return Err(InitializeError::OtherVersion(version));
    }
    let can_fork = response.pointer(FORK_CAPABILITY).is_some_and(|fork| !fork.is_null());
    let response = serde_json::from_value(response)
        .map_err(|error| CallError::InvalidResponse { method: "initialize", reason: error.to_string() })?;
    Ok((response, can_fork))
}

/// The error of a start whose process has ended.
fn start_error(error: InitializeError, process: &Process) -> SetupError {
    match error {
        InitializeError::OtherVersion(version) => {
            let message = format!(
                "the agent speaks version {version} of the Agent Client Protocol, and mainspring version 1: \
                 use a release of the agent that speaks that"
            );
            Failure::new(FailureCode::AdapterIncompatible, message).into()
        }
        InitializeError::Call(CallError::Refused { code, message }) if INCOMPATIBLE.contains(&code) => {
            let message = format!(
                "the agent does not speak version 1 of the Agent Client Protocol, which mainspring does: {message}"
            );
            Failure::new(FailureCode::AdapterIncompatible, message).into()
        }
        InitializeError::Call(error) => {
            let failure =
                Failure::new(FailureCode::AdapterUnavailable, format!("the agent did not start: {error}"));
            SetupError::retryable(with_last_output(failure, process.log()))
        }
    }
}

impl AgentWorker for AcpWorker {
    fn can_resume(&self) -> bool {
        !self.resume_methods.lock().is_empty()
    }

    fn can_fork(&self) -> bool {
        self.can_fork
    }

    fn can_close(&self) -> bool {
        self.capabilities.session_capabilities.close.is_some()
    }

    fn process(&self) -> &Process {
        &self.process
    }

    fn agent_info(&self) -> Option<Value> {
        self.agent_info.clone()
    }

    fn fault(&self) -> Option<&'static str> {
        self.connection.fault()
    }

    async fn disconnected(&self) {
        self.process.read_to_end(self.connection.closed()).await;
        // An agent that exits closes its output first. Its log says why.
        if self.connection.fault().is_none() {
            self.process.complete_log().await;
        }
    }
}

impl PooledWorker for AcpWorker {
    fn is_alive(&self) -> bool {
        self.process.is_alive() && self.connection.is_open()
    }

    fn has_session(&self, native: &str) -> bool {
        self.sessions.lock().contains_key(native)
            && self.registry.last_process.lock().get(native) == Some(&self.name)
    }

    async fn stop(&self) -> Death {
        self.process.stop().await
    }

    async fn kill(&self) -> Death {
        self.process.kill().await
    }
}
