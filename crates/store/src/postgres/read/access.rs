//! Reads API keys, owners, agents, goal types, records of edges and webhooks.

use mainspring_core::{ApiKey, Cost, Cursor, DeadLetter, KeyId, Spend, Time, Webhook, WebhookId};
use mainspring_kernel::store::{AgentRow, EdgeRecord, GoalTypeRow, KeyPage, KeyRef, OwnerUsage, StoreError};
use tokio_postgres::Row;

use super::super::values::{all, get, get_json, get_u64, int, sql_limit};
use super::{Conditions, Reader};

fn hash(row: &Row, index: usize) -> Result<[u8; 32], StoreError> {
    let bytes: &[u8] = get(row, index)?;
    bytes.try_into().map_err(|_| StoreError::Corrupt("a hash does not have 32 bytes".into()))
}

pub(in super::super) fn key(row: &Row) -> Result<ApiKey, StoreError> {
    let key: ApiKey = get_json(row, 0)?;
    Ok(ApiKey { hash: hash(row, 1)?, ..key })
}

pub(in super::super) async fn key_find(reader: &Reader, by: &KeyRef) -> Result<Option<ApiKey>, StoreError> {
    let row = match by {
        KeyRef::Id(id) => {
            let sql = "SELECT body, hash FROM api_keys WHERE key_id = $1";
            reader.row(sql, &[&id.as_bytes().as_slice()]).await?
        }
        KeyRef::Hash(hash) => {
            let sql = "SELECT body, hash FROM api_keys WHERE hash = $1";
            reader.row(sql, &[&hash.as_slice()]).await?
        }
    };
    row.map(|row| key(&row)).transpose()
}

pub(in super::super) async fn key_page(reader: &Reader, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
    let mut conditions = Conditions::default();
    if let Some(org) = &page.org {
        conditions.add("org_id = ?", vec![Box::new(org.clone())]);
    }
    if let Some((at, id)) = page.before {
        let before = "(created_at, key_id) < (?, ?)";
        conditions.add(before, vec![Box::new(at.0), Box::new(id.as_bytes().to_vec())]);
    }
    let sql = format!(
        "SELECT body, hash FROM api_keys {} ORDER BY created_at DESC, key_id DESC LIMIT {}",
        conditions.sql,
        sql_limit(page.limit)
    );
    all(&reader.rows(&sql, &conditions.params()).await?, key)
}

pub(in super::super) async fn owner_outside_org(
    reader: &Reader,
    owner: &str,
    org: &str,
) -> Result<bool, StoreError> {
    let sql =
        "SELECT 1 FROM sessions WHERE owner_id = $1 AND status <> 'deleted' AND org_id IS DISTINCT FROM $2
               UNION ALL SELECT 1 FROM api_keys WHERE owner_id = $1 AND org_id IS DISTINCT FROM $2 LIMIT 1";
    reader.exists(sql, &[&owner, &org]).await
}

/// Selects the org of the oldest key or session of the owner `$1`, as one row.
pub(in super::super) const FIRST_ORG: &str = "SELECT org_id FROM (
    SELECT org_id, created_at FROM api_keys WHERE owner_id = $1
    UNION ALL SELECT org_id, created_at FROM sessions WHERE owner_id = $1 AND status <> 'deleted') AS known
  ORDER BY created_at, org_id IS NOT NULL, org_id LIMIT 1";

pub(in super::super) async fn owner_org(reader: &Reader, owner: &str) -> Result<Option<String>, StoreError> {
    let claimed = reader.row("SELECT org_id FROM owners WHERE owner_id = $1", &[&owner]).await?;
    match claimed {
        Some(row) => get(&row, 0),
        None => reader.row(FIRST_ORG, &[&owner]).await?.map_or(Ok(None), |row| get(&row, 0)),
    }
}

pub(in super::super) async fn owner_known(reader: &Reader, owner: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM owners WHERE owner_id = $1 UNION ALL SELECT 1 FROM api_keys WHERE owner_id = $1
               UNION ALL SELECT 1 FROM sessions WHERE owner_id = $1 LIMIT 1";
    reader.exists(sql, &[&owner]).await
}

pub(in super::super) async fn org_known(reader: &Reader, org: &str) -> Result<bool, StoreError> {
    let sql =
        "SELECT 1 FROM owners WHERE org_id = $1 UNION ALL SELECT 1 FROM api_keys WHERE org_id = $1 LIMIT 1";
    reader.exists(sql, &[&org]).await
}

pub(in super::super) async fn key_spend(reader: &Reader, key: KeyId, day: i64) -> Result<Spend, StoreError> {
    let sql = "SELECT cost_nanos, at_least FROM key_spend WHERE key_id = $1 AND day = $2";
    let Some(row) = reader.row(sql, &[&key.as_bytes().as_slice(), &day]).await? else {
        return Ok(Spend::default());
    };
    Ok(Spend { cost: Cost(get_u64(&row, 0)?), at_least: get(&row, 1)? })
}

/// Sums the stored data of an owner.
pub(in super::super) async fn owner_usage(reader: &Reader, owner: &str) -> Result<OwnerUsage, StoreError> {
    let sql = "SELECT
        (SELECT coalesce(sum(content_bytes), 0)::bigint FROM messages JOIN sessions USING (session_id)
         WHERE owner_id = $1)
        + (SELECT coalesce(sum(size_bytes), 0)::bigint FROM artifacts JOIN sessions USING (session_id)
           WHERE owner_id = $1),
        (SELECT count(*) FROM artifacts JOIN sessions USING (session_id) WHERE owner_id = $1)";
    let Some(row) = reader.row(sql, &[&owner]).await? else { return Ok(OwnerUsage::default()) };
    Ok(OwnerUsage { bytes: get_u64(&row, 0)?, artifacts: get_u64(&row, 1)? })
}

fn agent(row: &Row) -> Result<AgentRow, StoreError> {
    Ok(AgentRow {
        owner: get(row, 0)?,
        hash: hash(row, 1)?,
        created_at: Time(get(row, 2)?),
        definition: get_json(row, 3)?,
    })
}

pub(in super::super) async fn goal_types(
    reader: &Reader,
    owner: &str,
) -> Result<Vec<GoalTypeRow>, StoreError> {
    let sql =
        "SELECT owner_id, created_at, updated_at, body FROM goal_types WHERE owner_id = $1 ORDER BY name";
    all(&reader.rows(sql, &[&owner]).await?, |row| {
        Ok(GoalTypeRow {
            owner: get(row, 0)?,
            created_at: Time(get(row, 1)?),
            updated_at: Time(get(row, 2)?),
            goal_type: get_json(row, 3)?,
        })
    })
}

pub(in super::super) async fn edge_record(
    reader: &Reader,
    kind: &'static str,
    scope: &str,
    id: &str,
) -> Result<Option<EdgeRecord>, StoreError> {
    let sql = "SELECT scope, record_id, body FROM edge_records
               WHERE kind = $1 AND scope = $2 AND record_id = $3";
    let rows = reader.rows(sql, &[&kind, &scope, &id]).await?;
    rows.first().map(|row| edge(kind, row)).transpose()
}

/// Reads a record. Damaged content becomes null, so that the record keeps its id.
fn edge(kind: &'static str, row: &Row) -> Result<EdgeRecord, StoreError> {
    let (scope, id) = (get(row, 0)?, get(row, 1)?);
    Ok(EdgeRecord { kind, scope, id, body: get_json(row, 2).unwrap_or_default() })
}

pub(in super::super) async fn edge_records(
    reader: &Reader,
    kind: &'static str,
    scope: Option<&str>,
) -> Result<Vec<EdgeRecord>, StoreError> {
    let sql = "SELECT scope, record_id, body FROM edge_records
               WHERE kind = $1 AND ($2::text IS NULL OR scope = $2) ORDER BY scope, record_id";
    all(&reader.rows(sql, &[&kind, &scope]).await?, |row| edge(kind, row))
}

pub(in super::super) async fn agent_find(
    reader: &Reader,
    owner: &str,
    id: &str,
    version: Option<u32>,
) -> Result<Option<AgentRow>, StoreError> {
    let sql =
        "SELECT owner_id, hash, created_at, definition FROM agents WHERE owner_id = $1 AND agent_id = $2
                 AND definition IS NOT NULL AND ($3::bigint IS NULL OR version = $3)
               ORDER BY version DESC LIMIT 1";
    let found = reader.row(sql, &[&owner, &id, &version.map(i64::from)]).await?;
    found.map(|row| agent(&row)).transpose()
}

pub(in super::super) async fn agent_page(
    reader: &Reader,
    owner: &str,
    after: Option<&(String, u32)>,
    limit: usize,
) -> Result<Vec<AgentRow>, StoreError> {
    let (id, version) = after.map_or(("", -1), |(id, version)| (id.as_str(), i64::from(*version)));
    let sql = "SELECT owner_id, hash, created_at, definition FROM agents
               WHERE owner_id = $1 AND definition IS NOT NULL AND (agent_id, version) > ($2, $3)
               ORDER BY agent_id, version LIMIT $4";
    all(&reader.rows(sql, &[&owner, &id, &version, &sql_limit(limit)]).await?, agent)
}

pub(in super::super) async fn agent_count(reader: &Reader, owner: &str) -> Result<usize, StoreError> {
    let row = reader.row("SELECT count(*) FROM agents WHERE owner_id = $1", &[&owner]).await?;
    Ok(usize::try_from(row.map_or(Ok(0), |row| get_u64(&row, 0))?).unwrap_or(usize::MAX))
}

pub(in super::super) async fn webhooks(
    reader: &Reader,
    owner: Option<&str>,
) -> Result<Vec<Webhook>, StoreError> {
    let sql = "SELECT body FROM webhooks WHERE $1::text IS NULL OR owner_id = $1 ORDER BY webhook_id";
    all(&reader.rows(sql, &[&owner]).await?, |row| get_json(row, 0))
}

pub(in super::super) async fn dead_letters(
    reader: &Reader,
    webhook: WebhookId,
    after: Cursor,
    limit: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let sql = "SELECT body FROM dead_letters WHERE webhook_id = $1 AND cursor > $2 ORDER BY cursor LIMIT $3";
    let (id, after) = (webhook.as_bytes().as_slice(), int(after.0));
    all(&reader.rows(sql, &[&id, &after, &sql_limit(limit)]).await?, |row| get_json(row, 0))
}
