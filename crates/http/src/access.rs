//! Access: who a request comes from.

use std::pin::Pin;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use mainspring_core::AccessRole;
use mainspring_core::limits::check_text;
use mainspring_kernel::kernel::{Caller, Secret};
use mainspring_kernel::{Error, Kernel};
use subtle::ConstantTimeEq;

use crate::{Http, Problem};

/// Names the owner to act for.
const OWNER: &str = "mainspring-owner";

/// Whom the edge lets in: whoever holds the state directory's token, for any owner, and whoever holds a key, for its
/// own.
pub struct Access {
    token: [u8; 32],
    owner: String,
}

impl Access {
    /// Lets in who holds `token`, for `owner` unless another is named. Only its hash is kept.
    pub fn new(token: &str, owner: impl Into<String>) -> Self {
        Self { token: *blake3::hash(token.as_bytes()).as_bytes(), owner: owner.into() }
    }

    /// Who shows `bearer` and names `owner`; none if that opens nothing.
    async fn caller(
        &self,
        kernel: &Kernel,
        bearer: &str,
        owner: Option<&str>,
    ) -> Result<Option<Caller>, Error> {
        // Hashes are compared, in constant time, so neither length nor content of the token shows in the time taken.
        let hash = blake3::hash(bearer.as_bytes());
        if hash.as_bytes().ct_eq(&self.token).into() {
            // Whoever can read the state directory can read everybody's sessions there.
            let caller = Caller::new(owner.unwrap_or(&self.owner));
            return Ok(Some(caller.with_role(AccessRole::Admin)));
        }
        if !bearer.starts_with(Secret::PREFIX) {
            return Ok(None);
        }
        let caller = kernel.caller_by_secret(bearer).await?;
        match (caller, owner) {
            (Some(caller), Some(owner)) if caller.owner != owner => Err(Error::not_found("owner", owner)),
            (caller, _) => Ok(caller),
        }
    }
}

/// Who a request comes from; a request without a valid token or key gets no further.
pub(super) struct Known(pub(super) Caller);

impl FromRequestParts<Http> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let caller = match bearer {
            Some((_, bearer)) => {
                let owner = owner_of(&parts.headers)?;
                http.access.caller(&http.kernel, bearer.trim(), owner).await?
            }
            None => None,
        };
        let detail = "send a valid key, or the token of the state directory: Authorization: Bearer KEY";
        caller.map(Self).ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail))
    }
}

/// Resolves once the key that a stream was opened with opens nothing any more; never for the token.
pub(super) type KeyOver = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) fn key_over(http: &Http, caller: &Caller) -> KeyOver {
    let (kernel, caller) = (http.kernel.clone(), caller.clone());
    Box::pin(async move { kernel.key_ended(&caller).await })
}

/// The owner that the request names.
fn owner_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(OWNER) else {
        return Ok(None);
    };
    let owner = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Problem::invalid("the header Mainspring-Owner must be UTF-8"))?;
    check_text("the owner that Mainspring-Owner names", owner).map_err(Error::from)?;
    Ok(Some(owner))
}
