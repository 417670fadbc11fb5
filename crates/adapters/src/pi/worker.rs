//! A worker: one pi process that has been greeted, and the native session it has open.
//!
//! Pi has one session open at a time, and its id is the file that pi keeps it in. To take up a session is to switch to
//! its file. Pi switches to a file that is not there, too, and begins anew: so it is looked whether it remembers
//! anything.

use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_core::Failure;
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fault::Fault;
use super::wire::{CallError, Connection, command};
use crate::driver::{Agent, Ground, Lost, SetupError, gone, with_last_words};
use crate::pool;
use crate::process::{Launch, Process};

/// How long what pi wrote before its end is read, in milliseconds.
const LAST_RECORDS: u64 = 500;
/// How many of the models it has are named to whoever wanted another.
const NAMED: usize = 20;

/// One pi process.
pub(crate) struct Worker {
    process: Process,
    pub(super) connection: Connection,
    /// It keeps its sessions in files.
    keeps: bool,
    /// It must not be used again.
    spent: AtomicBool,
    clock: Clock,
}

/// Where pi stands, as it says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct State {
    session_id: String,
    session_file: Option<String>,
    message_count: u64,
    is_streaming: bool,
    is_compacting: bool,
    pending_message_count: u64,
    model: Option<Model>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Model {
    provider: String,
    id: String,
}

impl State {
    /// It does nothing, and will not by itself.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_streaming && !self.is_compacting && self.pending_message_count == 0
    }

    /// The id of the session that is open: its file, or its number if it has none.
    fn native(&self) -> &str {
        self.session_file.as_deref().unwrap_or(&self.session_id)
    }
}

impl Worker {
    /// Starts a pi and greets it.
    pub(super) async fn start(launch: &Launch, ground: &Ground) -> Result<Self, SetupError> {
        let (process, pipes) = Process::start(launch, &ground.tasks, &ground.clock)
            .map_err(|error| SetupError::retryable(Failure::new("adapter_unavailable", error.to_string())))?;
        let connection = Connection::open(pipes, ground.ignored.clone(), &ground.tasks);
        let greeted = tokio::select! {
            greeted = state(&connection) => greeted,
            _ = process.ended() => Err(CallError::Gone),
        };
        let state = match greeted {
            Ok(state) if !state.native().is_empty() => state,
            refused => {
                // What it had to say about its end has been read by then.
                process.kill().await;
                let (code, retryable, why) = match refused {
                    Err(error @ CallError::Gone) => ("adapter_unavailable", true, error.to_string()),
                    Err(error) => ("adapter_incompatible", false, error.to_string()),
                    Ok(_) => {
                        ("adapter_incompatible", false, "it does not say which session it has open".into())
                    }
                };
                let failure = Failure::new(code, format!("the agent did not start: {why}"));
                return Err(SetupError { failure: with_last_words(failure, process.log()), retryable });
            }
        };
        let (keeps, clock) = (state.session_file.is_some(), ground.clock.clone());
        Ok(Self { process, connection, keeps, spent: AtomicBool::new(false), clock })
    }

    /// Opens a new session, whatever was open before.
    pub(super) async fn open(&self) -> Result<String, SetupError> {
        let open = async {
            let before = state(&self.connection).await?;
            let opened = self.connection.call(command("new_session")).await?;
            Ok((before, opened, state(&self.connection).await?))
        };
        let (before, opened, state) = open.await.map_err(|error| self.open_error(&error))?;
        if opened["cancelled"] == true {
            let message = "an extension of the agent did not let it open a new session";
            return Err(Failure::new("binding_failed", message).into());
        }
        if state.native() == before.native() {
            let message = "the agent opened no new session but kept the old one";
            return Err(Failure::new("binding_failed", message).into());
        }
        Ok(state.native().to_owned())
    }

    /// Takes up a session that was kept.
    pub(super) async fn resume(&self, native: &str) -> Result<(), Lost> {
        if !self.keeps || !native.starts_with('/') {
            return Err(Lost::Unknown("the agent keeps no such session beyond its process".into()));
        }
        let lost = |error: CallError| match error {
            CallError::Gone => Lost::Gone,
            CallError::Refused(why) => Lost::Unknown(why),
        };
        let switch = json!({"type": "switch_session", "sessionPath": native});
        let switched = self.connection.call(switch).await.map_err(lost)?;
        if switched["cancelled"] == true {
            return Err(Lost::Unknown("an extension of the agent did not let it take up the session".into()));
        }
        let state = state(&self.connection).await.map_err(lost)?;
        // The name of a session's file has its number in it.
        if state.native() == native && native.contains(&state.session_id) && state.message_count > 0 {
            return Ok(());
        }
        // It has begun a session where there was none, and would put its next ones beside it.
        self.spent.store(true, Ordering::Relaxed);
        Err(Lost::Unknown(format!("the agent remembers nothing of {native}")))
    }

    /// Chooses a model: `provider/id`, or an id alone where that is enough.
    pub(super) async fn choose(&self, wanted: &str) -> Result<(), Failure> {
        let failed = |error: CallError| self.failure(&error);
        let now = state(&self.connection).await.map_err(failed)?.model;
        let listed = self.connection.call(command("get_available_models")).await.map_err(failed)?;
        let offered: Vec<Model> = listed["models"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|model| Model::deserialize(model).ok())
            .collect();
        let model = find(&offered, now.as_ref(), wanted)?;
        if now.as_ref() == Some(model) {
            return Ok(());
        }
        let choose = json!({"type": "set_model", "provider": model.provider, "modelId": model.id});
        self.connection.call(choose).await.map(drop).map_err(failed)
    }

    /// The failure to record for a command that failed.
    pub(super) fn failure(&self, error: &CallError) -> Failure {
        match error {
            CallError::Gone => gone(self),
            CallError::Refused(why) => Fault::of(why).failure(why),
        }
    }

    fn open_error(&self, error: &CallError) -> SetupError {
        let retryable = match error {
            CallError::Gone => true,
            CallError::Refused(why) => Fault::of(why) == Fault::Interrupted,
        };
        SetupError { failure: self.failure(error), retryable }
    }
}

impl Agent for Worker {
    /// Its forks begin at a prompt and not after an answer: what is wanted here it cannot do.
    fn forks(&self) -> bool {
        false
    }

    fn closes(&self) -> bool {
        false
    }

    fn resumes(&self) -> bool {
        self.keeps
    }

    fn process(&self) -> &Process {
        &self.process
    }

    async fn gone(&self) {
        tokio::select! {
            () = self.connection.closed() => {}
            _ = self.process.ended() => {
                // What it wrote before its end is heard before its end is.
                let until = self.clock.now().plus(LAST_RECORDS);
                tokio::select! {
                    () = self.connection.closed() => {}
                    () = self.clock.sleep_until(until) => {}
                }
            }
        }
    }
}

impl pool::Worker for Worker {
    fn is_alive(&self) -> bool {
        self.process.is_alive() && self.connection.is_open() && !self.spent.load(Ordering::Relaxed)
    }

    fn holds(&self, _native: &str) -> bool {
        // It has one at a time, which is where it is at home.
        false
    }

    async fn stop(&self) -> Death {
        self.process.stop().await
    }

    async fn kill(&self) -> Death {
        self.process.kill().await
    }
}

async fn state(connection: &Connection) -> Result<State, CallError> {
    Ok(understood(&connection.call(command("get_state")).await?))
}

/// What pi says of its state, as far as it is understood.
pub(super) fn understood(state: &Value) -> State {
    State::deserialize(state).unwrap_or_default()
}

/// The model that is meant: of several with the same id, the one of the provider that is in use.
fn find<'a>(offered: &'a [Model], now: Option<&Model>, wanted: &str) -> Result<&'a Model, Failure> {
    let whole = |model: &&Model| format!("{}/{}", model.provider, model.id) == wanted;
    if let Some(model) = offered.iter().find(whole) {
        return Ok(model);
    }
    let alike: Vec<&Model> = offered.iter().filter(|model| model.id == wanted).collect();
    let same = alike.iter().find(|model| now.is_some_and(|now| now.provider == model.provider));
    let named = |models: &mut dyn Iterator<Item = &Model>| {
        let names: Vec<String> =
            models.take(NAMED).map(|model| format!("{}/{}", model.provider, model.id)).collect();
        names.join(", ")
    };
    match (same, alike.as_slice()) {
        (Some(model), _) | (None, [model]) => Ok(model),
        (None, []) => {
            let more = if offered.len() > NAMED { ", …" } else { "" };
            let names = named(&mut offered.iter());
            let message = format!("the agent has no model {wanted:?}; it has {names}{more}");
            Err(Failure::new("invalid_request", message))
        }
        (None, several) => {
            let names = named(&mut several.iter().copied());
            let message = format!("the agent has several models {wanted:?}; name one of {names}");
            Err(Failure::new("invalid_request", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_name_or_its_whole_name() {
        let model = |name: &str| {
            let (provider, id) = name.split_once('/').unwrap();
            Model { provider: provider.into(), id: id.into() }
        };
        let offered = ["a/one", "a/two", "b/two", "c/x/y"].map(model);
        let found = |now: Option<&str>, wanted: &str| {
            let now = now.map(model);
            match find(&offered, now.as_ref(), wanted) {
                Ok(model) => format!("{}/{}", model.provider, model.id),
                Err(failure) => failure.message,
            }
        };
        assert_eq!(found(None, "one"), "a/one");
        assert_eq!(found(None, "b/two"), "b/two");
        assert_eq!(found(None, "x/y"), "c/x/y");
        assert_eq!(found(Some("b/three"), "two"), "b/two");
        assert_eq!(found(None, "two"), r#"the agent has several models "two"; name one of a/two, b/two"#);
        assert_eq!(
            found(Some("a/one"), "six"),
            r#"the agent has no model "six"; it has a/one, a/two, b/two, c/x/y"#
        );
    }

    #[test]
    fn a_state_is_understood_as_far_as_it_goes() {
        let said =
            json!({"sessionId": "s", "sessionFile": "/s.jsonl", "isStreaming": true, "new": {"thing": 1}});
        let state = understood(&said);
        assert_eq!((state.native(), state.is_idle()), ("/s.jsonl", false));
        let state = understood(&json!({"sessionId": "s"}));
        assert_eq!((state.native(), state.is_idle()), ("s", true));
        assert_eq!(understood(&json!("nonsense")).native(), "");
    }
}
