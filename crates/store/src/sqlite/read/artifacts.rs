//! Reads of artifacts, and of the hashes they name.

use mainspring_core::{Artifact, ArtifactId, ArtifactRole};
use mainspring_kernel::store::{ArtifactPage, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id, blob};
use super::{all, limit, one};

macro_rules! artifact_columns {
    () => {
        "artifact_id, session_id, run_id, attempt_id, kind, role, uri, display_name, mime_type, content_hash, \
         size_bytes, created_at_ms"
    };
}

fn artifact(columns: &mut Columns<'_>) -> rusqlite::Result<Artifact> {
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
    one(connection, sql, [id.bytes()], artifact)
}

/// Two statements, each with the index that fits it: the plus keeps the planner off the other.
pub(in super::super) fn artifact_page(
    connection: &Connection,
    page: &ArtifactPage,
) -> Result<Vec<Artifact>, StoreError> {
    macro_rules! page {
        ($by:literal) => {
            concat!(
                "SELECT ",
                artifact_columns!(),
                " FROM artifacts AS a WHERE ",
                $by,
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
    let (time, id) = page.before.map_or((i64::MAX, None), |(time, id)| (time.0, Some(id)));
    // The empty blob lies before every id, and nothing is as late as the end of time.
    let id = blob(id).map_or_else(Vec::new, Vec::from);
    let params = params![page.session.bytes(), blob(page.run), time, id, limit(page.limit)];
    all(connection, sql, params, artifact)
}

pub(in super::super) fn blob_page(
    connection: &Connection,
    after: &str,
    many: usize,
) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT content_hash, max(size_bytes) FROM artifacts
               WHERE content_hash > ?1 AND content_hash IS NOT NULL AND size_bytes IS NOT NULL
               GROUP BY content_hash ORDER BY content_hash LIMIT ?2";
    all(connection, sql, params![after, limit(many)], |columns| Ok((columns.get()?, columns.number()?)))
}

pub(in super::super) fn blob_loose(connection: &Connection, many: usize) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT content_hash FROM blobs_loose ORDER BY content_hash LIMIT ?1";
    all(connection, sql, [limit(many)], |columns| columns.get())
}
