//! Models as callers see them: the configured profiles and providers, and whether their keys are set.

use serde::{Deserialize, Serialize};

/// The configured models and their providers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelList {
    /// The configured model of each profile, sorted by profile name.
    pub profiles: Vec<ModelProfile>,
    /// The providers, sorted by name. Any model of a provider can be used as `PROVIDER/MODEL`.
    pub providers: Vec<ModelProvider>,
}

/// The model configured for a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelProfile {
    /// The profile's name. Runs that name no profile use `main_reasoner`.
    pub profile: String,
    /// The provider of the model.
    pub provider: String,
    /// The provider's name for the model.
    pub model: String,
    /// Whether the provider's API key is set.
    pub key: KeyPresence,
    /// Context window in tokens, prompt and answer together. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// The model's price. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<ModelPrice>,
    /// The name for people. Absent if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The description for people. Absent if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// True for the profile that is offered first to people. Absent for the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
}

/// A model provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelProvider {
    /// The provider's name.
    pub provider: String,
    /// The provider's protocol: `anthropic`, `openai`, `openai-responses`, `gemini`, or a kind that an embedding
    /// program has registered.
    pub kind: String,
    /// Whether the provider's API key is set.
    pub key: KeyPresence,
}

/// Whether a provider's API key is set. The key itself is never returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyPresence {
    /// The key is set.
    Present,
    /// The key is not set.
    Missing,
    /// The provider needs no key.
    NotNeeded,
}

/// The price of a model in US dollars per million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelPrice {
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Tokens read from the prompt cache.
    pub cache_read: f64,
    /// Tokens written to the prompt cache.
    pub cache_write: f64,
    /// The date of a built-in price. Absent for a configured price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}
