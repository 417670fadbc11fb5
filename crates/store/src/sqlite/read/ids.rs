//! Reads ids by their beginnings.

use mainspring_kernel::store::{IdPage, IdsOf, StoreError};
use rusqlite::{Connection, params};

use super::{query_all, sql_limit, tree};

pub(in super::super) fn id_page(connection: &Connection, page: &IdPage) -> Result<Vec<[u8; 16]>, StoreError> {
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
    let (first, last, limit) = (page.first, page.last, sql_limit(page.limit));
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
        IdsOf::Messages(session) => return tree::message_ids(connection, *session, page),
        IdsOf::Keys { org } => {
            let sql = "SELECT key_id FROM api_keys WHERE key_id BETWEEN ?1 AND ?2 \
                         AND (?3 IS NULL OR org_id = ?3) ORDER BY key_id LIMIT ?4";
            return query_all(connection, sql, params![first, last, org, limit], |columns| columns.get());
        }
    };
    query_all(connection, sql, params![first, last, owner, org, limit], |columns| columns.get())
}
