//! What the crate as a whole holds to.

mod dependencies;
