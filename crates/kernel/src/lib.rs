//! The authority of mainspring.

pub mod clock;
pub mod error;
pub mod ids;
pub mod store;
pub mod tasks;
