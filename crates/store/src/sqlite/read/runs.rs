//! Reads runs, attempts and requests.

use mainspring_core::{Attempt, AttemptId, Rows, Run, RunId, RunStatus, SessionId, Usage};
use mainspring_kernel::store::{Request, RunPage, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::{Id, blob};
use super::{
    attempt, attempt_columns, is_live, page_start, query_all, query_one, query_stored, request,
    request_columns, rows, run, run_columns, sql_limit,
};

pub(in super::super) fn run_get(connection: &Connection, id: RunId) -> Result<Option<Run>, StoreError> {
    let sql = concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs WHERE run_id = ?1 AND NOT EXISTS (SELECT 1 FROM sessions \
          WHERE sessions.session_id = runs.session_id AND sessions.status = 'deleted')"
    );
    query_one(connection, sql, [id.bytes()], run)
}

pub(in super::super) fn run_by_request(
    connection: &Connection,
    owner: &str,
    client: &str,
    request: &str,
) -> Result<Option<Run>, StoreError> {
    let sql = concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs WHERE owner_id = ?1 AND client_id = ?2 AND request_id = ?3 \
            AND client_id IS NOT NULL AND request_id IS NOT NULL"
    );
    query_one(connection, sql, [owner, client, request], run)
}

/// Sums the usage of all runs of a session.
pub(in super::super) fn session_usage(
    connection: &Connection,
    session: SessionId,
) -> Result<(u64, Usage), StoreError> {
    let sql = concat!("SELECT ", run_columns!(), " FROM runs WHERE session_id = ?1");
    // Summed here: SQL would add the marks of unknown costs, and would not compare the rows with their checksums.
    let used = query_all(connection, sql, [session.bytes()], |columns| Ok(run(columns)?.usage))?;
    Ok((used.len() as u64, used.into_iter().fold(Usage::default(), |sum, usage| sum + usage)))
}

/// Sums the usage of the runs in other sessions to which the runs of a session have delegated, directly or indirectly.
pub(in super::super) fn delegated_usage(
    connection: &Connection,
    session: SessionId,
) -> Result<(u64, Usage), StoreError> {
    let sql = concat!(
        "WITH RECURSIVE below(child_session, child_run) AS (
           SELECT child_session_id, child_run_id FROM delegations WHERE parent_session_id = ?1
           UNION
           SELECT d.child_session_id, d.child_run_id FROM below
             JOIN delegations AS d ON d.parent_session_id = child_session AND d.parent_run_id = child_run
         )
         SELECT ",
        run_columns!(),
        " FROM below LEFT JOIN runs ON run_id = child_run AND EXISTS (
             SELECT 1 FROM sessions WHERE sessions.session_id = runs.session_id AND sessions.status <> 'deleted')
           WHERE child_session <> ?1"
    );
    let used = query_all(connection, sql, [session.bytes()], |columns| {
        // The usage of a deleted run is unknown.
        let exists = columns.peek::<Option<[u8; 16]>>()?.is_some();
        if exists { Ok(run(columns)?.usage) } else { Ok(Usage::UNKNOWN) }
    })?;
    Ok((used.len() as u64, used.into_iter().fold(Usage::default(), |sum, usage| sum + usage)))
}

/// Reads a page of runs. Each filter has a statement of its own, which uses the index that fits it.
pub(in super::super) fn run_page(connection: &Connection, page: &RunPage) -> Result<Rows<Run>, StoreError> {
    let sql = page_sql(page.session.is_some(), page.status);
    let status = page.status.map(|status| status.name());
    let (time, id) = page_start(page.before);
    rows(page.limit, |limit| {
        let params = params![page.owner, blob(page.session), status, time, id, sql_limit(limit)];
        query_stored(connection, sql, params, run)
    })
}

fn page_sql(has_session: bool, status: Option<RunStatus>) -> &'static str {
    macro_rules! page {
        ($index:literal, $($where:expr),+) => {
            concat!(
                "SELECT ",
                run_columns!(),
                " FROM runs AS r ",
                $index,
                " WHERE ",
                $($where),+,
                " AND (created_at_ms, run_id) < (?4, ?5) \
                   AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = r.session_id AND s.status = 'deleted') \
                 ORDER BY created_at_ms DESC, run_id DESC LIMIT ?6"
            )
        };
    }
    // The status is a literal: SQLite uses a partial index only if the text of the query implies its condition.
    macro_rules! ended {
        ($status:literal) => {
            page!(
                "INDEXED BY runs_status_idx",
                "owner_id = ?1 AND ?2 IS NULL AND ?3 IS NOT NULL AND status = '",
                $status,
                "'"
            )
        };
    }
    use RunStatus::*;
    match (has_session, status) {
        // The unary plus disables the index by owner.
        (true, _) => page!("", "session_id = ?2 AND +owner_id = ?1 AND (?3 IS NULL OR status = ?3)"),
        (false, Some(Failed)) => ended!("failed"),
        (false, Some(Cancelled)) => ended!("cancelled"),
        (false, Some(TimedOut)) => ended!("timed_out"),
        (false, Some(Orphaned)) => ended!("orphaned"),
        // The unfinished runs of all owners are few.
        (false, Some(Queued | Starting | Running | WaitingInput | WaitingApproval | Cancelling)) => {
            page!("INDEXED BY runs_live_uq", "owner_id = ?1 AND ?2 IS NULL AND status = ?3 AND ", is_live!())
        }
        // Most runs succeed, so a scan of the latest runs fills a page quickly.
        (false, None | Some(Succeeded)) => {
            page!(
                "INDEXED BY runs_recent_idx",
                "owner_id = ?1 AND ?2 IS NULL AND (?3 IS NULL OR status = ?3)"
            )
        }
    }
}

pub(in super::super) fn attempts(connection: &Connection, run: RunId) -> Result<Rows<Attempt>, StoreError> {
    let sql =
        concat!("SELECT ", attempt_columns!(), " FROM run_attempts WHERE run_id = ?1 ORDER BY attempt_no");
    Ok(query_stored(connection, sql, [run.bytes()], attempt)?.into_iter().collect())
}

pub(in super::super) fn attempt_get(
    connection: &Connection,
    id: AttemptId,
) -> Result<Option<Attempt>, StoreError> {
    let sql = concat!("SELECT ", attempt_columns!(), " FROM run_attempts WHERE attempt_id = ?1 LIMIT 1");
    query_one(connection, sql, [id.bytes()], attempt)
}

pub(in super::super) fn request_get(
    connection: &Connection,
    owner: &str,
    operation: &str,
    key: &str,
) -> Result<Option<Request>, StoreError> {
    let sql = concat!(
        "SELECT ",
        request_columns!(),
        " FROM requests WHERE owner_id = ?1 AND operation = ?2 AND key = ?3"
    );
    query_one(connection, sql, [owner, operation, key], request)
}
