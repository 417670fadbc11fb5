//! The published pi under a real node. The adapter's own suite is in `crates/adapters/tests`.

use std::path::PathBuf;

use mainspring::RunRequest;
use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
use mainspring::core::{Approval, Fidelity, Mode, Policy, RunStatus};
use serde_json::json;

use crate::agents::{
    PNG_IMAGE, World, error_code, folder_of, installed, kinds, model, node, request, with_timeout,
};

mod real;

/// Builds a prompt that steers the active run.
fn steer(key: &str, text: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..request(key, text) }
}
