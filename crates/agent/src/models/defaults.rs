//! Default models, used if nothing is configured, and the stored keys of providers.

use std::time::Duration;

use serde_json::Value;

use super::{BUILT_IN_PROVIDERS, ModelsConfig};
use crate::provider::install_tls;

/// The name of the provider of local models.
pub const OLLAMA: &str = "ollama";

/// A current model of each provider that needs only a key, in the order of preference.
pub const DEFAULT_MODELS: [(&str, &str); 3] =
    [("anthropic", "claude-sonnet-5"), ("openai", "gpt-5.6"), ("gemini", "gemini-3.6-flash")];

/// The longest wait for a local model server: it answers at once or is not there.
const LOCAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the first model of a running Ollama server; `None` if it does not answer or has no model.
pub async fn ollama_model(config: &ModelsConfig) -> Option<String> {
    let configured = config.providers.get(OLLAMA).and_then(|provider| provider.base_url.clone());
    let base_url =
        configured.unwrap_or_else(|| ollama_base_url(std::env::var("OLLAMA_HOST").ok().as_deref()));
    let url = format!("{}/models", base_url.trim_end_matches('/'));
    install_tls();
    let client = reqwest::Client::builder().no_proxy().timeout(LOCAL_TIMEOUT).build().ok()?;
    let answer: Value = client.get(url).send().await.ok()?.error_for_status().ok()?.json().await.ok()?;
    answer["data"][0]["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// Returns the base URL of Ollama: from its variable `OLLAMA_HOST` (`[SCHEME://]HOST[:PORT]`), or the default.
pub(super) fn ollama_base_url(host: Option<&str>) -> String {
    let host = host.map(|host| host.trim().trim_end_matches('/')).filter(|host| !host.is_empty());
    let host = host.unwrap_or("127.0.0.1");
    let (scheme, host) = host.split_once("://").unwrap_or(("http", host));
    // 0.0.0.0 is an address to listen on, not to connect to.
    let host = host.replacen("0.0.0.0", "127.0.0.1", 1);
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let port = match (has_port, scheme) {
        (true, _) => "",
        (false, "https") => ":443",
        (false, _) => ":11434",
    };
    format!("{scheme}://{host}{port}/v1/")
}

/// A provider whose key can be stored in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The name of the provider.
    pub provider: String,
    /// The environment variable that takes precedence, if there is one.
    pub variable: Option<String>,
    /// The name of the file within the folder of keys.
    pub file: String,
}

impl StoredKey {
    /// Describes the stored key of a provider.
    pub(super) fn new(provider: &str, variable: &str) -> Self {
        // Both protocols of OpenAI take the same key.
        let owner = if provider == "openai-chat" { "openai" } else { provider };
        Self { provider: provider.into(), variable: Some(variable.into()), file: format!("{owner}.key") }
    }
}

/// Lists the providers whose keys can be stored: those with a variable, and so without a `key_file`.
pub fn stored_keys(config: &ModelsConfig) -> Vec<StoredKey> {
    let configured = config.providers.iter();
    let configured =
        configured.filter_map(|(name, provider)| Some(StoredKey::new(name, provider.key_env.as_deref()?)));
    let built_in = BUILT_IN_PROVIDERS.iter().filter(|(name, ..)| !config.providers.contains_key(*name));
    let built_in = built_in.filter_map(|(name, _, variable)| Some(StoredKey::new(name, (*variable)?)));
    let mut all: Vec<StoredKey> =
        built_in.filter(|key| key.provider != "openai-chat").chain(configured).collect();
    all.sort_by(|a, b| a.provider.cmp(&b.provider));
    all
}

#[cfg(test)]
mod tests {
    use super::super::Models;
    use super::*;

    #[test]
    fn every_default_model_has_a_price_and_a_provider() {
        let models = Models::new(&ModelsConfig::default()).unwrap();
        for (provider, model) in DEFAULT_MODELS {
            let selected = models.select(Some(&format!("{provider}/{model}")), None).unwrap();
            assert!(selected.price.is_some() && selected.context_window.is_some(), "{provider}/{model}");
        }
    }

    #[test]
    fn ollama_is_found_by_its_own_variable() {
        for (host, url) in [
            (None, "http://127.0.0.1:11434/v1/"),
            (Some(""), "http://127.0.0.1:11434/v1/"),
            (Some("0.0.0.0"), "http://127.0.0.1:11434/v1/"),
            (Some("box:8080"), "http://box:8080/v1/"),
            (Some("https://models.example/"), "https://models.example:443/v1/"),
            (Some("[::1]"), "http://[::1]:11434/v1/"),
        ] {
            assert_eq!(ollama_base_url(host), url, "{host:?}");
        }
    }

    #[test]
    fn keys_are_stored_for_providers_with_a_variable() {
        let config = "[providers.acme]\nkind = \"openai\"\nkey_env = \"ACME\"\n[providers.gemini]\nkind = \"gemini\"\n\
                      key_file = \"/k\"";
        let keys = stored_keys(&toml::from_str(config).unwrap());
        let names: Vec<&str> = keys.iter().map(|key| key.provider.as_str()).collect();
        assert_eq!(names, ["acme", "anthropic", "openai"]);
        assert_eq!(keys[0].file, "acme.key");
    }
}
