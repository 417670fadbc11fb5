//! Access: who a request comes from.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use mainspring_kernel::kernel::Caller;
use subtle::ConstantTimeEq;

use super::{Http, Problem};

/// Whom the edge lets in: whoever holds the state directory's token acts for its owner.
pub struct Access {
    token: [u8; 32],
    owner: String,
}

impl Access {
    /// Lets in who holds `token`, for `owner`. Only its hash is kept.
    pub fn new(token: &str, owner: impl Into<String>) -> Self {
        Self { token: *blake3::hash(token.as_bytes()).as_bytes(), owner: owner.into() }
    }

    fn caller(&self, token: &str) -> Option<Caller> {
        // Hashes are compared, in constant time, so neither length nor content of the token shows in the time taken.
        let hash = blake3::hash(token.as_bytes());
        let same: bool = hash.as_bytes().ct_eq(&self.token).into();
        same.then(|| Caller::new(&self.owner))
    }
}

/// Who a request comes from; a request without a valid token gets no further.
pub(super) struct Known(pub(super) Caller);

impl FromRequestParts<Http> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let caller = bearer.and_then(|(_, token)| http.access.caller(token.trim()));
        let detail = "send the token of the state directory: Authorization: Bearer TOKEN";
        caller.map(Self).ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail))
    }
}
