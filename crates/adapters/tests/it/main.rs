//! Agents in real processes under a kernel with a store in memory. No test needs the program mainspring: the guard and
//! the scripted agents are examples of this crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod acp;
mod confine;
mod driver;
mod guard;
mod pi;
mod world;
