//! Counts the instructions of the hottest paths, under valgrind.

#![allow(missing_docs, reason = "items that the macros of gungraun expand to")]

use std::mem::forget;

use gungraun::{
    Callgrind, EntryPoint, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use mainspring_instructions::{World, accepted, ended, idle, streaming};

#[library_benchmark]
#[bench::memory(setup = streaming)]
fn delta(world: World) {
    forget(mainspring_instructions::delta(world));
}

// Nothing is dropped: the cost of closing a store depends on what was written to it before.
#[library_benchmark]
#[bench::idle(idle)]
#[bench::accepted(accepted)]
#[bench::ended(ended)]
fn sqlite(program: fn() -> World) {
    forget(program());
}

library_benchmark_group!(name = one_thread, benchmarks = delta);
library_benchmark_group!(
    name = all_threads,
    config = LibraryBenchmarkConfig::default().tool(Callgrind::default().entry_point(EntryPoint::None)),
    benchmarks = sqlite
);
main!(library_benchmark_groups = [one_thread, all_threads]);
