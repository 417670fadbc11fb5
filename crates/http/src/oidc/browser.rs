//! Sign-in of browsers at an identity provider: authorization code with PKCE.
//!
//! ```text
//! page ──verifier's hash, state, nonce──▶ issuer: the person signs in ──code, state──▶ page
//! page ──code, verifier, nonce──▶ POST /v1/sign-in/oidc ──code, verifier──▶ issuer ──ID token──▶ page
//! ```
//!
//! The page keeps verifier, state and nonce, so the server stores nothing about a sign-in that has begun. A stolen code
//! is useless without its verifier, and the page refuses an answer whose state it has not created.

use std::fmt;
use std::path::Path;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use mainspring_api::{OidcAnswer, OidcSignIn, OidcToken, SignInWays};
use mainspring_core::Time;
use mainspring_kernel::Kernel;
use mainspring_kernel::kernel::Caller;
use reqwest::Url;

use super::{Oidc, Refusal, invalid};
use crate::access::refused_token;
use crate::audit::RequestCaller;
use crate::body::{Json, JsonObject};
use crate::{Http, Problem, sign_in};

/// Longest secret of a client.
const MAX_SECRET_BYTES: usize = 4 << 10;

/// The secret of this server at an issuer. Its `Debug` form hides it.
pub(super) struct ClientSecret(String);

impl fmt::Debug for ClientSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClientSecret")
    }
}

impl ClientSecret {
    /// Reads the file that `oidc.client_secret_file` names.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let failed = |reason: String| format!("oidc.client_secret_file: {} {reason}", path.display());
        let text =
            std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
        match text.trim() {
            secret if secret.is_empty() || secret.len() > MAX_SECRET_BYTES => {
                Err(failed("must hold the secret of the client and nothing else".into()))
            }
            secret => Ok(Self(secret.to_owned())),
        }
    }
}

impl Oidc {
    /// How browsers sign in at the issuer; `None` if they do not.
    async fn way(&self, kernel: &Kernel) -> Option<OidcSignIn> {
        let client_id = self.config.client_id.clone()?;
        let endpoints = self.issuer.endpoints(kernel).await.ok();
        let authorization_endpoint = endpoints.map(|endpoints| endpoints.authorization);
        Some(OidcSignIn { issuer: self.config.issuer.clone()?, client_id, authorization_endpoint })
    }

    /// Exchanges an authorization code for a token, and checks the token. Returns the token, its caller and its expiry.
    async fn exchange(
        &self,
        kernel: &Kernel,
        answer: &OidcAnswer,
        origin: &str,
    ) -> Result<(String, Caller, Time), Refusal> {
        let Some(client_id) = self.config.client_id.as_deref() else {
            return invalid("browsers do not sign in at the issuer: oidc.client_id is not set");
        };
        let endpoint = self.issuer.endpoints(kernel).await?.token;
        let redirect = format!("{origin}/");
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", &answer.code),
            ("redirect_uri", &redirect),
            ("client_id", client_id),
            ("code_verifier", &answer.verifier),
        ];
        fields.extend(self.client_secret.as_ref().map(|secret| ("client_secret", secret.0.as_str())));
        let tokens = self.issuer.exchange(&endpoint, form(&fields)).await?;
        let Some(token) = tokens["id_token"].as_str() else {
            return invalid("the issuer answers without an ID token");
        };
        let (claims, ends) = self.verified(kernel, token).await?;
        if claims.get("nonce").and_then(|nonce| nonce.as_str()) != Some(&answer.nonce) {
            return invalid("it answers another sign-in");
        }
        let caller = self.caller_of(kernel, &claims, ends).await?;
        Ok((token.to_owned(), caller, ends))
    }
}

/// Encodes fields as a form.
fn form(fields: &[(&str, &str)]) -> String {
    // Only the query is used.
    let form = Url::parse_with_params("form:", fields);
    form.ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

/// Returns the ways in which a browser signs in besides keys and tickets
#[utoipa::path(
    get, path = "/v1/sign-in", security(()),
    responses((status = 200, description = "The ways", body = SignInWays)),
    extensions(("x-problems" = json!(["invalid_request"]))),
)]
pub(crate) async fn sign_in_ways(State(http): State<Http>) -> Json<SignInWays> {
    let oidc = match http.oidc.as_deref() {
        Some(oidc) => oidc.way(&http.kernel).await,
        None => None,
    };
    Json(SignInWays { oidc })
}

/// Exchanges the answer of an identity provider for a token with which the browser is signed in
#[utoipa::path(
    post, path = "/v1/sign-in/oidc", request_body = OidcAnswer,
    responses((status = 200, description = "The token", body = OidcToken)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(crate) async fn sign_in_exchange(
    State(http): State<Http>,
    known: Option<Extension<RequestCaller>>,
    headers: HeaderMap,
    JsonObject(answer): JsonObject<OidcAnswer>,
) -> Result<Json<OidcToken>, Problem> {
    let refused = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail);
    let origin = sign_in::own_origin(&http, &headers)
        .ok_or_else(|| refused("a browser signs in through the page of this server, with its Origin"))?;
    let oidc = http
        .oidc
        .as_deref()
        .ok_or_else(|| refused("this server has no identity provider: sign in with a key"))?;
    let exchanged = oidc.exchange(&http.kernel, &answer, origin).await;
    let (token, caller, expires_at) = exchanged.map_err(refused_token)?;
    if let Some(Extension(known)) = known {
        known.set(&caller);
    }
    Ok(Json(OidcToken { token, expires_at }))
}
