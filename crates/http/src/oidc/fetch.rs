//! The keys of an issuer: fetched by discovery, kept, and fetched again when they are old or one is missing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Time;
use mainspring_kernel::Kernel;
use parking_lot::RwLock;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Url};
use serde_json::Value;
use tokio::sync::{MutexGuard, Semaphore};

use super::jwt::{PublicKey, Token};
use super::{Refusal, invalid};

/// Age at which keys are fetched again.
const MAX_AGE_MS: u64 = 10 * 60 * 1_000;
/// Pause between two fetches, however many tokens name keys that are not known.
const MIN_PAUSE_MS: u64 = 10_000;
/// Time in which the issuer must answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of codes that are exchanged at once. Callers have no credential yet, and must not make the server
/// overload the issuer.
const MAX_EXCHANGES: usize = 8;
/// Longest answer of an issuer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

type Keys = Arc<Vec<Arc<PublicKey>>>;

/// The keys and addresses of an issuer.
#[derive(Debug, Clone)]
struct Known {
    keys: Keys,
    /// Where people sign in, and where their codes are exchanged.
    endpoints: Option<Endpoints>,
}

/// The addresses of an issuer with which browsers sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoints {
    pub(super) authorization: String,
    pub(super) token: String,
}

/// The issuer of tokens.
#[derive(Debug)]
pub(super) struct Issuer {
    address: String,
    http: reqwest::Client,
    /// The keys and addresses, and when they were fetched.
    known: RwLock<Option<(Known, Time)>>,
    /// When keys were last requested. Locked during a request, so that concurrent callers request them once.
    asked: tokio::sync::Mutex<Option<Time>>,
    exchanges: Semaphore,
}

impl Issuer {
    /// Creates the client of the issuer at `address`. The issuer's certificate must be signed by one in `ca`, or by one
    /// that the system trusts if `ca` is `None`.
    pub(super) fn new(address: &str, ca: Option<&Path>) -> Result<Self, String> {
        check_address(address)?;
        // The process has one TLS provider; the first one installed wins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(Policy::none());
        let http = match ca {
            Some(ca) => http.tls_certs_only(read_certificates(ca)?),
            None => http,
        };
        let http = http.build().map_err(|error| error.to_string())?;
        let exchanges = Semaphore::new(MAX_EXCHANGES);
        let address = address.to_owned();
        Ok(Self { address, http, known: RwLock::default(), asked: Default::default(), exchanges })
    }

    /// The keys that may have signed `token`. While one caller fetches keys, others use those that are known: an issuer
    /// that does not answer must not stop all of them.
    pub(super) async fn keys_for(
        &self,
        token: &Token<'_>,
        kernel: &Kernel,
    ) -> Result<Vec<Arc<PublicKey>>, Refusal> {
        let candidates = |keys: &Keys| -> Vec<_> {
            keys.iter().filter(|key| key.may_have_signed(token)).cloned().collect()
        };
        let known = self.known.read().clone();
        let found = known.as_ref().map(|(known, _)| candidates(&known.keys)).unwrap_or_default();
        let is_fresh = known.is_some_and(|(_, at)| kernel.now().since(at) < MAX_AGE_MS);
        if is_fresh && !found.is_empty() {
            return Ok(found);
        }
        let asked = match self.asked.try_lock() {
            Ok(asked) => asked,
            Err(_) if !found.is_empty() => return Ok(found),
            Err(_) => self.asked.lock().await,
        };
        self.refresh(asked, kernel).await;
        let Some((known, _)) = self.known.read().clone() else { return Err(self.not_answering()) };
        match candidates(&known.keys) {
            none if none.is_empty() => invalid("the issuer has no such key"),
            found => Ok(found),
        }
    }

    fn not_answering(&self) -> Refusal {
        Refusal::Unchecked(format!(
            "the issuer {} does not answer, so no token can be checked; try again, or use an API key",
            self.address
        ))
    }

    /// The addresses with which browsers sign in.
    pub(super) async fn endpoints(&self, kernel: &Kernel) -> Result<Endpoints, Refusal> {
        let known = || self.known.read().as_ref().and_then(|(known, _)| known.endpoints.clone());
        if let Some(endpoints) = known() {
            return Ok(endpoints);
        }
        self.refresh(self.asked.lock().await, kernel).await;
        known().ok_or_else(|| self.not_answering())
    }

    /// Exchanges an authorization code, given as the fields of a form.
    pub(super) async fn exchange(&self, endpoint: &str, form: String) -> Result<Value, Refusal> {
        let Ok(_permit) = self.exchanges.try_acquire() else {
            let reason = "many people sign in at this moment: try again in some seconds";
            return Err(Refusal::Unchecked(reason.into()));
        };
        let request = self.http.post(endpoint).header("content-type", "application/x-www-form-urlencoded");
        let response = request.header("accept", "application/json").body(form).send().await;
        let response = response.map_err(|_| self.not_answering())?;
        if response.status().is_server_error() {
            return Err(self.not_answering());
        }
        let is_accepted = response.status().is_success();
        let answer = read_json(endpoint, response).await.unwrap_or_default();
        match is_accepted {
            true => Ok(answer),
            false => {
                let reason = answer["error_description"].as_str().or(answer["error"].as_str());
                let reason = reason.unwrap_or("without a reason").chars().take(300).collect::<String>();
                invalid(format!("the issuer refuses the code: {reason}"))
            }
        }
    }

    /// Fetches the keys, unless that was tried a short time ago. Known keys stay if it fails.
    async fn refresh(&self, mut asked: MutexGuard<'_, Option<Time>>, kernel: &Kernel) {
        if asked.is_some_and(|at| kernel.now().since(at) < MIN_PAUSE_MS) {
            return;
        }
        *asked = Some(kernel.now());
        match self.fetch().await {
            Ok(known) => *self.known.write() = Some((known, kernel.now())),
            Err(error) => tracing::warn!(issuer = self.address, error, "the issuer's keys cannot be fetched"),
        }
    }

    async fn fetch(&self) -> Result<Known, String> {
        let document = format!("{}/.well-known/openid-configuration", self.address.trim_end_matches('/'));
        let document = self.get_json(&document).await?;
        if document["issuer"].as_str() != Some(&self.address) {
            return Err(format!("its discovery document is of the issuer {}", document["issuer"]));
        }
        let keys = document["jwks_uri"].as_str().ok_or("its discovery document has no jwks_uri")?;
        check_address(keys)?;
        let keys = PublicKey::all_of(&self.get_json(keys).await?).ok_or("its keys are not a JWK set")?;
        let address = |name: &str| {
            let address = document[name].as_str().filter(|address| check_address(address).is_ok());
            address.map(str::to_owned)
        };
        let endpoints = address("authorization_endpoint").zip(address("token_endpoint"));
        let endpoints = endpoints.map(|(authorization, token)| Endpoints { authorization, token });
        Ok(Known { keys: Arc::new(keys.into_iter().map(Arc::new).collect()), endpoints })
    }

    async fn get_json(&self, url: &str) -> Result<Value, String> {
        let response = self.http.get(url).send().await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("{url} answers {}", response.status()));
        }
        read_json(url, response).await
    }
}

/// Reads an answer of an issuer, which must not be too long.
async fn read_json(url: &str, mut response: reqwest::Response) -> Result<Value, String> {
    let mut body = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(format!("{url} answers with more than {MAX_ANSWER_BYTES} bytes"));
        }
    }
    serde_json::from_slice(&body).map_err(|error| format!("{url} answers no JSON: {error}"))
}

/// Reads the certificates of the file that `oidc.ca` names.
fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let failed = |reason: String| format!("oidc.ca: {} {reason}", path.display());
    let pem = std::fs::read(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(failed("holds no certificate: it must begin with -----BEGIN CERTIFICATE-----".into())),
        Err(error) => Err(failed(format!("is no PEM file of certificates: {error}"))),
    }
}

/// Refuses an address without TLS, except on this machine: the issuer's answers decide who may act.
fn check_address(address: &str) -> Result<(), String> {
    let url = Url::parse(address).map_err(|error| format!("{address:?} is not an address: {error}"))?;
    let host = url.host_str().unwrap_or_default();
    let is_local = host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_local => Ok(()),
        _ => Err(format!("{address:?} must begin with https://")),
    }
}
