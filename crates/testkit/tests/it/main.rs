//! Tests of the scripted peers over real HTTP.

mod model;
