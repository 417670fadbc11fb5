//! The default model of a prompt or chat that names none: a model of a provider whose key is set, or of a running
//! Ollama.

use mainspring_agent::definition;
use mainspring_agent::models::{DEFAULT_MODELS, DEFAULT_PROFILE, OLLAMA, ollama_model, stored_keys};
use mainspring_core::{KeyPresence, ModelList, Session};

use super::Context;
use super::connection::Connection;
use super::error::{CliError, Exit};
use super::output::DIM;

/// Finds a default model: of the first provider whose key the serving process has, else of an Ollama on this machine.
pub(super) async fn find_default_model(context: &Context<'_>, models: &ModelList) -> Option<String> {
    let has_key = |name: &str| {
        models.providers.iter().any(|known| known.provider == name && known.key == KeyPresence::Present)
    };
    if let Some((provider, model)) = DEFAULT_MODELS.into_iter().find(|(provider, _)| has_key(provider)) {
        return Some(format!("{provider}/{model}"));
    }
    if context.config().url.is_some() {
        return None;
    }
    let model = ollama_model(&context.config().models).await?;
    Some(format!("{OLLAMA}/{model}"))
}

/// True if runs of the session need a model and nothing names one.
pub(super) fn lacks_model(session: &Session, models: &ModelList) -> bool {
    session.model.is_none()
        && session.model_profile.is_none()
        && session.agent_definition == definition::GENERALIST
        && !has_default_profile(models)
}

/// True if the configuration has the default model profile.
pub(super) fn has_default_profile(models: &ModelList) -> bool {
    models.profiles.iter().any(|profile| profile.profile == DEFAULT_PROFILE)
}

/// Prints which model was chosen, and how to choose another.
pub(super) fn print_default_model(context: &Context<'_>, model: &str) -> Result<(), CliError> {
    if context.output.json {
        return Ok(());
    }
    Ok(context.output.print_note(format_args!(
        "{DIM}· model {model}, since its provider is usable and no model is configured; --model chooses another{DIM:#}"
    ))?)
}

/// The error of a prompt that no model can answer.
pub(super) fn no_model(connection: &Connection<'_>, context: &Context<'_>) -> CliError {
    let script = "To try mainspring without a model, use the script agent: mainspring prompt --adapter script 'say hello'";
    let message = match unused_key(connection, context) {
        Some(hint) => format!("no model: {hint}. {script}"),
        None => format!(
            "no model: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, run `mainspring auth add PROVIDER`, start \
             Ollama, or configure one (docs/models.md). {script}"
        ),
    };
    CliError { exit: Exit::BadRequest, code: "no_model".into(), message, retryable: false }
}

/// Explains that a key of this process is not used because the process that serves does not have it.
pub(super) fn unused_key(connection: &Connection<'_>, context: &Context<'_>) -> Option<String> {
    if !connection.is_guest() {
        return None;
    }
    let keys = stored_keys(&context.config().models).into_iter();
    let mut set = keys.filter_map(|key| Some((key.variable?, key.provider)));
    let (variable, provider) =
        set.find(|(name, _)| std::env::var(name).is_ok_and(|value| !value.trim().is_empty()))?;
    Some(format!(
        "{variable} is set here, but the process that serves the state directory does not have it: give it the key with \
         `mainspring auth add {provider}`"
    ))
}
