//! Permits that all servers share: each server writes its demand into the row of its lease, and the leader grants it a
//! block of permits there, by the rules of `core::permits`.
//!
//! Invariant: a server uses a larger block only after its row says that the server holds it.

use std::sync::atomic::{AtomicI64, Ordering};

use mainspring_core::permits::{Block, Demand, PermitPool, grant};
use tokio_postgres::{Client, Error, Row};

use super::lease::LocalServer;
use super::values::{int, typed};
use super::writer::Shared;

/// The columns of each pool: the permits that are granted, and those that are held.
const COLUMNS: [[&str; 2]; 2] =
    [["workers_granted", "workers_held"], ["in_process_granted", "in_process_held"]];

/// Returns a server's demand for permits of a pool, and the number of permits that it has.
type Demands = Box<dyn Fn(PermitPool) -> (Demand, usize) + Send + Sync>;
/// Sets the number of a server's permits of a pool.
type Resize = Box<dyn Fn(PermitPool, usize) + Send + Sync>;

/// This server's block of the permits that all servers share, exchanged with the leader through the database.
pub struct SharedPermits {
    limits: [Option<usize>; 2],
    demand: Demands,
    resize: Resize,
    /// The number of the last exchange: an exchange that arrives late must not undo a newer one.
    exchanges: AtomicI64,
}

impl SharedPermits {
    /// Shares the pools that have a limit; `limits` is indexed by [`PermitPool`]. `demand` returns what the
    /// server needs and has; `resize` sets the number of its permits.
    pub fn new(
        limits: [Option<usize>; 2],
        demand: impl Fn(PermitPool) -> (Demand, usize) + Send + Sync + 'static,
        resize: impl Fn(PermitPool, usize) + Send + Sync + 'static,
    ) -> Self {
        Self { limits, demand: Box::new(demand), resize: Box::new(resize), exchanges: AtomicI64::new(0) }
    }

    /// Records the server's demand and the permits that it holds, and applies what the leader has granted.
    pub(super) async fn exchange(&self, client: &Client, local: &LocalServer) -> Result<(), Error> {
        let needs = PermitPool::ALL.map(|pool| match self.limits[pool as usize] {
            Some(_) => (self.demand)(pool),
            None => (Demand::default(), 0),
        });
        let demand = serde_json::to_string(&needs.each_ref().map(|(demand, _)| demand)).unwrap_or_default();
        let [workers, in_process] = needs.map(|(_, size)| int(size as u64));
        let sql = "UPDATE node_leases SET permits_no = $2, demand = $3,
                     workers_held = greatest(workers_granted, $4), in_process_held = greatest(in_process_granted, $5)
                   WHERE node_id = $1 AND permits_no < $2 RETURNING workers_granted, in_process_granted";
        let no = self.exchanges.fetch_add(1, Ordering::AcqRel) + 1;
        let node = local.node.as_bytes().as_slice();
        let params = typed(&[&node, &no, &demand, &workers, &in_process]);
        let Some(row) = client.query_typed(sql, &params).await?.into_iter().next() else { return Ok(()) };
        for pool in PermitPool::ALL {
            if self.limits[pool as usize].is_some() {
                (self.resize)(pool, count(&row, pool as usize)?);
            }
        }
        Ok(())
    }

    /// Divides the permits among the servers. Only the leader calls this.
    pub(super) async fn divide(&self, client: &Client, shared: &Shared) -> Result<(), Error> {
        client.batch_execute(&shared.begin()).await?;
        let divided = self.divide_in_transaction(client).await;
        let end = if divided.is_ok() { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(end).await?;
        divided
    }

    async fn divide_in_transaction(&self, client: &Client) -> Result<(), Error> {
        let sql = "SELECT node_id, clock_timestamp() < expires_at, demand, workers_granted, workers_held,
                     in_process_granted, in_process_held FROM node_leases ORDER BY node_id FOR NO KEY UPDATE";
        let rows = client.query_typed(sql, &[]).await?;
        for pool in PermitPool::ALL {
            let Some(limit) = self.limits[pool as usize] else { continue };
            let blocks = rows.iter().map(|row| block(row, pool)).collect::<Result<Vec<_>, _>>()?;
            for ((row, block), granted) in rows.iter().zip(&blocks).zip(grant(limit, &blocks)) {
                if block.granted != granted {
                    let [column, _] = COLUMNS[pool as usize];
                    let sql = format!("UPDATE node_leases SET {column} = $2 WHERE node_id = $1");
                    let (node, granted): (&[u8], _) = (row.try_get(0)?, int(granted as u64));
                    client.execute_typed(&sql, &typed(&[&node, &granted])).await?;
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for SharedPermits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedPermits").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn count(row: &Row, column: usize) -> Result<usize, Error> {
    Ok(usize::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
}

/// Reads the block of a server. A server that cannot act any more needs nothing, but holds its permits until it is
/// removed.
fn block(row: &Row, pool: PermitPool) -> Result<Block, Error> {
    let can_act: bool = row.try_get(1)?;
    let demand: Vec<Demand> = serde_json::from_str(row.try_get(2)?).unwrap_or_default();
    let demand = demand.into_iter().nth(pool as usize).filter(|_| can_act).unwrap_or_default();
    let first = 3 + 2 * pool as usize;
    Ok(Block { demand, granted: count(row, first)?, held: count(row, first + 1)? })
}
