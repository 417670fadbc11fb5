//! Idempotency: the same request under the same key gets the same answer, for 24 hours.

use serde::Serialize;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::Request;

impl Kernel {
    /// Returns the answer to an earlier `wanted`, if it is kept. Another request under the same key is a conflict.
    pub(super) async fn request_known(&self, wanted: &Request) -> Result<Option<String>, Error> {
        let Request { owner, operation, key, .. } = wanted;
        let known = self.shared.store.request_get(owner, operation, key).await?;
        match known.filter(|known| known.at >= Request::oldest_kept(wanted.at)) {
            None => Ok(None),
            Some(known) if known.fingerprint == wanted.fingerprint => Ok(Some(known.answer)),
            Some(_) => Err(Error::RequestConflict { name: named(key) }),
        }
    }

    /// What `caller` asks now under `key`, to be answered with the id of what is made.
    pub(super) fn request_of(
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

/// How an idempotency key is spoken of.
pub(super) fn named(key: &str) -> String {
    format!("the idempotency key {key:?}")
}

/// The hash of what is asked, so that the same name with another body is seen.
pub(super) fn fingerprint(asked: &impl Serialize) -> [u8; 16] {
    let json = serde_json::to_vec(asked).unwrap_or_default();
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(&json).as_bytes()[..16]);
    hash
}
