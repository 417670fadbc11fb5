//! What an agent writes to its standard error, kept with the attempt.

use mainspring_core::ArtifactRole;
use mainspring_kernel::adapter::{AttemptHandle, NewArtifact};

use super::{Dialect, Driver};
use crate::process::Log;

impl<D: Dialect> Driver<D> {
    /// What the agent's environment holds that is nobody else's to see.
    pub(super) fn secrets(&self) -> impl Iterator<Item = (String, String)> {
        let options = &self.options;
        let passed =
            options.pass_env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        options.env.iter().cloned().chain(passed)
    }

    /// Keeps what the agent has written to its standard error as an artifact of the attempt.
    pub(super) async fn keep_log(&self, attempt: &AttemptHandle, log: &Log) {
        let text = log.text();
        if text.trim().is_empty() {
            return;
        }
        let new = NewArtifact {
            kind: "log".into(),
            role: ArtifactRole::Log,
            name: Some("stderr.log".into()),
            mime_type: Some("text/plain".into()),
        };
        if let Err(error) = attempt.artifact(new, &mut text.as_bytes()).await {
            tracing::warn!(%error, attempt = %attempt.id(), "what an agent wrote to its standard error is lost");
        }
    }
}
