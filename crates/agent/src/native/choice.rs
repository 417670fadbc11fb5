//! The choice of a run's model, from its options, its session and its agent definition.

use mainspring_core::RunOptions;

use crate::definition::Definition;
use crate::models::{Models, SelectedModel};
use crate::provider::ModelError;

/// The model of a run.
pub(super) struct ModelChoice<'a> {
    /// The model, or why there is none.
    pub(super) model: Result<SelectedModel, ModelError>,
    /// The session's profile, if the run would use it and it is not configured any more.
    pub(super) missing_profile: Option<&'a str>,
}

/// Chooses the model. The run's options take precedence over the session's, and those over the agent's.
pub(super) fn choose_model<'a>(
    models: &Models,
    options: &'a RunOptions,
    session_profile: Option<&'a str>,
    agent: &Definition,
) -> ModelChoice<'a> {
    let wanted = options.model_profile.as_deref().or(session_profile);
    // A missing profile does not make the session unusable if only the session names it.
    let is_of_session = options.model.is_none() && wanted == session_profile;
    let missing_profile = wanted.filter(|name| is_of_session && !models.has_profile(name));
    let profile = wanted.filter(|_| missing_profile.is_none());
    // A requested profile takes precedence over the definition's model.
    let agent_model = if profile.is_none() { agent.model.as_deref() } else { None };
    let model = options.model.as_deref().or(agent_model);
    ModelChoice { model: models.select(model, profile.or(agent.profile.as_deref())), missing_profile }
}
