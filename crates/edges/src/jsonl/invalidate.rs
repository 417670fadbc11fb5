//! `invalidate_session`: the runtime's own session is not used again. The session stays as it is.

use std::sync::Arc;

use super::Shared;
use super::line::{Envelope, InvalidateSession};

/// Forgets what is known of the key.
pub(super) fn hear(shared: &Arc<Shared>, envelope: &Envelope, line: &InvalidateSession) {
    let owner = shared.owner(envelope).to_owned();
    shared.hints.forget(&owner, &line.session_key);
}
