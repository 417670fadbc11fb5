//! Tests of the native runtime: real HTTP to a scripted model server, a real kernel, a manual clock.

mod provider;
