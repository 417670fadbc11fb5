//! An agent that a test writes as a function.

use std::collections::BTreeMap;

use async_trait::async_trait;
use mainspring_core::{
    ApprovalChoice, ApprovalRequest, AttemptId, AuthMethod, Failure, Fidelity, RequestedAction,
    RequestedCall, RunOption,
};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, Login, Record,
};
use mainspring_kernel::policy::{self, Question};
use serde_json::json;

/// An adapter `agent` with native sessions that accepts every run option. It resumes the bound native session, or
/// opens `native-new`, and answers with the id of that native session.
pub fn native_agent() -> impl Adapter {
    let capabilities = Capabilities {
        uses_bindings: true,
        supports_native_resume: true,
        resume_fidelity: Fidelity::Native,
        options: RunOption::ALL.to_vec(),
        ..Capabilities::minimal("agent")
    };
    FnAgent::new(capabilities, open_or_resume)
}

async fn open_or_resume(attempt: AttemptHandle) -> Executed {
    let bound = attempt.assignment().binding.as_ref().and_then(|binding| binding.native.clone());
    let native = bound.clone().unwrap_or_else(|| "native-new".into());
    let record = match bound {
        Some(_) => Record::Resumed,
        None => {
            Record::Opened { native: Some(native.clone()), fidelity: Fidelity::Native, reconstructed: false }
        }
    };
    attempt.record(vec![record]).await.unwrap();
    attempt.delta(0, &native).unwrap();
    End::succeeded()
}

/// An adapter `asker` that asks for permission to run its prompt as a command, and answers with the decision.
pub fn asking_agent() -> impl Adapter {
    FnAgent::new(Capabilities::minimal("asker"), ask_permission)
}

async fn ask_permission(attempt: AttemptHandle) -> Executed {
    let command = attempt.assignment().prompt.text();
    let action =
        RequestedAction { capability: "tool".into(), operation: "execute".into(), resource: "bash".into() };
    let call = RequestedCall {
        tool_use_id: Some("t1".into()),
        name: "bash".into(),
        kind: Some("execute".into()),
        input: json!({"command": command}),
        ..RequestedCall::default()
    };
    let request = ApprovalRequest::of(action, Some(call)).offer(&[ApprovalChoice::DenyWithReason]);
    let question = Question { request: Some(Box::new(request)), ..format!("Allow {command}?").into() };
    let Ok(answer) = policy::request_permission(&attempt, None, question).await else {
        return End::stopped();
    };
    let reason = answer.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    attempt.delta(0, &format!("{}{reason}", answer.decision)).unwrap();
    End::succeeded()
}

/// An adapter that executes each attempt with a function of the test. If its capabilities name a login, the method
/// `token` works and every other method fails.
pub struct FnAgent<F> {
    capabilities: Capabilities,
    execute: F,
}

impl<F, R> FnAgent<F>
where
    F: Fn(AttemptHandle) -> R + Send + Sync + 'static,
    R: Future<Output = Executed> + Send + 'static,
{
    /// Creates the adapter that `capabilities` describes.
    pub fn new(capabilities: Capabilities, execute: F) -> Self {
        Self { capabilities, execute }
    }
}

#[async_trait]
impl<F, R> Adapter for FnAgent<F>
where
    F: Fn(AttemptHandle) -> R + Send + Sync + 'static,
    R: Future<Output = Executed> + Send + 'static,
{
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        (self.execute)(attempt).await
    }

    async fn cancel(&self, _: AttemptId) -> Dispatch {
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _: AttemptId) -> Death {
        // The agent consists only of the future, which was dropped.
        Death::Proven
    }

    fn login(&self) -> Option<&dyn Login> {
        self.capabilities.supports_authentication.then_some(&TokenLogin)
    }

    fn forget(&self, _: &str) {}
}

struct TokenLogin;

#[async_trait]
impl Login for TokenLogin {
    fn methods(&self) -> Vec<AuthMethod> {
        vec![AuthMethod {
            id: "token".into(),
            kind: "agent".into(),
            display_name: "Token".into(),
            description: None,
            args: vec![],
            env: BTreeMap::new(),
        }]
    }

    async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        match method {
            "token" => Ok(()),
            other => Err(Failure::new("unknown_method", format!("there is no method {other:?}"))),
        }
    }
}
