//! API keys.

use mainspring_api::{KeyListQuery, MadeKey, NewKey, Page};
use mainspring_core::{ApiKey, KeyId};

use super::Client;
use crate::Error;

impl Client {
    /// Creates a key. Only this response contains its secret.
    pub async fn key_create(&self, new: &NewKey) -> Result<MadeKey, Error> {
        self.post(&["v1", "keys"], new).await
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
