//! Finding ids by their beginning.

use mainspring_api::{FoundIds, IdQuery};

use super::Client;
use crate::Error;

impl Client {
    /// Finds ids by their beginning, among the objects that the caller may read.
    pub async fn id_find(&self, query: &IdQuery) -> Result<FoundIds, Error> {
        self.get(&["v1", "ids"], query).await
    }
}
