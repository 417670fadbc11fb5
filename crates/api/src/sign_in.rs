//! The caller of a request, and tickets with which a browser signs in.

use mainspring_core::{AccessRole, KeyId};
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
