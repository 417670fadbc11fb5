//! Reads ids by their beginnings.

use mainspring_kernel::store::{IdPage, IdsOf, StoreError};
use rusqlite::{Connection, params};

use super::{query_all, query_one, sql_limit, tree};

pub(in super::super) fn id_page(
    connection: &Connection,
    page: &IdPage,
) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
    let next = first_unvisited(connection, page)?;
    let is_whole = next.is_none();
    let found = ids_until(connection, page, page.last_visited(next))?;
    Ok((is_whole || found.len() >= page.limit).then_some(found))
}

/// Finds the first id that must not be looked through any more.
fn first_unvisited(connection: &Connection, page: &IdPage) -> Result<Option<[u8; 16]>, StoreError> {
    macro_rules! nth {
        ($table:literal, $id:literal) => {
            concat!(
                "SELECT ",
                $id,
                " FROM ",
                $table,
                " WHERE ",
                $id,
                " BETWEEN ?1 AND ?2 ORDER BY ",
                $id,
                " LIMIT 1 OFFSET ?3"
            )
        };
    }
    let sql = match &page.of {
        IdsOf::Sessions { .. } => nth!("sessions", "session_id"),
        IdsOf::Runs { .. } => nth!("runs", "run_id"),
        IdsOf::Artifacts { .. } => nth!("artifacts", "artifact_id"),
        IdsOf::Delegations { .. } => nth!("delegations", "delegation_id"),
        IdsOf::Grants { .. } => nth!("grants", "grant_id"),
        IdsOf::Messages(_) => nth!("messages", "message_id"),
        IdsOf::Keys { .. } => nth!("api_keys", "key_id"),
    };
    query_one(connection, sql, params![page.first, page.last, sql_limit(page.visit)], |columns| columns.get())
}

/// Lists the ids of the page up to `last`.
fn ids_until(connection: &Connection, page: &IdPage, last: [u8; 16]) -> Result<Vec<[u8; 16]>, StoreError> {
    // CROSS JOIN fixes the order of the tables: the range of ids is searched by the index of the ids, and the session of
    // each is looked up.
    macro_rules! in_sessions {
        ($table:literal, $id:literal, $session:literal) => {
            concat!(
                "SELECT t.",
                $id,
                " FROM ",
                $table,
                " AS t CROSS JOIN sessions AS s ON s.session_id = t.",
                $session,
                " WHERE t.",
                $id,
                " BETWEEN ?1 AND ?2 AND s.status <> 'deleted' \
                   AND (s.owner_id = ?3 OR (s.visibility = 'org' AND s.org_id = ?4)) ORDER BY t.",
                $id,
                " LIMIT ?5"
            )
        };
    }
    let (first, limit) = (page.first, sql_limit(page.limit));
    let (sql, owner, org) = match &page.of {
        IdsOf::Sessions { owner, org } => (in_sessions!("sessions", "session_id", "session_id"), owner, org),
        IdsOf::Runs { owner, org } => (in_sessions!("runs", "run_id", "session_id"), owner, org),
        IdsOf::Artifacts { owner, org } => {
            (in_sessions!("artifacts", "artifact_id", "session_id"), owner, org)
        }
        IdsOf::Delegations { owner, org } => {
            (in_sessions!("delegations", "delegation_id", "parent_session_id"), owner, org)
        }
        IdsOf::Grants { owner, org } => (in_sessions!("grants", "grant_id", "session_id"), owner, org),
        IdsOf::Messages(session) => return tree::message_ids(connection, *session, page, last),
        IdsOf::Keys { org } => {
            let sql = "SELECT key_id FROM api_keys WHERE key_id BETWEEN ?1 AND ?2 \
                         AND (?3 IS NULL OR org_id = ?3) ORDER BY key_id LIMIT ?4";
            return query_all(connection, sql, params![first, last, org, limit], |columns| columns.get());
        }
    };
    query_all(connection, sql, params![first, last, owner, org, limit], |columns| columns.get())
}
