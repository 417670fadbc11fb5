//! Logins: how an agent wants to be authenticated, and how it is.
//!
//! An agent names its ways when it is greeted. One of them is chosen in the configuration, or by a person once the agent
//! has asked for it; from then on every process of the agent is authenticated by it as it starts.

use agent_client_protocol::v1::schema::AuthMethod as Way;
use mainspring_core::{AuthMethod, Failure};
use parking_lot::Mutex;
use serde_json::Value;

use super::worker::Worker;
use crate::driver::Agent as _;

/// The type of a login that a person does in a terminal, as the protocol names it.
const TERMINAL: &str = "terminal";

/// What is known of one agent's logins.
pub(super) struct Login {
    methods: Mutex<Vec<AuthMethod>>,
    chosen: Mutex<Option<String>>,
}

impl Login {
    pub(super) fn new(chosen: Option<String>) -> Self {
        Self { methods: Mutex::default(), chosen: Mutex::new(chosen) }
    }

    /// The ways that the agent has named, once one has been started.
    pub(super) fn methods(&self) -> Vec<AuthMethod> {
        self.methods.lock().clone()
    }

    /// Authenticates a process that has just been greeted, if a way was chosen.
    pub(super) async fn greet(&self, worker: &Worker) -> Result<(), Failure> {
        *self.methods.lock() = worker.auth_methods.iter().map(shown).collect();
        let chosen = self.chosen.lock().clone();
        match chosen {
            Some(method) => worker.authenticate(&method).await,
            None => Ok(()),
        }
    }

    /// Tries `method` on a process of its own, and keeps to it if it works.
    pub(super) async fn try_out(&self, worker: Worker, method: &str) -> Result<(), Failure> {
        *self.methods.lock() = worker.auth_methods.iter().map(shown).collect();
        let done = match self.methods().into_iter().find(|known| known.id == method) {
            Some(AuthMethod { kind, args, .. }) if kind == TERMINAL => Err(Failure::new(
                "adapter_incompatible",
                format!(
                    "{method:?} is done in a terminal: run the agent's command there with {}",
                    args.join(" ")
                ),
            )),
            _ => worker.authenticate(method).await,
        };
        worker.process().kill().await;
        done?;
        *self.chosen.lock() = Some(method.to_owned());
        Ok(())
    }
}

/// A way as everybody is told of it.
fn shown(way: &Way) -> AuthMethod {
    let fields = serde_json::to_value(way).unwrap_or_default();
    let text = |name: &str| fields[name].as_str().map(str::to_owned);
    AuthMethod {
        id: way.id().to_string(),
        kind: text("type").unwrap_or_else(|| "agent".into()),
        display_name: text("name").unwrap_or_default(),
        description: text("description"),
        args: serde_json::from_value(fields["args"].clone()).unwrap_or_default(),
        env: match &fields["env"] {
            Value::Object(_) => serde_json::from_value(fields["env"].clone()).unwrap_or_default(),
            _ => Default::default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_way_says_what_to_do_for_it() {
        let way = |json| shown(&serde_json::from_value(json).unwrap());
        let plain = way(json!({"id": "token", "name": "by a token"}));
        assert_eq!((plain.kind.as_str(), plain.display_name.as_str()), ("agent", "by a token"));
        let terminal =
            way(json!({"id": "t", "type": "terminal", "name": "T", "args": ["login"], "env": {"A": "b"}}));
        assert_eq!(
            (terminal.kind.as_str(), terminal.args, terminal.env.len()),
            ("terminal", vec!["login".into()], 1)
        );
    }
}
