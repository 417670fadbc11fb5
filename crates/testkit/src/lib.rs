//! Scripted peers that speak the real protocols: for tests, and for people who try things out without a key.

pub mod model;
