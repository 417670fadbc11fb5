//! Reads bindings.

use mainspring_core::{Binding, BindingStatus, Fidelity, SessionId};
use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id};
use super::{query_all, sql_limit};

/// The columns of a binding, in the order in which [`binding`] reads them.
macro_rules! binding_columns {
    () => {
        "SELECT binding_id, session_id, adapter_id, binding_generation, adapter_native_session_id, \
         resume_fidelity, status, boot_node_id, stands_at_message_id, cwd, system_prompt_hash, reconstructed, \
         created_at_ms, updated_at_ms, \
         CASE WHEN instance_boot = (SELECT value FROM meta WHERE name = 'boot') THEN adapter_instance_id END, \
         model_id, metadata_json, last_used_at_ms, invalidated_at_ms, invalidation_reason \
         FROM adapter_bindings "
    };
}

/// Reads every binding, in any order.
pub(in super::super) const ALL_BINDINGS: &str = concat!(binding_columns!(), "WHERE true");

/// Lists bindings in the order of the unique index, of all adapters if `adapter` is `None`.
pub(in super::super) fn bindings(
    connection: &Connection,
    session: SessionId,
    adapter: Option<&str>,
    after: Option<(String, u32)>,
    limit: usize,
) -> Result<Vec<Binding>, StoreError> {
    macro_rules! select {
        ($where:literal) => {
            concat!(
                binding_columns!(),
                "WHERE session_id = ?1 AND ",
                $where,
                " AND (?4 IS NULL OR adapter_id > ?4 OR (adapter_id = ?4 AND binding_generation < ?5)) \
                 ORDER BY adapter_id, binding_generation DESC LIMIT ?3"
            )
        };
    }
    let sql = if adapter.is_some() { select!("adapter_id = ?2") } else { select!("?2 IS NULL") };
    let (after, generation) = after.unzip();
    query_all(
        connection,
        sql,
        params![session.bytes(), adapter, sql_limit(limit), after, generation],
        binding,
    )
}

pub(in super::super) fn binding(columns: &mut Columns<'_>) -> rusqlite::Result<Binding> {
    Ok(Binding {
        id: columns.id()?,
        session: columns.id()?,
        adapter: columns.get()?,
        generation: columns.get()?,
        native: columns.get()?,
        fidelity: columns.name(Fidelity::from_name)?,
        status: columns.name(BindingStatus::from_name)?,
        node: columns.id()?,
        last_message: columns.maybe_id()?,
        cwd: columns.get()?,
        system_prompt_hash: columns.get()?,
        reconstructed: columns.get()?,
        created_at: columns.time()?,
        updated_at: columns.time()?,
        instance: columns.get()?,
        model: columns.get()?,
        metadata: columns.maybe_json()?.unwrap_or_default(),
        last_used_at: columns.maybe_time()?,
        invalidated_at: columns.maybe_time()?,
        invalidation_reason: columns.get()?,
    })
}
