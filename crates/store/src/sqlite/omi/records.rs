//! Converts the artifacts and grants of one session.

use mainspring_core::limits::check_media_type;
use mainspring_core::{Artifact, ArtifactRole, Grant, GrantEffect, GrantSource, RunId};
use mainspring_kernel::store::Row;
use serde_json::{Map, Value};

use super::rows::Fields;
use super::session::{Draft, UNUSABLE_METADATA, object, valid_name};
use super::{Import, id};

impl Import<'_> {
    pub(super) fn import_artifacts(&mut self, draft: &mut Draft, rows: &[Fields]) {
        for row in rows {
            let original_id = row.text_or_empty("artifact_id");
            let Some(id) = id(&original_id) else {
                self.report.skipped(
                    "artifacts",
                    "its id is not art_ and 32 hexadecimal digits",
                    &original_id,
                );
                continue;
            };
            let kept = self.options.kept.get(&id);
            if kept.is_none() {
                let how = "bytes not available: only the address is kept";
                self.report.changed("artifacts", how, &original_id);
            }
            let metadata = self.convert_metadata("artifacts", row, &original_id);
            let run = row.text("run_id").and_then(super::id).filter(|run| self.runs.contains_key(run));
            let artifact = Artifact {
                id,
                session: draft.session.id,
                run,
                attempt: row.text("attempt_id").and_then(super::id).filter(|_| run.is_some()),
                kind: valid_name(row, "kind").unwrap_or_else(|| "file".into()),
                role: row.text("role").and_then(ArtifactRole::from_name).unwrap_or(ArtifactRole::Other),
                uri: kept.map_or_else(|| row.text_or_empty("uri"), |(hash, _)| format!("blake3:{hash}")),
                name: valid_name(row, "display_name"),
                mime_type: row
                    .text("mime_type")
                    .filter(|mime| check_media_type(mime).is_ok())
                    .map(str::to_owned),
                content_hash: kept.map(|(hash, _)| hash.clone()),
                size_bytes: match kept {
                    Some((_, size)) => Some(*size),
                    None => row.number("size_bytes").and_then(|size| size.try_into().ok()),
                },
                metadata,
                created_at: row.time("created_at_ms").unwrap_or(self.options.now),
            };
            self.artifacts.insert(id);
            self.report.imported("artifacts");
            draft.artifacts.insert(original_id, artifact);
        }
    }

    /// Returns the metadata of a row. Metadata that cannot be used is reported as removed.
    pub(super) fn convert_metadata(
        &mut self,
        kind: &'static str,
        row: &Fields,
        original_id: &str,
    ) -> Map<String, Value> {
        object(row, "metadata_json", self.options.limits.metadata_bytes).unwrap_or_else(|| {
            self.report.changed(kind, UNUSABLE_METADATA, original_id);
            Map::new()
        })
    }

    pub(super) fn convert_grants(&mut self, draft: &Draft, rows: &[Fields]) -> Vec<Row> {
        let mut grants = vec![];
        for row in rows {
            let original_id = row.text_or_empty("grant_id");
            let effect = row.text("effect").and_then(GrantEffect::from_name);
            let source = row.text("source").and_then(GrantSource::from_name);
            let (Some(id), Some(effect), Some(source)) = (id(&original_id), effect, source) else {
                self.report.skipped("grants", "invalid id, effect or source", &original_id);
                continue;
            };
            if row.number("revoked_at_ms").is_some() {
                self.report.skipped("grants", "it was revoked", &original_id);
                continue;
            }
            // Without its constraints, the grant would allow more than it did.
            let Some(constraints) = object(row, "constraints_json", self.options.limits.metadata_bytes)
            else {
                self.report.skipped("grants", "its constraints are too large or not an object", &original_id);
                continue;
            };
            let run = row.text("run_id").map(super::id::<RunId>);
            if run.is_some_and(|run| run.is_none_or(|run| !self.runs.contains_key(&run))) {
                continue;
            }
            self.report.imported("grants");
            grants.push(Row::Grant(Box::new(Grant {
                id,
                session: draft.session.id,
                run: run.flatten(),
                capability: row.text_or_empty("capability"),
                operation: row.text_or_empty("operation"),
                resource_pattern: row.text_or_empty("resource_pattern"),
                effect,
                source,
                constraints,
                created_at: row.time("created_at_ms").unwrap_or(self.options.now),
                expires_at: row.time("expires_at_ms"),
                revoked_at: None,
                revoked_by: None,
            })));
        }
        grants
    }
}
