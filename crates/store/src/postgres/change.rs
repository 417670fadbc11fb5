//! Changes that belong to no commit: leases, owner state, keys, agents, webhooks, and the removal of rows.

use mainspring_core::state::{HISTORY_CHANGES, decide};
use mainspring_core::{ApiKey, NodeId, SessionId, StateChange, StateOutcome, StateSlot, Time, WaitId};
use mainspring_kernel::store::{
    AgentRow, AnnouncedWait, EdgeChange, EdgeRecord, Fence, GoalTypeRow, OwnerState, Request, StateHistoryOf,
    StoreError, Unique, WebhookChange,
};

use super::migrate::{is_changed_by_later, is_of_latest_version};
use super::read::Reader;
use super::read::access::FIRST_ORG;
use super::read::state::entry;
use super::rows::request_cells;
use super::tables::Table;
use super::values::{Column, Param, columns, get, get_id, get_u64, int, sql_limit, to_json};

/// The maximum number of rows that one step of a purge removes.
const STEP_ROWS: i64 = 500;

pub(super) async fn lease_take(
    change: &Reader,
    session: SessionId,
    node: NodeId,
) -> Result<Fence, StoreError> {
    let sql = "INSERT INTO leases (session_id, epoch, node_id) VALUES ($1, nextval('lease_epochs'), $2)
               ON CONFLICT (session_id) DO UPDATE SET epoch = excluded.epoch, node_id = excluded.node_id RETURNING epoch";
    let row = change.write(sql, &[&session.as_bytes().as_slice(), &node.as_bytes().as_slice()]).await?;
    let epoch = row.first().map_or(Ok(0), |row| get_u64(row, 0))?;
    Ok(Fence { session, epoch })
}

/// The SQL condition under which this server may become the home of the session `$1`. A later version may have written
/// records of the session that this version does not understand, unless the session is new.
fn may_become_home() -> String {
    format!(
        "(NOT {} OR NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = $1))",
        is_changed_by_later()
    )
}

/// Takes the lease of a session for one of several servers at work, unless the session has its home at another one.
pub(super) async fn lease_take_home(
    change: &Reader,
    session: SessionId,
    node: NodeId,
) -> Result<Fence, StoreError> {
    let sql = format!(
        "INSERT INTO leases (session_id, epoch, node_id)
           SELECT $1, nextval('lease_epochs'), $2
           WHERE {} OR EXISTS (SELECT 1 FROM leases AS own WHERE own.session_id = $1 AND own.node_id = $2)
         ON CONFLICT (session_id) DO UPDATE SET
           epoch = excluded.epoch, node_id = excluded.node_id, released = false, handed = false
         WHERE leases.node_id = $2
           OR NOT EXISTS (SELECT 1 FROM node_leases AS n WHERE n.node_id = leases.node_id)
         RETURNING epoch",
        may_become_home()
    );
    let row = change.write(&sql, &[&session.as_bytes().as_slice(), &node.as_bytes().as_slice()]).await?;
    match row.first() {
        Some(row) => Ok(Fence { session, epoch: get_u64(row, 0)? }),
        None => Err(held_elsewhere(change, session).await?),
    }
}

/// Makes `node` the home of a session, unless another server at work is its home.
pub(super) async fn home_claim(change: &Reader, session: SessionId, node: NodeId) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO leases (session_id, epoch, node_id, released)
           SELECT $1, nextval('lease_epochs'), $2, true WHERE {}
         ON CONFLICT (session_id) DO UPDATE SET
           epoch = excluded.epoch, node_id = excluded.node_id, released = true, handed = false
         WHERE NOT EXISTS (SELECT 1 FROM node_leases AS n WHERE n.node_id = leases.node_id)
         RETURNING epoch",
        may_become_home()
    );
    let row = change.write(&sql, &[&session.as_bytes().as_slice(), &node.as_bytes().as_slice()]).await?;
    if !row.is_empty() {
        return Ok(());
    }
    match held_elsewhere(change, session).await? {
        StoreError::HeldElsewhere { node: holder } if holder == node => Ok(()),
        error => Err(error),
    }
}

/// Makes the server `to` the home of a session that is not in memory and has its home at `from` or nowhere. The server
/// `to` finds it among the sessions that were handed to it. Returns false if nothing has changed.
pub(super) async fn home_assign(
    change: &Reader,
    session: SessionId,
    from: NodeId,
    to: NodeId,
) -> Result<bool, StoreError> {
    let sql = format!(
        "INSERT INTO leases (session_id, epoch, node_id, released, handed)
           SELECT $1, nextval('lease_epochs'), $2, true, true
           WHERE EXISTS (SELECT 1 FROM node_leases AS n
                         WHERE n.node_id = $2 AND clock_timestamp() < n.expires_at AND {})
         ON CONFLICT (session_id) DO UPDATE SET
           epoch = excluded.epoch, node_id = excluded.node_id, released = true, handed = true
         WHERE leases.released AND (leases.node_id = $3
           OR NOT EXISTS (SELECT 1 FROM node_leases AS n WHERE n.node_id = leases.node_id))
         RETURNING epoch",
        is_of_latest_version("n")
    );
    let (key, from, to) =
        (session.as_bytes().as_slice(), from.as_bytes().as_slice(), to.as_bytes().as_slice());
    if !change.write(&sql, &[&key, &to, &from]).await?.is_empty() {
        return Ok(true);
    }
    check_has_home(change, session).await?;
    Ok(false)
}

/// Makes the server `to` the home of a session whose lease this server has, and voids the lease. If the session
/// `has_work`, the server `to` finds it among the sessions that were handed to it. Returns false if `to` cannot become
/// the home or the lease is void.
pub(super) async fn home_give(
    change: &Reader,
    fence: Fence,
    to: NodeId,
    has_work: bool,
) -> Result<bool, StoreError> {
    let sql = format!(
        "UPDATE leases SET epoch = nextval('lease_epochs'), node_id = $3, released = true, handed = $4
         WHERE session_id = $1 AND epoch = $2
           AND EXISTS (SELECT 1 FROM node_leases AS n WHERE n.node_id = $3 AND NOT n.draining AND {})
         RETURNING epoch",
        is_of_latest_version("n")
    );
    let (session, epoch) = (fence.session.as_bytes().as_slice(), int(fence.epoch));
    Ok(!change.write(&sql, &[&session, &epoch, &to.as_bytes().as_slice(), &has_work]).await?.is_empty())
}

/// Gives up being the home of the sessions that are not in memory, except for the sessions in `kept` and the sessions
/// that were handed to this server and that it has not loaded yet.
pub(super) async fn homes_free(change: &Reader, home: NodeId, kept: &[SessionId]) -> Result<(), StoreError> {
    let sql = "DELETE FROM leases WHERE node_id = $1 AND released AND NOT handed AND session_id <> ALL ($2)";
    let kept: Vec<Vec<u8>> = kept.iter().map(|session| session.as_bytes().to_vec()).collect();
    change.write(sql, &[&home.as_bytes().as_slice(), &kept]).await.map(drop)
}

/// Fails if a session has no home and a later version has changed the tables: only a server of that version may become
/// its home.
async fn check_has_home(change: &Reader, session: SessionId) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT 1 WHERE {} AND NOT EXISTS (
           SELECT 1 FROM leases AS l JOIN node_leases AS n USING (node_id) WHERE l.session_id = $1)",
        is_changed_by_later()
    );
    match change.exists(&sql, &[&session.as_bytes().as_slice()]).await? {
        true => Err(StoreError::LaterVersion),
        false => Ok(()),
    }
}

/// The error that names the home of a session, or says why the session has none.
async fn held_elsewhere(change: &Reader, session: SessionId) -> Result<StoreError, StoreError> {
    check_has_home(change, session).await?;
    let sql = "SELECT node_id FROM leases WHERE session_id = $1";
    let row = change.row(sql, &[&session.as_bytes().as_slice()]).await?;
    let missing = || StoreError::Unavailable("the session has changed its home; try again".into());
    let node = row.map(|row| get_id(&row, 0)).transpose()?.ok_or_else(missing)?;
    Ok(StoreError::HeldElsewhere { node: NodeId::from_bytes(node) })
}

/// Releases the lease of a session for one of several servers at work. The server stays the home of the session.
pub(super) async fn lease_release_home(change: &Reader, fence: Fence) -> Result<(), StoreError> {
    let (session, epoch) = (fence.session.as_bytes().as_slice(), int(fence.epoch));
    // A session that was not created, or that is deleted, needs no home.
    let sql = "DELETE FROM leases WHERE session_id = $1 AND epoch = $2
                 AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = $1)";
    change.write(sql, &[&session, &epoch]).await?;
    let sql = "UPDATE leases SET epoch = nextval('lease_epochs'), released = true WHERE session_id = $1 AND epoch = $2";
    change.write(sql, &[&session, &epoch]).await.map(drop)
}

pub(super) async fn lease_release(change: &Reader, fence: Fence) -> Result<(), StoreError> {
    let sql = "DELETE FROM leases WHERE session_id = $1 AND epoch = $2";
    change.write(sql, &[&fence.session.as_bytes().as_slice(), &int(fence.epoch)]).await.map(drop)
}

/// Announces a wait of a session of `home`.
pub(super) async fn wait_announce(
    change: &Reader,
    wait: &AnnouncedWait,
    home: NodeId,
) -> Result<(), StoreError> {
    let AnnouncedWait { id, waiting, awaited } = wait;
    let sql = "INSERT INTO announced_waits (wait_id, waiting_session_id, awaited_session_id, node_id) VALUES ($1, $2, $3, $4)";
    let (id, home) = (id.as_bytes().as_slice(), home.as_bytes().as_slice());
    let params: [&dyn Param; 4] =
        [&id, &waiting.as_bytes().as_slice(), &awaited.as_bytes().as_slice(), &home];
    change.write(sql, &params).await.map(drop)
}

pub(super) async fn wait_withdraw(change: &Reader, wait: WaitId) -> Result<(), StoreError> {
    let sql = "DELETE FROM announced_waits WHERE wait_id = $1";
    change.write(sql, &[&wait.as_bytes().as_slice()]).await.map(drop)
}

/// Sets or removes a key of an owner's state, under the lock of the owner's version.
pub(super) async fn state_put(change: &Reader, put: &OwnerState) -> Result<StateOutcome, StoreError> {
    let owner = put.owner.as_str();
    let lock = "INSERT INTO owner_state_versions (owner_id, version) VALUES ($1, 0) ON CONFLICT (owner_id) DO UPDATE SET
                  version = owner_state_versions.version RETURNING version";
    let version = change.write(lock, &[&owner]).await?;
    let version = version.first().map_or(Ok(0), |row| get_u64(row, 0))?;
    let sql = "SELECT key, value, version, updated_at FROM owner_state WHERE owner_id = $1 AND key = $2";
    let present = change.row(sql, &[&owner, &put.key.as_str()]).await?;
    let slot = StateSlot { entry: present.map(|row| entry(&row)).transpose()?, version };
    let version = decide(&slot, put.value.as_ref(), put.expect)?;
    if let Some(version) = version {
        let added = i64::from(put.value.is_some()) - i64::from(slot.entry.is_some());
        owner_state_write(change, put, version, added).await?;
    }
    Ok(StateOutcome::of(slot, &put.key, put.value.clone(), version, put.at))
}

/// Writes a key of an owner's state. `added` is the change of the number of keys.
async fn owner_state_write(
    change: &Reader,
    put: &OwnerState,
    version: u64,
    added: i64,
) -> Result<(), StoreError> {
    let (owner, key) = (put.owner.as_str(), put.key.as_str());
    let sql = "UPDATE owner_state_versions SET version = $2, keys = keys + $3 WHERE owner_id = $1";
    change.write(sql, &[&owner, &int(version), &added]).await?;
    match &put.value {
        Some(value) => {
            let sql = "INSERT INTO owner_state (owner_id, key, version, updated_at, value) VALUES ($1, $2, $3, $4, $5)
                       ON CONFLICT (owner_id, key) DO UPDATE SET
                         version = excluded.version, updated_at = excluded.updated_at, value = excluded.value";
            change.write(sql, &[&owner, &key, &int(version), &put.at.0, &to_json(value)?]).await?;
        }
        None => {
            change.write("DELETE FROM owner_state WHERE owner_id = $1 AND key = $2", &[&owner, &key]).await?;
        }
    }
    let place = StateHistoryOf::Owner(put.owner.clone()).place();
    let made = StateChange::new(key, version, put.value.as_ref(), put.at, put.by.clone());
    let sql = "INSERT INTO state_history VALUES ($1, $2, $3, $4)";
    change.write(sql, &[&place, &key, &int(version), &to_json(&made)?]).await?;
    let sql = "DELETE FROM state_history WHERE place = $1 AND key = $2 AND version <= (
                 SELECT version FROM state_history WHERE place = $1 AND key = $2
                 ORDER BY version DESC LIMIT 1 OFFSET $3)";
    change.write(sql, &[&place, &key, &sql_limit(HISTORY_CHANGES)]).await.map(drop)
}

pub(super) async fn key_write(
    change: &Reader,
    key: &ApiKey,
    request: Option<&Request>,
) -> Result<(), StoreError> {
    if let Some(request) = request {
        let columns = columns(vec![request_cells(request)]);
        let params: Vec<&dyn Param> = columns.iter().map(Column::param).collect();
        change.write(Table::Requests.sql(), &params).await?;
    }
    let sql = "INSERT INTO api_keys (key_id, owner_id, org_id, hash, created_at, body) VALUES ($1, $2, $3, $4, $5, $6)
               ON CONFLICT (key_id) DO UPDATE SET owner_id = excluded.owner_id, org_id = excluded.org_id,
                 hash = excluded.hash, created_at = excluded.created_at, body = excluded.body";
    let (id, hash) = (key.id.as_bytes().as_slice(), key.hash.as_slice());
    let org = key.org.as_deref();
    let params: [&dyn Param; 6] = [&id, &key.owner.as_str(), &org, &hash, &key.created_at.0, &to_json(key)?];
    change.write(sql, &params).await?;
    // Other servers at work notice the change, and drop the keys that they have cached.
    let sql = "INSERT INTO meta VALUES ('keys', 1) ON CONFLICT (name) DO UPDATE SET value = meta.value + 1";
    change.write(sql, &[]).await.map(drop)
}

pub(super) async fn owner_claim(
    change: &Reader,
    owner: &str,
    org: Option<&str>,
    at: Time,
) -> Result<bool, StoreError> {
    let first = change.row(FIRST_ORG, &[&owner]).await?;
    let first: Option<String> = match first {
        Some(row) => get(&row, 0)?,
        None => org.map(str::to_owned),
    };
    let sql = "INSERT INTO owners VALUES ($1, $2, $3) ON CONFLICT (owner_id) DO NOTHING";
    change.write(sql, &[&owner, &first, &at.0]).await?;
    let row = change.row("SELECT org_id FROM owners WHERE owner_id = $1", &[&owner]).await?;
    let known: Option<Option<String>> = row.map(|row| get(&row, 0)).transpose()?;
    Ok(known.is_some_and(|known| known.as_deref() == org))
}

/// True if an artifact uses the hash. If so, removes the hash from the list of unused ones.
pub(super) async fn blob_is_used(change: &Reader, hash: &str) -> Result<bool, StoreError> {
    let sql = "WITH used AS (SELECT 1 FROM artifacts WHERE content_hash = $1
                   UNION ALL SELECT 1 FROM inherited_artifacts WHERE content_hash = $1 LIMIT 1),
                 kept AS (DELETE FROM blobs_loose WHERE content_hash = $1 AND EXISTS (SELECT 1 FROM used))
               SELECT 1 FROM used";
    Ok(!change.write(sql, &[&hash]).await?.is_empty())
}

pub(super) async fn agent_write(change: &Reader, agent: &AgentRow) -> Result<bool, StoreError> {
    let (owner, id) = (agent.owner.as_str(), agent.definition.id.as_str());
    let (version, hash) = (i64::from(agent.definition.version), agent.hash.as_slice());
    let definition = to_json(&agent.definition)?;
    let sql = "INSERT INTO agents (owner_id, agent_id, version, hash, created_at, definition)
               VALUES ($1, $2, $3, $4, $5, $6)
               ON CONFLICT (owner_id, agent_id, version) DO UPDATE SET
                 created_at = excluded.created_at, definition = excluded.definition
               WHERE agents.hash = excluded.hash AND agents.definition IS NULL RETURNING 1";
    let params: [&dyn Param; 6] = [&owner, &id, &version, &hash, &agent.created_at.0, &definition];
    if !change.write(sql, &params).await?.is_empty() {
        return Ok(true);
    }
    let sql = "SELECT 1 FROM agents WHERE owner_id = $1 AND agent_id = $2 AND version = $3 AND hash = $4";
    match change.exists(sql, &[&owner, &id, &version, &hash]).await? {
        true => Ok(false),
        false => Err(StoreError::Conflict(Unique::Agent)),
    }
}

pub(super) async fn agent_delete(
    change: &Reader,
    owner: &str,
    id: &str,
    version: u32,
) -> Result<bool, StoreError> {
    let sql = "UPDATE agents SET definition = NULL
               WHERE owner_id = $1 AND agent_id = $2 AND version = $3 AND definition IS NOT NULL RETURNING 1";
    Ok(!change.write(sql, &[&owner, &id, &i64::from(version)]).await?.is_empty())
}

/// Writes a goal type of an owner. Returns false if it replaces one of the same name.
pub(super) async fn goal_type_write(change: &Reader, row: &GoalTypeRow) -> Result<bool, StoreError> {
    let sql = "INSERT INTO goal_types (owner_id, name, created_at, updated_at, body) VALUES ($1, $2, $3, $4, $5)
               ON CONFLICT (owner_id, name) DO UPDATE SET updated_at = excluded.updated_at, body = excluded.body
               RETURNING xmax = 0";
    let (owner, name) = (row.owner.as_str(), row.goal_type.name.as_str());
    let params: [&dyn Param; 5] =
        [&owner, &name, &row.created_at.0, &row.updated_at.0, &to_json(&row.goal_type)?];
    let written = change.write(sql, &params).await?;
    written.first().map_or(Ok(false), |row| get(row, 0))
}

/// Applies a change of the records of edges. Returns false if it has no effect.
pub(super) async fn edge_write(change: &Reader, edge: &EdgeChange) -> Result<bool, StoreError> {
    let written = match edge {
        EdgeChange::Put(EdgeRecord { kind, scope, id, body }) => {
            let sql = "INSERT INTO edge_records VALUES ($1, $2, $3, $4)
                       ON CONFLICT (kind, scope, record_id) DO UPDATE SET body = excluded.body
                       WHERE edge_records.body <> excluded.body RETURNING 1";
            change.write(sql, &[kind, &scope.as_str(), &id.as_str(), &to_json(body)?]).await?
        }
        EdgeChange::Remove { kind, scope, id } => {
            let sql =
                "DELETE FROM edge_records WHERE kind = $1 AND scope = $2 AND record_id = $3 RETURNING 1";
            change.write(sql, &[kind, &scope.as_str(), &id.as_str()]).await?
        }
    };
    Ok(!written.is_empty())
}

pub(super) async fn webhook_write(change: &Reader, webhook: &WebhookChange) -> Result<bool, StoreError> {
    let written = match webhook {
        WebhookChange::Add(webhook) => {
            let sql = "INSERT INTO webhooks VALUES ($1, $2, $3) RETURNING 1";
            let id = webhook.id.as_bytes().as_slice();
            change.write(sql, &[&id, &webhook.owner.as_str(), &to_json(webhook)?]).await?
        }
        WebhookChange::Remove(id) => {
            let sql = "DELETE FROM webhooks WHERE webhook_id = $1 RETURNING 1";
            change.write(sql, &[&id.as_bytes().as_slice()]).await?
        }
        WebhookChange::Progress(webhook, letter) => {
            let sql = "UPDATE webhooks SET body = $2 WHERE webhook_id = $1 RETURNING 1";
            let id = webhook.id.as_bytes().as_slice();
            let written = change.write(sql, &[&id, &to_json(webhook)?]).await?;
            if let Some(letter) = letter.as_ref().filter(|_| !written.is_empty()) {
                let sql = "INSERT INTO dead_letters VALUES ($1, $2, $3)
                           ON CONFLICT (webhook_id, cursor) DO UPDATE SET body = excluded.body";
                let id = letter.webhook.as_bytes().as_slice();
                change.write(sql, &[&id, &int(letter.cursor.0), &to_json(letter)?]).await?;
            }
            written
        }
        WebhookChange::Replace(letter) => {
            let sql = "UPDATE dead_letters SET body = $3 WHERE webhook_id = $1 AND cursor = $2 RETURNING 1";
            let id = letter.webhook.as_bytes().as_slice();
            change.write(sql, &[&id, &int(letter.cursor.0), &to_json(letter)?]).await?
        }
        WebhookChange::Forget(id, cursor) => {
            let sql = "DELETE FROM dead_letters WHERE webhook_id = $1 AND cursor = $2 RETURNING 1";
            change.write(sql, &[&id.as_bytes().as_slice(), &int(cursor.0)]).await?
        }
    };
    Ok(!written.is_empty())
}

/// Remembers the last cursor, so that it stays known when the events with the highest cursors are removed.
async fn last_cursor_save(change: &Reader) -> Result<(), StoreError> {
    let sql = "INSERT INTO meta SELECT 'last_cursor', max(cursor) FROM events HAVING max(cursor) IS NOT NULL
               ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value, excluded.value)";
    change.write(sql, &[]).await.map(drop)
}

/// Removes some pruned events. The first event stays: it marks the creation of the session, which decides which state
/// of its source a fork sees.
pub(super) async fn events_prune(change: &Reader, session: SessionId) -> Result<bool, StoreError> {
    let key = session.as_bytes().as_slice();
    last_cursor_save(change).await?;
    let sql = "DELETE FROM events WHERE cursor IN (
                 SELECT e.cursor FROM events AS e JOIN retention AS k USING (session_id)
                 WHERE e.session_id = $1 AND NOT k.pruned AND e.cursor <= k.floor_cursor
                   AND e.cursor > (SELECT min(cursor) FROM events WHERE session_id = $1)
                 ORDER BY e.cursor LIMIT $2) RETURNING 1";
    let removed = change.write(sql, &[&key, &STEP_ROWS]).await?.len();
    if removed as i64 == STEP_ROWS {
        return Ok(true);
    }
    change.write("UPDATE retention SET pruned = true WHERE session_id = $1", &[&key]).await?;
    Ok(false)
}

/// The tables whose rows belong to one session, each with a condition on `$1`.
const SESSION_ROWS: &[(&str, &str)] = &[
    ("events", "session_id = $1"),
    ("retention", "session_id = $1"),
    ("chunks", "session_id = $1"),
    ("effects", "session_id = $1"),
    ("inbox", "session_id = $1"),
    ("cursors", "session_id = $1"),
    ("step_inputs", "session_id = $1"),
    ("feedback", "session_id = $1"),
    ("pins", "session_id = $1"),
    ("digests", "session_id = $1"),
    ("grants", "session_id = $1"),
    ("bindings", "session_id = $1"),
    ("delegations", "parent_session_id = $1"),
];

/// Removes some rows of a deleted session. Returns true while there are more.
pub(super) async fn session_purge(change: &Reader, session: SessionId) -> Result<bool, StoreError> {
    let key = session.as_bytes().as_slice();
    let deleted = "SELECT 1 FROM sessions WHERE session_id = $1 AND status = 'deleted' FOR UPDATE";
    if change.write(deleted, &[&key]).await?.is_empty() {
        return Ok(false);
    }
    last_cursor_save(change).await?;
    for (table, condition) in SESSION_ROWS {
        let sql = format!(
            "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE {condition} LIMIT $2) RETURNING 1"
        );
        if change.write(&sql, &[&key, &STEP_ROWS]).await?.len() as i64 == STEP_ROWS {
            return Ok(true);
        }
    }
    let sql = "WITH gone AS (DELETE FROM artifacts WHERE session_id = $1 RETURNING content_hash)
               INSERT INTO blobs_loose SELECT DISTINCT content_hash FROM gone WHERE content_hash IS NOT NULL
               ON CONFLICT DO NOTHING";
    change.write(sql, &[&key]).await?;
    change.write(&sql.replace("FROM artifacts", "FROM inherited_artifacts"), &[&key]).await?;
    // The attempts, steps and state of the runs are removed with the runs.
    let sql = "WITH gone AS (DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE session_id = $1 LIMIT $2)
                 RETURNING run_id),
               history AS (DELETE FROM state_history USING gone WHERE place = 'run_' || encode(run_id, 'hex'))
               SELECT 1 FROM gone";
    if change.write(sql, &[&key, &STEP_ROWS]).await?.len() as i64 == STEP_ROWS {
        return Ok(true);
    }
    change.write("DELETE FROM messages WHERE session_id = $1 AND line IS NULL", &[&key]).await?;
    lines_purge(change, session).await?;
    change.write("DELETE FROM state_history WHERE place = $1", &[&session.to_string()]).await?;
    change.write("DELETE FROM sessions WHERE session_id = $1", &[&key]).await?;
    change.write("DELETE FROM leases WHERE session_id = $1 AND released", &[&key]).await?;
    away_state_purge(change, session).await?;
    Ok(false)
}

/// Removes the lines that no session reads, leaves first. Of the lines that stay, removes the messages that no fork
/// reads.
async fn lines_purge(change: &Reader, session: SessionId) -> Result<(), StoreError> {
    let key = session.as_bytes().as_slice();
    // If the session is a fork, its source may have been purged, except for the lines that the fork reads. The fork
    // takes these lines over, so that they are removed with it.
    let adopt = |line: &str| {
        format!(
            "UPDATE lines SET session_id = $1 WHERE line = ({line})
               AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = lines.session_id)"
        )
    };
    change.write(&adopt("SELECT base_line FROM sessions WHERE session_id = $1"), &[&key]).await?;
    let unread = "SELECT line, opened_by FROM lines AS l WHERE session_id = $1
                    AND NOT EXISTS (SELECT 1 FROM lines AS c WHERE c.parent_line = l.line)
                    AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.base_line = l.line AND s.session_id <> $1)
                  ORDER BY id DESC LIMIT 1";
    while let Some(row) = change.row(unread, &[&key]).await? {
        let (line, opener): (i64, Vec<u8>) = (get(&row, 0)?, get(&row, 1)?);
        for table in ["messages", "session_state", "digests"] {
            change.write(&format!("DELETE FROM {table} WHERE line = $1"), &[&line]).await?;
        }
        let parent = adopt("SELECT parent_line FROM lines WHERE line = $2");
        change.write(&parent, &[&key, &line]).await?;
        change.write("DELETE FROM lines WHERE line = $1", &[&line]).await?;
        if opener != key {
            let gone = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = $1)";
            if change.exists(gone, &[&opener]).await? {
                away_delete(change, &opener).await?;
            }
        }
    }
    let trim = "WITH ends AS (
        SELECT l.line, 1 + greatest(
          (SELECT max(parent_pos) FROM lines AS c WHERE c.parent_line = l.line),
          (SELECT max(base_pos) FROM sessions AS s WHERE s.base_line = l.line AND s.session_id <> $1)) AS end_pos
        FROM lines AS l WHERE l.session_id = $1),
      cut AS (UPDATE lines AS l SET end_pos = e.end_pos FROM ends AS e
        WHERE l.line = e.line AND l.end_pos > e.end_pos RETURNING l.line, e.end_pos)
      DELETE FROM messages AS m USING cut WHERE m.line = cut.line AND m.pos >= cut.end_pos";
    change.write(trim, &[&key]).await.map(drop)
}

/// Removes state that a purged session wrote on lines of other sessions, unless its own lines are still read.
async fn away_state_purge(change: &Reader, session: SessionId) -> Result<(), StoreError> {
    away_delete(change, session.as_bytes()).await
}

async fn away_delete(change: &Reader, session: &[u8]) -> Result<(), StoreError> {
    let sql = "DELETE FROM session_state AS s WHERE s.session_id = $1
                 AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.line = s.line AND l.opened_by = $1)
                 AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.opened_by = $1)";
    change.write(sql, &[&session]).await.map(drop)
}
