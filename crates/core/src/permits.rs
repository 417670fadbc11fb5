//! Permits of a cluster: how the permits that all servers share are divided into blocks, one per server.
//!
//! ```text
//! server: demand by owner, held ──▶ row of its lease ──▶ leader: granted
//!   ▲                                                        │
//!   └───────── uses at most what is granted ◀────────────────┘
//! ```
//!
//! A server records the number of permits that it holds before it uses more, and after it uses fewer. The leader lowers
//! a grant at any time, and raises it only by permits that no server holds. A block ends with the lease of its server.
//!
//! Owners get permits in turn, on whichever servers their runs are. Permits that no owner needs are divided
//! evenly among the servers, so that a new run need not wait for the leader.
//!
//! Invariant: the sum over all servers of the greater of held and granted permits is at most the total.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The maximum number of owners that a server reports by name. The runs of the others are counted together.
const MAX_OWNERS: usize = 64;

/// A kind of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PermitPool {
    /// Permits of runs whose agent is a process.
    Workers = 0,
    /// Permits of runs whose agent has no process.
    InProcess = 1,
}

impl PermitPool {
    /// All pools.
    pub const ALL: [Self; 2] = [Self::Workers, Self::InProcess];
}

/// The demand of a server for permits of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Demand {
    /// The maximum number of permits that the server can use.
    pub cap: usize,
    /// The runs that have a permit or wait for one, by owner.
    pub owners: BTreeMap<String, usize>,
}

impl Demand {
    /// Limits the number of named owners to `MAX_OWNERS`: the runs of the owners with the fewest runs are
    /// counted together, under an empty name.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        while self.owners.len() > MAX_OWNERS {
            let fewest = self.owners.iter().filter(|(owner, _)| !owner.is_empty());
            let Some(owner) = fewest.min_by_key(|(_, runs)| **runs).map(|(owner, _)| owner.clone()) else {
                return self;
            };
            let runs = self.owners.remove(&owner).unwrap_or_default();
            *self.owners.entry(String::new()).or_default() += runs;
        }
        self
    }
}

/// The block of a server, as the leader finds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// The demand of the server; empty if the server cannot act any more.
    pub demand: Demand,
    /// The permits that the leader has granted to the server.
    pub granted: usize,
    /// The permits that the server may use now.
    pub held: usize,
}

impl Block {
    fn reserved(&self) -> usize {
        self.granted.max(self.held)
    }
}

/// Decides how many of the `total` permits each server is granted.
pub fn grant(total: usize, blocks: &[Block]) -> Vec<usize> {
    let targets = targets(total, blocks);
    let lowered =
        |(block, target): (&Block, &usize)| Block { granted: block.granted.min(*target), ..block.clone() };
    let mut now: Vec<Block> = blocks.iter().zip(&targets).map(lowered).collect();
    let mut free = total.saturating_sub(now.iter().map(Block::reserved).sum());
    for (block, target) in now.iter_mut().zip(&targets) {
        // A grant takes free permits only beyond those that are reserved for the server already.
        let more = target.saturating_sub(block.reserved()).min(free);
        free -= more;
        block.granted = (*target).min(block.reserved() + more);
    }
    now.into_iter().map(|block| block.granted).collect()
}

/// Divides `total` permits among the servers: first to the owners in turn, as far as they need them, then the rest evenly.
fn targets(total: usize, blocks: &[Block]) -> Vec<usize> {
    let mut targets = vec![0; blocks.len()];
    let mut left = total;
    // The unmet demand of each owner, by server.
    let mut needs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (server, block) in blocks.iter().enumerate() {
        for (owner, runs) in &block.demand.owners {
            needs.entry(owner).or_insert_with(|| vec![0; blocks.len()])[server] = *runs;
        }
    }
    while left > 0 {
        let mut is_given = false;
        // Larger steps while many permits are left, so that there are few rounds.
        let step = (left / (8 * needs.len().max(1))).max(1);
        for unmet in needs.values_mut() {
            let room = |server: &usize| blocks[*server].demand.cap.saturating_sub(targets[*server]);
            let open = (0..blocks.len()).filter(|server| unmet[*server].min(room(server)) > 0);
            let Some(server) = open.max_by_key(|server| (unmet[*server], std::cmp::Reverse(*server))) else {
                continue;
            };
            let given = step.min(left).min(unmet[server]).min(room(&server));
            (left, is_given) = (left - given, is_given || given > 0);
            unmet[server] -= given;
            targets[server] += given;
        }
        if !is_given {
            break;
        }
    }
    spread(left, blocks, &mut targets);
    targets
}

/// Divides `left` permits evenly among the servers that can use them.
fn spread(mut left: usize, blocks: &[Block], targets: &mut [usize]) {
    loop {
        let room =
            |server: usize, targets: &[usize]| blocks[server].demand.cap.saturating_sub(targets[server]);
        let open: Vec<usize> = (0..blocks.len()).filter(|server| room(*server, targets) > 0).collect();
        if left == 0 || open.is_empty() {
            return;
        }
        let step = (left / open.len()).max(1);
        for server in open {
            let given = step.min(left).min(room(server, targets));
            targets[server] += given;
            left -= given;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(cap: usize, granted: usize, held: usize, owners: &[(&str, usize)]) -> Block {
        let owners = owners.iter().map(|(owner, runs)| ((*owner).to_owned(), *runs)).collect();
        Block { demand: Demand { cap, owners }, granted, held }
    }

    #[test]
    fn permits_go_where_they_are_needed_and_the_rest_is_divided_evenly() {
        assert_eq!(grant(8, &[block(8, 0, 0, &[]), block(8, 0, 0, &[])]), [4, 4]);
        assert_eq!(grant(8, &[block(8, 0, 0, &[("a", 9)]), block(8, 0, 0, &[])]), [8, 0]);
        assert_eq!(grant(8, &[block(8, 0, 0, &[("a", 6)]), block(8, 0, 0, &[])]), [7, 1]);
        assert_eq!(
            grant(8, &[block(3, 0, 0, &[("a", 9)]), block(9, 0, 0, &[])]),
            [3, 5],
            "the cap of a server"
        );
        assert_eq!(grant(8, &[]), [] as [usize; 0]);
        assert_eq!(grant(9, &[block(2, 0, 0, &[]), block(2, 0, 0, &[])]), [2, 2]);
    }

    #[test]
    fn owners_get_permits_in_turn_wherever_their_runs_are() {
        // The only run of owner b gets a permit although owner a has a hundred runs.
        let many = block(100, 0, 0, &[("a", 100)]);
        assert_eq!(grant(4, &[many.clone(), block(100, 0, 0, &[("b", 1)])]), [3, 1]);
        assert_eq!(grant(4, &[many, block(100, 0, 0, &[("a", 50), ("b", 2)])]), [2, 2]);
        let both = [block(9, 0, 0, &[("a", 9), ("b", 9)]), block(9, 0, 0, &[("c", 9)])];
        assert_eq!(grant(9, &both), [6, 3]);
    }

    #[test]
    fn a_permit_that_a_server_holds_is_granted_to_no_other() {
        // The first server still uses seven permits.
        let busy = [block(8, 8, 7, &[("a", 7)]), block(8, 0, 0, &[("b", 7)])];
        assert_eq!(grant(8, &busy), [4, 1]);
        let later = [block(8, 4, 5, &[("a", 5)]), block(8, 1, 1, &[("b", 7)])];
        assert_eq!(grant(8, &later), [4, 3]);
        // The first server has no demand any more, but holds all permits.
        let ended = [block(0, 8, 8, &[]), block(8, 0, 0, &[("b", 7)])];
        assert_eq!(grant(8, &ended), [0, 0]);
        assert_eq!(grant(4, &[block(8, 8, 8, &[("a", 8)])]), [4], "the total is smaller than before");
    }

    #[test]
    fn many_owners_are_counted_together() {
        let owners = (0..100).map(|n| (format!("owner {n}"), n + 1)).collect();
        let bounded = Demand { cap: 1, owners }.bounded();
        assert_eq!((bounded.owners.len(), bounded.owners.values().sum::<usize>()), (64, 5_050));
        assert!(bounded.owners.contains_key("owner 99") && !bounded.owners.contains_key("owner 0"));
    }

    /// A simulated server, which behaves like `Scheduler::resize` of the kernel.
    #[derive(Default)]
    struct Server {
        row: Block,
        size: usize,
        used: usize,
        wanted: usize,
    }

    impl Server {
        fn exchange(&mut self) {
            self.row.demand = Demand { cap: 6, owners: [("a".to_owned(), self.wanted)].into() };
            self.row.held = self.row.granted.max(self.size);
            self.size = self.row.granted.max(self.used);
        }
    }

    #[test]
    fn no_sequence_of_starts_ends_and_crashes_uses_more_permits_than_exist() {
        let mut random = 7_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let total = 10;
        let mut servers: Vec<Server> = (0..4).map(|_| Server::default()).collect();
        let mut most = 0;
        for _ in 0..100_000 {
            let count = servers.len();
            let server = &mut servers[next(count)];
            match next(6) {
                0 => server.exchange(),
                1 if server.used < server.size.min(server.wanted) => server.used += 1,
                2 if server.used > 0 => {
                    (server.used, server.wanted) = (server.used - 1, server.wanted - 1);
                    server.size = server.size.min(server.row.granted.max(server.used));
                }
                3 => server.wanted = (server.wanted + next(3)).min(9),
                // The server's agents and then its lease have ended; another server joins.
                4 if next(50) == 0 => *server = Server::default(),
                _ => {
                    let rows: Vec<Block> = servers.iter().map(|server| server.row.clone()).collect();
                    for (server, granted) in servers.iter_mut().zip(grant(total, &rows)) {
                        server.row.granted = granted;
                    }
                }
            }
            let used: usize = servers.iter().map(|server| server.used).sum();
            assert!(used <= total, "{used}");
            most = most.max(used);
        }
        assert_eq!(most, total, "all permits are used at some time");
    }
}
