//! Models, as callers are told of them: which there are, for which purpose, and whether they can be asked.

use serde::{Deserialize, Serialize};

/// The models that are configured, and who runs models.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelList {
    /// Which model for which purpose, by the name of the profile.
    pub profiles: Vec<ModelProfile>,
    /// Who runs models, by name: any model of theirs can be asked as `PROVIDER/MODEL`.
    pub providers: Vec<ModelProvider>,
}

/// A model that is configured for a purpose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelProfile {
    /// The profile's name; runs that name none have `main_reasoner`.
    pub profile: String,
    /// Who runs it.
    pub provider: String,
    /// The model, by its provider's name.
    pub model: String,
    /// Whether its provider's key is there.
    pub key: KeyPresence,
    /// How many tokens it takes, prompt and answer together; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// What it costs; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<ModelPrice>,
}

/// Who runs models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelProvider {
    /// Its name.
    pub provider: String,
    /// The protocol: `anthropic`, `openai`, `openai-responses`, `gemini`, or that of whoever embeds mainspring.
    pub kind: String,
    /// Whether its key is there.
    pub key: KeyPresence,
}

/// Whether a provider's key is there. The key itself is told to nobody but the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyPresence {
    /// It is there.
    Present,
    /// It is not.
    Missing,
    /// None is needed.
    NotNeeded,
}

/// What a model costs: US dollars for a million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelPrice {
    /// Read by the model.
    pub input: f64,
    /// Written by the model.
    pub output: f64,
    /// Read from the cache.
    pub cache_read: f64,
    /// Written to the cache.
    pub cache_write: f64,
    /// The day as of which it was so, for a price that is built in; absent for one that is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}
