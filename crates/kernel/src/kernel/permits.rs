//! This process's block of the permits that the servers of a cluster share.

use mainspring_core::permits::{Demand, PermitPool};

use super::Kernel;

impl Kernel {
    /// Returns the most permits that this process can use of each pool.
    pub(super) fn permit_caps(&self) -> [usize; 2] {
        let options = &self.shared.options;
        [options.max_workers, options.max_in_process_runs.unwrap_or_default()]
    }

    /// Returns how many permits of a pool this process needs, and how many it has. A process that stops needs none.
    pub fn permit_demand(&self, pool: PermitPool) -> (Demand, usize) {
        let scheduler = &self.shared.scheduler;
        let demand = match self.shared.tasks.is_stopping() {
            true => Demand::default(),
            false => {
                let cap = self.permit_caps()[pool as usize];
                Demand { cap, owners: scheduler.demand(pool) }.bounded()
            }
        };
        (demand, scheduler.size(pool))
    }

    /// Changes the number of permits of a pool. If more are in use, the excess is removed as their runs end.
    pub fn permits_resize(&self, pool: PermitPool, permits: usize) {
        self.shared.scheduler.resize(pool, permits.min(self.permit_caps()[pool as usize]));
    }
}
