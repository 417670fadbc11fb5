//! Reads grants.

use mainspring_core::{Grant, GrantEffect, GrantId, GrantSource, RunId, SessionId};
use mainspring_kernel::store::{GrantPage, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id, blob};
use super::{query_all, sql_limit};

/// The columns of a grant, in the order in which [`grant`] reads them.
macro_rules! grant_columns {
    () => {
        "SELECT g.grant_id, g.session_id, g.run_id, g.capability, g.operation, g.resource_pattern, g.effect, g.source, \
         g.created_at_ms, g.expires_at_ms, g.constraints_json, g.revoked_at_ms, g.revoked_by_json FROM grants AS g "
    };
}

/// Reads every grant, in any order.
pub(in super::super) const ALL_GRANTS: &str = concat!(grant_columns!(), "WHERE true");

pub(in super::super) fn grants(
    connection: &Connection,
    session: SessionId,
    run: RunId,
) -> Result<Vec<Grant>, StoreError> {
    let sql = concat!(
        grant_columns!(),
        "WHERE g.session_id = ?1 AND (g.run_id = ?2 OR g.run_id IS NULL) ORDER BY g.created_at_ms, g.grant_id"
    );
    query_all(connection, sql, params![session.bytes(), run.bytes()], grant)
}

pub(in super::super) fn grant_get(connection: &Connection, id: GrantId) -> Result<Option<Grant>, StoreError> {
    let sql = concat!(
        grant_columns!(),
        "JOIN sessions AS s ON s.session_id = g.session_id AND s.status <> 'deleted' WHERE g.grant_id = ?1"
    );
    Ok(query_all(connection, sql, params![id.bytes()], grant)?.pop())
}

pub(in super::super) fn grant_page(
    connection: &Connection,
    page: &GrantPage,
) -> Result<Vec<Grant>, StoreError> {
    // CROSS JOIN fixes the order of the tables: the grants are read in the order of the page.
    macro_rules! page {
        ($where:literal) => {
            concat!(
                grant_columns!(),
                "CROSS JOIN sessions AS s ON s.session_id = g.session_id AND s.owner_id = ?1 AND s.status <> 'deleted'
                 LEFT JOIN runs AS r ON r.run_id = g.run_id
                 WHERE ",
                $where,
                " AND (?3 IS NULL OR (g.created_at_ms, g.grant_id) < (?3, ?4))
                   AND (?5 IS NULL OR (g.revoked_at_ms IS NULL AND coalesce(g.expires_at_ms > ?5, true)
                     AND (g.run_id IS NULL OR r.completed_at_ms IS NULL)))
                 ORDER BY g.created_at_ms DESC, g.grant_id DESC LIMIT ?6"
            )
        };
    }
    let sql = if page.session.is_some() { page!("g.session_id = ?2") } else { page!("?2 IS NULL") };
    let params = params![
        page.owner,
        blob(page.session),
        page.before.map(|(at, _)| at.0),
        blob(page.before.map(|(_, id)| id)),
        page.in_force_at.map(|now| now.0),
        sql_limit(page.limit),
    ];
    query_all(connection, sql, params, grant)
}

pub(in super::super) fn grant(columns: &mut Columns<'_>) -> rusqlite::Result<Grant> {
    Ok(Grant {
        id: columns.id()?,
        session: columns.id()?,
        run: columns.maybe_id()?,
        capability: columns.get()?,
        operation: columns.get()?,
        resource_pattern: columns.get()?,
        effect: columns.name(GrantEffect::from_name)?,
        source: columns.name(GrantSource::from_name)?,
        created_at: columns.time()?,
        expires_at: columns.maybe_time()?,
        constraints: columns.maybe_json()?.unwrap_or_default(),
        revoked_at: columns.maybe_time()?,
        revoked_by: columns.maybe_json()?,
    })
}
