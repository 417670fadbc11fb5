//! Reads artifacts, and the hashes they refer to.

use std::collections::HashSet;

use mainspring_core::{Artifact, ArtifactAge, ArtifactId, ArtifactRole, Rows, Time, artifact_ids};
use mainspring_kernel::store::{ArtifactPage, StoreError};
use rusqlite::{Connection, params};

use super::super::checksum;
use super::super::columns::{Columns, Id, blob};
use super::super::inherited::with_inherited_blobs;
use super::{artifact_columns, page_start, query_all, query_one, query_stored, rows, sql_limit};

pub(in super::super) fn artifact(columns: &mut Columns<'_>) -> rusqlite::Result<Artifact> {
    columns.check(&checksum::ARTIFACT)?;
    Ok(Artifact {
        id: columns.id()?,
        session: columns.id()?,
        run: columns.maybe_id()?,
        attempt: columns.maybe_id()?,
        kind: columns.get()?,
        role: columns.name(ArtifactRole::from_name)?,
        uri: columns.get()?,
        name: columns.get()?,
        mime_type: columns.get()?,
        content_hash: columns.get()?,
        size_bytes: columns.get::<Option<i64>>()?.map(i64::cast_unsigned),
        created_at: columns.time()?,
        metadata: columns.maybe_json()?.unwrap_or_default(),
    })
}

pub(in super::super) fn artifact_get(
    connection: &Connection,
    id: ArtifactId,
) -> Result<Option<Artifact>, StoreError> {
    let sql = concat!(
        "SELECT ",
        artifact_columns!(),
        " FROM artifacts AS a WHERE artifact_id = ?1 AND NOT EXISTS (SELECT 1 FROM sessions AS s \
          WHERE s.session_id = a.session_id AND s.status = 'deleted')"
    );
    query_one(connection, sql, [id.bytes()], artifact)
}

/// Uses two statements, so that each uses the index that fits it. The unary plus disables the other index.
pub(in super::super) fn artifact_page(
    connection: &Connection,
    page: &ArtifactPage,
) -> Result<Rows<Artifact>, StoreError> {
    macro_rules! page {
        ($where:literal) => {
            concat!(
                "SELECT ",
                artifact_columns!(),
                " FROM artifacts AS a WHERE ",
                $where,
                " AND (created_at_ms, artifact_id) < (?3, ?4) AND NOT EXISTS (SELECT 1 FROM sessions AS s \
                   WHERE s.session_id = a.session_id AND s.status = 'deleted') \
                 ORDER BY created_at_ms DESC, artifact_id DESC LIMIT ?5"
            )
        };
    }
    let sql = match page.run {
        Some(_) => page!("run_id = ?2 AND +session_id = ?1"),
        None => page!("session_id = ?1 AND ?2 IS NULL"),
    };
    let (time, id) = page_start(page.before);
    rows(page.limit, |limit| {
        let params = params![page.session.bytes(), blob(page.run), time, id, sql_limit(limit)];
        query_stored(connection, sql, params, artifact)
    })
}

pub(in super::super) fn blob_page(
    connection: &Connection,
    after: &str,
    limit: usize,
) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT content_hash, max(size_bytes) FROM artifacts
               WHERE content_hash > ?1 AND content_hash IS NOT NULL AND size_bytes IS NOT NULL
               GROUP BY content_hash ORDER BY content_hash LIMIT ?2";
    let page = query_all(connection, sql, params![after, sql_limit(limit)], |columns| {
        Ok((columns.get()?, columns.number()?))
    })?;
    with_inherited_blobs(connection, page, after, limit)
}

pub(in super::super) fn blob_loose(connection: &Connection, limit: usize) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT content_hash FROM blobs_loose ORDER BY content_hash LIMIT ?1";
    query_all(connection, sql, [sql_limit(limit)], |columns| columns.get())
}

pub(in super::super) fn artifact_ages(
    connection: &Connection,
    after: Option<(Time, ArtifactId)>,
    limit: usize,
) -> Result<Vec<ArtifactAge>, StoreError> {
    let sql = "SELECT a.artifact_id, s.owner_id, a.created_at_ms, coalesce(a.size_bytes, 0)
               FROM artifacts AS a JOIN sessions AS s ON s.session_id = a.session_id
               WHERE s.status <> 'deleted' AND (a.created_at_ms, a.artifact_id) > (?1, ?2)
               ORDER BY a.created_at_ms, a.artifact_id LIMIT ?3";
    let (time, id) = after.map_or((i64::MIN, [0; 16]), |(time, id)| (time.0, id.bytes()));
    query_all(connection, sql, params![time, id, sql_limit(limit)], |columns| {
        Ok(ArtifactAge {
            id: columns.id()?,
            owner: columns.get()?,
            created_at: columns.time()?,
            size: columns.number()?,
        })
    })
}

pub(in super::super) fn artifacts_named(connection: &Connection) -> Result<HashSet<ArtifactId>, StoreError> {
    let sql = "SELECT content FROM messages WHERE instr(content, 'art_') > 0
               UNION ALL SELECT value FROM session_state WHERE instr(value, 'art_') > 0
               UNION ALL SELECT value FROM run_state WHERE instr(value, 'art_') > 0
               UNION ALL SELECT value FROM owner_state WHERE instr(value, 'art_') > 0
               UNION ALL SELECT raw FROM steps WHERE instr(raw, 'art_') > 0
               UNION ALL SELECT result FROM effects WHERE instr(result, 'art_') > 0
               UNION ALL SELECT wait FROM runs WHERE instr(wait, 'art_') > 0
               UNION ALL SELECT 'art_' || lower(hex(result_artifact_id)) FROM delegations
                         WHERE result_artifact_id IS NOT NULL";
    let found = query_all(connection, sql, [], |columns| {
        Ok(artifact_ids(&columns.get::<String>()?).collect::<Vec<_>>())
    })?;
    Ok(found.into_iter().flatten().collect())
}

pub(in super::super) fn memory_candidates(
    connection: &Connection,
    after: Option<(Time, ArtifactId)>,
    limit: usize,
) -> Result<Vec<Artifact>, StoreError> {
    let sql = concat!(
        "SELECT ",
        artifact_columns!(),
        " FROM artifacts AS a WHERE kind = 'memory_candidate' AND metadata_json ->> '$.decision' IS NULL \
          AND (created_at_ms, artifact_id) > (?1, ?2) \
          AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = a.session_id AND s.status = 'deleted') \
          ORDER BY created_at_ms, artifact_id LIMIT ?3"
    );
    let (time, id) = after.map_or((i64::MIN, [0; 16]), |(time, id)| (time.0, id.bytes()));
    query_all(connection, sql, params![time, id, sql_limit(limit)], artifact)
}
