//! Artifacts.

use std::ops::Range;

use futures_util::Stream;
use mainspring_api::{ArtifactListQuery, ArtifactQuery, Page, header_name};
use mainspring_core::{Artifact, ArtifactId, RunId};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, RANGE};

use super::Client;
use crate::Error;

impl Client {
    /// Stores `bytes` as an artifact of a session. The same `idempotency_key` again gives the same artifact.
    pub async fn artifact_put(
        &self,
        session: &str,
        artifact: &ArtifactQuery,
        mime_type: Option<&str>,
        bytes: Vec<u8>,
        idempotency_key: &str,
    ) -> Result<Artifact, Error> {
        let request = self.request(Method::POST, &["v1", "sessions", session, "artifacts"]).query(artifact);
        let request = request.header(CONTENT_TYPE, mime_type.unwrap_or("application/octet-stream"));
        let request = request.header(header_name::IDEMPOTENCY_KEY, idempotency_key).body(bytes);
        self.read(self.send_unlimited(request).await?).await
    }

    /// Lists the artifacts of a session, the newest first.
    pub async fn session_artifacts(
        &self,
        session: &str,
        query: &ArtifactListQuery,
    ) -> Result<Page<Artifact>, Error> {
        self.get(&["v1", "sessions", session, "artifacts"], query).await
    }

    /// Lists the artifacts of a run, the newest first.
    pub async fn run_artifacts(
        &self,
        run: RunId,
        query: &ArtifactListQuery,
    ) -> Result<Page<Artifact>, Error> {
        self.get(&["v1", "runs", &run.to_string(), "artifacts"], query).await
    }

    /// Reads an artifact's description.
    pub async fn artifact_get(&self, artifact: ArtifactId) -> Result<Artifact, Error> {
        self.get(&["v1", "artifacts", &artifact.to_string()], &()).await
    }

    /// Deletes an artifact.
    pub async fn artifact_delete(&self, artifact: ArtifactId) -> Result<(), Error> {
        self.delete(&["v1", "artifacts", &artifact.to_string()]).await
    }

    /// Reads an artifact's bytes chunk by chunk: all of them, or a range.
    pub async fn artifact_content(
        &self,
        artifact: ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, Error>> + Send + use<>, Error> {
        let mut request = self.request(Method::GET, &["v1", "artifacts", &artifact.to_string(), "content"]);
        if let Some(Range { start, end }) = range {
            if start >= end {
                return Err(Error::Invalid(format!("the range {start}..{end} is empty")));
            }
            request = request.header(RANGE, format!("bytes={start}-{}", end - 1));
        }
        Ok(self.body_chunks(self.send(request).await?))
    }
}
