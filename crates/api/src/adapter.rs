//! Adapters, and the server itself.

use mainspring_core::{Fidelity, RunOption, Sandbox, SessionId, Supervision, Time, UsageReports};
use serde::{Deserialize, Serialize};

/// The capabilities of an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The adapter's name.
    pub adapter: String,
    /// How much of a native session survives a restart.
    pub resume_fidelity: Fidelity,
    /// The adapter can resume a native session.
    pub supports_native_resume: bool,
    /// A run can be asked to stop.
    pub supports_cancellation: bool,
    /// The adapter confirms a request to stop before the run has stopped.
    pub acknowledges_cancellation: bool,
    /// A live binding needs a worker of its own.
    pub requires_pinned_worker: bool,
    /// The adapter's agents have no process of their own: `max_in_process_runs` limits its active runs, and
    /// `max_workers` does not.
    #[serde(default)]
    pub in_process: bool,
    /// The model can be changed between runs.
    pub supports_model_switching: bool,
    /// Runs can create artifacts.
    pub supports_artifact_emission: bool,
    /// Runs use tools.
    pub supports_tools: bool,
    /// The agents call only the tools that the key of a run lists. A key with a list of tools cannot use an adapter
    /// that has tools but lacks this capability.
    #[serde(default)]
    pub limits_tools: bool,
    /// Runs can call tools that their caller declares and executes.
    pub supports_client_tools: bool,
    /// A prompt can join a run at a step boundary.
    pub supports_steering: bool,
    /// The effect of a server restart on the adapter's runs.
    pub restart_behavior: RestartBehavior,
    /// The adapter works through native sessions: an attempt runs only once one is opened or resumed.
    pub uses_bindings: bool,
    /// The adapter's agent has login methods and may require a login.
    pub supports_authentication: bool,
    /// The adapter enforces a run's limits itself, before each model call. For other adapters, the server stops a run
    /// by the usage that it reports.
    pub keeps_limits: bool,
    /// When the adapter reports usage. Limits of tokens and cost hold only if usage is reported live.
    pub usage_reports: UsageReports,
    /// The options of a run that the adapter uses. A prompt that sets one of the other options is refused.
    #[serde(default)]
    pub options: Vec<RunOption>,
    /// The confinement of its agents in runs that may act. Absent if it starts no agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The processes of its agents that are certain to have ended after a cancellation. Absent if it starts no agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervision: Option<Supervision>,
    /// Why no agent of the adapter can start now, as far as that is known without starting one, for instance because
    /// its program does not exist. Absent if no reason is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Capabilities {
    /// Describes an adapter without native sessions and without any optional capability. A restart orphans its
    /// attempts.
    pub fn minimal(adapter: impl Into<String>) -> Self {
        Self {
            adapter: adapter.into(),
            resume_fidelity: Fidelity::None,
            supports_native_resume: false,
            supports_cancellation: false,
            acknowledges_cancellation: false,
            requires_pinned_worker: false,
            in_process: false,
            supports_model_switching: false,
            supports_artifact_emission: false,
            supports_tools: false,
            limits_tools: false,
            supports_client_tools: false,
            supports_steering: false,
            restart_behavior: RestartBehavior::AttemptsOrphaned,
            uses_bindings: false,
            supports_authentication: false,
            keeps_limits: false,
            usage_reports: UsageReports::AtEnd,
            options: vec![],
            sandbox: None,
            supervision: None,
            unavailable: None,
        }
    }
}

/// The effect of a server restart on an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestartBehavior {
    /// Native sessions survive.
    NativeBindingsSurvive,
    /// Native sessions are gone.
    ProcessLocalBindingsStale,
    /// There are no native sessions; running attempts are orphaned.
    AttemptsOrphaned,
    /// There are no native sessions; a retry continues from the last message and settles the tool calls that the
    /// earlier attempt left open.
    ResumesFromMessages,
}

/// A login to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Login {
    /// One of the agent's login methods, by its id.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub method_id: String,
}

/// The health of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The server's version.
    pub version: String,
    /// Sessions in whose work the server has failed since it started, and which have not worked since. Only for an
    /// admin of the server who sends a credential; at most 100.
    #[serde(default, rename = "failedSessions", skip_serializing_if = "Vec::is_empty")]
    pub failed_sessions: Vec<FailedSession>,
}

/// A session in whose work the server has failed. Other sessions are not affected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailedSession {
    /// The session.
    pub session_id: SessionId,
    /// The code of the error that requests to the session get.
    pub code: String,
    /// The error, and the remedy.
    pub message: String,
    /// Failures in a row.
    pub failures: u32,
    /// When the session failed last.
    pub failed_at: Time,
}
