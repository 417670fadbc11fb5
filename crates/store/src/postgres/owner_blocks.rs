//! Limits of owners that hold over all servers at work: the block of each server is a row, which ends with its lease.
//!
//! Invariant: a block grows only under the lock of its owner, and by no more than the other blocks leave of the limit.

use std::collections::HashMap;

use mainspring_core::NodeId;
use mainspring_core::quota::OwnerPool;
use mainspring_kernel::store::{OwnerBlock, StoreError};

use super::read::Reader;
use super::values::{get, get_u64, int};

/// Makes the block of `home` as large as `wanted`, or as the other blocks allow. Returns its size.
pub(super) async fn take(
    change: &Reader,
    home: NodeId,
    pool: OwnerPool,
    owner: &str,
    (limit, wanted): (usize, usize),
) -> Result<usize, StoreError> {
    change.write("SELECT pg_advisory_xact_lock(hashtextextended($1, 43))", &[&owner]).await?;
    let sql = "INSERT INTO owner_blocks (owner_id, pool, node_id, held, wanted)
                 SELECT $1, $2, $3, greatest(least($5, $4 - others), 0), $5
                 FROM (SELECT coalesce(sum(held), 0)::bigint AS others FROM owner_blocks
                       WHERE owner_id = $1 AND pool = $2 AND node_id <> $3) AS o
               ON CONFLICT (owner_id, pool, node_id) DO UPDATE SET
                 held = greatest(owner_blocks.held, excluded.held), wanted = excluded.wanted
               RETURNING held";
    let (pool, node) = (pool as i64, home.as_bytes().as_slice());
    let (limit, wanted) = (int(limit as u64), int(wanted as u64));
    let rows = change.write(sql, &[&owner, &pool, &node, &limit, &wanted]).await?;
    let held = rows.first().map_or(Ok(0), |row| get_u64(row, 0))?;
    Ok(usize::try_from(held).unwrap_or(usize::MAX))
}

/// Counts the servers other than `home` that want more of these limits than they have.
pub(super) async fn wanted(
    reader: &Reader,
    home: NodeId,
    of: &[(OwnerPool, String)],
) -> Result<HashMap<(OwnerPool, String), usize>, StoreError> {
    let owners: Vec<String> = of.iter().map(|(_, owner)| owner.clone()).collect();
    let sql = "SELECT pool, owner_id, count(*) FROM owner_blocks
               WHERE owner_id = ANY ($1) AND node_id <> $2 AND wanted > held GROUP BY 1, 2";
    let rows = reader.rows(sql, &[&owners, &home.as_bytes().as_slice()]).await?;
    let mut wanting = HashMap::new();
    for row in &rows {
        let pool = match get::<i64>(row, 0)? {
            0 => OwnerPool::ActiveRuns,
            _ => OwnerPool::QueuedPrompts,
        };
        wanting.insert((pool, get(row, 1)?), usize::try_from(get_u64(row, 2)?).unwrap_or(usize::MAX));
    }
    Ok(wanting)
}

/// Records the blocks of `home`.
pub(super) async fn write(change: &Reader, home: NodeId, blocks: &[OwnerBlock]) -> Result<(), StoreError> {
    let node = home.as_bytes().as_slice();
    let owners: Vec<String> = blocks.iter().map(|block| block.owner.clone()).collect();
    let pools: Vec<i64> = blocks.iter().map(|block| block.pool as i64).collect();
    let held: Vec<i64> = blocks.iter().map(|block| int(block.held as u64)).collect();
    let wanted: Vec<i64> = blocks.iter().map(|block| int(block.wanted as u64)).collect();
    let sql = "UPDATE owner_blocks AS b SET held = n.held, wanted = n.wanted
               FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS n (owner_id, pool, held, wanted)
               WHERE b.node_id = $1 AND b.owner_id = n.owner_id AND b.pool = n.pool";
    change.write(sql, &[&node, &owners, &pools, &held, &wanted]).await?;
    let sql = "DELETE FROM owner_blocks WHERE node_id = $1 AND held = 0 AND wanted = 0";
    change.write(sql, &[&node]).await.map(drop)
}
