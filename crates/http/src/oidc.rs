//! OIDC: bearer tokens of an identity provider, beside API keys.
//!
//! A token is a JWT that the issuer has signed for this server's audience. Its claims name the owner, the org and the
//! role of the caller. The issuer's keys come from its discovery document and are cached. A token with an unknown key
//! makes the server fetch the keys again, at most once in some seconds. While the issuer does not answer, the cached keys
//! stay in use.
//!
//! Signatures are verified with `ring`, which TLS uses as well: a library for JWTs would bring a second implementation
//! of the same cryptography.

use std::collections::HashSet;
use std::path::PathBuf;

use mainspring_core::{AccessRole, Time};
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::{Error, Kernel};
use parking_lot::Mutex;
use serde_json::{Map, Value};

pub(crate) mod browser;
mod fetch;
mod jwt;

use fetch::Issuer;
use jwt::Token;

/// The maximum number of cached pairs of owner and org. When it is reached, all are dropped and checked again.
const MAX_KNOWN_OWNERS: usize = 10_000;

/// How tokens of an identity provider are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer's address, as in its tokens. If `None`, no tokens are accepted.
    pub issuer: Option<String>,
    /// The audience that a token must be for.
    pub audience: String,
    /// The claim that names the owner.
    pub owner_claim: String,
    /// The claim that names the org.
    pub org_claim: String,
    /// The claim that names the role, as a text or a list.
    pub role_claim: String,
    /// The role of a token without that claim.
    pub default_role: AccessRole,
    /// Milliseconds by which the clocks of issuer and server may differ.
    pub skew_ms: u64,
    /// The file with the certificates that are trusted for the issuer instead of those of the system, as PEM.
    pub ca: Option<PathBuf>,
    /// The id of this server at the issuer. If `None`, browsers do not sign in at the issuer.
    pub client_id: Option<String>,
    /// The file with the secret of that client, for issuers that demand one.
    pub client_secret_file: Option<PathBuf>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            issuer: None,
            audience: "mainspring".into(),
            owner_claim: "sub".into(),
            org_claim: "org".into(),
            role_claim: "role".into(),
            default_role: AccessRole::Member,
            skew_ms: 60_000,
            ca: None,
            client_id: None,
            client_secret_file: None,
        }
    }
}

/// Accepts tokens of one issuer.
#[derive(Debug)]
pub struct Oidc {
    config: OidcConfig,
    issuer: Issuer,
    client_secret: Option<browser::ClientSecret>,
    /// Pairs of owner and org that were found to belong together.
    owners: Mutex<HashSet<(String, Option<String>)>>,
}

/// Why a token is not accepted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The token is not valid, for this reason.
    Invalid(String),
    /// The token cannot be checked now.
    Unchecked(String),
    /// The kernel refused the owner of the token, or could not check the owner.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn invalid<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Invalid(reason.into()))
}

impl Oidc {
    /// Accepts tokens as `config` says; `None` if it names no issuer. An error says why `config` cannot be used.
    pub fn new(config: OidcConfig) -> Result<Option<Self>, String> {
        let Some(issuer) = &config.issuer else { return Ok(None) };
        let issuer = Issuer::new(issuer, config.ca.as_deref())?;
        let client_secret =
            config.client_secret_file.as_deref().map(browser::ClientSecret::read).transpose()?;
        Ok(Some(Self { config, issuer, client_secret, owners: Mutex::default() }))
    }

    /// True for a text that has the form of a token. API keys and the tokens of agents have no dots.
    pub(crate) fn is_token(bearer: &str) -> bool {
        bearer.contains('.')
    }

    /// Verifies a token and returns its caller.
    pub(crate) async fn caller(&self, kernel: &Kernel, bearer: &str) -> Result<Caller, Refusal> {
        let (claims, ends) = self.verified(kernel, bearer).await?;
        self.caller_of(kernel, &claims, ends).await
    }

    /// Returns the claims of a valid token and its expiry.
    async fn verified(&self, kernel: &Kernel, bearer: &str) -> Result<(Map<String, Value>, Time), Refusal> {
        let token = Token::parse(bearer).map_err(Refusal::Invalid)?;
        let keys = self.issuer.keys_for(&token, kernel).await?;
        if !keys.iter().any(|key| token.is_signed_by(key)) {
            return invalid("its signature is not one of the issuer");
        }
        let claims = token.claims().map_err(Refusal::Invalid)?;
        let ends = self.check_claims(&claims, kernel.now())?;
        Ok((claims, ends))
    }

    async fn caller_of(
        &self,
        kernel: &Kernel,
        claims: &Map<String, Value>,
        ends: Time,
    ) -> Result<Caller, Refusal> {
        let (owner, org, role) = self.identity(claims)?;
        if kernel.is_own_owner(&owner) {
            let text = format!("the owner {owner:?} is the server's own, and no token acts for it");
            return Err(Error::Forbidden(text).into());
        }
        self.check_owner(kernel, &owner, org.as_deref()).await?;
        Ok(Caller { org, role, folders: Some(vec![]), token_ends: Some(ends), ..Caller::new(owner) })
    }

    /// Checks issuer, audience and times. Returns the token's expiry.
    fn check_claims(&self, claims: &Map<String, Value>, now: Time) -> Result<Time, Refusal> {
        if claims.get("iss").and_then(Value::as_str) != self.config.issuer.as_deref() {
            return invalid("it is from another issuer");
        }
        // A browser's token is issued for the client with which it signed in.
        let own = [Some(self.config.audience.as_str()), self.config.client_id.as_deref()];
        let is_ours = |audience: &Value| audience.is_string() && own.contains(&audience.as_str());
        let for_us = match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if !for_us {
            return invalid(format!("it is not for the audience {:?}", self.config.audience));
        }
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|at| at.abs() < 1e11) {
                Some(seconds) => Ok(Some(Time((seconds * 1_000.0) as i64))),
                None => invalid(format!("its claim {name} is not a time")),
            },
        };
        let skew = self.config.skew_ms;
        let Some(end) = time("exp")? else { return invalid("it does not say when it expires") };
        let end = end.plus(skew);
        if now >= end {
            return invalid("it has expired");
        }
        for begin in [time("nbf")?, time("iat")?].into_iter().flatten() {
            if now.plus(skew) < begin {
                return invalid("it is not valid yet");
            }
        }
        Ok(end)
    }

    /// The owner, org and role that the claims name.
    fn identity(&self, claims: &Map<String, Value>) -> Result<(String, Option<String>, AccessRole), Refusal> {
        let OidcConfig { owner_claim, org_claim, role_claim, .. } = &self.config;
        let Some(Value::String(owner)) = claim(claims, owner_claim) else {
            return invalid(format!("its claim {owner_claim} names no owner"));
        };
        let org = match claim(claims, org_claim) {
            None | Some(Value::Null) => None,
            Some(Value::String(org)) => Some(org.clone()),
            Some(_) => return invalid(format!("its claim {org_claim} is not one org")),
        };
        let role = role_of(claim(claims, role_claim), self.config.default_role);
        // Only the operator is an admin of the whole server.
        let role = if role == AccessRole::Admin && org.is_none() { AccessRole::Member } else { role };
        Ok((owner.clone(), org, role))
    }

    /// Claims the owner for the org when the owner's first token arrives. Refuses an owner that belongs to another org.
    async fn check_owner(&self, kernel: &Kernel, owner: &str, org: Option<&str>) -> Result<(), Refusal> {
        let pair = (owner.to_owned(), org.map(str::to_owned));
        if self.owners.lock().contains(&pair) {
            return Ok(());
        }
        kernel.check_owner_name(owner).await?;
        kernel.check_org_name(org).await?;
        kernel.owner_claim(owner, org).await?;
        let mut owners = self.owners.lock();
        if owners.len() >= MAX_KNOWN_OWNERS {
            owners.clear();
        }
        owners.insert(pair);
        Ok(())
    }
}

/// Finds a claim by its name, or by the path to it, such as `realm_access.roles`.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(found) = claims.get(name) {
        return Some(found);
    }
    let (first, rest) = name.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, part| value.get(part))
}

/// The highest role that a claim names; a viewer if it names none of ours.
fn role_of(claim: Option<&Value>, default: AccessRole) -> AccessRole {
    let names: Vec<&str> = match claim {
        None | Some(Value::Null) => return default,
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        Some(one) => one.as_str().into_iter().collect(),
    };
    let has = |role: &AccessRole| names.contains(&role.name());
    let roles = [AccessRole::Admin, AccessRole::Member, AccessRole::Viewer];
    roles.into_iter().find(has).unwrap_or(AccessRole::Viewer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_come_from_a_text_or_a_list_and_an_unknown_role_is_a_viewer() {
        let role = |claim: Value| role_of(Some(&claim), AccessRole::Member);
        assert_eq!(role_of(None, AccessRole::Member), AccessRole::Member);
        assert_eq!(role(json!("admin")), AccessRole::Admin);
        assert_eq!(role(json!(["x", "viewer", "member"])), AccessRole::Member);
        assert_eq!(role(json!("root")), AccessRole::Viewer);
        assert_eq!(role(json!(7)), AccessRole::Viewer);
        assert_eq!(role(json!([])), AccessRole::Viewer);
    }

    #[test]
    fn a_claim_is_found_by_name_or_by_path() {
        let claims = json!({"a.b": 1, "realm_access": {"roles": ["admin"]}});
        let claims = claims.as_object().unwrap();
        assert_eq!(claim(claims, "a.b"), Some(&json!(1)));
        assert_eq!(claim(claims, "realm_access.roles"), Some(&json!(["admin"])));
        assert_eq!(claim(claims, "realm_access.none.deep"), None);
    }
}
