//! A worker: one agent process that has been greeted, and what it says it can do.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use agent_client_protocol::ErrorCode;
use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, AuthMethod, Implementation, InitializeRequest, InitializeResponse, SessionConfigKind,
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOptions,
};
use mainspring_core::Failure;
use mainspring_kernel::adapter::Death;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Offer;
use super::wire::{CallError, Connection};
use crate::driver::{Agent, Ground, SetupError, gone, with_last_words};
use crate::pool;
use crate::process::{Launch, Process};

/// Where an agent says that it forks.
const FORKS: &str = "/agentCapabilities/sessionCapabilities/fork";

/// With what a greeting is answered that will never be understood: no common version, no such method, and the like.
const NO_VERSION: [ErrorCode; 3] =
    [ErrorCode::new(-32022), ErrorCode::METHOD_NOT_FOUND, ErrorCode::INVALID_PARAMS];

/// One agent process.
pub(crate) struct Worker {
    process: Process,
    pub(super) connection: Connection,
    pub(super) capabilities: AgentCapabilities,
    pub(super) auth_methods: Vec<AuthMethod>,
    /// How it takes up native sessions, as far as is known.
    ways: Mutex<Resumes>,
    /// The protocol's draft has it, its library not yet.
    forks: bool,
    /// What the native sessions that it has in its memory offer.
    open: Mutex<HashMap<String, Opened>>,
    /// Its own name among the agent's processes.
    name: String,
    house: Arc<House>,
}

/// What the processes of one agent have in common.
pub(super) struct House {
    /// The adapter's name.
    pub(super) adapter: String,
    /// By which process each native session was served last.
    pub(super) served: Mutex<HashMap<String, String>>,
}

/// What a native session is like once it is open.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Opened {
    /// The agent's own id; absent in the answer to a resume.
    pub(super) session_id: Option<String>,
    config_options: Option<Vec<Value>>,
    modes: Option<Value>,
    /// How older agents offer their models.
    models: Option<Value>,
    /// It was taken up by an agent that said nothing at all of it.
    #[serde(skip)]
    untold: bool,
}

/// How an agent that cannot resume is told apart from one that can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumes {
    /// By `session/resume`: nothing is repeated.
    Resume,
    /// By `session/load`: the agent repeats its history, which is not listened to.
    Load,
    /// Not at all.
    No,
}

impl Resumes {
    /// How an agent that has no `session/resume` does it.
    fn or_load(can: &AgentCapabilities) -> Self {
        if can.load_session { Self::Load } else { Self::No }
    }
}

impl Worker {
    /// Starts an agent and greets it.
    pub(super) async fn start(
        launch: &Launch,
        offer: Offer,
        house: &Arc<House>,
        ground: &Ground,
    ) -> Result<Self, SetupError> {
        let (process, pipes) = Process::start(launch, &ground.tasks, &ground.clock)
            .map_err(|error| SetupError::retryable(Failure::new("adapter_unavailable", error.to_string())))?;
        let greeted = async {
            let connection =
                Connection::open((pipes, launch.log.clone()), offer, ground.ignored.clone(), &ground.tasks)
                    .await?;
            let hello = InitializeRequest::new(ProtocolVersion::V1)
                .client_capabilities(offer.capabilities())
                .client_info(Implementation::new("mainspring", env!("CARGO_PKG_VERSION")));
            let answer: Value = connection.call("initialize", hello).await?;
            // Of another version it is all that is understood.
            let version = answer.get("protocolVersion").cloned().unwrap_or_default();
            if version != json!(ProtocolVersion::V1) {
                return Ok(Err(version));
            }
            let forks = answer.pointer(FORKS).is_some_and(|forks| !forks.is_null());
            let answer: InitializeResponse = serde_json::from_value(answer)
                .map_err(|error| CallError::Nonsense { method: "initialize", reason: error.to_string() })?;
            Ok::<_, CallError>(Ok((connection, answer, forks)))
        };
        let greeted = tokio::select! {
            greeted = greeted => greeted,
            _ = process.ended() => Err(CallError::Gone),
        };
        let (connection, answer, forks) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(version)) => {
                process.kill().await;
                let message = format!(
                    "the agent speaks version {version} of the Agent Client Protocol, and mainspring version 1: \
                     use a release of the agent that speaks that"
                );
                return Err(Failure::new("adapter_incompatible", message).into());
            }
            Err(CallError::Refused { code, message }) if NO_VERSION.contains(&code) => {
                process.kill().await;
                let message = format!(
                    "the agent does not speak version 1 of the Agent Client Protocol, which mainspring does: {message}"
                );
                return Err(Failure::new("adapter_incompatible", message).into());
            }
            Err(error) => {
                // What it had to say about its end has been read by then.
                process.kill().await;
                let failure =
                    Failure::new("adapter_unavailable", format!("the agent did not start: {error}"));
                return Err(SetupError::retryable(with_last_words(failure, process.log())));
            }
        };
        let can = &answer.agent_capabilities;
        let ways = match can.session_capabilities.resume {
            Some(_) => Resumes::Resume,
            None => Resumes::or_load(can),
        };
        Ok(Self {
            process,
            connection,
            ways: Mutex::new(ways),
            capabilities: answer.agent_capabilities,
            auth_methods: answer.auth_methods,
            forks,
            open: Mutex::default(),
            name: launch.name.clone(),
            house: house.clone(),
        })
    }

    pub(super) async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        let known: Vec<String> = self.auth_methods.iter().map(|method| method.id().to_string()).collect();
        if !known.iter().any(|known| known == method) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!("the agent has no way to authenticate named {method:?}; it has {known}");
            return Err(Failure::new("authentication", message));
        }
        let answer = self.connection.call::<Value>("authenticate", json!({"methodId": method})).await;
        answer.map(drop).map_err(|error| Failure::new("authentication", error.to_string()))
    }

    /// Opens a new native session in `cwd`, with MCP servers.
    pub(super) async fn open(&self, cwd: &Path, servers: &[Value]) -> Result<String, SetupError> {
        let params = json!({"cwd": cwd, "mcpServers": servers});
        let opened = self.connection.call("session/new", params).await.map_err(|error| SetupError {
            failure: self.failure(&error),
            retryable: matches!(error, CallError::Gone),
        })?;
        self.opened(opened)
            .ok_or_else(|| Failure::new("binding_failed", "the agent opened a session without an id").into())
    }

    /// Makes a native session that goes on from another, with MCP servers.
    pub(super) async fn fork(
        &self,
        native: &str,
        cwd: &Path,
        servers: &[Value],
    ) -> Result<String, CallError> {
        let params = json!({"sessionId": native, "cwd": cwd, "mcpServers": servers});
        let opened = self.connection.call("session/fork", params).await?;
        let reason = "it has no id".to_owned();
        self.opened(opened).ok_or(CallError::Nonsense { method: "session/fork", reason })
    }

    /// Lets the agent drop what it holds for a native session.
    pub(super) async fn close(&self, native: &str) {
        self.open.lock().remove(native);
        let closed = self.connection.call::<Value>("session/close", json!({"sessionId": native})).await;
        if let Err(error) = closed {
            tracing::debug!(%error, native, "an agent did not close a session");
        }
    }

    /// Keeps what a native session offers; gives its id.
    fn opened(&self, mut opened: Opened) -> Option<String> {
        let native = opened.session_id.take()?;
        self.holds(&native, opened);
        Some(native)
    }

    /// From now on it has a native session in its memory, and no other process has a newer one.
    fn holds(&self, native: &str, opened: Opened) {
        self.open.lock().insert(native.to_owned(), opened);
        self.house.served.lock().insert(native.to_owned(), self.name.clone());
    }

    /// Takes up a native session that it has not in its memory, or not as it stands now. An error that is no failure of
    /// the connection means that the agent does not know it any more.
    pub(super) async fn resume(&self, native: &str, cwd: &Path, servers: &[Value]) -> Result<(), CallError> {
        // Some refuse to open what is open, and some would have all of it twice.
        if pool::Worker::holds(self, native) {
            return Ok(());
        }
        if self.open.lock().contains_key(native) {
            // It has gone on in another process since.
            if self.closes() {
                self.close(native).await;
            }
        }
        let params = json!({"sessionId": native, "cwd": cwd, "mcpServers": servers});
        loop {
            let way = *self.ways.lock();
            let (method, otherwise) = match way {
                Resumes::Resume => ("session/resume", Resumes::or_load(&self.capabilities)),
                Resumes::Load => ("session/load", Resumes::No),
                Resumes::No => {
                    let message = "the agent cannot take up a session of an earlier process".to_owned();
                    return Err(CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, message });
                }
            };
            match self.connection.call::<Option<Opened>>(method, &params).await {
                // Some say that they can, and cannot.
                Err(CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. }) => {
                    *self.ways.lock() = otherwise;
                }
                // Some answer with nothing at all.
                answer => {
                    let untold = |opened: &Opened| {
                        opened.config_options.is_none() && opened.modes.is_none() && opened.models.is_none()
                    };
                    let opened = answer?.unwrap_or_default();
                    self.holds(native, Opened { untold: untold(&opened), ..opened });
                    return Ok(());
                }
            }
        }
    }

    /// Chooses a model or a mode, where the agent offers that choice and this value.
    pub(super) async fn choose(&self, native: &str, what: Choice, value: &str) -> Result<(), Failure> {
        let offer = {
            let mut open = self.open.lock();
            let offers = open.entry(native.to_owned()).or_default();
            offers.changed(self.connection.changes(native));
            let option = offers.option(what).map(|(id, current, offered)| {
                let params = json!({"sessionId": native, "configId": id, "value": value});
                (("session/set_config_option", params), current, offered)
            });
            let older = || offers.older(what).map(|(now, all)| (what.older_call(native, value), now, all));
            // What was there when it was opened is there still, most likely; else the agent says so.
            let untold = || (what.older_call(native, value), String::new(), vec![value.to_owned()]);
            option.or_else(older).or_else(|| offers.untold.then(untold))
        };
        let none = || {
            let message = format!("the agent does not let the {} be chosen", what.name());
            Failure::new("adapter_incompatible", message)
        };
        let (call, current, offered) = offer.ok_or_else(none)?;
        if current == value {
            return Ok(());
        }
        if !offered.iter().any(|offered| offered == value) {
            let message =
                format!("the agent has no {} {value:?}; it has {}", what.name(), offered.join(", "));
            return Err(Failure::new("invalid_request", message));
        }
        let answer = self.connection.call::<Option<Opened>>(call.0, call.1).await;
        let answer = answer.map_err(|error| match error {
            CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. } => none(),
            error => self.failure(&error),
        })?;
        if let Some(offers) = self.open.lock().get_mut(native) {
            offers.chosen(what, value, answer.unwrap_or_default());
        }
        Ok(())
    }

    /// What to tell of a request that failed.
    pub(super) fn failure(&self, error: &CallError) -> Failure {
        match error {
            CallError::Refused { code: ErrorCode::AUTH_REQUIRED, message } => {
                let ways: Vec<String> = self.auth_methods.iter().map(|way| way.id().to_string()).collect();
                let remedy = match &ways[..] {
                    [] => "it names no way to".to_owned(),
                    [first, others @ ..] => {
                        let others = match others {
                            [] => String::new(),
                            others => format!(" (or {})", others.join(", ")),
                        };
                        let adapter = &self.house.adapter;
                        format!(
                            "log in with `mainspring adapter login {adapter} {first}`{others}, or set its auth_method"
                        )
                    }
                };
                Failure::new(
                    "authentication",
                    format!("the agent wants authentication ({message}): {remedy}"),
                )
            }
            CallError::Refused { code: ErrorCode::METHOD_NOT_FOUND, .. } => {
                Failure::new("adapter_incompatible", error.to_string())
            }
            CallError::Refused { .. } | CallError::Nonsense { .. } => {
                Failure::new("adapter_execution_failed", error.to_string())
            }
            CallError::Gone => gone(self),
        }
    }
}

impl Agent for Worker {
    fn resumes(&self) -> bool {
        *self.ways.lock() != Resumes::No
    }

    fn forks(&self) -> bool {
        self.forks
    }

    fn closes(&self) -> bool {
        self.capabilities.session_capabilities.close.is_some()
    }

    fn process(&self) -> &Process {
        &self.process
    }

    async fn gone(&self) {
        tokio::select! {
            _ = self.process.ended() => {}
            () = self.connection.closed() => {}
        }
    }
}

impl pool::Worker for Worker {
    fn is_alive(&self) -> bool {
        self.process.is_alive() && self.connection.is_open()
    }

    fn holds(&self, native: &str) -> bool {
        self.open.lock().contains_key(native) && self.house.served.lock().get(native) == Some(&self.name)
    }

    async fn stop(&self) -> Death {
        self.process.stop().await
    }

    async fn kill(&self) -> Death {
        self.process.kill().await
    }
}

/// What of a native session can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Model,
    Mode,
}

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mode => "mode",
        }
    }

    /// The request by which agents without this config option are told.
    fn older_call(self, native: &str, value: &str) -> (&'static str, Value) {
        match self {
            Self::Model => ("session/set_model", json!({"sessionId": native, "modelId": value})),
            Self::Mode => ("session/set_mode", json!({"sessionId": native, "modeId": value})),
        }
    }
}

impl Opened {
    /// The agent has said what it is like now.
    fn changed(&mut self, (mode, options): (Option<String>, Option<Vec<Value>>)) {
        if let Some((modes, mode)) = self.modes.as_mut().zip(mode) {
            modes["currentModeId"] = mode.into();
        }
        self.config_options = options.or(self.config_options.take());
    }

    /// A choice was made; the agent may have said what it offers now.
    fn chosen(&mut self, what: Choice, value: &str, answer: Self) {
        let (state, current) = match what {
            Choice::Model => (&mut self.models, "currentModelId"),
            Choice::Mode => (&mut self.modes, "currentModeId"),
        };
        if let Some(state) = state {
            state[current] = value.into();
        }
        self.config_options = answer.config_options.or(self.config_options.take());
    }

    /// The config option for `what`: its id, its value and the values it can have.
    fn option(&self, what: Choice) -> Option<(String, String, Vec<String>)> {
        let options = self.config_options.iter().flatten();
        let options = options.filter_map(|value| SessionConfigOption::deserialize(value).ok());
        options
            .filter(|option| match what {
                Choice::Model => option.category == Some(SessionConfigOptionCategory::Model),
                Choice::Mode => option.category == Some(SessionConfigOptionCategory::Mode),
            })
            .find_map(|option| {
                let SessionConfigKind::Select(select) = option.kind else { return None };
                let values = match select.options {
                    SessionConfigSelectOptions::Ungrouped(options) => options,
                    SessionConfigSelectOptions::Grouped(groups) => {
                        groups.into_iter().flat_map(|group| group.options).collect()
                    }
                    _ => vec![],
                };
                let values = values.into_iter().map(|option| option.value.to_string()).collect();
                Some((option.id.to_string(), select.current_value.to_string(), values))
            })
    }

    /// What agents without config options say of `what`: its value and the values it can have.
    fn older(&self, what: Choice) -> Option<(String, Vec<String>)> {
        let (state, current, list, id) = match what {
            Choice::Model => (self.models.as_ref()?, "currentModelId", "availableModels", "modelId"),
            Choice::Mode => (self.modes.as_ref()?, "currentModeId", "availableModes", "id"),
        };
        let offered = state.get(list)?.as_array()?;
        let ids = offered.iter().filter_map(|offer| offer.get(id)?.as_str().map(str::to_owned));
        Some((state.get(current)?.as_str()?.to_owned(), ids.collect()))
    }
}
