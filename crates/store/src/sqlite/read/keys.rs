//! Reads API keys.

use mainspring_core::ApiKey;
use mainspring_kernel::store::{KeyPage, KeyRef, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::Id;
use super::{key, key_columns, page_start, query_all, query_one, sql_limit};

pub(in super::super) fn key_find(connection: &Connection, by: KeyRef) -> Result<Option<ApiKey>, StoreError> {
    macro_rules! find {
        ($where:literal) => {
            concat!("SELECT ", key_columns!(), " FROM api_keys WHERE ", $where, " = ?1")
        };
    }
    match by {
        KeyRef::Id(id) => query_one(connection, find!("key_id"), [id.bytes()], key),
        KeyRef::Hash(hash) => query_one(connection, find!("hash"), [hash], key),
    }
}

/// Reads every key.
pub(in super::super) const ALL_KEYS: &str = concat!("SELECT ", key_columns!(), " FROM api_keys WHERE true");

/// Uses two statements, so that each uses the index that fits it.
pub(in super::super) fn key_page(connection: &Connection, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
    macro_rules! page {
        ($where:literal) => {
            concat!(
                "SELECT ",
                key_columns!(),
                " FROM api_keys WHERE ",
                $where,
                " AND (created_at_ms, key_id) < (?2, ?3) ORDER BY created_at_ms DESC, key_id DESC LIMIT ?4"
            )
        };
    }
    let sql = if page.org.is_some() { page!("org_id = ?1") } else { page!("?1 IS NULL") };
    let (time, id) = page_start(page.before);
    query_all(connection, sql, params![page.org, time, id, sql_limit(page.limit)], key)
}

pub(in super::super) fn owner_outside_org(
    connection: &Connection,
    owner: &str,
    org: &str,
) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE owner_id = ?1 AND org_id IS NOT ?2)
                 OR EXISTS (SELECT 1 FROM sessions WHERE owner_id = ?1 AND org_id IS NOT ?2 AND status <> 'deleted')";
    Ok(query_one(connection, sql, [owner, org], |columns| columns.get())?.unwrap_or_default())
}

/// Reads the org that an owner belongs to.
pub(in super::super) fn owner_org(
    connection: &Connection,
    owner: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT org_id FROM (
           SELECT org_id, claimed_at_ms AS at, 0 AS place FROM owners WHERE owner_id = ?1
           UNION ALL SELECT org_id, created_at_ms, 1 FROM api_keys WHERE owner_id = ?1
           UNION ALL SELECT org_id, created_at_ms, 1 FROM sessions WHERE owner_id = ?1 AND status <> 'deleted'
         ) ORDER BY place, at, org_id IS NOT NULL, org_id LIMIT 1";
    Ok(query_one(connection, sql, [owner], |columns| columns.get::<Option<String>>())?.flatten())
}

pub(in super::super) fn owner_known(connection: &Connection, owner: &str) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM owners WHERE owner_id = ?1)
                 OR EXISTS (SELECT 1 FROM api_keys WHERE owner_id = ?1)
                 OR EXISTS (SELECT 1 FROM sessions WHERE owner_id = ?1)";
    Ok(query_one(connection, sql, [owner], |columns| columns.get())?.unwrap_or_default())
}

pub(in super::super) fn org_known(connection: &Connection, org: &str) -> Result<bool, StoreError> {
    // A scan is cheap enough: owners are few, and only names that the rules forbid for new orgs are looked up.
    let sql = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE org_id = ?1)
                 OR EXISTS (SELECT 1 FROM owners WHERE org_id = ?1)";
    Ok(query_one(connection, sql, [org], |columns| columns.get())?.unwrap_or_default())
}
