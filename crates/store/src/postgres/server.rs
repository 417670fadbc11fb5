//! The start of a server on a database, and the lock that admits one server at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::PostgresError;
use super::connect::Connector;
use super::error::describe;
use super::lease::{self, LocalServer};
use super::migrate::{is_closed, migrate};
use super::values::typed;
use super::writer::{EVENT_BITS, Shared, pause};

/// The lock of the server: the bytes of "mainserv". It is held by a connection, not by a transaction.
const LOCK: i64 = 0x6d61_696e_7365_7276;
/// Time between two attempts to get the lock.
const LOCK_WAIT_MS: u64 = 50;
/// The number of attempts to get the lock. They take five seconds, in which a stopping server can release it.
const LOCK_ATTEMPTS: usize = 100;
/// The number of histories that are kept.
const KEPT_HISTORIES: i64 = 1_000;
/// The number of latest boots whose traces are kept: writers of these boots may still look for them.
const KEPT_TRACES: i64 = 100;

/// Makes the tables, takes the lock and voids all leases of earlier servers.
pub(super) async fn start(
    connector: &Connector,
    shared: &Arc<Shared>,
    takes_lock: bool,
) -> Result<(), PostgresError> {
    let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
    let (client, driver) = connector.open().await.map_err(fail)?;
    migrate(&client).await?;
    let mut is_locked = !takes_lock;
    for _ in 0..LOCK_ATTEMPTS {
        is_locked = is_locked || try_lock(&client).await.map_err(fail)?;
        if is_locked && boot(&client, shared, None).await.map_err(fail)? {
            if takes_lock {
                let guard = Guard { connector: connector.clone(), shared: Arc::clone(shared) };
                connector.spawn(guard.keep(client, driver));
            }
            return Ok(());
        }
        pause(LOCK_WAIT_MS).await;
    }
    Err(PostgresError::InUse)
}

/// Takes the lock on `client`, for work on a database that no server may use meanwhile.
pub(super) async fn lock(client: &Client) -> Result<(), PostgresError> {
    let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
    let mut is_locked = false;
    for _ in 0..LOCK_ATTEMPTS {
        is_locked = is_locked || try_lock(client).await.map_err(fail)?;
        // A server of a cluster has a lease instead of this lock, and takes no lease while the lock is held.
        if is_locked
            && !client.query_typed(lease::FREE, &typed(&[&None::<&str>])).await.map_err(fail)?.is_empty()
        {
            // A server that has lost the connection that held the lock would otherwise go on writing.
            let void = "UPDATE meta SET value = value + 1 WHERE name = 'boot'; DELETE FROM leases; DELETE FROM node_leases";
            return client.batch_execute(void).await.map_err(fail);
        }
        pause(LOCK_WAIT_MS).await;
    }
    Err(PostgresError::InUse)
}

async fn try_lock(client: &Client) -> Result<bool, tokio_postgres::Error> {
    client.query_typed_one(&format!("SELECT pg_try_advisory_lock({LOCK})"), &[]).await?.try_get(0)
}

/// Begins the history of this server, unless another server has the database. With `local`, the server takes the lease
/// of the database. Returns whether it has begun.
pub(super) async fn boot(
    client: &Client,
    shared: &Shared,
    local: Option<&LocalServer>,
) -> Result<bool, tokio_postgres::Error> {
    client.batch_execute(&shared.begin()).await?;
    let begun = boot_in_transaction(client, shared, local).await;
    let end = if matches!(begun, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await?;
    begun
}

async fn boot_in_transaction(
    client: &Client,
    shared: &Shared,
    local: Option<&LocalServer>,
) -> Result<bool, tokio_postgres::Error> {
    if local.is_some() && !try_lock_for_transaction(client).await? {
        return Ok(false);
    }
    // Since the tables were checked, a copy may have begun and been interrupted, or a later version may have changed them.
    if is_closed(client).await? {
        return Ok(false);
    }
    let place = local.and_then(|local| local.place.as_deref());
    let free = client.query_typed(lease::FREE, &typed(&[&place])).await?;
    if free.is_empty() {
        return Ok(false);
    }
    let boot = begin_history(client, shared).await?;
    lease::take(client, boot, local).await?;
    Ok(true)
}

/// Locks the database for the transaction. A server without a cluster holds this lock as long as it runs.
pub(super) async fn try_lock_for_transaction(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("SELECT pg_try_advisory_xact_lock({LOCK})");
    client.query_typed_one(&sql, &[]).await?.try_get(0)
}

/// Begins a history and voids the leases of all earlier servers. Returns the number of the boot.
pub(super) async fn begin_history(client: &Client, shared: &Shared) -> Result<i64, tokio_postgres::Error> {
    let number = async |sql: &str| client.query_typed_one(sql, &[]).await?.try_get::<_, i64>(0);
    // Updated before the leases: a change also locks this row first, so the two cannot deadlock.
    let boot = number(
        "INSERT INTO meta VALUES ('boot', 1) ON CONFLICT (name) DO UPDATE SET value = meta.value + 1 RETURNING value",
    )
    .await?;
    client.batch_execute("DELETE FROM leases; DELETE FROM node_leases").await?;
    let last = number(
        "SELECT greatest((SELECT max(cursor) FROM events), (SELECT value FROM meta WHERE name = 'last_cursor'), 0)",
    )
    .await?;
    let xid = number("SELECT pg_current_xact_id()::text::bigint").await?;
    let base = number("SELECT coalesce((SELECT value FROM meta WHERE name = 'cursor_base'), 0)").await?;
    // A dump may have been restored into another database server, whose transaction ids are lower.
    let base = base.max((last >> EVENT_BITS) + 1 - xid);
    client
        .batch_execute(&format!(
            "INSERT INTO meta VALUES ('cursor_base', {base}) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
             INSERT INTO histories (token, after_cursor) VALUES (left(replace(gen_random_uuid()::text, '-', ''), 16), {last});
             DELETE FROM histories WHERE id <= (SELECT max(id) FROM histories) - {KEPT_HISTORIES};
             DELETE FROM meta WHERE
               CASE WHEN name LIKE 'wrote:%' THEN split_part(name, ':', 2)::bigint < {boot} - {KEPT_TRACES} ELSE false END"
        ))
        .await?;
    shared.base.store(base.cast_unsigned(), Ordering::Release);
    shared.boot.store(boot, Ordering::Release);
    Ok(boot)
}

/// Joins the history that other servers have begun.
pub(super) async fn continue_history(client: &Client, shared: &Shared) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT (SELECT value FROM meta WHERE name = 'boot'), (SELECT value FROM meta WHERE name = 'cursor_base')";
    let row = client.query_typed_one(sql, &[]).await?;
    shared.boot.store(row.try_get(0)?, Ordering::Release);
    shared.base.store(row.try_get::<_, i64>(1)?.cast_unsigned(), Ordering::Release);
    Ok(())
}

/// Keeps the lock, and notices when another server has taken it.
struct Guard {
    connector: Connector,
    shared: Arc<Shared>,
}

impl Guard {
    async fn keep(self, client: Client, driver: JoinHandle<()>) {
        let (mut held, mut driver) = (client, driver);
        loop {
            let _ = driver.await;
            drop(held);
            (held, driver) = loop {
                match self.take_again().await {
                    Some(taken) => break taken,
                    None if self.shared.lost.load(Ordering::Acquire) => return,
                    None => pause(LOCK_WAIT_MS).await,
                }
            };
            tracing::info!("the lock of the database is held again");
        }
    }

    /// Takes the lock on a new connection. The caller retries if this returns `None`, unless another server has
    /// started.
    async fn take_again(&self) -> Option<(Client, JoinHandle<()>)> {
        let (client, driver) = self.connector.open().await.ok()?;
        let is_locked = try_lock(&client).await.ok()?;
        let sql = "SELECT value FROM meta WHERE name = 'boot'";
        let boot: i64 = client.query_typed_one(sql, &[]).await.ok()?.try_get(0).ok()?;
        if boot != self.shared.boot.load(Ordering::Acquire) {
            self.shared.lose("another server has taken the database");
            return None;
        }
        is_locked.then_some((client, driver))
    }
}
