//! Owners: the org that each belongs to, the native sessions that each has, and the spending of their keys.

use mainspring_core::binding::native_key;
use mainspring_core::{Cost, KeyId, Spend, Time};
use mainspring_kernel::store::{NativeClaim, NativeOwner, Unique};
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::{Id, int};
use super::write::{WriteError, WriteResult};

/// Records the org of `owner` if none is recorded: that of the oldest key or session of the owner, else `org`. Returns
/// true if the recorded org is `org`.
pub(super) fn owner_claim(
    connection: &Connection,
    owner: &str,
    org: Option<&str>,
    at: Time,
) -> rusqlite::Result<bool> {
    let belongs = || {
        let mut known = connection.prepare_cached("SELECT org_id IS ?2 FROM owners WHERE owner_id = ?1")?;
        known.query_row(params![owner, org], |row| row.get(0)).optional()
    };
    if let Some(known) = belongs()? {
        return Ok(known);
    }
    connection
        .prepare_cached(
            "INSERT INTO owners (owner_id, org_id, claimed_at_ms)
             SELECT ?1, org_id, ?3 FROM (
               SELECT org_id, created_at_ms, 0 AS place FROM api_keys WHERE owner_id = ?1
               UNION ALL
               SELECT org_id, created_at_ms, 0 FROM sessions WHERE owner_id = ?1 AND status <> 'deleted'
               UNION ALL
               SELECT ?2, ?3, 1
             ) ORDER BY place, created_at_ms, org_id IS NOT NULL, org_id LIMIT 1",
        )?
        .execute(params![owner, org, at.0])?;
    Ok(belongs()? == Some(true))
}

/// Records the owner of a native session if none is recorded. An adoption fails with a conflict if another owner has
/// the session, or if it is a repeated adoption and `owner` does not have the session.
pub(super) fn native_owner_write(connection: &Connection, native: &NativeOwner) -> WriteResult {
    let NativeOwner { adapter, native, owner, claim } = native;
    let key = native_key(native);
    if *claim != NativeClaim::Opened {
        let of_others = "SELECT 1 FROM native_owners WHERE native_key = ?1 AND owner_id <> ?2";
        if connection.prepare_cached(of_others)?.exists(params![key, owner])? {
            return Err(WriteError::Conflict(Unique::Other));
        }
    }
    if *claim == NativeClaim::AdoptedAgain {
        let own = "SELECT 1 FROM native_owners
             WHERE adapter_id = ?1 AND adapter_native_session_id = ?2 AND owner_id = ?3";
        if !connection.prepare_cached(own)?.exists(params![adapter, native, owner])? {
            return Err(WriteError::Conflict(Unique::Other));
        }
    }
    connection
        .prepare_cached(
            "INSERT INTO native_owners (adapter_id, adapter_native_session_id, owner_id, native_key)
             VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        )?
        .execute(params![adapter, native, owner, key])?;
    Ok(())
}

/// Adds to the spending of a key on a day.
pub(super) fn spend_add(connection: &Connection, key: KeyId, day: i64, spend: Spend) -> WriteResult {
    let before = spend_read(connection, key, day)?;
    let Spend { cost, at_least } = before.plus(spend);
    connection
        .prepare_cached(
            "INSERT INTO key_spend (key_id, day, cost_nanos, at_least) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (key_id, day) DO UPDATE SET cost_nanos = ?3, at_least = ?4",
        )?
        .execute(params![key.bytes(), day, int(cost.0), at_least])?;
    Ok(())
}

/// Reads the spending of a key on a day.
pub(super) fn spend_read(connection: &Connection, key: KeyId, day: i64) -> rusqlite::Result<Spend> {
    let sql = "SELECT cost_nanos, at_least FROM key_spend WHERE key_id = ?1 AND day = ?2";
    let found = connection.prepare_cached(sql)?.query_row(params![key.bytes(), day], |row| {
        Ok(Spend { cost: Cost(row.get::<_, i64>(0)?.unsigned_abs()), at_least: row.get(1)? })
    });
    Ok(found.optional()?.unwrap_or_default())
}
