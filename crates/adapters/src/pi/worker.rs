//! A worker: one pi process with an initialised connection.
//!
//! Pi has one session open at a time. The native id of a session is the path of its file, and resuming it means
//! switching to that file. If the file does not exist, pi silently starts an empty session, so the worker checks that
//! the resumed session has messages.

use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_core::{Failure, FailureCode};
use mainspring_kernel::adapter::Death;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::{CallError, Connection, command};
use crate::driver::{
    AgentWorker, Cause, ModelError, ProcessContext, ResumeError, SetupError, find_models, process_ended,
    start_process, with_last_output,
};
use crate::pool::PooledWorker;
use crate::process::{Launch, Process};

/// How many of pi's models an error message lists.
const MAX_LISTED_MODELS: usize = 20;

/// One pi process.
pub(crate) struct PiWorker {
    process: Process,
    pub(super) connection: Connection,
    /// Whether the agent stores its sessions in files.
    stores_sessions: bool,
    /// The model in use, as pi last reported it.
    model: Mutex<Option<PiModel>>,
    /// Whether the worker must not be used again.
    is_unusable: AtomicBool,
}

/// The result of `get_state`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PiState {
    session_id: String,
    session_file: Option<String>,
    message_count: u64,
    is_streaming: bool,
    is_compacting: bool,
    pending_message_count: u64,
    model: Option<PiModel>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PiModel {
    provider: String,
    id: String,
}

impl PiState {
    /// Reports whether pi does nothing and has nothing queued.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_streaming && !self.is_compacting && self.pending_message_count == 0
    }

    /// The native id of the open session: its file, or its id if it has no file.
    fn native(&self) -> &str {
        self.session_file.as_deref().unwrap_or(&self.session_id)
    }
}

impl PiWorker {
    /// Starts a pi process and asks for its state.
    pub(super) async fn start(launch: &Launch, context: &ProcessContext) -> Result<Self, SetupError> {
        let (process, pipes) = start_process(launch, context)?;
        let pipes = (pipes.stdin, pipes.stdout);
        let connection = Connection::open(pipes, context.ignored.clone(), &context.tasks);
        let state = process.read_to_end(get_state(&connection)).await;
        let state = state.unwrap_or(Err(CallError::Disconnected));
        let state = match state {
            Ok(state) if !state.native().is_empty() => state,
            invalid => {
                // After the kill, the log holds everything pi wrote.
                process.kill().await;
                let (code, retryable, reason) = match invalid {
                    Err(error @ CallError::Disconnected) => {
                        (FailureCode::AdapterUnavailable, true, error.to_string())
                    }
                    Err(error) => (FailureCode::AdapterIncompatible, false, error.to_string()),
                    Ok(_) => (
                        FailureCode::AdapterIncompatible,
                        false,
                        "it does not say which session it has open".into(),
                    ),
                };
                let failure = Failure::new(code, format!("the agent did not start: {reason}"));
                return Err(SetupError { failure: with_last_output(failure, process.log()), retryable });
            }
        };
        let stores_sessions = state.session_file.is_some();
        let model = Mutex::new(state.model);
        let is_unusable = AtomicBool::new(false);
        Ok(Self { process, connection, stores_sessions, model, is_unusable })
    }

    /// Opens a new session.
    pub(super) async fn open(&self) -> Result<String, SetupError> {
        let open = async {
            let before = get_state(&self.connection).await?;
            let opened = self.connection.call(command("new_session")).await?;
            Ok((before, opened, get_state(&self.connection).await?))
        };
        let (before, opened, state) = open.await.map_err(|error| self.open_error(&error))?;
        if opened["cancelled"] == true {
            let message = "an extension of the agent did not let it open a new session";
            return Err(Failure::new(FailureCode::BindingFailed, message).into());
        }
        self.model.lock().clone_from(&state.model);
        if state.native() == before.native() {
            let message = "the agent opened no new session but kept the old one";
            return Err(Failure::new(FailureCode::BindingFailed, message).into());
        }
        Ok(state.native().to_owned())
    }

    /// Resumes a stored session.
    pub(super) async fn resume(&self, native: &str) -> Result<(), ResumeError> {
        if !self.stores_sessions || !native.starts_with('/') {
            return Err(ResumeError::Unknown("the agent keeps no such session beyond its process".into()));
        }
        let resume_error = |error: CallError| match error {
            CallError::Disconnected => ResumeError::Disconnected,
            CallError::Refused(message) => match Cause::reported(&message) {
                Cause::Reported(ModelError::Unauthenticated) => {
                    ResumeError::Refused(ModelError::Unauthenticated.failure(&message))
                }
                _ => ResumeError::Unknown(message),
            },
        };
        let switch = json!({"type": "switch_session", "sessionPath": native});
        let switched = self.connection.call(switch).await.map_err(resume_error)?;
        if switched["cancelled"] == true {
            let reason = "an extension of the agent did not let it resume the session";
            return Err(ResumeError::Unknown(reason.into()));
        }
        let state = get_state(&self.connection).await.map_err(resume_error)?;
        self.model.lock().clone_from(&state.model);
        // The name of a session's file contains the session's id.
        if state.native() == native && native.contains(&state.session_id) && state.message_count > 0 {
            return Ok(());
        }
        // Pi has started an empty session at this path and would create its next sessions in the same folder.
        self.is_unusable.store(true, Ordering::Relaxed);
        Err(ResumeError::Unknown(format!("the agent remembers nothing of {native}")))
    }

    /// Sets the model: `provider/id`, or the id alone if it is unambiguous.
    pub(super) async fn set_model(&self, wanted: &str) -> Result<(), Failure> {
        let failed = |error: CallError| self.failure(&error);
        let current = get_state(&self.connection).await.map_err(failed)?.model;
        let listed = self.connection.call(command("get_available_models")).await.map_err(failed)?;
        let offered: Vec<PiModel> = listed["models"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|model| PiModel::deserialize(model).ok())
            .collect();
        let model = find_model(&offered, current.as_ref(), wanted)?;
        if current.as_ref() != Some(model) {
            let set_model = json!({"type": "set_model", "provider": model.provider, "modelId": model.id});
            self.connection.call(set_model).await.map_err(failed)?;
        }
        *self.model.lock() = Some(model.clone());
        Ok(())
    }

    /// The model in use, as `provider/id`.
    pub(super) fn current_model(&self) -> Option<String> {
        self.model.lock().as_ref().map(|model| format!("{}/{}", model.provider, model.id))
    }

    /// Converts the error of a command to the failure of an attempt.
    pub(super) fn failure(&self, error: &CallError) -> Failure {
        match error {
            CallError::Disconnected => process_ended(self),
            CallError::Refused(message) => ModelError::of(message).failure(message),
        }
    }

    fn open_error(&self, error: &CallError) -> SetupError {
        let retryable = match error {
            CallError::Disconnected => true,
            CallError::Refused(message) => ModelError::of(message) == ModelError::Interrupted,
        };
        SetupError { failure: self.failure(error), retryable }
    }
}

impl AgentWorker for PiWorker {
    /// Pi can fork only at a prompt, but the driver needs forks after an answer.
    fn can_fork(&self) -> bool {
        false
    }

    fn can_close(&self) -> bool {
        false
    }

    fn can_resume(&self) -> bool {
        self.stores_sessions
    }

    fn process(&self) -> &Process {
        &self.process
    }

    fn agent_info(&self) -> Option<Value> {
        // Pi does not report its name and version.
        None
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

impl PooledWorker for PiWorker {
    fn is_alive(&self) -> bool {
        self.process.is_alive() && self.connection.is_open() && !self.is_unusable.load(Ordering::Relaxed)
    }

    fn has_session(&self, _native: &str) -> bool {
        // A process has only the session that it served last, which the pool knows.
        false
    }

    async fn stop(&self) -> Death {
        self.process.stop().await
    }

    async fn kill(&self) -> Death {
        self.process.kill().await
    }
}

async fn get_state(connection: &Connection) -> Result<PiState, CallError> {
    Ok(parse_state(&connection.call(command("get_state")).await?))
}

/// Parses the result of `get_state`; a result of an unknown form gives the default.
pub(super) fn parse_state(state: &Value) -> PiState {
    PiState::deserialize(state).unwrap_or_default()
}

/// Finds a model by its full name or its id, or by a name that differs in the provider or the date. Of several matches,
/// the model of the current provider is used.
fn find_model<'a>(
    offered: &'a [PiModel],
    current: Option<&PiModel>,
    wanted: &str,
) -> Result<&'a PiModel, Failure> {
    let is_wanted = |model: &&PiModel| format!("{}/{}", model.provider, model.id) == wanted;
    if let Some(model) = offered.iter().find(is_wanted) {
        return Ok(model);
    }
    let mut matching: Vec<&PiModel> = offered.iter().filter(|model| model.id == wanted).collect();
    if matching.is_empty() {
        let names: Vec<String> =
            offered.iter().map(|model| format!("{}/{}", model.provider, model.id)).collect();
        let found = find_models(wanted, names.iter().map(String::as_str));
        let is_found = |name: &String| found.contains(&name.as_str());
        matching =
            names.iter().zip(offered).filter(|(name, _)| is_found(name)).map(|(_, model)| model).collect();
    }
    let is_current = |model: &&&PiModel| current.is_some_and(|current| current.provider == model.provider);
    let list = |models: &mut dyn Iterator<Item = &PiModel>| {
        let names: Vec<String> =
            models.take(MAX_LISTED_MODELS).map(|model| format!("{}/{}", model.provider, model.id)).collect();
        names.join(", ")
    };
    match (matching.iter().find(is_current), matching.as_slice()) {
        (Some(model), _) | (None, [model]) => Ok(model),
        (None, []) => {
            let more = if offered.len() > MAX_LISTED_MODELS { ", …" } else { "" };
            let names = list(&mut offered.iter());
            let message = format!("the agent has no model {wanted:?}; it has {names}{more}");
            Err(Failure::new("invalid_request", message))
        }
        (None, several) => {
            let names = list(&mut several.iter().copied());
            let message = format!("the agent has several models {wanted:?}; name one of {names}");
            Err(Failure::new("invalid_request", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_id_or_its_full_name() {
        let model = |name: &str| {
            let (provider, id) = name.split_once('/').unwrap();
            PiModel { provider: provider.into(), id: id.into() }
        };
        let offered = ["a/one", "a/two", "b/two", "c/x/y", "d/three-20250929"].map(model);
        let found = |current: Option<&str>, wanted: &str| {
            let current = current.map(model);
            match find_model(&offered, current.as_ref(), wanted) {
                Ok(model) => format!("{}/{}", model.provider, model.id),
                Err(failure) => failure.message,
            }
        };
        assert_eq!(found(None, "one"), "a/one");
        assert_eq!(found(None, "b/two"), "b/two");
        assert_eq!(found(None, "x/y"), "c/x/y");
        assert_eq!(found(Some("b/three"), "two"), "b/two");
        assert_eq!(found(None, "three"), "d/three-20250929");
        assert_eq!(found(None, "two"), r#"the agent has several models "two"; name one of a/two, b/two"#);
        assert_eq!(
            found(Some("a/one"), "six"),
            r#"the agent has no model "six"; it has a/one, a/two, b/two, c/x/y, d/three-20250929"#
        );
    }

    #[test]
    fn a_state_is_parsed_leniently() {
        let result =
            json!({"sessionId": "s", "sessionFile": "/s.jsonl", "isStreaming": true, "new": {"thing": 1}});
        let state = parse_state(&result);
        assert_eq!((state.native(), state.is_idle()), ("/s.jsonl", false));
        let state = parse_state(&json!({"sessionId": "s"}));
        assert_eq!((state.native(), state.is_idle()), ("s", true));
        assert_eq!(parse_state(&json!("nonsense")).native(), "");
        for busy in [json!({"isCompacting": true}), json!({"pendingMessageCount": 1})] {
            assert!(!parse_state(&busy).is_idle(), "{busy}");
        }
    }
}
