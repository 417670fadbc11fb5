//! API keys.

use mainspring_api::{KeyListQuery, MadeKey, NewKey, Page};
use mainspring_core::{ApiKey, KeyId};

use super::Client;
use crate::Error;

impl Client {
    /// Creates a key. Only this response contains its secret. A repeated request with the same idempotency key creates no
    /// second key.
    pub async fn key_create(&self, new: &NewKey, idempotency_key: Option<&str>) -> Result<MadeKey, Error> {
        self.post_idempotent(&["v1", "keys"], new, idempotency_key).await
    }

    /// Lists the keys that the caller may manage, the newest first.
    pub async fn key_list(&self, query: &KeyListQuery) -> Result<Page<ApiKey>, Error> {
        self.get(&["v1", "keys"], query).await
    }

    /// Revokes a key.
    pub async fn key_revoke(&self, key: KeyId) -> Result<(), Error> {
        self.delete(&["v1", "keys", &key.to_string()]).await
    }
}
