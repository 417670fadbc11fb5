//! Size: a store of 100,000 sessions, and the memory of many sessions, runs and readers. Takes minutes.

use tokio::runtime::Runtime;

use crate::table::Table;

mod memory;
mod store;
pub(crate) mod waiting;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    store::measure(runtime, table);
    memory::measure(runtime, table);
    waiting::measure(table);
}
