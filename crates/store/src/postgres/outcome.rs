//! The outcome of a transaction whose connection broke at COMMIT.
//!
//! ```text
//! number is in progress ──▶ look up again          number is aborted, or was never given ──▶ lost
//! number is committed   ──trace is there──▶ committed
//!                       └─trace is missing────────────────────────────────────────────────▶ lost
//! ```
//!
//! PostgreSQL reuses the numbers of transactions that it lost in a crash, or that were not replicated to a standby that
//! was promoted. So a number proves nothing by itself. Each transaction also leaves a trace: one of its events, or the
//! row of its writer in `meta` if it has no event.
//!
//! Invariant: the trace is read in a snapshot that is newer than the answer "committed".

use mainspring_core::{Cursor, EventId, NodeId};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::connect::Connector;
use super::tables::Statement;
use super::values::{columns, int, number, text, typed};
use super::writer::pause;

/// Time between two lookups of a transaction that has not ended.
const LOOKUP_WAIT_MS: u64 = 20;
/// Number of lookups of a transaction before its outcome counts as unknown.
const LOOKUPS: usize = 100;

/// A transaction that is about to be committed.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) xid: u64,
    pub(super) trace: Trace,
}

/// The evidence that a committed transaction leaves.
#[derive(Debug)]
pub(super) enum Trace {
    /// An event that the transaction writes.
    Event(Cursor, EventId),
    /// The number of the transaction in the row of its writer.
    Row(String),
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    /// Nothing of the transaction is stored, and nothing will be.
    Lost,
    Unknown,
}

/// Names the row in which a writer leaves its traces. All servers of a cluster have the same boot number, so the name
/// also contains the home.
pub(super) fn writer_name(boot: i64, home: Option<&NodeId>, writer: usize) -> String {
    let home = home.map(NodeId::to_string).unwrap_or_default();
    format!("wrote:{boot}:{home}:{writer}")
}

impl Transaction {
    /// The statement that leaves the trace, unless an event does.
    pub(super) fn trace_statement(&self) -> Option<Statement> {
        const LEAVE: &str = "INSERT INTO meta (name, value) SELECT * FROM unnest($1, $2)
                             ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        match &self.trace {
            Trace::Event(..) => None,
            Trace::Row(writer) => {
                let row = vec![text(writer), number(int(self.xid))];
                Some(Statement { sql: LEAVE, columns: columns(vec![row]) })
            }
        }
    }

    /// Determines the outcome of the transaction, on connections other than its own.
    pub(super) async fn look_up(&self, connector: &Connector) -> Outcome {
        for _ in 0..LOOKUPS {
            let lookup = async { self.look_up_once(&connector.connect().await?).await };
            match lookup.await {
                Ok(Some(outcome)) => return outcome,
                // The database has not noticed the end of the connection yet, or is not reachable.
                Ok(None) | Err(_) => pause(LOOKUP_WAIT_MS).await,
            }
        }
        Outcome::Unknown
    }

    /// Looks up the transaction once. Returns `None` if the outcome is not decided, or cannot be seen here.
    async fn look_up_once(&self, client: &Client) -> Result<Option<Outcome>, Error> {
        let is_standby: bool = client.query_typed_one("SELECT pg_is_in_recovery()", &[]).await?.try_get(0)?;
        if is_standby {
            // A standby may not have received the transaction yet.
            return Ok(None);
        }
        let sql = format!("SELECT pg_xact_status('{}'::xid8)", self.xid);
        let status = match client.query_typed_one(&sql, &[]).await {
            Ok(row) => row.try_get::<_, Option<String>>(0)?,
            // The number is in the future: the database has lost it, and has not given it to another transaction yet.
            Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => {
                return Ok(Some(Outcome::Lost));
            }
            Err(error) => return Err(error),
        };
        Ok(match status.as_deref() {
            // Reads the trace in a second statement: the snapshot of the first may be older than the commit it reports.
            Some("committed") if self.is_traced(client).await? => Some(Outcome::Committed),
            Some("committed" | "aborted") => Some(Outcome::Lost),
            _ => None,
        })
    }

    async fn is_traced(&self, client: &Client) -> Result<bool, Error> {
        let rows = match &self.trace {
            Trace::Event(cursor, event) => {
                let sql = "SELECT 1 FROM events WHERE cursor = $1 AND event_id = $2";
                let event = event.as_bytes().as_slice();
                client.query_typed(sql, &typed(&[&int(cursor.0), &event])).await?
            }
            Trace::Row(writer) => {
                let sql = "SELECT 1 FROM meta WHERE name = $1 AND value = $2";
                client.query_typed(sql, &typed(&[&writer.as_str(), &int(self.xid)])).await?
            }
        };
        Ok(!rows.is_empty())
    }
}
