//! Claims on the bytes of artifacts, among processes that share a store.

use mainspring_core::ArtifactId;

/// A claim of a process on the bytes of a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobClaim {
    /// The id of the claim: that of the new artifact, or a new one.
    pub id: ArtifactId,
    /// Hash of the bytes, in hexadecimal.
    pub hash: String,
    /// The purpose of the claim.
    pub purpose: BlobPurpose,
}

/// The purpose of a claim on bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobPurpose {
    /// Storing the bytes and committing an artifact. Several such claims may exist.
    Store,
    /// Removing the bytes. No other claim exists.
    Remove,
}
