//! The authority of mainspring.

pub mod store;
