//! Bindings: the agents' own sessions that a session is tied to.

use mainspring_core::{Binding, Session};
use serde::{Deserialize, Serialize};

use crate::SessionTarget;

/// Selects bindings to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct BindingListQuery {
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[a-z][a-z0-9-]*\.[0-9]{1,9}$"))]
    pub after: Option<String>,
    /// The number of bindings; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// An existing native session of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BindingAdoption {
    /// The adapter, by its name.
    pub adapter: String,
    /// The agent's own id of its session.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub adapter_native_session_id: String,
    /// The folder that the native session was opened in; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The instructions that the native session was opened with; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

/// A session, and an existing native session of an agent to bind it to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionAdoption {
    /// The session. It is created from this description if it does not exist.
    pub session: SessionTarget,
    /// The adapter, by its name.
    pub adapter: String,
    /// The agent's own id of its session.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub adapter_native_session_id: String,
    /// The folder that the native session was opened in; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The instructions that the native session was opened with; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

impl SessionAdoption {
    /// Splits the request into the session and the native session.
    pub fn into_parts(self) -> (SessionTarget, BindingAdoption) {
        let Self { session, adapter, adapter_native_session_id, cwd, system_prompt } = self;
        (session, BindingAdoption { adapter, adapter_native_session_id, cwd, system_prompt })
    }

    /// Combines a session and a native session into one request.
    pub fn new(session: SessionTarget, adoption: BindingAdoption) -> Self {
        let BindingAdoption { adapter, adapter_native_session_id, cwd, system_prompt } = adoption;
        Self { session, adapter, adapter_native_session_id, cwd, system_prompt }
    }
}

/// A session and the native session that it is tied to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionAdopted {
    /// The session.
    pub session: Session,
    /// The binding to the native session.
    pub binding: Binding,
    /// True if this request created the binding; false if the session had one already.
    pub adopted: bool,
}
