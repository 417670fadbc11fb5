//! Sends one event to a webhook: signed, without redirects, and to public addresses only.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainspring_core::webhook::is_public;
use mainspring_core::{Delivery, Time, Webhook, WebhookId};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use ring::hmac;

/// Time in which a receiver must answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The context in which the keys of webhooks are derived from the token.
const KEY_CONTEXT: &str = "mainspring 2026-11-17 keys of webhooks";

/// Sends events to webhooks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WebhookSender(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Built for the first delivery: loading the system's certificates takes a tenth of the time of a start.
    client: OnceLock<Result<Client, String>>,
    /// The key from which the secrets of webhooks are derived.
    key: [u8; 32],
    allows_private: bool,
}

impl WebhookSender {
    /// Creates a sender. Secrets of webhooks are derived from `token`; private addresses are refused unless
    /// `allows_private`.
    pub fn new(token: &str, allows_private: bool) -> Self {
        let key = blake3::derive_key(KEY_CONTEXT, token.as_bytes());
        Self(Arc::new(Inner { client: OnceLock::new(), key, allows_private }))
    }

    fn client(&self) -> Result<&Client, String> {
        let allows_private = self.0.allows_private;
        let make = || {
            // The process has one TLS provider; the first one installed wins.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client = Client::builder()
                .timeout(TIMEOUT)
                // A redirect, or a proxy of the environment, would lead to an address that was not checked.
                .redirect(Policy::none())
                .no_proxy()
                .user_agent(concat!("mainspring/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Arc::new(PublicOnly { allows_private }));
            client.build().map_err(|error| error.to_string())
        };
        self.0.client.get_or_init(make).as_ref().map_err(String::clone)
    }

    /// The secret that signs the deliveries of a webhook.
    pub fn secret(&self, id: WebhookId) -> String {
        format!("whsec_{}", blake3::keyed_hash(&self.0.key, id.as_bytes()).to_hex())
    }

    /// Refuses a URL that can never be delivered to.
    pub fn check_url(&self, url: &str) -> Result<Url, String> {
        let parsed = Url::parse(url).map_err(|error| format!("it is not a URL: {error}"))?;
        if !matches!(parsed.scheme(), "https" | "http") {
            return Err("it must begin with https:// or http://".into());
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("it must not hold a password: deliveries are signed".into());
        }
        let host = parsed.host_str().unwrap_or_default();
        // A literal address is not resolved, so the resolver does not see it.
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(ip) if !self.0.allows_private && !is_public(ip) => {
                Err(PrivateAddress(host.to_owned()).to_string())
            }
            _ => Ok(parsed),
        }
    }

    /// Posts `body` to the webhook, with the time and the signature of both.
    pub async fn send(&self, webhook: &Webhook, event: &str, body: String, now: Time) -> Delivery {
        let url = match self.check_url(&webhook.url) {
            Ok(url) => url,
            Err(error) => return Delivery::Refused(format!("the URL cannot be used: {error}")),
        };
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => return Delivery::Failed(format!("no connection can be made: {error}")),
        };
        let timestamp = now.0.div_euclid(1_000);
        let request = client.post(url).header("content-type", "application/json");
        let request = request
            .header("mainspring-webhook", webhook.id.to_string())
            .header("mainspring-event", event)
            .header("mainspring-timestamp", timestamp)
            .header("mainspring-signature", sign(&self.secret(webhook.id), timestamp, &body));
        match request.body(body).send().await {
            Ok(response) => Delivery::of_status(response.status().as_u16()),
            Err(error) if is_private(&error) => Delivery::Refused(chain(&error)),
            Err(error) => Delivery::Failed(chain(&error)),
        }
    }
}

/// The signature of a body at a time: `v1=` and the HMAC-SHA256 of `TIMESTAMP.BODY` in hexadecimal digits.
fn sign(secret: &str, timestamp: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{timestamp}.{body}").as_bytes());
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("v1={digits}")
}

/// The error for a host without a public address.
#[derive(Debug, thiserror::Error)]
#[error("{0} is an address of this machine or of a private network: set webhooks_private = true to allow it")]
struct PrivateAddress(String);

/// True if the resolver has refused the host.
fn is_private(error: &reqwest::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<PrivateAddress>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The error with its causes; the outermost one says little.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = vec![error.to_string()];
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes.dedup();
    causes.join(": ").chars().take(500).collect()
}

/// Resolves names to public addresses only. The connection is made to an address that was checked here, so a name
/// cannot be changed between the check and the connection.
#[derive(Debug)]
struct PublicOnly {
    allows_private: bool,
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let allows_private = self.allows_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let all: Vec<SocketAddr> = found.collect();
            let usable: Vec<SocketAddr> =
                all.into_iter().filter(|address| allows_private || is_public(address.ip())).collect();
            if usable.is_empty() {
                return Err(PrivateAddress(name.as_str().to_owned()).into());
            }
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_hmac_of_the_timestamp_and_the_body() {
        // The HMAC-SHA256 of `1.{}` under `key`.
        let expected = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"key"), b"1.{}");
        let signature = sign("key", 1, "{}");
        assert_eq!(signature.len(), 3 + 64);
        assert!(signature.ends_with(&format!("{:02x}", expected.as_ref()[31])));
        assert_ne!(signature, sign("key", 2, "{}"));
        assert_ne!(signature, sign("kez", 1, "{}"));
    }

    #[test]
    fn urls_of_other_schemes_private_literals_and_passwords_are_refused() {
        let sender = WebhookSender::new("token", false);
        for url in [
            "ftp://example.com/",
            "example.com",
            "http://127.0.0.1:80/",
            "http://[::1]/",
            "https://169.254.169.254/latest",
            "http://2130706433/",
            "http://0x7f.1/",
            "https://user:pass@example.com/",
        ] {
            assert!(sender.check_url(url).is_err(), "{url}");
        }
        assert!(sender.check_url("https://example.com/hook?x=1").is_ok());
        assert!(WebhookSender::new("token", true).check_url("http://127.0.0.1:80/").is_ok());
    }

    #[test]
    fn secrets_differ_by_webhook_and_by_token() {
        let [one, other] = ["one", "other"].map(|token| WebhookSender::new(token, false));
        let id = |no| WebhookId::from_random([no; 16]);
        assert_eq!(one.secret(id(1)), one.secret(id(1)));
        assert_ne!(one.secret(id(1)), one.secret(id(2)));
        assert_ne!(one.secret(id(1)), other.secret(id(1)));
    }
}
