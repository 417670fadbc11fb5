//! The standard error of an agent, kept as an artifact of the attempt.

use mainspring_core::ArtifactRole;
use mainspring_kernel::adapter::{AttemptHandle, NewArtifact, STDERR_STREAM, STREAM_KEY};
use serde_json::Map;

use super::{Dialect, Driver};
use crate::process::Log;

impl<D: Dialect> Driver<D> {
    /// The configured variables of the agent's environment, whose values its log must not show.
    pub(super) fn secrets(&self) -> impl Iterator<Item = (String, String)> {
        let options = &self.options;
        let passed =
            options.pass_env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        options.env.iter().cloned().chain(passed)
    }

    /// Stores the log as an artifact of the attempt, unless it is empty.
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
            metadata: Map::from_iter([(STREAM_KEY.to_owned(), STDERR_STREAM.into())]),
            ..NewArtifact::default()
        };
        if let Err(error) = attempt.artifact(new, &mut text.as_bytes()).await {
            tracing::warn!(%error, attempt = %attempt.id(), "an agent's stderr log could not be stored");
        }
    }
}
