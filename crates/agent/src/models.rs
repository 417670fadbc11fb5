//! Models: providers by name, profiles that name a model for a purpose, prices and context windows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::{Cost, KeyPresence, ModelList, ModelProfile, ModelProvider, Usage};
use serde::Deserialize;

use crate::price::{Price, Prices};
use crate::provider::{
    Connections, ErrorKind, GenaiProvider, KeySource, Kind, ModelError, ModelOptions, Provider,
};
use crate::tool::mcp::McpConfig;
use crate::window::context_window;

mod defaults;

use defaults::ollama_base_url;

pub use defaults::{DEFAULT_MODELS, OLLAMA, StoredKey, ollama_model, stored_keys};

/// The profile of runs that name no other.
pub const DEFAULT_PROFILE: &str = "main_reasoner";

/// The profile of the model that summarizes old messages.
pub const SUMMARIZER: &str = "summarizer";

/// The profile of the model that generates titles. If it is missing, the summarizer generates them.
pub const TITLER: &str = "titler";
/// The name of the scripted provider, which needs no key. The crate `mainspring` registers the provider.
pub const SCRIPTED: &str = "scripted";

/// The configuration of models: the tables `providers`, `models`, `prices` and `mcp`.
///
/// ```
/// use mainspring_agent::models::{ModelsConfig, Profile, ProviderConfig};
///
/// let mut local = ProviderConfig::new("openai");
/// local.base_url = Some("http://127.0.0.1:8080/v1".into());
/// let mut config = ModelsConfig::default();
/// config.providers.insert("local".into(), local);
/// config.models.insert("main_reasoner".into(), Profile::new("local", "qwen3"));
/// assert_eq!(config.check(), Ok(()));
/// config.models.insert("worker".into(), Profile::new("nowhere", "qwen3"));
/// assert_eq!(config.check().unwrap_err().key, "models.worker.provider");
/// ```
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ModelsConfig {
    /// Providers, in addition to the built-in ones.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Profiles: the model for each purpose.
    pub models: BTreeMap<String, Profile>,
    /// MCP servers, whose tools agents can use.
    pub mcp: BTreeMap<String, McpConfig>,
    /// Prices in US dollars per million tokens, by a prefix of `PROVIDER/MODEL` or of the model's name.
    pub prices: BTreeMap<String, Price>,
}

impl ModelsConfig {
    /// Checks the configuration.
    pub fn check(&self) -> Result<(), ModelsConfigError> {
        for (name, provider) in &self.providers {
            read_provider(name, provider)?;
        }
        for (name, server) in &self.mcp {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            let valid_name = !name.is_empty() && name.len() <= 32 && name.bytes().all(allowed);
            let reason = match valid_name {
                true => server.check().err(),
                false => Some("a server's name has 1 to 32 letters, digits and hyphens".to_owned()),
            };
            if let Some(reason) = reason {
                return Err(ModelsConfigError { key: format!("mcp.{name}"), reason });
            }
        }
        let built_in = BUILT_IN_PROVIDERS.iter().map(|(name, ..)| *name).chain([SCRIPTED]);
        let known: BTreeSet<&str> = self.providers.keys().map(String::as_str).chain(built_in).collect();
        for (name, profile) in &self.models {
            if profile.context_tokens.is_some_and(|tokens| tokens < MIN_WINDOW_TOKENS) {
                let reason = format!("must be at least {MIN_WINDOW_TOKENS}");
                return Err(ModelsConfigError { key: format!("models.{name}.context_tokens"), reason });
            }
            if !known.contains(profile.provider.as_str()) {
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                let reason = format!("no provider {:?}; there is {known}", profile.provider);
                return Err(ModelsConfigError { key: format!("models.{name}.provider"), reason });
            }
        }
        Ok(())
    }
}

/// The configuration of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProviderConfig {
    /// The protocol: `anthropic`, `openai`, `openai-responses` or `gemini`.
    pub kind: String,
    /// The base URL, if it is not the official one of the protocol.
    pub base_url: Option<String>,
    /// The environment variable with the key.
    pub key_env: Option<String>,
    /// The file with the key.
    pub key_file: Option<PathBuf>,
}

/// A model and its options.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Profile {
    /// The name of the provider.
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The maximum length of an answer, in tokens.
    pub max_tokens: Option<u32>,
    /// The reasoning effort: `low`, `medium`, `high`, or a number of tokens.
    pub reasoning: Option<String>,
    /// The maximum time without data from the provider, in milliseconds.
    pub silence_ms: Option<u64>,
    /// The context window in tokens, prompt and answer together; if not given, the built-in value for the model.
    pub context_tokens: Option<u64>,
    /// The name for people; the profile's own name if not given.
    pub label: Option<String>,
    /// The description for people.
    pub description: Option<String>,
    /// True for the profile that is offered first to people.
    #[serde(default)]
    pub default: bool,
}

impl ProviderConfig {
    /// Returns a provider that speaks the protocol `kind`, with the protocol's own address and no key.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), base_url: None, key_env: None, key_file: None }
    }
}

impl Profile {
    /// Returns a profile for `model` of `provider`, with the provider's own options.
    pub fn new(provider: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            model: model.into(),
            temperature: None,
            max_tokens: None,
            reasoning: None,
            silence_ms: None,
            context_tokens: None,
            label: None,
            description: None,
            default: false,
        }
    }

    fn options(&self) -> ModelOptions {
        ModelOptions {
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            reasoning: self.reasoning.clone(),
            silence_ms: self.silence_ms,
        }
    }
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
#[non_exhaustive]
pub struct ModelsConfigError {
    /// The key of the setting.
    pub key: String,
    /// The problem and how to fix it.
    pub reason: String,
}

/// All configured models.
#[derive(Clone, Default)]
pub struct Models {
    providers: BTreeMap<String, Arc<dyn Provider>>,
    profiles: BTreeMap<String, Profile>,
    prices: Prices,
}

impl Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let providers: Vec<&String> = self.providers.keys().collect();
        f.debug_struct("Models").field("providers", &providers).field("profiles", &self.profiles).finish()
    }
}

/// A model selected for a run.
#[derive(Clone)]
pub struct SelectedModel {
    /// The name of the provider.
    pub provider_name: String,
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The provider's name of the model.
    pub model: String,
    /// The profile that selected the model.
    pub profile: Option<String>,
    /// The options of requests.
    pub options: ModelOptions,
    /// The price, if it is known.
    pub price: Option<Price>,
    /// The context window in tokens, prompt and answer together, if it is known.
    pub context_window: Option<u64>,
}

/// The lower bound of a configured context window.
const MIN_WINDOW_TOKENS: u64 = 1_000;

/// The part of the context window reserved for an answer without a maximum length.
const DEFAULT_ANSWER_TOKENS: u64 = 8_192;

impl SelectedModel {
    /// Returns the full name, `PROVIDER/MODEL`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.provider_name, self.model)
    }

    /// Returns the cost of `usage`; unknown if the price is unknown.
    pub fn cost(&self, usage: &Usage) -> Cost {
        self.price.map_or(Cost::UNKNOWN, |price| price.cost(usage))
    }

    /// Returns the maximum size of a prompt, if the context window is known.
    pub fn max_prompt_tokens(&self) -> Option<u64> {
        let window = self.context_window?;
        let answer = self.options.max_tokens.map_or(DEFAULT_ANSWER_TOKENS, u64::from);
        Some(window - answer.min(window / 4))
    }
}

/// The built-in providers: name, kind, environment variable of the key.
const BUILT_IN_PROVIDERS: [(&str, Kind, Option<&str>); 5] = [
    ("anthropic", Kind::Anthropic, Some("ANTHROPIC_API_KEY")),
    ("openai", Kind::OpenAiResponses, Some("OPENAI_API_KEY")),
    ("openai-chat", Kind::OpenAi, Some("OPENAI_API_KEY")),
    ("gemini", Kind::Gemini, Some("GEMINI_API_KEY")),
    (OLLAMA, Kind::OpenAi, None),
];

impl Models {
    /// Creates the models of `config` and of the built-in providers. Keys come from the environment, or from
    /// the file that a provider names.
    pub fn new(config: &ModelsConfig) -> Result<Self, ModelsConfigError> {
        Self::with_stored_keys(config, None)
    }

    /// Creates the models of `config` and of the built-in providers. A key that is not in the environment is read from
    /// its file in `keys_dir`.
    pub fn with_stored_keys(
        config: &ModelsConfig,
        keys_dir: Option<&Path>,
    ) -> Result<Self, ModelsConfigError> {
        config.check()?;
        let stored = |name: &str, variable: &str| match keys_dir {
            None => KeySource::Variable(variable.into()),
            Some(dir) => KeySource::Stored {
                variable: variable.into(),
                file: dir.join(StoredKey::new(name, variable).file),
            },
        };
        let connections = Connections::default();
        let mut models =
            Self { prices: Prices::new(&config.prices), profiles: config.models.clone(), ..Self::default() };
        let mut add = |name: &str, kind, base_url: &str, key| {
            let provider = GenaiProvider::new(name, kind, base_url, key, &connections);
            models.providers.insert(name.into(), Arc::new(provider));
        };
        let ollama = ollama_base_url(std::env::var("OLLAMA_HOST").ok().as_deref());
        for (name, kind, variable) in BUILT_IN_PROVIDERS {
            let key = variable.map_or(KeySource::None, |variable| stored(name, variable));
            add(name, kind, if name == OLLAMA { &ollama } else { kind.base_url() }, key);
        }
        for (name, provider) in &config.providers {
            let (kind, base_url, key) = read_provider(name, provider)?;
            let key = match key {
                KeySource::Variable(variable) => stored(name, &variable),
                key => key,
            };
            add(name, kind, &base_url, key);
        }
        Ok(models)
    }

    /// Adds a provider.
    #[must_use]
    pub fn with_provider(mut self, name: &str, provider: Arc<dyn Provider>) -> Self {
        self.providers.insert(name.into(), provider);
        self
    }

    /// Lists the profiles and the providers.
    pub fn list(&self) -> ModelList {
        let key =
            |name: &str| self.providers.get(name).map_or(KeyPresence::Missing, |provider| provider.key());
        let profile = |(name, profile): (&String, &Profile)| ModelProfile {
            profile: name.clone(),
            provider: profile.provider.clone(),
            model: profile.model.clone(),
            key: key(&profile.provider),
            context_tokens: profile.context_tokens.or_else(|| context_window(&profile.model)),
            price: self.prices.describe(&profile.provider, &profile.model),
            label: profile.label.clone(),
            description: profile.description.clone(),
            is_default: match self.profiles.values().any(|profile| profile.default) {
                true => profile.default,
                false => name == DEFAULT_PROFILE,
            },
        };
        let provider = |(name, provider): (&String, &Arc<dyn Provider>)| ModelProvider {
            provider: name.clone(),
            kind: provider.kind().to_owned(),
            key: provider.key(),
        };
        ModelList {
            profiles: self.profiles.iter().map(profile).collect(),
            providers: self.providers.iter().map(provider).collect(),
        }
    }

    /// Returns the profiles by name.
    pub fn profiles(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.profiles.iter().map(|(name, profile)| (name.as_str(), profile))
    }

    /// True if a profile has this name.
    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// Selects a model. `model` is `PROVIDER/MODEL`, or a model of the profile's provider: the profile's own model, or
    /// another one whose name has no slash. If `model` is absent, the profile's own model is selected. Any other name
    /// with a slash is refused, because the part before the slash is not a known provider.
    pub fn select(&self, model: Option<&str>, profile: Option<&str>) -> Result<SelectedModel, ModelError> {
        let name = profile.unwrap_or(DEFAULT_PROFILE);
        let known = self.profiles.get(name);
        if known.is_none() && profile.is_some() {
            let names = self.profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let names = if names.is_empty() { "none; write [models.NAME]".into() } else { names };
            return Err(unconfigured(format!("no model profile {name:?}; there is {names}")));
        }
        let split = model.and_then(|model| model.split_once('/'));
        let (provider, model) = match (split, model, known) {
            (Some((provider, model)), ..) if self.providers.contains_key(provider) => (provider, model),
            (Some((unknown, _)), Some(model), known) if known.is_none_or(|known| known.model != model) => {
                return Err(unconfigured(self.unknown_provider(unknown, model, known)));
            }
            (_, Some(model), Some(profile)) => (profile.provider.as_str(), model),
            (_, Some(model), None) => {
                return Err(unconfigured(format!(
                    "the provider of {model:?} is unknown; name the model as PROVIDER/MODEL, such as anthropic/{model}"
                )));
            }
            (_, None, Some(profile)) => (profile.provider.as_str(), profile.model.as_str()),
            (_, None, None) => {
                return Err(unconfigured(format!(
                    "no model is configured; write [models.{DEFAULT_PROFILE}] with provider and model, or name one as \
                     PROVIDER/MODEL"
                )));
            }
        };
        let found = self.providers.get(provider).cloned();
        let found = found.ok_or_else(|| unconfigured(format!("no provider {provider:?}")))?;
        Ok(SelectedModel {
            provider_name: provider.into(),
            provider: found,
            model: model.into(),
            profile: known.map(|_| name.to_owned()),
            options: known.map(Profile::options).unwrap_or_default(),
            price: self.prices.get(provider, model),
            context_window: known
                .filter(|known| known.model == model)
                .and_then(|known| known.context_tokens)
                .or_else(|| context_window(model)),
        })
    }

    /// Describes the error of a model whose provider is unknown.
    fn unknown_provider(&self, provider: &str, model: &str, profile: Option<&Profile>) -> String {
        let names = self.providers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        // Some providers have slashes in the names of their models.
        let own =
            profile.map(|profile| format!("; a model of {0} with a slash is {0}/{model}", profile.provider));
        format!(
            "no provider {provider:?} for the model {model:?}; there is {names}{}",
            own.unwrap_or_default()
        )
    }

    /// Selects the model for a purpose; `None` if its profile is not configured or names an unknown provider.
    pub fn for_purpose(&self, profile: &str) -> Option<SelectedModel> {
        self.profiles.get(profile).and_then(|_| self.select(None, Some(profile)).ok())
    }
}

fn unconfigured(message: String) -> ModelError {
    ModelError::new(ErrorKind::NotConfigured, message)
}

fn read_provider(
    name: &str,
    config: &ProviderConfig,
) -> Result<(Kind, String, KeySource), ModelsConfigError> {
    let bad =
        |field: &str, reason: String| ModelsConfigError { key: format!("providers.{name}.{field}"), reason };
    if name.contains('/') || name.is_empty() {
        let reason = "a provider's name is not empty and has no slash".into();
        return Err(ModelsConfigError { key: format!("providers.{name}"), reason });
    }
    let kind = Kind::ALL.iter().find(|(word, _)| *word == config.kind).map(|(_, kind)| *kind);
    let kinds = Kind::ALL.map(|(word, _)| word).join(", ");
    let kind = kind.ok_or_else(|| bad("kind", format!("{:?} is none of {kinds}", config.kind)))?;
    let base_url = config.base_url.as_deref().unwrap_or(kind.base_url());
    if !base_url.starts_with("http://") && !base_url.starts_with("https://") {
        return Err(bad("base_url", format!("{base_url:?} must start with http:// or https://")));
    }
    let key = match (&config.key_env, &config.key_file) {
        (Some(_), Some(_)) => return Err(bad("key_file", "give key_env or key_file, not both".into())),
        (Some(variable), None) => KeySource::Variable(variable.clone()),
        (None, Some(file)) => KeySource::File(file.clone()),
        (None, None) => KeySource::None,
    };
    Ok((kind, base_url.to_owned(), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(toml: &str) -> Result<Models, ModelsConfigError> {
        Models::new(&toml::from_str(toml).unwrap())
    }

    #[test]
    fn a_model_is_selected_by_name_or_by_profile() {
        let models = models(
            "[providers.local]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
             [models.main_reasoner]\nprovider = \"local\"\nmodel = \"big\"\ntemperature = 0.5\n\
             [models.worker]\nprovider = \"anthropic\"\nmodel = \"claude-haiku-4-5\"",
        )
        .unwrap();
        let selected = |model, profile| match models.select(model, profile) {
            Ok(model) => format!("{} {} {:?}", model.provider_name, model.model, model.profile),
            Err(error) => error.to_string(),
        };
        assert_eq!(selected(None, None), r#"local big Some("main_reasoner")"#);
        assert_eq!(selected(None, Some("worker")), r#"anthropic claude-haiku-4-5 Some("worker")"#);
        assert_eq!(selected(Some("small"), None), r#"local small Some("main_reasoner")"#);
        assert_eq!(selected(Some("local/meta/llama"), None), r#"local meta/llama Some("main_reasoner")"#);
        assert_eq!(
            selected(Some("antropic/claude-x"), None),
            "no provider \"antropic\" for the model \"antropic/claude-x\"; there is anthropic, gemini, local, ollama, \
             openai, openai-chat; a model of local with a slash is local/antropic/claude-x"
        );
        assert_eq!(selected(Some("gemini/g-1"), Some("worker")), r#"gemini g-1 Some("worker")"#);
        assert_eq!(
            selected(None, Some("poet")),
            r#"no model profile "poet"; there is main_reasoner, worker"#
        );
        let none = Models::new(&ModelsConfig::default()).unwrap();
        assert!(none.select(None, None).err().unwrap().message.starts_with("no model is configured"));
        assert!(none.select(Some("gpt-x"), None).err().unwrap().message.contains("PROVIDER/MODEL"));
        assert_eq!(none.select(Some("openai/gpt-x"), None).unwrap().model, "gpt-x");
    }

    #[test]
    fn an_invalid_setting_is_named() {
        let error = |toml| models(toml).err().map(|bad| bad.to_string()).unwrap_or_default();
        assert_eq!(
            error("[providers.x]\nkind = \"y\""),
            "providers.x.kind: \"y\" is none of anthropic, openai, openai-responses, gemini"
        );
        assert!(error("[providers.x]\nkind = \"openai\"\nbase_url = \"ftp://a\"").contains("http://"));
        assert!(error("[models.m]\nprovider = \"nobody\"\nmodel = \"m\"").starts_with("models.m.provider"));
        let narrow = "[models.m]\nprovider = \"anthropic\"\nmodel = \"m\"\ncontext_tokens = 9";
        assert_eq!(error(narrow), "models.m.context_tokens: must be at least 1000");
        let both = "[providers.x]\nkind = \"openai\"\nkey_env = \"A\"\nkey_file = \"b\"";
        assert!(error(both).contains("not both"));
    }
}
