//! Limits of owners over all processes that share a store: a process holds a block of each limit that it needs
//! (`core/src/quota.rs`).
//!
//! ```text
//!      a run or a prompt needs more     take: as much as the others leave
//! block ──────────────────────────────────────────────────────────────────▶ larger block
//!   ▲                                                                           │
//!   └──────── others want more, or nobody here has used it for a minute ────────┘
//! ```
//!
//! A block of active runs that is large enough costs nothing. A process records a smaller block after it has reduced its
//! use, and a larger block before it uses more. A block ends with the lease of its process.
//!
//! Invariant: the sum of the blocks of all processes is at most the limit, except for queued prompts that came to a process
//! with their sessions.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mainspring_core::Resource;
use mainspring_core::quota::{OwnerPool, kept_block};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::Error;
use crate::kernel::Shared;
use crate::store::OwnerBlock;
use crate::tasks::Tasks;

/// Time between two exchanges with the other processes.
const POLL_MS: u64 = 250;
/// Exchanges after which an unused block is given up.
const IDLE_POLLS: u32 = 240;

/// The blocks of this process.
#[derive(Debug, Default)]
pub(crate) struct OwnerBlocks {
    held: Mutex<HashMap<(OwnerPool, String), Held>>,
    /// Changes of blocks happen one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Notified when a run needs a larger block.
    wanted: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    size: usize,
    /// Exchanges since the block was used.
    idle_polls: u32,
}

impl OwnerBlocks {
    fn size(&self, pool: OwnerPool, owner: &str) -> usize {
        self.held.lock().get(&(pool, owner.to_owned())).map_or(0, |held| held.size)
    }

    fn set(&self, pool: OwnerPool, owner: &str, size: usize) {
        let mut held = self.held.lock();
        held.entry((pool, owner.to_owned())).or_default().size = size;
    }
}

impl Shared {
    /// True if the limit of an owner holds over all processes.
    fn shares_limits(&self) -> bool {
        self.options.homes.is_some() && self.owner_limits.has_run_limits()
    }

    /// Asks for a larger block for a run of `owner` that waits.
    pub(crate) fn block_want(&self, owner: &str) {
        if self.shares_limits() && self.limit(OwnerPool::ActiveRuns, owner) > 0 {
            self.owner_blocks.wanted.notify_one();
        }
    }

    fn limit(&self, pool: OwnerPool, owner: &str) -> usize {
        let quotas = self.owner_limits.of(owner);
        match pool {
            OwnerPool::ActiveRuns => quotas.active_runs,
            OwnerPool::QueuedPrompts => quotas.queued_prompts,
        }
    }

    /// How much of a limit an owner uses in this process, and how much it would use without the limit.
    fn use_of(&self, pool: OwnerPool, owner: &str) -> (usize, usize) {
        match pool {
            OwnerPool::ActiveRuns => self.scheduler.use_of(owner),
            OwnerPool::QueuedPrompts => {
                let queued = self.queued_of(owner);
                (queued, queued)
            }
        }
    }

    /// Makes the block of an owner large enough for one more active run, if the other processes leave room. Returns true if
    /// it is large enough.
    pub(crate) async fn block_grow(&self, owner: &str) -> Result<bool, Error> {
        let pool = OwnerPool::ActiveRuns;
        self.block_reach(pool, owner, self.use_of(pool, owner).0 + 1).await
    }

    /// Makes the block of an owner at least as large as `needed`, if the other processes leave room. Returns true if it is
    /// large enough.
    async fn block_reach(&self, pool: OwnerPool, owner: &str, needed: usize) -> Result<bool, Error> {
        let limit = self.limit(pool, owner);
        if !self.shares_limits() || limit == 0 || needed <= self.owner_blocks.size(pool, owner) {
            return Ok(true);
        }
        let _changing = self.owner_blocks.changing.lock().await;
        // Another prompt of the owner may have made it larger meanwhile.
        let wanted = needed.max(self.owner_blocks.size(pool, owner));
        Ok(needed <= self.block_take(pool, owner, limit, wanted).await?)
    }

    /// Refuses a queued run of `owner` if the owner has reached its quota, summed over all processes. `place` is the number
    /// of the owner's queued runs in this process, including this one.
    pub(crate) async fn check_queue_of_all(&self, owner: &str, place: usize) -> Result<(), Error> {
        let (pool, resource) = (OwnerPool::QueuedPrompts, Resource::QueuedPrompts);
        if self.block_reach(pool, owner, place).await? {
            return Ok(());
        }
        self.meters.refused(resource);
        Err(Error::QuotaReached { resource, limit: self.limit(pool, owner) as u64 })
    }

    /// Enlarges the block of an owner up to `wanted`, as far as the other processes leave room. Returns its size.
    async fn block_take(
        &self,
        pool: OwnerPool,
        owner: &str,
        limit: usize,
        wanted: usize,
    ) -> Result<usize, Error> {
        let size = self.store.owner_block_take(pool, owner, limit, wanted.min(limit)).await?;
        self.owner_blocks.set(pool, owner, size);
        if pool == OwnerPool::ActiveRuns {
            self.scheduler.set_block(owner, size);
        }
        Ok(size)
    }

    /// Takes larger blocks for the runs that wait, as far as the other processes leave room. The store records what is missing.
    async fn blocks_take(&self) -> Result<(), Error> {
        let pool = OwnerPool::ActiveRuns;
        let _changing = self.owner_blocks.changing.lock().await;
        for owner in self.scheduler.owners_that_wait() {
            let (limit, (_, wanted)) = (self.limit(pool, &owner), self.use_of(pool, &owner));
            if wanted.min(limit) > self.owner_blocks.size(pool, &owner) {
                self.block_take(pool, &owner, limit, wanted).await?;
            }
        }
        Ok(())
    }

    /// Gives up the parts of blocks that other processes want, and blocks that have been unused for long.
    async fn blocks_give_up(&self) -> Result<(), Error> {
        let _changing = self.owner_blocks.changing.lock().await;
        let known: Vec<(OwnerPool, String)> = self.owner_blocks.held.lock().keys().cloned().collect();
        if known.is_empty() {
            return Ok(());
        }
        let others = self.store.owner_blocks_wanted(&known).await?;
        let mut now = vec![];
        for (pool, owner) in known {
            let (used, wanted) = self.use_of(pool, &owner);
            let wanting = others.get(&(pool, owner.clone())).copied().unwrap_or_default();
            let held = self.owner_blocks.size(pool, &owner);
            // The use is reduced before the smaller block is recorded.
            let size = match pool {
                OwnerPool::ActiveRuns => {
                    let kept = match self.is_idle_for_long(pool, &owner, wanted) {
                        true => 0,
                        false => kept_block(self.limit(pool, &owner), held, (used, wanted), wanting),
                    };
                    self.scheduler.set_block(&owner, kept).max(kept)
                }
                OwnerPool::QueuedPrompts => used,
            };
            self.owner_blocks.set(pool, &owner, size);
            now.push(OwnerBlock { wanted: wanted.min(self.limit(pool, &owner)), held: size, pool, owner });
        }
        self.store.owner_blocks_write(&now).await?;
        let mut held = self.owner_blocks.held.lock();
        let is_gone = |block: &OwnerBlock| block.held == 0 && block.wanted == 0;
        for block in now.into_iter().filter(is_gone) {
            held.remove(&(block.pool, block.owner));
        }
        Ok(())
    }

    /// Counts an exchange if the block is unused. Returns true if the block was unused for so long that it is given up.
    fn is_idle_for_long(&self, pool: OwnerPool, owner: &str, wanted: usize) -> bool {
        let mut held = self.owner_blocks.held.lock();
        let Some(known) = held.get_mut(&(pool, owner.to_owned())) else { return false };
        known.idle_polls = if wanted > 0 { 0 } else { known.idle_polls + 1 };
        known.idle_polls > IDLE_POLLS
    }
}

/// Exchanges blocks with the other processes until the kernel stops.
pub(crate) async fn keep(shared: Weak<Shared>, blocks: Arc<OwnerBlocks>, clock: Clock, tasks: Tasks) {
    loop {
        let is_due = tokio::select! {
            () = tasks.stopping() => return,
            () = blocks.wanted.notified() => false,
            () = clock.sleep_for(POLL_MS) => true,
        };
        let Some(now) = shared.upgrade() else { return };
        let exchanged = async {
            if is_due {
                now.blocks_give_up().await?;
            }
            now.blocks_take().await
        };
        if let Err(error) = exchanged.await {
            tracing::warn!(%error, "the limits of owners are not exchanged with the other servers");
        }
    }
}
