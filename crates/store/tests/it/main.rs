//! The store's promises: the same tests over every store, then what is SQLite's own.

mod contract;
mod fixtures;
