//! Finds ids by their beginnings.

use mainspring_core::SessionId;
use mainspring_kernel::store::{IdPage, IdsOf, StoreError};

use super::super::values::{all, get_id, get_point, sql_limit};
use super::Reader;
use super::tree::Tree;

pub(in super::super) async fn id_page(
    reader: &Reader,
    page: &IdPage,
) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
    let (table, id, session) = match &page.of {
        IdsOf::Sessions { .. } => ("sessions", "session_id", "session_id"),
        IdsOf::Runs { .. } => ("runs", "run_id", "session_id"),
        IdsOf::Artifacts { .. } => ("artifacts", "artifact_id", "session_id"),
        IdsOf::Grants { .. } => ("grants", "grant_id", "session_id"),
        IdsOf::Delegations { .. } => ("delegations", "delegation_id", "parent_session_id"),
        IdsOf::Messages(_) => ("messages", "message_id", "session_id"),
        IdsOf::Keys { .. } => ("api_keys", "key_id", ""),
    };
    // The first id that must not be looked through any more.
    let sql =
        format!("SELECT {id} FROM {table} WHERE {id} BETWEEN $1 AND $2 ORDER BY {id} LIMIT 1 OFFSET $3");
    let (first, limit) = (page.first.as_slice(), sql_limit(page.limit));
    let next = reader.row(&sql, &[&first, &page.last.as_slice(), &sql_limit(page.visit)]).await?;
    let next = next.map(|row| get_id(&row, 0)).transpose()?;
    let last = page.last_visited(next);
    let last = last.as_slice();
    let found = match &page.of {
        IdsOf::Messages(session) => message_ids(reader, *session, first, last, page.limit).await?,
        IdsOf::Keys { org } => {
            let sql = "SELECT key_id FROM api_keys WHERE key_id BETWEEN $1 AND $2
                         AND ($3::text IS NULL OR org_id = $3) ORDER BY key_id LIMIT $4";
            all(&reader.rows(sql, &[&first, &last, org, &limit]).await?, |row| get_id(row, 0))?
        }
        IdsOf::Sessions { owner, org }
        | IdsOf::Runs { owner, org }
        | IdsOf::Artifacts { owner, org }
        | IdsOf::Grants { owner, org }
        | IdsOf::Delegations { owner, org } => {
            let sql = format!(
                "SELECT t.{id} FROM {table} AS t JOIN sessions AS s ON s.session_id = t.{session}
                 WHERE t.{id} BETWEEN $1 AND $2 AND s.status <> 'deleted'
                   AND (s.owner_id = $3 OR (s.visibility = 'org' AND s.org_id = $4))
                 ORDER BY t.{id} LIMIT $5"
            );
            all(&reader.rows(&sql, &[&first, &last, owner, org, &limit]).await?, |row| get_id(row, 0))?
        }
    };
    Ok((next.is_none() || found.len() >= page.limit).then_some(found))
}

/// Lists the ids between `first` and `last` of messages that `session` sees. Reads no content.
async fn message_ids(
    reader: &Reader,
    session: SessionId,
    first: &[u8],
    last: &[u8],
    limit: usize,
) -> Result<Vec<[u8; 16]>, StoreError> {
    let tree = Tree::read(reader, session).await?;
    let sql = "SELECT message_id, session_id, line, pos FROM messages WHERE message_id BETWEEN $1 AND $2
               ORDER BY message_id";
    let mut found = vec![];
    for row in reader.rows(sql, &[&first, &last]).await? {
        if found.len() < limit && tree.sees(SessionId::from_bytes(get_id(&row, 1)?), get_point(&row, 2)?) {
            found.push(get_id(&row, 0)?);
        }
    }
    Ok(found)
}
