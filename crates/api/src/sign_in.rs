//! The caller of a request, and how a browser signs in: with a ticket, or at an identity provider.

use mainspring_core::{AccessRole, KeyId, Time};
use serde::{Deserialize, Serialize};

/// The caller of this request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// The owner that the caller acts for.
    pub owner_id: String,
    /// The org of the caller; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
    /// The operations that the caller may use.
    pub role: AccessRole,
    /// The key of the request; absent if it was sent with the token of the state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
}

/// A one-time ticket: whoever redeems it in a browser signs in as its creator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// The ticket. The page reads it from the fragment of its address, `/#ticket=TICKET`.
    pub ticket: String,
    /// Milliseconds until the ticket expires.
    pub expires_in_ms: u64,
}

/// A ticket to redeem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TicketRedemption {
    /// The ticket.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub ticket: String,
}

/// The page's half of a sign-in; the other half is the cookie of the same response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct PageSecret {
    /// The secret that the page sends as the header `Mainspring-Page`.
    pub secret: String,
}

/// The ways in which a browser signs in besides keys and tickets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SignInWays {
    /// The identity provider. Absent if the server has none for browsers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcSignIn>,
}

/// An identity provider at which people sign in: OpenID Connect, authorization code with PKCE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OidcSignIn {
    /// The issuer.
    pub issuer: String,
    /// The id of this server at the issuer.
    pub client_id: String,
    /// The address at which people sign in. Absent while the issuer does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_endpoint: Option<String>,
}

/// The answer of an identity provider to a browser. The redirect address of the sign-in must be the Origin of this
/// request followed by a slash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OidcAnswer {
    /// The authorization code.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 4096))]
    pub code: String,
    /// The code verifier whose hash the browser has sent to the identity provider.
    #[cfg_attr(feature = "schema", schema(min_length = 43, max_length = 128))]
    pub verifier: String,
    /// The nonce that the browser has sent to the identity provider.
    #[cfg_attr(feature = "schema", schema(min_length = 16, max_length = 256))]
    pub nonce: String,
}

/// A token of an identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OidcToken {
    /// The token, which the browser sends as its bearer token.
    pub token: String,
    /// When the token expires.
    #[serde(rename = "expiresAtMs")]
    pub expires_at: Time,
}
