//! Authentication: which caller a request comes from.

use std::pin::Pin;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use mainspring_api::header_name;
use mainspring_core::AccessRole;
use mainspring_core::limits::check_text;
use mainspring_kernel::kernel::{Caller, Secret};
use mainspring_kernel::{Error, Kernel};
use subtle::ConstantTimeEq;

use crate::audit::RequestCaller;
use crate::oidc::Refusal;
use crate::{Http, Oidc, Problem, sign_in};

/// Authenticates callers: the state directory's token acts for any owner, an API key and an agent's token for
/// their own owner.
pub struct Access {
    token: [u8; 32],
    owner: String,
}

impl Access {
    /// Accepts `token`, which acts for `owner` unless the request names another. Only the token's hash is kept.
    pub fn new(token: &str, owner: impl Into<String>) -> Self {
        Self { token: *blake3::hash(token.as_bytes()).as_bytes(), owner: owner.into() }
    }

    /// Returns the caller that `bearer` authenticates, acting for `owner` if named; `None` if the token is not valid.
    async fn caller(
        &self,
        kernel: &Kernel,
        bearer: &str,
        owner: Option<&str>,
    ) -> Result<Option<Caller>, Error> {
        // Compares hashes in constant time, so timing reveals neither the length nor the content of the token.
        let hash = blake3::hash(bearer.as_bytes());
        if hash.as_bytes().ct_eq(&self.token).into() {
            // The token is in the state directory, and reading that gives access to all sessions anyway.
            let owner = owner.unwrap_or(&self.owner);
            kernel.check_owner_name(owner).await?;
            let caller = Caller::new(owner);
            return Ok(Some(caller.with_role(AccessRole::Admin)));
        }
        let caller = match bearer.starts_with(Secret::PREFIX) {
            true => kernel.caller_by_secret(bearer).await?,
            false => kernel.caller_by_agent_token(bearer)?,
        };
        caller.map_or(Ok(None), |caller| acting_for(caller, owner).map(Some))
    }
}

/// Refuses a caller that acts for another owner than the request names.
fn acting_for(caller: Caller, owner: Option<&str>) -> Result<Caller, Error> {
    match owner {
        Some(owner) if caller.owner != owner => Err(Error::not_found("owner", owner)),
        _ => Ok(caller),
    }
}

/// Returns the caller of a token that an identity provider has issued.
async fn caller_by_token(
    http: &Http,
    oidc: &Oidc,
    bearer: &str,
    owner: Option<&str>,
) -> Result<Caller, Problem> {
    let caller = oidc.caller(&http.kernel, bearer).await.map_err(refused_token)?;
    Ok(acting_for(caller, owner)?)
}

/// The problem of a token that is not accepted.
pub(super) fn refused_token(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Invalid(reason) => {
            let detail = format!("the token is not accepted: {reason}; get a new one from its issuer");
            Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail)
        }
        Refusal::Unchecked(reason) => {
            Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
        }
        Refusal::Failed(error) => error.into(),
    }
}

/// Extracts the caller; rejects a request without a valid token or key.
pub(super) struct Authenticated(pub(super) Caller);

impl FromRequestParts<Http> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        // Middleware authenticates a request before its handler does.
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(Self(caller.clone()));
        }
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, bearer)| bearer.trim().to_owned());
        let bearer = match bearer {
            Some(bearer) => Some(bearer),
            None => sign_in::page_key(http, &parts.method, &parts.headers)?,
        };
        let caller = match bearer {
            Some(bearer) => {
                let owner = owner_of(&parts.headers)?;
                match http.oidc.as_deref().filter(|_| Oidc::is_token(&bearer)) {
                    Some(oidc) => Some(caller_by_token(http, oidc, &bearer, owner).await?),
                    None => http.access.caller(&http.kernel, &bearer, owner).await?,
                }
            }
            None => None,
        };
        let Some(caller) = caller else {
            let detail = "send a valid key, or the token of the state directory: Authorization: Bearer KEY";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail));
        };
        if let Some(known) = parts.extensions.get::<RequestCaller>() {
            known.set(&caller);
        }
        if let Some(audit) = http.kernel.audit() {
            audit.sign_in(&caller, parts.extensions.get().copied());
        }
        Ok(Self(caller))
    }
}

/// Resolves when the key or the identity provider's token that opened a stream ends; never for the state
/// directory's token.
pub(super) type KeyEnded = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) fn key_ended(http: &Http, caller: &Caller) -> KeyEnded {
    let (kernel, caller) = (http.kernel.clone(), caller.clone());
    Box::pin(async move { kernel.key_ended(&caller).await })
}

/// Reads the owner that the request names.
fn owner_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(header_name::OWNER) else {
        return Ok(None);
    };
    let owner = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Problem::invalid("the header Mainspring-Owner must be UTF-8"))?;
    check_text("the owner that Mainspring-Owner names", owner).map_err(Error::from)?;
    Ok(Some(owner))
}
