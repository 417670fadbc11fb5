//! Finds ids by their beginnings.

use mainspring_kernel::store::{IdPage, IdsOf, StoreError};

use super::super::values::{all, get_id, sql_limit};
use super::tree::Tree;
use super::{MESSAGE, Reader, message};

pub(in super::super) async fn id_page(reader: &Reader, page: &IdPage) -> Result<Vec<[u8; 16]>, StoreError> {
    let (first, last, limit) = (page.first.as_slice(), page.last.as_slice(), sql_limit(page.limit));
    let (table, id, session, owner, org) = match &page.of {
        IdsOf::Sessions { owner, org } => ("sessions", "session_id", "session_id", owner, org),
        IdsOf::Runs { owner, org } => ("runs", "run_id", "session_id", owner, org),
        IdsOf::Artifacts { owner, org } => ("artifacts", "artifact_id", "session_id", owner, org),
        IdsOf::Grants { owner, org } => ("grants", "grant_id", "session_id", owner, org),
        IdsOf::Delegations { owner, org } => {
            ("delegations", "delegation_id", "parent_session_id", owner, org)
        }
        IdsOf::Messages(session) => {
            let tree = Tree::read(reader, *session).await?;
            let sql = format!(
                "SELECT {MESSAGE} FROM messages AS m WHERE message_id BETWEEN $1 AND $2 ORDER BY message_id"
            );
            let found = all(&reader.rows(&sql, &[&first, &last]).await?, message)?;
            let seen = found.iter().filter(|placed| tree.sees(placed));
            return Ok(seen.map(|placed| *placed.message.id.as_bytes()).take(page.limit).collect());
        }
        IdsOf::Keys { org } => {
            let sql = "SELECT key_id FROM api_keys WHERE key_id BETWEEN $1 AND $2
                         AND ($3::text IS NULL OR org_id = $3) ORDER BY key_id LIMIT $4";
            let rows = reader.rows(sql, &[&first, &last, org, &limit]).await?;
            return all(&rows, |row| get_id(row, 0));
        }
    };
    let sql = format!(
        "SELECT t.{id} FROM {table} AS t JOIN sessions AS s ON s.session_id = t.{session}
         WHERE t.{id} BETWEEN $1 AND $2 AND s.status <> 'deleted'
           AND (s.owner_id = $3 OR (s.visibility = 'org' AND s.org_id = $4))
         ORDER BY t.{id} LIMIT $5"
    );
    let rows = reader.rows(&sql, &[&first, &last, owner, org, &limit]).await?;
    all(&rows, |row| get_id(row, 0))
}
