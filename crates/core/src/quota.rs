//! Quotas: how much of a server one owner may use, so that no owner can use up the server for the others.
//!
//! A pool of fixed size (workers, queued prompts, requests, streams) is divided by a rule that needs no configuration:
//! an owner is refused once it uses as much as is still free. One owner alone takes about half of a pool, two take a
//! third each, so that a place stays free for another owner unless the pool is small for its number of owners. The
//! server's own owner may use a whole pool. Limits that an operator sets apply in addition.
//!
//! In a cluster, the limits of active runs and of queued prompts hold over all servers. Each server has a part of such
//! a limit, its block, which no other server has. If another server wants more than its block, a server gives up a part
//! of its own block that it does not use: see [`kept_block`].

use serde::Serialize;

use crate::message::names;

/// The limits of one owner; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Quotas {
    /// Maximum number of queued prompts.
    pub queued_prompts: usize,
    /// Maximum number of active runs; further ones wait.
    pub active_runs: usize,
    /// Maximum number of requests at the same time.
    pub requests: usize,
    /// Maximum number of open streams and waiting requests.
    pub streams: usize,
    /// Maximum bytes of messages and artifacts.
    pub stored_bytes: u64,
    /// Maximum number of artifacts.
    pub artifacts: usize,
    /// Maximum number of versions of agent definitions, counting deleted ones.
    pub agents: usize,
}

/// The limits of one owner that replace the limits of all owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the fields are those of `Quotas`")]
pub struct OwnerQuotas {
    pub queued_prompts: Option<usize>,
    pub active_runs: Option<usize>,
    pub requests: Option<usize>,
    pub streams: Option<usize>,
    pub stored_bytes: Option<u64>,
    pub artifacts: Option<usize>,
    pub agents: Option<usize>,
}

impl OwnerQuotas {
    /// Returns these limits, and the limit of `all` owners where this owner has none of its own.
    pub fn or(&self, all: &Quotas) -> Quotas {
        Quotas {
            queued_prompts: self.queued_prompts.unwrap_or(all.queued_prompts),
            active_runs: self.active_runs.unwrap_or(all.active_runs),
            requests: self.requests.unwrap_or(all.requests),
            streams: self.streams.unwrap_or(all.streams),
            stored_bytes: self.stored_bytes.unwrap_or(all.stored_bytes),
            artifacts: self.artifacts.unwrap_or(all.artifacts),
            agents: self.agents.unwrap_or(all.agents),
        }
    }
}

/// A resource of which an owner may use a limited amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Resource {
    QueuedPrompts,
    Requests,
    Streams,
    StoredBytes,
    Artifacts,
    Agents,
}
names!(Resource {
    QueuedPrompts => "queued_prompts", Requests => "requests", Streams => "streams", StoredBytes => "stored_bytes",
    Artifacts => "artifacts", Agents => "agents",
});

impl Resource {
    /// All resources.
    pub const ALL: [Self; 6] = [
        Self::QueuedPrompts,
        Self::Requests,
        Self::Streams,
        Self::StoredBytes,
        Self::Artifacts,
        Self::Agents,
    ];
}

/// The use of a pool from the point of view of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// The free places of the pool.
    pub free: usize,
    /// The owner's own use.
    pub own: usize,
    /// The owner's use of other pools that its limit covers too.
    pub elsewhere: usize,
    /// The limit of the owner; 0 for none.
    pub cap: usize,
    /// Whether the owner must leave room for others. False for the server's own owner.
    pub leaves_room: bool,
}

impl PoolUse {
    /// True if the owner may take one more place of the pool.
    pub fn may_take(&self) -> bool {
        let is_below_cap = self.cap == 0 || self.own + self.elsewhere < self.cap;
        let is_within_share = !self.leaves_room || self.own < self.free;
        self.free > 0 && is_below_cap && is_within_share
    }
}

/// A limit of an owner that holds over all servers of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerPool {
    /// [`Quotas::active_runs`].
    ActiveRuns = 0,
    /// [`Quotas::queued_prompts`].
    QueuedPrompts = 1,
}

/// Returns how much of its block `held` a server keeps while `wanting` other servers want more than they have. The
/// server uses `used` of the block and could use `wanted`. It keeps what it uses, and up to an even share of `limit` if
/// it wants that much. If `limit` is smaller than the number of servers, it keeps only what it uses. Without other
/// servers that want more, it keeps the whole block.
pub fn kept_block(limit: usize, held: usize, (used, wanted): (usize, usize), wanting: usize) -> usize {
    let servers = wanting + 1;
    match wanting {
        0 => held,
        _ if limit < servers => held.min(used),
        _ => held.min(used.max(limit.div_ceil(servers).min(wanted))),
    }
}

/// True if an owner that stores the amount `used` may store `added` more. A `limit` of 0 means no limit.
pub fn may_store(used: u64, added: u64, limit: u64) -> bool {
    limit == 0 || used.saturating_add(added) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the owners take from a pool in turn until all are refused.
    fn shared_out(size: usize, owners: usize) -> Vec<usize> {
        let mut used = vec![0; owners];
        loop {
            let before = used.clone();
            for owner in 0..owners {
                let free = size - used.iter().sum::<usize>();
                if (PoolUse { free, own: used[owner], elsewhere: 0, cap: 0, leaves_room: true }).may_take() {
                    used[owner] += 1;
                }
            }
            if used == before {
                return used;
            }
        }
    }

    #[test]
    fn owners_that_use_a_pool_leave_a_place_for_another_owner() {
        assert_eq!(shared_out(8, 1), [4]);
        assert_eq!(shared_out(9, 2), [3, 3]);
        assert_eq!(shared_out(1, 1), [1]);
        for size in 2..40_usize {
            for owners in 1..size.ilog2() as usize {
                let used: usize = shared_out(size, owners).iter().sum();
                assert!(used < size, "{owners} owners leave nothing of {size}");
            }
        }
    }

    #[test]
    fn the_servers_own_owner_may_use_a_whole_pool_but_not_exceed_its_cap() {
        let pool =
            |free, own, cap, leaves_room| PoolUse { free, own, elsewhere: 0, cap, leaves_room }.may_take();
        assert!(pool(1, 99, 0, false));
        assert!(!pool(0, 0, 0, false));
        assert!(!pool(50, 2, 2, false));
        assert!(pool(50, 1, 2, true));
        assert!(!pool(3, 3, 0, true));
    }

    #[test]
    fn a_server_keeps_what_it_uses_of_its_block_or_an_even_share_if_that_is_more() {
        assert_eq!(kept_block(10, 10, (0, 0), 0), 10, "no other server wants more");
        assert_eq!(kept_block(10, 10, (0, 0), 1), 0, "this server uses nothing and wants nothing");
        assert_eq!(kept_block(10, 10, (2, 3), 1), 3);
        assert_eq!(kept_block(10, 10, (0, 99), 1), 5);
        assert_eq!(kept_block(10, 10, (8, 99), 1), 8, "the used part is kept");
        assert_eq!(kept_block(3, 3, (0, 9), 1), 2);
        assert_eq!(kept_block(10, 2, (1, 9), 4), 2, "no more than it held");
        let passed_on = [kept_block(2, 1, (1, 9), 2), kept_block(2, 1, (0, 9), 2)];
        assert_eq!(passed_on, [1, 0], "the limit is smaller than the number of servers");
    }

    #[test]
    fn a_limit_of_one_owner_replaces_the_limit_of_all_owners() {
        let all = Quotas { artifacts: 5, agents: 7, ..Quotas::default() };
        let own = OwnerQuotas { artifacts: Some(0), streams: Some(2), ..OwnerQuotas::default() };
        assert_eq!(own.or(&all), Quotas { artifacts: 0, agents: 7, streams: 2, ..Quotas::default() });
        assert!(may_store(90, 10, 100) && !may_store(90, 11, 100) && may_store(u64::MAX, 1, 0));
    }
}
