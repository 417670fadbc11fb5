//! Reads bindings, grants, feedback, pins, delegations, artifacts and the hashes of their contents.

use std::collections::HashSet;

use mainspring_core::{
    Artifact, ArtifactAge, ArtifactId, Binding, Delegation, Feedback, Grant, GrantId, MessageId, Rows, RunId,
    SessionId, Time, artifact_ids,
};
use mainspring_kernel::store::{ArtifactPage, DelegationsOf, GrantPage, StoreError};
use tokio_postgres::Row;

use super::super::values::{Param, all, get, get_id, get_json, get_maybe_json, get_u64, sql_limit};
use super::{Conditions, Reader};

pub(in super::super) async fn bindings(
    reader: &Reader,
    session: SessionId,
    adapter: Option<&str>,
    after: Option<(&str, u32)>,
    limit: usize,
) -> Result<Vec<Binding>, StoreError> {
    let mut conditions = Conditions::default();
    conditions.add("session_id = ?", vec![Box::new(session.as_bytes().to_vec())]);
    if let Some(adapter) = adapter {
        conditions.add("adapter_id = ?", vec![Box::new(adapter.to_owned())]);
    }
    if let Some((name, generation)) = after {
        let after = "(adapter_id > ? OR (adapter_id = ? AND generation < ?))";
        let (name, generation) = (name.to_owned(), i64::from(generation));
        conditions.add(after, vec![Box::new(name.clone()), Box::new(name), Box::new(generation)]);
    }
    let sql = format!(
        "SELECT body FROM bindings {} ORDER BY adapter_id, generation DESC LIMIT {}",
        conditions.sql,
        sql_limit(limit)
    );
    all(&reader.rows(&sql, &conditions.params()).await?, |row| get_json(row, 0))
}

const GRANT: &str = "g.body, g.revoked_at, g.revoked_by";

/// Reads a grant. Its revocation has columns of its own.
pub(in super::super) fn grant(row: &Row) -> Result<Grant, StoreError> {
    let grant: Grant = get_json(row, 0)?;
    let revoked_at = get::<Option<i64>>(row, 1)?.map(Time);
    Ok(Grant { revoked_at, revoked_by: get_maybe_json(row, 2)?, ..grant })
}

pub(in super::super) async fn grants(
    reader: &Reader,
    session: SessionId,
    run: RunId,
) -> Result<Vec<Grant>, StoreError> {
    let sql = format!(
        "SELECT {GRANT} FROM grants AS g WHERE session_id = $1 AND (run_id IS NULL OR run_id = $2)
         ORDER BY created_at, grant_id"
    );
    all(&reader.rows(&sql, &[&session.as_bytes().as_slice(), &run.as_bytes().as_slice()]).await?, grant)
}

pub(in super::super) async fn grant_get(reader: &Reader, id: GrantId) -> Result<Option<Grant>, StoreError> {
    let sql = format!(
        "SELECT {GRANT} FROM grants AS g JOIN sessions AS s USING (session_id)
         WHERE grant_id = $1 AND s.status <> 'deleted'"
    );
    reader.row(&sql, &[&id.as_bytes().as_slice()]).await?.map(|row| grant(&row)).transpose()
}

pub(in super::super) async fn grant_page(
    reader: &Reader,
    page: &GrantPage,
) -> Result<Vec<Grant>, StoreError> {
    let mut conditions = Conditions::default();
    conditions.add("s.status <> 'deleted' AND s.owner_id = ?", vec![Box::new(page.owner.clone())]);
    if let Some(session) = page.session {
        conditions.add("g.session_id = ?", vec![Box::new(session.as_bytes().to_vec())]);
    }
    if let Some((at, id)) = page.before {
        let before = "(g.created_at, g.grant_id) < (?, ?)";
        conditions.add(before, vec![Box::new(at.0), Box::new(id.as_bytes().to_vec())]);
    }
    if let Some(now) = page.in_force_at {
        let in_force = "g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > ?)
           AND NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.run_id = g.run_id AND r.ended)";
        conditions.add(in_force, vec![Box::new(now.0)]);
    }
    let sql = format!(
        "SELECT {GRANT} FROM grants AS g JOIN sessions AS s USING (session_id) {}
         ORDER BY g.created_at DESC, g.grant_id DESC LIMIT {}",
        conditions.sql,
        sql_limit(page.limit)
    );
    all(&reader.rows(&sql, &conditions.params()).await?, grant)
}

pub(in super::super) async fn feedback_list(
    reader: &Reader,
    session: SessionId,
    message: Option<MessageId>,
    limit: usize,
) -> Result<Vec<Feedback>, StoreError> {
    let sql = "SELECT body FROM feedback WHERE session_id = $1 AND ($2::bytea IS NULL OR message_id = $2)
               ORDER BY message_id, owner_id LIMIT $3";
    let message = message.map(|message| message.as_bytes().to_vec());
    let params: [&dyn Param; 3] = [&session.as_bytes().as_slice(), &message, &sql_limit(limit)];
    all(&reader.rows(sql, &params).await?, |row| get_json(row, 0))
}

pub(in super::super) async fn artifact_heirs(
    reader: &Reader,
    id: ArtifactId,
) -> Result<Vec<Artifact>, StoreError> {
    let sql = "SELECT i.body FROM inherited_artifacts AS i JOIN sessions AS s ON s.session_id = i.session_id
               WHERE i.artifact_id = $1 AND s.status <> 'deleted' ORDER BY i.session_id";
    all(&reader.rows(sql, &[&id.as_bytes().as_slice()]).await?, |row| get_json(row, 0))
}

pub(in super::super) async fn artifacts_inherited(
    reader: &Reader,
    fork: SessionId,
) -> Result<Vec<Artifact>, StoreError> {
    let sql = "SELECT body FROM inherited_artifacts WHERE session_id = $1 ORDER BY artifact_id";
    all(&reader.rows(sql, &[&fork.as_bytes().as_slice()]).await?, |row| get_json(row, 0))
}

pub(in super::super) async fn pins(
    reader: &Reader,
    owner: &str,
) -> Result<Vec<(SessionId, Time)>, StoreError> {
    let sql = "SELECT session_id, pinned_at FROM pins WHERE owner_id = $1 ORDER BY session_id";
    all(&reader.rows(sql, &[&owner]).await?, |row| {
        Ok((SessionId::from_bytes(get_id(row, 0)?), Time(get(row, 1)?)))
    })
}

pub(in super::super) async fn delegations(
    reader: &Reader,
    of: &DelegationsOf,
) -> Result<Vec<Delegation>, StoreError> {
    let order = "ORDER BY created_at, delegation_id";
    let found = |condition: &str| format!("SELECT body FROM delegations WHERE {condition} {order}");
    let rows = match of {
        DelegationsOf::Id(id) => {
            reader.rows(&found("delegation_id = $1"), &[&id.as_bytes().as_slice()]).await?
        }
        DelegationsOf::Parent(session, run) => {
            let sql = found("parent_session_id = $1 AND parent_run_id = $2");
            reader.rows(&sql, &[&session.as_bytes().as_slice(), &run.as_bytes().as_slice()]).await?
        }
        DelegationsOf::Child(run) => {
            reader.rows(&found("child_run_id = $1"), &[&run.as_bytes().as_slice()]).await?
        }
    };
    all(&rows, |row| get_json(row, 0))
}

pub(in super::super) async fn artifact_get(
    reader: &Reader,
    id: ArtifactId,
) -> Result<Option<Artifact>, StoreError> {
    let sql = "SELECT a.body FROM artifacts AS a JOIN sessions AS s USING (session_id)
               WHERE artifact_id = $1 AND s.status <> 'deleted'";
    reader.row(sql, &[&id.as_bytes().as_slice()]).await?.map(|row| get_json(&row, 0)).transpose()
}

pub(in super::super) async fn artifact_page(
    reader: &Reader,
    page: &ArtifactPage,
) -> Result<Rows<Artifact>, StoreError> {
    let mut conditions = Conditions::default();
    let session = page.session.as_bytes().to_vec();
    conditions.add("s.status <> 'deleted' AND a.session_id = ?", vec![Box::new(session)]);
    if let Some(run) = page.run {
        conditions.add("a.run_id = ?", vec![Box::new(run.as_bytes().to_vec())]);
    }
    if let Some((at, id)) = page.before {
        let before = "(a.created_at, a.artifact_id) < (?, ?)";
        conditions.add(before, vec![Box::new(at.0), Box::new(id.as_bytes().to_vec())]);
    }
    let sql = format!(
        "SELECT a.body FROM artifacts AS a JOIN sessions AS s USING (session_id) {}
         ORDER BY a.created_at DESC, a.artifact_id DESC",
        conditions.sql
    );
    reader.page("artifact", &sql, &conditions.params(), page.limit, |row| get_json(row, 0)).await
}

/// The time and the id after which a list by age begins.
fn after_key(after: Option<(Time, ArtifactId)>) -> (i64, Vec<u8>) {
    after.map_or((i64::MIN, vec![]), |(at, id)| (at.0, id.as_bytes().to_vec()))
}

pub(in super::super) async fn artifact_ages(
    reader: &Reader,
    after: Option<(Time, ArtifactId)>,
    limit: usize,
) -> Result<Vec<ArtifactAge>, StoreError> {
    let (at, id) = after_key(after);
    let sql = "SELECT a.artifact_id, s.owner_id, a.created_at, coalesce(a.size_bytes, 0)
               FROM artifacts AS a JOIN sessions AS s USING (session_id)
               WHERE s.status <> 'deleted' AND (a.created_at, a.artifact_id) > ($1, $2)
               ORDER BY a.created_at, a.artifact_id LIMIT $3";
    all(&reader.rows(sql, &[&at, &id, &sql_limit(limit)]).await?, |row| {
        Ok(ArtifactAge {
            id: ArtifactId::from_bytes(get_id(row, 0)?),
            owner: get(row, 1)?,
            created_at: Time(get(row, 2)?),
            size: get_u64(row, 3)?,
        })
    })
}

pub(in super::super) async fn memory_candidates(
    reader: &Reader,
    after: Option<(Time, ArtifactId)>,
    limit: usize,
) -> Result<Vec<Artifact>, StoreError> {
    let (at, id) = after_key(after);
    let sql = "SELECT a.body FROM artifacts AS a JOIN sessions AS s USING (session_id)
               WHERE a.undecided AND s.status <> 'deleted' AND (a.created_at, a.artifact_id) > ($1, $2)
               ORDER BY a.created_at, a.artifact_id LIMIT $3";
    all(&reader.rows(sql, &[&at, &id, &sql_limit(limit)]).await?, |row| get_json(row, 0))
}

pub(in super::super) async fn artifacts_named(reader: &Reader) -> Result<HashSet<ArtifactId>, StoreError> {
    // Only rows that can name an artifact leave the database.
    let sql = "SELECT body FROM messages WHERE body LIKE '%art\\_%' UNION ALL
               SELECT body FROM steps WHERE body LIKE '%art\\_%' UNION ALL
               SELECT result FROM effects WHERE result LIKE '%art\\_%' UNION ALL
               SELECT wait FROM runs WHERE NOT ended AND wait LIKE '%art\\_%' UNION ALL
               SELECT value FROM session_state WHERE value LIKE '%art\\_%' UNION ALL
               SELECT value FROM run_state WHERE value LIKE '%art\\_%' UNION ALL
               SELECT value FROM owner_state WHERE value LIKE '%art\\_%'";
    let mut named = HashSet::new();
    for row in reader.rows(sql, &[]).await? {
        named.extend(artifact_ids(get(&row, 0)?));
    }
    let sql = "SELECT result_id FROM delegations WHERE result_id IS NOT NULL";
    let rows = reader.rows(sql, &[]).await?;
    named.extend(all(&rows, |row| Ok(ArtifactId::from_bytes(get_id(row, 0)?)))?);
    Ok(named)
}

/// Hashes and sizes of the contents of artifacts after `$1`, at most `$2`.
pub(in super::super) const BLOB_PAGE: &str =
    "SELECT content_hash, max(size_bytes) FROM (SELECT content_hash, size_bytes FROM artifacts
       UNION ALL SELECT content_hash, size_bytes FROM inherited_artifacts) AS stored
     WHERE content_hash IS NOT NULL AND size_bytes IS NOT NULL AND ($1::text IS NULL OR content_hash > $1)
     GROUP BY content_hash ORDER BY content_hash LIMIT $2";

pub(in super::super) async fn blob_page(
    reader: &Reader,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, u64)>, StoreError> {
    all(&reader.rows(BLOB_PAGE, &[&after, &sql_limit(limit)]).await?, |row| {
        Ok((get(row, 0)?, get_u64(row, 1)?))
    })
}

pub(in super::super) async fn blob_loose(reader: &Reader, limit: usize) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT content_hash FROM blobs_loose ORDER BY content_hash LIMIT $1";
    all(&reader.rows(sql, &[&sql_limit(limit)]).await?, |row| get(row, 0))
}
