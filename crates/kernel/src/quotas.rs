//! Quotas of owners: their limits, and pools that are divided among them (`core/src/quota.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_core::quota::may_store;
use mainspring_core::{OwnerQuotas, PoolUse, Quotas, Resource};
use parking_lot::Mutex;

use crate::error::Error;
use crate::kernel::{Kernel, Shared};

/// The limits of all owners.
#[derive(Debug, Clone, Default)]
pub struct OwnerLimits {
    /// The owner that this process itself acts for. It need not leave room for others. Without such an owner, no owner
    /// needs to.
    own: Option<String>,
    all: Quotas,
    owners: BTreeMap<String, OwnerQuotas>,
}

impl OwnerLimits {
    /// The limits `all`, with the exceptions of `owners`, in a process that acts for `own`.
    pub fn new(own: Option<String>, all: Quotas, owners: BTreeMap<String, OwnerQuotas>) -> Self {
        Self { own, all, owners }
    }

    /// The limits of one owner.
    pub fn of(&self, owner: &str) -> Quotas {
        self.owners.get(owner).map_or(self.all, |own| own.or(&self.all))
    }

    /// True if an owner has a limit of active runs or of queued prompts.
    pub fn has_run_limits(&self) -> bool {
        let limits = self.owners.values().map(|own| own.or(&self.all)).chain([self.all]);
        limits.into_iter().any(|quotas| quotas.active_runs > 0 || quotas.queued_prompts > 0)
    }

    /// True if the owner leaves room for others in every pool.
    pub fn leaves_room(&self, owner: &str) -> bool {
        self.own.as_ref().is_some_and(|own| own != owner)
    }

    /// Checks that an owner that has `own` units of a pool may take another one, if `free` units are left.
    fn check(&self, resource: Resource, owner: &str, own: usize, free: usize) -> Result<(), Error> {
        let quotas = self.of(owner);
        let cap = match resource {
            Resource::QueuedPrompts => quotas.queued_prompts,
            Resource::Requests => quotas.requests,
            Resource::Streams => quotas.streams,
            Resource::StoredBytes | Resource::Artifacts | Resource::Agents => 0,
        };
        match (PoolUse { free, own, elsewhere: 0, cap, leaves_room: self.leaves_room(owner) }).may_take() {
            true => Ok(()),
            false if cap > 0 && own >= cap => Err(Error::QuotaReached { resource, limit: cap as u64 }),
            false => Err(Error::ShareReached { resource, own, free }),
        }
    }
}

/// A pool of fixed size that owners take from, such as the requests that are handled at the same time.
#[derive(Debug)]
pub struct Pool {
    resource: Resource,
    size: usize,
    used: Mutex<PoolUsed>,
}

#[derive(Debug, Default)]
struct PoolUsed {
    total: usize,
    owners: HashMap<Arc<str>, usize>,
}

/// One unit of a pool; dropping it returns it.
#[derive(Debug)]
pub struct PoolPermit {
    pool: Arc<Pool>,
    owner: Arc<str>,
}

/// Why nothing could be taken from a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    /// The pool has no free unit.
    Full,
    /// The owner has reached its share or its quota.
    Refused(Error),
}

impl Pool {
    /// A pool of `size` units.
    pub fn new(resource: Resource, size: usize) -> Arc<Self> {
        Arc::new(Self { resource, size, used: Mutex::default() })
    }

    /// Takes one unit for an owner.
    pub fn take(self: &Arc<Self>, kernel: &Kernel, owner: &str) -> Result<PoolPermit, NotTaken> {
        let mut used = self.used.lock();
        let free = self.size.saturating_sub(used.total);
        if free == 0 {
            return Err(NotTaken::Full);
        }
        let known = used.owners.get_key_value(owner).map(|(owner, own)| (owner.clone(), *own));
        let (owner, own) = known.unwrap_or_else(|| (owner.into(), 0));
        kernel.check_share(self.resource, &owner, own, free).map_err(NotTaken::Refused)?;
        used.total += 1;
        used.owners.insert(owner.clone(), own + 1);
        Ok(PoolPermit { pool: self.clone(), owner })
    }

    /// The number of units in use.
    pub fn used(&self) -> usize {
        self.used.lock().total
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        let mut used = self.pool.used.lock();
        used.total -= 1;
        if let Some(own) = used.owners.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                used.owners.remove(&self.owner);
            }
        }
    }
}

impl Kernel {
    /// Checks that an owner that has `own` units of a pool may take another one, if `free` units are left. Counts refusals.
    fn check_share(&self, resource: Resource, owner: &str, own: usize, free: usize) -> Result<(), Error> {
        self.shared.check_share(resource, owner, own, free)
    }
}

impl Shared {
    pub(crate) fn check_share(
        &self,
        resource: Resource,
        owner: &str,
        own: usize,
        free: usize,
    ) -> Result<(), Error> {
        self.owner_limits.check(resource, owner, own, free).inspect_err(|_| self.meters.refused(resource))
    }

    /// Checks that an owner may store `bytes` more bytes and `artifacts` more artifacts.
    pub(crate) async fn check_storage(&self, owner: &str, bytes: u64, artifacts: u64) -> Result<(), Error> {
        let quotas = self.owner_limits.of(owner);
        if quotas.stored_bytes == 0 && quotas.artifacts == 0 {
            return Ok(());
        }
        let used = self.store.owner_usage(owner).await?;
        let checks = [
            (Resource::StoredBytes, used.bytes, bytes, quotas.stored_bytes),
            (Resource::Artifacts, used.artifacts, artifacts, quotas.artifacts as u64),
        ];
        for (resource, used, added, limit) in checks {
            if added > 0 && !may_store(used, added, limit) {
                self.meters.refused(resource);
                return Err(Error::QuotaReached { resource, limit });
            }
        }
        Ok(())
    }

    /// Checks that an owner that has `count` versions of agents may make one more.
    pub(crate) fn check_agents(&self, owner: &str, count: usize) -> Result<(), Error> {
        let limit = self.owner_limits.of(owner).agents as u64;
        match may_store(count as u64, 1, limit) {
            true => Ok(()),
            false => {
                self.meters.refused(Resource::Agents);
                Err(Error::QuotaReached { resource: Resource::Agents, limit })
            }
        }
    }
}
