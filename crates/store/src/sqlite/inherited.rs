//! Writes and reads the artifacts that forks have inherited.

use std::collections::BTreeMap;

use mainspring_core::{Artifact, ArtifactId, SessionId};
use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, params};

use super::columns::{Id, int, json};
use super::read::{query_all, sql_limit};
use super::write::WriteResult;

/// Stores a fork's copy of an artifact.
pub(super) fn inherited_write(connection: &Connection, artifact: &Artifact) -> WriteResult {
    let sql =
        "INSERT INTO inherited_artifacts (session_id, artifact_id, content_hash, size_bytes, artifact_json)
               VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (session_id, artifact_id) DO NOTHING";
    connection.prepare_cached(sql)?.execute(params![
        artifact.session.bytes(),
        artifact.id.bytes(),
        artifact.content_hash,
        artifact.size_bytes.map(int),
        json(artifact)?,
    ])?;
    Ok(())
}

/// The copies of an artifact, of all forks that are not deleted.
pub(super) fn inherited_by_id(connection: &Connection, id: ArtifactId) -> Result<Vec<Artifact>, StoreError> {
    let sql = "SELECT artifact_json FROM inherited_artifacts AS i WHERE artifact_id = ?1 AND EXISTS
                 (SELECT 1 FROM sessions AS s WHERE s.session_id = i.session_id AND s.status <> 'deleted')
               ORDER BY session_id";
    query_all(connection, sql, [id.bytes()], |columns| columns.json())
}

/// The artifacts that a fork has inherited.
pub(super) fn inherited_of(connection: &Connection, fork: SessionId) -> Result<Vec<Artifact>, StoreError> {
    let sql = "SELECT artifact_json FROM inherited_artifacts WHERE session_id = ?1 ORDER BY artifact_id";
    query_all(connection, sql, [fork.bytes()], |columns| columns.json())
}

/// Adds the hashes of inherited artifacts to a page of hashes.
pub(super) fn with_inherited_blobs(
    connection: &Connection,
    page: Vec<(String, u64)>,
    after: &str,
    limit: usize,
) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT content_hash, max(size_bytes) FROM inherited_artifacts
               WHERE content_hash > ?1 AND content_hash IS NOT NULL AND size_bytes IS NOT NULL
               GROUP BY content_hash ORDER BY content_hash LIMIT ?2";
    let inherited: Vec<(String, u64)> =
        query_all(connection, sql, params![after, sql_limit(limit)], |columns| {
            Ok((columns.get()?, columns.number()?))
        })?;
    let all: BTreeMap<String, u64> = inherited.into_iter().chain(page).collect();
    Ok(all.into_iter().take(limit).collect())
}
