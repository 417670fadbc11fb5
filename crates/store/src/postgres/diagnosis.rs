//! Examines a database for `mainspring doctor`. Changes nothing in it.

use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::connect::Connector;
use super::error::describe;
use super::migrate::{self, SCHEMA_VERSION};
use super::settings::{self, Announced};
use super::{PostgresError, Threads, meters};

/// The number of measurements of each duration. Their median is reported.
const MEASUREMENTS: usize = 5;

/// The state of a database and of its server.
#[derive(Debug, Clone, PartialEq)]
pub struct PostgresCheck {
    /// The version of PostgreSQL.
    pub version: String,
    /// The version of the tables; `None` without any.
    pub schema: Option<u64>,
    /// True for the target of a copy that has not ended.
    pub is_unfinished_copy: bool,
    /// The version of the tables that this program writes.
    pub known_schema: u64,
    /// The size of the database in bytes.
    pub bytes: u64,
    /// The duration of a round trip.
    pub round_trip: Duration,
    /// The duration of a transaction that the database makes durable.
    pub commit: Duration,
    /// The settings that decide whether acknowledged changes are durable, by name.
    pub settings: Vec<(String, String)>,
    /// True for a read-only replica.
    pub is_read_only: bool,
    /// Open transactions that have written, the oldest first: they hold back readers of all sessions.
    pub holders: Vec<FeedHolder>,
    /// True if the user may not see the transactions of others.
    pub sees_own_only: bool,
    /// The database's time, in milliseconds since 1970.
    pub now_ms: i64,
    /// The number of times that a server took over from another server that had not released its lease.
    pub takeovers: u64,
    /// Milliseconds until the lease of the active server expires; `None` if no server has it.
    pub lease_left_ms: Option<i64>,
    /// The servers of the cluster, by name.
    pub servers: Vec<ServerRow>,
}

/// An open transaction that has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedHolder {
    /// The process of PostgreSQL; 0 for a prepared transaction.
    pub pid: i32,
    /// The program that has the connection, or the name of a prepared transaction.
    pub application: String,
    /// The database that the transaction is in.
    pub database: String,
    /// Its age in milliseconds.
    pub age_ms: i64,
}

/// A server of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRow {
    /// The name.
    pub name: String,
    /// The address.
    pub address: String,
    /// The version.
    pub version: String,
    /// Milliseconds since the server last reported that it is alive.
    pub seen_ms: i64,
    /// True if it has the lease.
    pub is_active: bool,
    /// The groups of settings in which it differs from the active server.
    pub differs: Vec<String>,
}

impl PostgresCheck {
    /// Examines the database at `url`.
    pub async fn read(url: &str) -> Result<Self, PostgresError> {
        let (_threads, runtime) = Threads::start()?;
        let connector = Connector::new(url, runtime)?;
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = connector.connect().await.map_err(fail)?;
        read(&client).await.map_err(fail)
    }
}

async fn read(client: &Client) -> Result<PostgresCheck, Error> {
    let round_trip = median(client, "SELECT 1").await?;
    let is_read_only: bool = one(client, "SELECT pg_is_in_recovery()").await?;
    // A logical message makes a transaction durable and changes no table.
    let write = "BEGIN; SELECT pg_logical_emit_message(true, 'mainspring', 'doctor'); COMMIT";
    let commit = if is_read_only { Duration::ZERO } else { median(client, write).await? };
    let settings = "SELECT name, setting FROM pg_settings
                    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') ORDER BY name";
    let rows = client.query_typed(settings, &[]).await?;
    let settings =
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Error>>()?;
    let (schema, is_unfinished_copy) = match exists(client, "mainspring_schema").await? {
        true => (
            one::<Option<i64>>(client, "SELECT max(version) FROM mainspring_schema").await?,
            migrate::is_unfinished_copy(client).await?,
        ),
        false => (None, false),
    };
    let mut check = PostgresCheck {
        version: one(client, "SELECT current_setting('server_version')").await?,
        schema: schema.map(i64::cast_unsigned),
        is_unfinished_copy,
        known_schema: SCHEMA_VERSION as u64,
        bytes: one::<i64>(client, "SELECT pg_database_size(current_database())").await?.cast_unsigned(),
        round_trip,
        commit,
        settings,
        is_read_only,
        holders: holders(client).await?,
        sees_own_only: !one::<bool>(client, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").await?,
        now_ms: one(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").await?,
        takeovers: 0,
        lease_left_ms: None,
        servers: vec![],
    };
    if exists(client, "server_lease").await? {
        let sql = "SELECT takeovers, (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint FROM server_lease";
        let row = client.query_typed_one(sql, &[]).await?;
        check.takeovers = row.try_get::<_, i64>(0)?.cast_unsigned();
        check.lease_left_ms = row.try_get(1)?;
        check.servers = servers(client).await?;
    }
    Ok(check)
}

/// Reads the open transactions that have written, the oldest first.
async fn holders(client: &Client) -> Result<Vec<FeedHolder>, Error> {
    let sql = "SELECT pid, coalesce(application_name, ''), coalesce(datname, ''),
                 coalesce((extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, 0) AS age_ms
               FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
               UNION ALL
               SELECT 0, 'prepared transaction ' || gid, database,
                 (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint
               FROM pg_prepared_xacts
               ORDER BY age_ms DESC LIMIT 10";
    let rows = client.query_typed(sql, &[]).await?;
    let holder = |row: &tokio_postgres::Row| {
        let (application, database): (String, String) = (row.try_get(1)?, row.try_get(2)?);
        Ok(FeedHolder { pid: row.try_get(0)?, application, database, age_ms: row.try_get(3)? })
    };
    rows.iter().map(holder).collect()
}

async fn servers(client: &Client) -> Result<Vec<ServerRow>, Error> {
    let sql = "SELECT n.name, n.address, n.version,
                 (extract(epoch FROM clock_timestamp() - n.seen_at) * 1000)::bigint,
                 coalesce(l.node_id = n.node_id AND clock_timestamp() < l.expires_at, false),
                 -- An earlier version of the tables has no settings.
                 coalesce(to_jsonb(n) ->> 'settings', '{}')
               FROM nodes n, server_lease l ORDER BY n.name, n.started_at";
    let rows = client.query_typed(sql, &[]).await?;
    let server = |row: &tokio_postgres::Row| {
        Ok(ServerRow {
            name: row.try_get(0)?,
            address: row.try_get(1)?,
            version: row.try_get(2)?,
            seen_ms: row.try_get(3)?,
            is_active: row.try_get(4)?,
            differs: vec![],
        })
    };
    let mut servers = rows.iter().map(server).collect::<Result<Vec<_>, Error>>()?;
    let announced = rows.iter().map(|row| Announced::read(row, [4, 2, 5]));
    let announced = announced.collect::<Result<Vec<_>, Error>>()?;
    for (server, differs) in servers.iter_mut().zip(settings::differences(&announced)) {
        server.differs = differs;
    }
    Ok(servers)
}

async fn exists(client: &Client, table: &str) -> Result<bool, Error> {
    one(client, &format!("SELECT to_regclass('{table}') IS NOT NULL")).await
}

async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> Result<T, Error> {
    client.query_typed_one(sql, &[]).await?.try_get(0)
}

/// Measures how long statements take.
async fn median(client: &Client, sql: &str) -> Result<Duration, Error> {
    let mut took = vec![];
    for _ in 0..MEASUREMENTS {
        let started = meters::start();
        client.batch_execute(sql).await?;
        took.push(started.elapsed());
    }
    took.sort();
    Ok(took[MEASUREMENTS / 2])
}
