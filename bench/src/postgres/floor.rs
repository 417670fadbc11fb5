//! The baseline of commits: writes the rows of the store again, in the same transactions and by the same statements,
//! directly through tokio-postgres.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::task::JoinSet;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Row};

/// The number of low bits of a cursor; they number the events of one transaction.
const EVENT_BITS: u32 = 14;

const LOCK: &str =
    "SELECT session_id, epoch, pg_current_xact_id()::text FROM leases WHERE session_id = ANY ($1)
    ORDER BY session_id FOR UPDATE";
const RUNS: &str = "INSERT INTO runs (run_id, session_id, owner_id, run_no, client_id, request_id, fingerprint, fixed,
    created_cursor, created_at, status, ended, pen_line, pen_pos, wait, planned, body)
  SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
  ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, ended = excluded.ended, pen_line = excluded.pen_line,
    pen_pos = excluded.pen_pos, wait = excluded.wait, planned = excluded.planned, body = excluded.body";
const ATTEMPTS: &str = "INSERT INTO attempts (run_id, attempt_no, attempt_id, ended, body)
  SELECT * FROM unnest($1, $2, $3, $4, $5)
  ON CONFLICT (run_id, attempt_no) DO UPDATE SET ended = excluded.ended, body = excluded.body";
const EVENTS: &str = "INSERT INTO events (cursor, event_id, session_id, owner_id, run_id, attempt_id, message_id, type, pos,
    created_at, payload)
  SELECT u.cursor, u.event_id, u.session_id, s.owner_id, u.run_id, u.attempt_id, u.message_id, u.type, u.pos, u.at,
    u.payload
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    AS u(cursor, event_id, session_id, run_id, attempt_id, message_id, type, pos, at, payload)
  LEFT JOIN sessions AS s ON s.session_id = u.session_id";

/// A column of rows.
enum Column {
    Bytes(Vec<Option<Vec<u8>>>),
    Text(Vec<Option<String>>),
    Int(Vec<Option<i64>>),
    Bool(Vec<Option<bool>>),
}

impl Column {
    fn param(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Bytes(values) => (values, Type::BYTEA_ARRAY),
            Self::Text(values) => (values, Type::TEXT_ARRAY),
            Self::Int(values) => (values, Type::INT8_ARRAY),
            Self::Bool(values) => (values, Type::BOOL_ARRAY),
        }
    }

    /// Reads a column of rows, all of them of the type `kind`.
    fn read(rows: &[&Row], index: usize) -> Self {
        let kind = rows[0].columns()[index].type_().clone();
        match kind {
            Type::BYTEA => Self::Bytes(rows.iter().map(|row| row.get(index)).collect()),
            Type::INT8 => Self::Int(rows.iter().map(|row| row.get(index)).collect()),
            Type::BOOL => Self::Bool(rows.iter().map(|row| row.get(index)).collect()),
            _ => Self::Text(rows.iter().map(|row| row.get(index)).collect()),
        }
    }
}

/// The rows of one transaction.
pub(super) struct Transaction {
    sessions: Vec<Vec<u8>>,
    statements: Vec<(&'static str, Vec<Column>)>,
}

pub(super) struct Floor {
    ours: Client,
    writers: Vec<Client>,
    /// The last cursor that was read.
    after: i64,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move { connection.await.unwrap() });
    client
}

impl Floor {
    /// Connects to the database of the store at `ours`, and with `writers` connections to the database at `floor`.
    pub(super) async fn connect(ours: &str, floor: &str, writers: usize) -> Self {
        let mut clients = vec![];
        for _ in 0..writers {
            clients.push(connect(floor).await);
        }
        Self { ours: connect(ours).await, writers: clients, after: 0 }
    }

    /// Reads the transactions that the store has written since the last call.
    pub(super) async fn read(&mut self) -> Vec<Transaction> {
        let after = self.after;
        let events = "SELECT cursor, event_id, session_id, run_id, attempt_id, message_id, type, pos, created_at, payload
                      FROM events WHERE cursor > $1 ORDER BY cursor";
        let events = self.ours.query(events, &[&after]).await.unwrap();
        let named = "SELECT DISTINCT run_id FROM events WHERE cursor > $1 AND run_id IS NOT NULL";
        let runs = format!(
            "SELECT run_id, session_id, owner_id, run_no, client_id, request_id, fingerprint, fixed,
            created_cursor, created_at, status, ended, pen_line, pen_pos, wait, planned, body
          FROM runs WHERE run_id IN ({named})"
        );
        let runs = self.ours.query(&runs, &[&after]).await.unwrap();
        let attempts = format!(
            "SELECT run_id, attempt_no, attempt_id, ended, body FROM attempts WHERE run_id IN ({named})"
        );
        let attempts = self.ours.query(&attempts, &[&after]).await.unwrap();
        self.after = events.last().map_or(after, |event| event.get(0));
        let by_run = |rows: &[Row]| -> BTreeMap<Vec<u8>, usize> {
            rows.iter().enumerate().map(|(at, row)| (row.get(0), at)).collect()
        };
        let (run_at, attempt_at) = (by_run(&runs), by_run(&attempts));
        let mut groups: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
        for event in &events {
            groups.entry(event.get::<_, i64>(0) >> EVENT_BITS).or_default().push(event);
        }
        let columns = |rows: &[&Row]| (0..rows[0].len()).map(|index| Column::read(rows, index)).collect();
        let transaction = |events: Vec<&Row>| {
            let mut sessions: Vec<Vec<u8>> = events.iter().map(|event| event.get(2)).collect();
            let mut named: Vec<Vec<u8>> = events.iter().filter_map(|event| event.get(3)).collect();
            sessions.dedup();
            named.dedup();
            let runs: Vec<&Row> = named.iter().map(|run| &runs[run_at[run]]).collect();
            let attempts: Vec<&Row> = named.iter().map(|run| &attempts[attempt_at[run]]).collect();
            let statements =
                vec![(RUNS, columns(&runs)), (ATTEMPTS, columns(&attempts)), (EVENTS, columns(&events))];
            Transaction { sessions, statements }
        };
        groups.into_values().map(transaction).collect()
    }

    /// Writes the transactions on all connections, and returns the seconds that it took.
    pub(super) async fn write(&mut self, transactions: Vec<Transaction>) -> f64 {
        let count = self.writers.len();
        let mut shares: Vec<Vec<Transaction>> = (0..count).map(|_| vec![]).collect();
        for (at, transaction) in transactions.into_iter().enumerate() {
            shares[at % count].push(transaction);
        }
        let (mut tasks, begin) = (JoinSet::new(), Instant::now());
        for (client, share) in self.writers.drain(..).zip(shares) {
            tasks.spawn(async move {
                for transaction in &share {
                    write(&client, transaction).await;
                }
                client
            });
        }
        self.writers = tasks.join_all().await;
        begin.elapsed().as_secs_f64()
    }
}

/// Writes a transaction in two round trips: the locks, then all statements with COMMIT.
async fn write(client: &Client, transaction: &Transaction) {
    let locked: [(&(dyn ToSql + Sync), Type); 1] = [(&transaction.sessions, Type::BYTEA_ARRAY)];
    let (begun, locked) = tokio::join!(client.batch_execute("BEGIN"), client.query_typed(LOCK, &locked));
    begun.unwrap();
    assert_eq!(locked.unwrap().len(), transaction.sessions.len());
    let params: Vec<Vec<_>> = transaction
        .statements
        .iter()
        .map(|(_, columns)| columns.iter().map(Column::param).collect())
        .collect();
    let [(runs, _), (attempts, _), (events, _)] = &transaction.statements[..] else { unreachable!() };
    // The first poll sends all statements in this order.
    let (runs, attempts, events, ended) = tokio::join!(
        client.execute_typed(runs, &params[0]),
        client.execute_typed(attempts, &params[1]),
        client.execute_typed(events, &params[2]),
        client.batch_execute("COMMIT"),
    );
    for written in [runs, attempts, events] {
        written.unwrap();
    }
    ended.unwrap();
}
