//! Claims on the bytes of artifacts: a server removes bytes only while no other server stores the same bytes.
//!
//! A claim is a row, and not a lock: it lasts while bytes are sent to an object store, needs no connection, and ends
//! with the lease of its server. Claims on one hash are made one after another, under an advisory lock of the
//! transaction.

use mainspring_core::{ArtifactId, NodeId};
use mainspring_kernel::store::{BlobClaim, BlobPurpose, StoreError};

use super::read::Reader;
use super::values::get_id;

/// Time between two attempts to claim bytes that another server removes.
pub(super) const CLAIM_PAUSE_MS: u64 = 100;
/// Attempts to claim bytes that another server removes. They take half a minute: usually longer than the lease of a
/// server that has ended.
pub(super) const CLAIM_ATTEMPTS: usize = 300;

/// The first number of the locks of hashes: the bytes of "msbl".
const HASH_LOCKS: i32 = 0x6d73_626c;

/// Makes a claim of the server `home`, unless a claim of any server prevents it.
pub(super) async fn claim(change: &Reader, claim: &BlobClaim, home: NodeId) -> Result<bool, StoreError> {
    let BlobClaim { id, hash, purpose } = claim;
    let lock = format!("SELECT pg_advisory_xact_lock({HASH_LOCKS}, hashtext($1))");
    change.write(&lock, &[&hash.as_str()]).await?;
    // A new statement: it sees the claims that were made while this one waited for the lock.
    let sql = "INSERT INTO blob_claims (claim_id, content_hash, removes, node_id) SELECT $1, $2, $3, $4
               WHERE NOT EXISTS (SELECT 1 FROM blob_claims WHERE content_hash = $2 AND (removes OR $3)) RETURNING 1";
    let (id, home) = (id.as_bytes().as_slice(), home.as_bytes().as_slice());
    let removes = *purpose == BlobPurpose::Remove;
    Ok(!change.write(sql, &[&id, &hash.as_str(), &removes, &home]).await?.is_empty())
}

pub(super) async fn release(change: &Reader, claim: ArtifactId) -> Result<(), StoreError> {
    let sql = "DELETE FROM blob_claims WHERE claim_id = $1";
    change.write(sql, &[&claim.as_bytes().as_slice()]).await.map(drop)
}

/// Lists the servers whose lease has not been taken over.
pub(super) async fn processes(reader: &Reader) -> Result<Vec<NodeId>, StoreError> {
    let rows = reader.rows("SELECT node_id FROM node_leases", &[]).await?;
    rows.iter().map(|row| Ok(NodeId::from_bytes(get_id(row, 0)?))).collect()
}
