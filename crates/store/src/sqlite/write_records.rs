//! Writes sessions, keys, bindings, grants, artifacts and delegations.

use mainspring_core::{ApiKey, Artifact, Binding, Delegation, Grant, Session};
use rusqlite::{Connection, params};

use super::checksum;
use super::columns::{Id, blob, int, json, ms, object, point};
use super::read::{artifact_columns, session_columns};
use super::write::WriteResult;

pub(super) fn session_write(connection: &Connection, session: &Session) -> WriteResult {
    let (tip_line, tip_pos) = point(session.tip);
    let (base_line, base_pos) = point(session.base);
    let model_options = session.model_options.as_ref().map(json).transpose()?;
    let rules = (!session.rules.is_empty()).then(|| json(&session.rules)).transpose()?;
    let tools = (!session.tools.is_empty()).then(|| json(&session.tools)).transpose()?;
    let labels = (!session.labels.is_empty()).then(|| json(&session.labels)).transpose()?;
    let (external, legacy) = (session.external_ref.as_ref(), session.legacy_alias.as_ref());
    let columns = params![
        session.id.bytes(),
        session.owner,
        session.agent_definition,
        session.key,
        session.title,
        session.status.name(),
        session.surface_kind,
        external.map(|external| &external.kind),
        external.map(|external| &external.id),
        legacy.map(|legacy| &legacy.scope),
        legacy.map(|legacy| &legacy.key),
        session.adapter,
        session.cwd,
        session.model_profile,
        json(&session.metadata)?,
        tip_line,
        tip_pos,
        blob(session.tip_message),
        int(session.version),
        session.created_at.0,
        session.updated_at.0,
        session.last_activity_at.0,
        session.org,
        session.visibility.name(),
        session.model,
        session.system_prompt,
        model_options,
        session.pinned,
        session.title_source.map(|source| source.name()),
        blob(session.forked_from.map(|origin| origin.session)),
        blob(session.forked_from.map(|origin| origin.message)),
        base_line,
        base_pos,
        rules,
        tools,
        session.idle_unload_ms.map(int),
        labels,
    ];
    // Most commits change no name, status or visibility of a session. This update then touches no index
    // except those by activity and, if the title changes, that of new titles. The origin of a fork never
    // changes.
    let mut update = connection.prepare_cached(
        "UPDATE sessions SET
           agent_definition_id = ?3, title = ?5, surface_kind = ?7, default_adapter_id = ?12, default_cwd = ?13,
           model_profile = ?14, metadata_json = ?15, tip_line = ?16, tip_pos = ?17, tip_message_id = ?18, version = ?19,
           created_at_ms = ?20, updated_at_ms = ?21, last_activity_at_ms = ?22, model = ?25, system_prompt = ?26,
           model_options = ?27, title_source = ?29, rules = ?34, tools = ?35, idle_unload_ms = ?36, labels = ?37,
           checksum = ?38
         WHERE session_id = ?1 AND owner_id = ?2 AND key IS ?4 AND status = ?6 AND external_ref_kind IS ?8
           AND external_ref_id IS ?9 AND legacy_client_scope IS ?10 AND legacy_session_key IS ?11
           AND org_id IS ?23 AND visibility = ?24 AND pinned = ?28 AND forked_from_session_id IS ?30
           AND forked_from_message_id IS ?31 AND base_line IS ?32 AND base_pos IS ?33",
    )?;
    if checksum::execute(&mut update, &[(&checksum::SESSION, columns)], &[])? > 0 {
        return Ok(());
    }
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO sessions (",
        session_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
           ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38)
         ON CONFLICT (session_id) DO UPDATE SET
           owner_id = ?2, agent_definition_id = ?3, key = ?4, title = ?5, status = ?6, surface_kind = ?7,
           external_ref_kind = ?8, external_ref_id = ?9, legacy_client_scope = ?10, legacy_session_key = ?11,
           default_adapter_id = ?12, default_cwd = ?13, model_profile = ?14, metadata_json = ?15, tip_line = ?16,
           tip_pos = ?17, tip_message_id = ?18, version = ?19, created_at_ms = ?20, updated_at_ms = ?21,
           last_activity_at_ms = ?22, org_id = ?23, visibility = ?24, model = ?25, system_prompt = ?26,
           model_options = ?27, pinned = ?28, title_source = ?29, forked_from_session_id = ?30,
           forked_from_message_id = ?31, base_line = ?32, base_pos = ?33, rules = ?34, tools = ?35,
           idle_unload_ms = ?36, labels = ?37, checksum = ?38",
    ))?;
    checksum::execute(&mut write, &[(&checksum::SESSION, columns)], &[])?;
    Ok(())
}

pub(super) fn key_write(connection: &Connection, key: &ApiKey) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO api_keys (key_id, name, owner_id, org_id, role, hash, created_at_ms, expires_at_ms, revoked_at_ms,
               folders, adapters, models, tools, spend_per_day_nanos)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
             ON CONFLICT (key_id) DO UPDATE SET
               name = ?2, owner_id = ?3, org_id = ?4, role = ?5, hash = ?6, created_at_ms = ?7, expires_at_ms = ?8,
               revoked_at_ms = ?9, folders = ?10, adapters = ?11, models = ?12, tools = ?13, spend_per_day_nanos = ?14",
        )?
        .execute(params![
            key.id.bytes(),
            key.name,
            key.owner,
            key.org,
            key.role.name(),
            key.hash,
            key.created_at.0,
            ms(key.expires_at),
            ms(key.revoked_at),
            key.folders.as_ref().map(json).transpose()?,
            key.adapters.as_ref().map(json).transpose()?,
            key.models.as_ref().map(json).transpose()?,
            key.tools.as_ref().map(json).transpose()?,
            key.spend_per_day.map(|cost| int(cost.0.min(i64::MAX as u64))),
        ])?;
    Ok(())
}

pub(super) fn binding_write(connection: &Connection, binding: &Binding) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation,
               adapter_native_session_id, resume_fidelity, status, boot_node_id, stands_at_message_id, cwd,
               system_prompt_hash, created_at_ms, updated_at_ms, reconstructed, adapter_instance_id, model_id, metadata_json,
               last_used_at_ms, invalidated_at_ms, invalidation_reason, instance_boot)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
               (SELECT value FROM meta WHERE name = 'boot' AND ?15 IS NOT NULL))
             ON CONFLICT (binding_id) DO UPDATE SET
               adapter_native_session_id = ?5, resume_fidelity = ?6, status = ?7, boot_node_id = ?8,
               stands_at_message_id = ?9, cwd = ?10, system_prompt_hash = ?11, created_at_ms = ?12, updated_at_ms = ?13,
               reconstructed = ?14, adapter_instance_id = ?15, model_id = ?16, metadata_json = ?17, last_used_at_ms = ?18,
               invalidated_at_ms = ?19, invalidation_reason = ?20, instance_boot = excluded.instance_boot",
        )?
        .execute(params![
            binding.id.bytes(),
            binding.session.bytes(),
            binding.adapter,
            binding.generation,
            binding.native,
            binding.fidelity.name(),
            binding.status.name(),
            binding.node.bytes(),
            blob(binding.last_message),
            binding.cwd,
            binding.system_prompt_hash,
            binding.created_at.0,
            binding.updated_at.0,
            binding.reconstructed,
            binding.instance,
            binding.model,
            object(&binding.metadata)?,
            ms(binding.last_used_at),
            ms(binding.invalidated_at),
            binding.invalidation_reason,
        ])?;
    Ok(())
}

/// Writes a grant. A revoked grant stays revoked, even if a later attempt of its run records it again.
pub(super) fn grant_write(connection: &Connection, grant: &Grant) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO grants (grant_id, session_id, run_id, capability, operation, resource_pattern, effect, source,
               created_at_ms, expires_at_ms, constraints_json, revoked_at_ms, revoked_by_json)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT (grant_id) DO UPDATE SET
               run_id = ?3, capability = ?4, operation = ?5, resource_pattern = ?6, effect = ?7, source = ?8,
               created_at_ms = ?9, expires_at_ms = ?10, constraints_json = ?11,
               revoked_at_ms = coalesce(revoked_at_ms, ?12), revoked_by_json = coalesce(revoked_by_json, ?13)",
        )?
        .execute(params![
            grant.id.bytes(),
            grant.session.bytes(),
            blob(grant.run),
            grant.capability,
            grant.operation,
            grant.resource_pattern,
            grant.effect.name(),
            grant.source.name(),
            grant.created_at.0,
            ms(grant.expires_at),
            object(&grant.constraints)?,
            ms(grant.revoked_at),
            grant.revoked_by.as_ref().map(json).transpose()?,
        ])?;
    Ok(())
}

pub(super) fn artifact_write(connection: &Connection, artifact: &Artifact) -> WriteResult {
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO artifacts (",
        artifact_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT (artifact_id) DO UPDATE SET
           run_id = ?3, attempt_id = ?4, kind = ?5, role = ?6, uri = ?7, display_name = ?8, mime_type = ?9,
           content_hash = ?10, size_bytes = ?11, created_at_ms = ?12, metadata_json = ?13, checksum = ?14",
    ))?;
    let columns = params![
        artifact.id.bytes(),
        artifact.session.bytes(),
        blob(artifact.run),
        blob(artifact.attempt),
        artifact.kind,
        artifact.role.name(),
        artifact.uri,
        artifact.name,
        artifact.mime_type,
        artifact.content_hash,
        artifact.size_bytes.map(int),
        artifact.created_at.0,
        object(&artifact.metadata)?,
    ];
    checksum::execute(&mut write, &[(&checksum::ARTIFACT, columns)], &[])?;
    Ok(())
}

/// Writes a delegation, unless the parent's session is gone or deleted.
pub(super) fn delegation_write(connection: &Connection, delegation: &Delegation) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO delegations (delegation_id, parent_session_id, parent_run_id, child_session_id, child_run_id,
               mode, status, objective, result_artifact_id, created_at_ms, completed_at_ms, request_json)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
             FROM sessions WHERE session_id = ?2 AND status <> 'deleted'
             ON CONFLICT (delegation_id) DO UPDATE SET
               mode = ?6, status = ?7, objective = ?8, result_artifact_id = ?9, created_at_ms = ?10,
               completed_at_ms = ?11, request_json = ?12",
        )?
        .execute(params![
            delegation.id.bytes(),
            delegation.parent_session.bytes(),
            delegation.parent_run.bytes(),
            delegation.child_session.bytes(),
            delegation.child_run.bytes(),
            delegation.mode.name(),
            delegation.status.name(),
            delegation.objective,
            blob(delegation.result),
            delegation.created_at.0,
            ms(delegation.completed_at),
            (!delegation.request.is_absent()).then(|| json(&delegation.request)).transpose()?,
        ])?;
    Ok(())
}
