//! Models: providers by name, profiles that name a model for a purpose, and what a model costs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::{Cost, KeyPresence, ModelList, ModelProfile, ModelProvider, Usage};
use serde::Deserialize;

use crate::price::{Price, Prices};
use crate::provider::{
    Connections, ErrorKind, GenaiProvider, KeySource, Kind, ModelError, ModelOptions, Provider,
};
use crate::tool::mcp::McpConfig;
use crate::window::window;

/// The profile of runs that name none.
pub const DEFAULT_PROFILE: &str = "main_reasoner";

/// The profile of the model that summarises what does not fit.
pub const SUMMARIZER: &str = "summarizer";

/// The profile of the model that names sessions; else the summarizer does.
pub const TITLER: &str = "titler";
/// The provider without a key, whose models follow scripts; whoever wires the parts together brings it.
pub const SCRIPTED: &str = "scripted";

/// What the configuration says of models: the tables `providers`, `models`, `prices` and `mcp`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct ModelsConfig {
    /// Who runs models, beside those that are built in.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Profiles: which model for which purpose.
    pub models: BTreeMap<String, Profile>,
    /// MCP servers, whose tools agents have.
    pub mcp: BTreeMap<String, McpConfig>,
    /// Prices in US dollars for a million tokens, by the beginning of a model's name.
    pub prices: BTreeMap<String, Price>,
}

impl ModelsConfig {
    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), BadModels> {
        for (name, provider) in &self.providers {
            read_provider(name, provider)?;
        }
        for (name, server) in &self.mcp {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            let named = !name.is_empty() && name.len() <= 32 && name.bytes().all(plain);
            let reason = match named {
                true => server.check().err(),
                false => Some("a server's name has 1 to 32 letters, digits and hyphens".to_owned()),
            };
            if let Some(reason) = reason {
                return Err(BadModels { key: format!("mcp.{name}"), reason });
            }
        }
        let built_in = BUILT_IN.iter().map(|(name, ..)| *name).chain([SCRIPTED]);
        let known: BTreeSet<&str> = self.providers.keys().map(String::as_str).chain(built_in).collect();
        for (name, profile) in &self.models {
            if profile.context_tokens.is_some_and(|tokens| tokens < MIN_WINDOW) {
                let reason = format!("a model takes at least {MIN_WINDOW} tokens");
                return Err(BadModels { key: format!("models.{name}.context_tokens"), reason });
            }
            if !known.contains(profile.provider.as_str()) {
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                let reason = format!("no provider {:?}; there is {known}", profile.provider);
                return Err(BadModels { key: format!("models.{name}.provider"), reason });
            }
        }
        Ok(())
    }
}

/// Who runs models, and where.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The protocol: `anthropic`, `openai`, `openai-responses` or `gemini`.
    pub kind: String,
    /// Where it is, if not where its own company serves it.
    pub base_url: Option<String>,
    /// The environment variable that holds its key.
    pub key_env: Option<String>,
    /// The file that holds its key.
    pub key_file: Option<PathBuf>,
}

/// Which model, and how it answers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Who runs it.
    pub provider: String,
    /// The model, by its provider's name.
    pub model: String,
    /// How much chance there is.
    pub temperature: Option<f64>,
    /// How long an answer may be, in tokens.
    pub max_tokens: Option<u32>,
    /// How much it thinks: `low`, `medium`, `high`, or a number of tokens.
    pub reasoning: Option<String>,
    /// Milliseconds that it may be silent.
    pub silence_ms: Option<u64>,
    /// How many tokens it takes, prompt and answer together; if not given, as is known of the model.
    pub context_tokens: Option<u64>,
}

impl Profile {
    fn options(&self) -> ModelOptions {
        ModelOptions {
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            reasoning: self.reasoning.clone(),
            silence_ms: self.silence_ms,
        }
    }
}

/// A wrong line of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct BadModels {
    /// Where it is.
    pub key: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

/// Every model that can be asked.
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

/// The model that a run asks.
#[derive(Clone)]
pub struct Chosen {
    /// Who runs it, by name.
    pub provider_name: String,
    /// Who runs it.
    pub provider: Arc<dyn Provider>,
    /// The model.
    pub model: String,
    /// The profile that named it.
    pub profile: Option<String>,
    /// How it answers.
    pub options: ModelOptions,
    /// What it costs, if that is known.
    pub price: Option<Price>,
    /// How many tokens it takes, prompt and answer together, if that is known.
    pub window: Option<u64>,
}

/// Tokens below which no window makes sense.
const MIN_WINDOW: u64 = 1_000;

/// Tokens that are left for an answer, if nobody says how long it may be.
const ANSWER: u64 = 8_192;

impl Chosen {
    /// What `usage` costs, unless nobody knows the model's price.
    pub fn cost(&self, usage: &Usage) -> Cost {
        self.price.map_or(Cost::UNKNOWN, |price| price.cost(usage))
    }

    /// How many tokens a prompt may come to, if that is known.
    pub fn room(&self) -> Option<u64> {
        let window = self.window?;
        let answer = self.options.max_tokens.map_or(ANSWER, u64::from);
        Some(window - answer.min(window / 4))
    }
}

/// The providers that need no configuration but a key: name, kind, place, variable.
const BUILT_IN: [(&str, Kind, Option<&str>, Option<&str>); 5] = [
    ("anthropic", Kind::Anthropic, None, Some("ANTHROPIC_API_KEY")),
    ("openai", Kind::OpenAiResponses, None, Some("OPENAI_API_KEY")),
    ("openai-chat", Kind::OpenAi, None, Some("OPENAI_API_KEY")),
    ("gemini", Kind::Gemini, None, Some("GEMINI_API_KEY")),
    ("ollama", Kind::OpenAi, Some("http://127.0.0.1:11434/v1/"), None),
];

impl Models {
    /// The models that `config` describes, and those of the providers that are built in.
    pub fn new(config: &ModelsConfig) -> Result<Self, BadModels> {
        config.check()?;
        let connections = Connections::default();
        let mut models =
            Self { prices: Prices::new(&config.prices), profiles: config.models.clone(), ..Self::default() };
        let mut add = |name: &str, kind, place: &str, key| {
            let provider = GenaiProvider::new(name, kind, place, key, &connections);
            models.providers.insert(name.into(), Arc::new(provider));
        };
        for (name, kind, place, variable) in BUILT_IN {
            let key = variable.map_or(KeySource::None, |name| KeySource::Variable(name.into()));
            add(name, kind, place.unwrap_or(kind.base_url()), key);
        }
        for (name, provider) in &config.providers {
            let (kind, base_url, key) = read_provider(name, provider)?;
            add(name, kind, &base_url, key);
        }
        Ok(models)
    }

    /// With another provider.
    #[must_use]
    pub fn with_provider(mut self, name: &str, provider: Arc<dyn Provider>) -> Self {
        self.providers.insert(name.into(), provider);
        self
    }

    /// The models that are configured and who runs models, as callers are told of them.
    pub fn list(&self) -> ModelList {
        let key = |name: &str| self.providers.get(name).map_or(KeyPresence::Missing, |known| known.key());
        let profile = |(name, profile): (&String, &Profile)| ModelProfile {
            profile: name.clone(),
            provider: profile.provider.clone(),
            model: profile.model.clone(),
            key: key(&profile.provider),
            context_tokens: profile.context_tokens.or_else(|| window(&profile.model)),
            price: self.prices.shown(&profile.provider, &profile.model),
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

    /// The names of the profiles.
    pub fn profiles(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.profiles.iter().map(|(name, profile)| (name.as_str(), profile))
    }

    /// The model that is wished for: `model` as `PROVIDER/MODEL`, or as the name of a model of the profile's provider;
    /// else the profile's own.
    pub fn choose(&self, model: Option<&str>, profile: Option<&str>) -> Result<Chosen, ModelError> {
        let name = profile.unwrap_or(DEFAULT_PROFILE);
        let known = self.profiles.get(name);
        if known.is_none() && profile.is_some() {
            let all = self.profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let all = if all.is_empty() { "none; write [models.NAME]".into() } else { all };
            return Err(unconfigured(format!("no model profile {name:?}; there is {all}")));
        }
        let named = model.and_then(|model| model.split_once('/'));
        let (provider, model) = match (named, model, known) {
            (Some((provider, model)), ..) if self.providers.contains_key(provider) => (provider, model),
            (_, Some(model), Some(profile)) => (profile.provider.as_str(), model),
            (_, Some(model), None) => {
                return Err(unconfigured(format!(
                    "nobody knows who runs {model:?}; name it as PROVIDER/MODEL, such as anthropic/{model}"
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
        Ok(Chosen {
            provider_name: provider.into(),
            provider: found,
            model: model.into(),
            profile: known.map(|_| name.to_owned()),
            options: known.map(Profile::options).unwrap_or_default(),
            price: self.prices.of(provider, model),
            window: known
                .filter(|known| known.model == model)
                .and_then(|known| known.context_tokens)
                .or_else(|| window(model)),
        })
    }

    /// The model of a purpose; none if no profile is configured for it.
    pub fn purpose(&self, profile: &str) -> Option<Chosen> {
        self.profiles.get(profile).and_then(|_| self.choose(None, Some(profile)).ok())
    }
}

fn unconfigured(message: String) -> ModelError {
    ModelError::new(ErrorKind::NotConfigured, message)
}

fn read_provider(name: &str, config: &ProviderConfig) -> Result<(Kind, String, KeySource), BadModels> {
    let bad = |field: &str, reason: String| BadModels { key: format!("providers.{name}.{field}"), reason };
    if name.contains('/') || name.is_empty() {
        return Err(bad("", "a provider's name is not empty and has no slash".into()));
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

    fn models(toml: &str) -> Result<Models, BadModels> {
        Models::new(&toml::from_str(toml).unwrap())
    }

    #[test]
    fn a_model_is_chosen_by_name_by_profile_or_not_at_all() {
        let models = models(
            "[providers.local]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
             [models.main_reasoner]\nprovider = \"local\"\nmodel = \"big\"\ntemperature = 0.5\n\
             [models.worker]\nprovider = \"anthropic\"\nmodel = \"claude-haiku-4-5\"",
        )
        .unwrap();
        let shown = |model, profile| match models.choose(model, profile) {
            Ok(chosen) => format!("{} {} {:?}", chosen.provider_name, chosen.model, chosen.profile),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown(None, None), r#"local big Some("main_reasoner")"#);
        assert_eq!(shown(None, Some("worker")), r#"anthropic claude-haiku-4-5 Some("worker")"#);
        assert_eq!(shown(Some("meta/llama"), None), r#"local meta/llama Some("main_reasoner")"#);
        assert_eq!(shown(Some("gemini/g-1"), Some("worker")), r#"gemini g-1 Some("worker")"#);
        assert_eq!(shown(None, Some("poet")), r#"no model profile "poet"; there is main_reasoner, worker"#);
        let none = Models::new(&ModelsConfig::default()).unwrap();
        assert!(none.choose(None, None).err().unwrap().message.starts_with("no model is configured"));
        assert!(none.choose(Some("gpt-x"), None).err().unwrap().message.contains("PROVIDER/MODEL"));
        assert_eq!(none.choose(Some("openai/gpt-x"), None).unwrap().model, "gpt-x");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let shown = |toml| models(toml).err().map(|bad| bad.to_string()).unwrap_or_default();
        assert_eq!(
            shown("[providers.x]\nkind = \"y\""),
            "providers.x.kind: \"y\" is none of anthropic, openai, openai-responses, gemini"
        );
        assert!(shown("[providers.x]\nkind = \"openai\"\nbase_url = \"ftp://a\"").contains("http://"));
        assert!(shown("[models.m]\nprovider = \"nobody\"\nmodel = \"m\"").starts_with("models.m.provider"));
        let narrow = "[models.m]\nprovider = \"anthropic\"\nmodel = \"m\"\ncontext_tokens = 9";
        assert_eq!(shown(narrow), "models.m.context_tokens: a model takes at least 1000 tokens");
        let both = "[providers.x]\nkind = \"openai\"\nkey_env = \"A\"\nkey_file = \"b\"";
        assert!(shown(both).contains("not both"));
    }
}
