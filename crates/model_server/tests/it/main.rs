//! Tests of the model server over real HTTP.

mod server;
