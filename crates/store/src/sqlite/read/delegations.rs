//! Reads delegations.

use mainspring_core::{Delegation, DelegationMode, DelegationStatus, Run};
use mainspring_kernel::store::{DelegationsOf, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id};
use super::query_all;

macro_rules! select_unordered {
    ($where:literal) => {
        concat!(
            "SELECT delegation_id, parent_session_id, parent_run_id, child_session_id, child_run_id, mode, status, \
             objective, result_artifact_id, created_at_ms, completed_at_ms, request_json FROM delegations WHERE ",
            $where
        )
    };
}
macro_rules! select {
    ($where:literal) => {
        concat!(select_unordered!($where), " ORDER BY created_at_ms, delegation_id")
    };
}

/// Selects every delegation except those of sessions that are being deleted, in any order.
pub(in super::super) const ALL_DELEGATIONS: &str =
    select_unordered!("parent_session_id IN (SELECT session_id FROM sessions WHERE status <> 'deleted')");

pub(in super::super) fn delegations(
    connection: &Connection,
    of: DelegationsOf,
) -> Result<Vec<Delegation>, StoreError> {
    match of {
        DelegationsOf::Id(id) => {
            query_all(connection, select!("delegation_id = ?1"), [id.bytes()], delegation)
        }
        DelegationsOf::Parent(session, run) => {
            let sql = select!("parent_session_id = ?1 AND parent_run_id = ?2");
            query_all(connection, sql, params![session.bytes(), run.bytes()], delegation)
        }
        DelegationsOf::Child(run) => {
            query_all(connection, select!("child_run_id = ?1"), [run.bytes()], delegation)
        }
    }
}

/// The delegations that are not settled and whose parent or child is one of `runs`.
pub(super) fn unsettled<T>(
    connection: &Connection,
    runs: &[(Run, T)],
) -> Result<Vec<Delegation>, StoreError> {
    let mut found = vec![];
    for (run, _) in runs {
        if run.parent.is_some() {
            found.extend(delegations(connection, DelegationsOf::Child(run.id))?);
        }
        found.extend(delegations(connection, DelegationsOf::Parent(run.session, run.id))?);
    }
    found.retain(|delegation| !delegation.status.is_settled());
    Ok(found)
}

pub(in super::super) fn delegation(columns: &mut Columns<'_>) -> rusqlite::Result<Delegation> {
    Ok(Delegation {
        id: columns.id()?,
        parent_session: columns.id()?,
        parent_run: columns.id()?,
        child_session: columns.id()?,
        child_run: columns.id()?,
        mode: columns.name(DelegationMode::from_name)?,
        status: columns.name(DelegationStatus::from_name)?,
        objective: columns.get()?,
        result: columns.maybe_id()?,
        created_at: columns.time()?,
        completed_at: columns.maybe_time()?,
        request: columns.maybe_json()?.unwrap_or_default(),
    })
}
