//! Reads of API keys.

use mainspring_core::ApiKey;
use mainspring_kernel::store::{KeyPage, KeyRef, StoreError};
use rusqlite::{Connection, params};

use super::super::columns::{Id, blob};
use super::{all, key, key_columns, limit, one};

pub(in super::super) fn key_find(connection: &Connection, by: KeyRef) -> Result<Option<ApiKey>, StoreError> {
    macro_rules! find {
        ($by:literal) => {
            concat!("SELECT ", key_columns!(), " FROM api_keys WHERE ", $by, " = ?1")
        };
    }
    match by {
        KeyRef::Id(id) => one(connection, find!("key_id"), [id.bytes()], key),
        KeyRef::Hash(hash) => one(connection, find!("hash"), [hash], key),
    }
}

/// Two statements, each with the index that fits it.
pub(in super::super) fn key_page(connection: &Connection, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
    macro_rules! page {
        ($by:literal) => {
            concat!(
                "SELECT ",
                key_columns!(),
                " FROM api_keys WHERE ",
                $by,
                " AND (created_at_ms, key_id) < (?2, ?3) ORDER BY created_at_ms DESC, key_id DESC LIMIT ?4"
            )
        };
    }
    let sql = if page.org.is_some() { page!("org_id = ?1") } else { page!("?1 IS NULL") };
    let (time, id) = page.before.map_or((i64::MAX, None), |(time, id)| (time.0, Some(id)));
    // The empty blob lies before every id, and nothing is as late as the end of time.
    let id = blob(id).map_or_else(Vec::new, Vec::from);
    all(connection, sql, params![page.org, time, id, limit(page.limit)], key)
}

pub(in super::super) fn owner_outside_org(
    connection: &Connection,
    owner: &str,
    org: &str,
) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE owner_id = ?1 AND org_id IS NOT ?2)
                 OR EXISTS (SELECT 1 FROM sessions WHERE owner_id = ?1 AND org_id IS NOT ?2 AND status <> 'deleted')";
    Ok(one(connection, sql, [owner, org], |columns| columns.get())?.unwrap_or_default())
}
