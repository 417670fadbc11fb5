//! Logins: the authentication methods of an agent, and the one in use.
//!
//! An agent lists its methods when it is initialised. The configuration chooses one of them, or a person does after the
//! agent has asked for a login. From then on every process of the agent authenticates with it on start.

use agent_client_protocol::v1::schema::AuthMethod as WireAuthMethod;
use mainspring_core::{AuthMethod, Failure, FailureCode};
use parking_lot::Mutex;
use serde_json::Value;

use super::worker::AcpWorker;
use crate::driver::AgentWorker as _;

/// The protocol's type of a login that a person does in a terminal.
const TERMINAL: &str = "terminal";

/// The authentication methods of one agent, and the chosen one.
pub(super) struct AcpLogin {
    methods: Mutex<Vec<AuthMethod>>,
    chosen: Mutex<Option<String>>,
}

impl AcpLogin {
    pub(super) fn new(chosen: Option<String>) -> Self {
        Self { methods: Mutex::default(), chosen: Mutex::new(chosen) }
    }

    /// The methods that the agent listed; empty before its first process.
    pub(super) fn methods(&self) -> Vec<AuthMethod> {
        self.methods.lock().clone()
    }

    /// Authenticates a process that was just started, if a method is chosen.
    pub(super) async fn authenticate_started(&self, worker: &AcpWorker) -> Result<(), Failure> {
        *self.methods.lock() = worker.auth_methods.iter().map(to_auth_method).collect();
        let chosen = self.chosen.lock().clone();
        match chosen {
            Some(method) => worker.authenticate(&method).await,
            None => Ok(()),
        }
    }

    /// Tries `method` on a separate process and ends that process. Chooses the method if it works.
    pub(super) async fn try_method(&self, worker: AcpWorker, method: &str) -> Result<(), Failure> {
        *self.methods.lock() = worker.auth_methods.iter().map(to_auth_method).collect();
        let result = match self.methods().into_iter().find(|known| known.id == method) {
            Some(AuthMethod { kind, args, .. }) if kind == TERMINAL => Err(Failure::new(
                FailureCode::AdapterIncompatible,
                format!(
                    "{method:?} is done in a terminal: run the agent's command there with {}",
                    args.join(" ")
                ),
            )),
            _ => worker.authenticate(method).await,
        };
        worker.process().kill().await;
        result?;
        *self.chosen.lock() = Some(method.to_owned());
        Ok(())
    }
}

/// Converts a method from the protocol's format. The protocol's type does not expose every field.
fn to_auth_method(method: &WireAuthMethod) -> AuthMethod {
    let fields = serde_json::to_value(method).unwrap_or_default();
    let text = |name: &str| fields[name].as_str().map(str::to_owned);
    AuthMethod {
        id: method.id().to_string(),
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
    fn every_kind_of_login_method_is_converted() {
        let convert = |json| to_auth_method(&serde_json::from_value(json).unwrap());
        let plain = convert(json!({"id": "token", "name": "by a token"}));
        assert_eq!((plain.kind.as_str(), plain.display_name.as_str()), ("agent", "by a token"));
        let terminal = convert(
            json!({"id": "t", "type": "terminal", "name": "T", "args": ["login"], "env": {"A": "b"}}),
        );
        assert_eq!(
            (terminal.kind.as_str(), terminal.args, terminal.env.len()),
            ("terminal", vec!["login".into()], 1)
        );
    }
}
