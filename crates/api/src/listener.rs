//! TCP addresses of a server.

use serde::{Deserialize, Serialize};

/// A TCP address on which the server serves the API and the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// The URL of the address, for clients on the same machine.
    pub url: String,
}
