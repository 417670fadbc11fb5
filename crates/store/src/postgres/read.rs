//! Reads: one statement if that is enough, else several in one snapshot.

use mainspring_core::{Attempt, Message, MessageStatus, NodeId, RequestName, Rows, Run, RunState, Session};
use mainspring_kernel::store::{PlacedMessage, StoreError};
use std::sync::Arc;
use tokio_postgres::Row;

use super::connect::Pooled;
use super::error::{read_error, write_error};
use super::rows::{Fixed, PrivateWait};
use super::values::{
    Param, get, get_id, get_json, get_maybe_json, get_point, get_u32, list, sql_limit, typed,
};
use super::writer::{Shared, closed};

pub(super) mod access;
pub(super) mod events;
pub(super) mod ids;
pub(super) mod records;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod sessions;
pub(super) mod state;
pub(super) mod tree;
pub(super) mod tree_state;

/// A connection of the pool.
pub(super) struct Reader {
    pooled: Pooled,
}

impl Reader {
    pub(super) fn new(pooled: Pooled) -> Self {
        Self { pooled }
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn rows(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, StoreError> {
        let client = self.pooled.client().ok_or_else(closed)?;
        client.query_typed(sql, &typed(params)).await.map_err(|error| read_error(&error))
    }

    /// Runs a statement that has no limit and returns a page of `limit` rows that can be read. Names the rows between
    /// them that cannot be read.
    pub(super) async fn page<T>(
        &self,
        kind: &str,
        sql: &str,
        params: &[&dyn Param],
        limit: usize,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Rows<T>, StoreError> {
        let (mut page, mut offset) = (Rows::from(vec![]), 0);
        loop {
            let wanted = limit - page.items.len();
            let rows =
                self.rows(&format!("{sql} LIMIT {} OFFSET {offset}", sql_limit(wanted)), params).await?;
            offset += rows.len();
            page.append(list(kind, &rows, &read)?);
            if rows.len() < wanted || page.items.len() == limit {
                return Ok(page);
            }
        }
    }

    /// Runs a statement and returns its first row.
    pub(super) async fn row(&self, sql: &str, params: &[&dyn Param]) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    /// Runs a statement that writes, and returns its rows.
    pub(super) async fn write(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, StoreError> {
        let client = self.pooled.client().ok_or_else(closed)?;
        client.query_typed(sql, &typed(params)).await.map_err(|error| write_error(&error))
    }

    /// True if the statement returns a row.
    pub(super) async fn exists(&self, sql: &str, params: &[&dyn Param]) -> Result<bool, StoreError> {
        Ok(self.row(sql, params).await?.is_some())
    }

    /// Begins a transaction in which all statements read the same state.
    pub(super) async fn begin_snapshot(&self) -> Result<(), StoreError> {
        self.batch("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await
    }

    /// Begins a transaction that writes. Fails if another server has started after this one. No other server can start
    /// until the transaction ends.
    pub(super) async fn begin_change(&self, shared: &Shared) -> Result<(), StoreError> {
        let client = self.pooled.client().ok_or_else(closed)?;
        let boot = shared.boot.load(std::sync::atomic::Ordering::Acquire);
        let alone = "SELECT 1 FROM meta WHERE name = 'boot' AND value = $1 FOR SHARE";
        // A server of a cluster also locks its own lease against a takeover, but not against its renewal.
        let shares = "SELECT 1 FROM meta AS m, node_leases AS n
                      WHERE m.name = 'boot' AND m.value = $1 AND n.node_id = $2 FOR SHARE OF m FOR KEY SHARE OF n";
        let home = shared.home.get().map(NodeId::as_bytes).map(<[u8; 16]>::as_slice);
        let (sql, params) = match &home {
            Some(home) => (shares, typed(&[&boot, home])),
            None => (alone, typed(&[&boot])),
        };
        let begin = shared.begin();
        // Polled together, so that both statements are sent before the first answer.
        let (begun, held) = tokio::join!(client.batch_execute(&begin), client.query_typed(sql, &params));
        begun.map_err(|error| read_error(&error))?;
        if held.map_err(|error| read_error(&error))?.is_empty() {
            self.batch("ROLLBACK").await?;
            shared.lose("another server has started on it");
            shared.check_held()?;
        }
        Ok(())
    }

    pub(super) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        let client = self.pooled.client().ok_or_else(closed)?;
        client.batch_execute(sql).await.map_err(|error| read_error(&error))
    }

    /// Returns the connection to the pool. A reader that is dropped without this call closes its connection.
    pub(super) fn done(self) {
        self.pooled.done();
    }
}

/// Conditions of a statement with their parameters.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) sql: String,
    params: Vec<Box<dyn Param>>,
}

impl Conditions {
    /// Adds a condition. Each `?` in it stands for one of `params`, in order.
    pub(super) fn add(&mut self, condition: &str, params: Vec<Box<dyn Param>>) {
        self.sql.push_str(if self.sql.is_empty() { " WHERE " } else { " AND " });
        let mut next = self.params.len();
        for part in condition.split_inclusive('?') {
            match part.strip_suffix('?') {
                Some(text) => {
                    next += 1;
                    self.sql.push_str(&format!("{text}${next}"));
                }
                None => self.sql.push_str(part),
            }
        }
        self.params.extend(params);
    }

    pub(super) fn params(&self) -> Vec<&dyn Param> {
        self.params.iter().map(|param| &**param).collect()
    }
}

pub(super) const SESSION: &str = "s.body, s.tip_line, s.tip_pos, s.base_line, s.base_pos";
/// The number of columns of [`SESSION`].
pub(super) const SESSION_COLUMNS: usize = 5;

/// Reads a session from the columns [`SESSION`].
pub(super) fn session(row: &Row) -> Result<Session, StoreError> {
    let session: Session = get_json(row, 0)?;
    Ok(Session { tip: get_point(row, 1)?, base: get_point(row, 3)?, ..session })
}

pub(super) const RUN: &str = "r.body, r.session_id, r.owner_id, r.run_no, r.client_id, r.request_id, r.fingerprint, r.fixed, \
                              r.created_at, r.pen_line, r.pen_pos, r.wait";
/// The number of columns of [`RUN`].
pub(super) const RUN_COLUMNS: usize = 12;

/// Reads a run from the columns [`RUN`], which begin at `at`. Fields that never change are read from columns of their own.
pub(super) fn run(row: &Row, at: usize) -> Result<Run, StoreError> {
    let mut run: Run = get_json(row, at)?;
    let fixed: Fixed = get_json(row, at + 7)?;
    run.session = mainspring_core::SessionId::from_bytes(get_id(row, at + 1)?);
    run.owner = get(row, at + 2)?;
    run.no = get_u32(row, at + 3)?;
    run.request = RequestName {
        client_id: get(row, at + 4)?,
        request_id: get(row, at + 5)?,
        idempotency_key: fixed.idempotency_key,
    };
    run.fingerprint = get_id(row, at + 6)?;
    (run.parent, run.mode, run.prompt, run.place) = (fixed.parent, fixed.mode, fixed.prompt, fixed.place);
    run.created_at = mainspring_core::Time(get(row, at + 8)?);
    run.pen = get_point(row, at + 9)?;
    if let (
        Some(PrivateWait { held, results, resume, replies }),
        RunState::WaitingInput { wait, .. } | RunState::WaitingApproval { wait, .. },
    ) = (get_maybe_json(row, at + 11)?, &mut run.state)
    {
        (wait.held, wait.results, wait.resume, wait.replies) = (held, results, resume, replies);
    }
    Ok(run)
}

pub(super) fn attempt(row: &Row) -> Result<Attempt, StoreError> {
    get_json(row, 0)
}

pub(super) const MESSAGE: &str = "m.body, m.status, m.line, m.pos";

/// Reads a message from the columns [`MESSAGE`]. The status has a column of its own, since it may change after the body
/// is written.
pub(super) fn message(row: &Row) -> Result<PlacedMessage, StoreError> {
    let message: Message = get_json(row, 0)?;
    let status: &str = get(row, 1)?;
    let unknown = || StoreError::Corrupt(format!("the status {status} of a message is not known"));
    let status = MessageStatus::from_name(status).ok_or_else(unknown)?;
    Ok(PlacedMessage { message: Arc::new(Message { status, ..message }), point: get_point(row, 2)? })
}
