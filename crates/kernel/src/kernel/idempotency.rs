//! Idempotency: for 24 hours, the same request under the same key gets the same answer.

use serde::Serialize;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::Request;

impl Kernel {
    /// Finds the answer to an earlier request equal to `wanted`. Fails if the key was used for a different request.
    pub(super) async fn request_replayed(&self, wanted: &Request) -> Result<Option<String>, Error> {
        let Request { owner, operation, key, .. } = wanted;
        let known = self.shared.store.request_get(owner, operation, key).await?;
        match known.filter(|known| known.at >= Request::oldest_kept(wanted.at)) {
            None => Ok(None),
            Some(known) if known.fingerprint == wanted.fingerprint => Ok(Some(known.answer)),
            Some(_) => Err(Error::RequestConflict { name: key_name(key) }),
        }
    }

    /// Makes the record of a request under `key`. Its answer, the id of the created object, is set later.
    pub(super) fn request_new(
        &self,
        caller: &Caller,
        operation: &str,
        key: &str,
        asked: &impl Serialize,
    ) -> Result<Request, Error> {
        mainspring_core::limits::check_text("an idempotency key", key)?;
        Ok(Request {
            owner: caller.owner.clone(),
            operation: operation.into(),
            key: key.into(),
            fingerprint: fingerprint(asked),
            answer: String::new(),
            at: self.shared.clock.now(),
        })
    }
}

/// Text that names an idempotency key in an error.
pub(super) fn key_name(key: &str) -> String {
    format!("the idempotency key {key:?}")
}

/// Hash of a request's content, to detect the same name with different content.
pub(super) fn fingerprint(asked: &impl Serialize) -> [u8; 16] {
    let json = serde_json::to_vec(asked).unwrap_or_default();
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(&json).as_bytes()[..16]);
    hash
}
