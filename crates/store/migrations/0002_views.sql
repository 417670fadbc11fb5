-- The shape of the original daemon's database, for whoever knows it: text ids with their prefix, the same columns.
-- hex(NULL) is the empty text, hence nullif.

CREATE VIEW omi_sessions AS
SELECT
  'ses_' || lower(hex(session_id)) AS session_id,
  owner_id,
  agent_definition_id,
  title,
  status,
  surface_kind,
  external_ref_kind,
  external_ref_id,
  legacy_client_scope,
  legacy_session_key,
  default_adapter_id,
  default_cwd,
  model_profile,
  metadata_json,
  created_at_ms,
  updated_at_ms,
  last_activity_at_ms
FROM sessions
WHERE status <> 'deleted';

CREATE VIEW omi_runs AS
SELECT
  'run_' || lower(hex(r.run_id)) AS run_id,
  'ses_' || lower(hex(r.session_id)) AS session_id,
  'run_' || nullif(lower(hex(r.parent_run_id)), '') AS parent_run_id,
  coalesce(r.client_id, '') AS client_id,
  coalesce(r.request_id, '') AS request_id,
  r.idempotency_key,
  r.status,
  r.mode,
  json_object(
    'prompt',
    (SELECT coalesce(group_concat(value ->> '$.text', ''), '') FROM messages AS p, json_each(p.content)
      WHERE p.message_id = r.prompt_message_id AND value ->> '$.type' = 'text'),
    'systemPrompt',
    r.options ->> '$.systemPrompt'
  ) AS input_json,
  NULL AS system_prompt_hash,
  r.options ->> '$.modelProfile' AS model_profile,
  r.options ->> '$.model' AS requested_model_id,
  r.options ->> '$.cwd' AS cwd,
  (SELECT group_concat(value ->> '$.text', '') FROM messages AS f, json_each(f.content)
    WHERE f.message_id = r.final_message_id AND value ->> '$.type' = 'text') AS final_text,
  NULL AS result_json,
  r.error_code,
  r.error_message,
  r.input_tokens,
  r.output_tokens,
  r.cache_read_tokens,
  r.cache_write_tokens,
  r.cost_nanos / 1e9 AS cost_usd,
  r.created_at_ms,
  r.started_at_ms,
  r.completed_at_ms,
  r.updated_at_ms
FROM runs AS r
JOIN sessions AS s ON s.session_id = r.session_id AND s.status <> 'deleted';

CREATE VIEW omi_adapter_bindings AS
SELECT
  'bind_' || lower(hex(binding_id)) AS binding_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  adapter_id,
  binding_generation,
  adapter_native_session_id,
  NULL AS adapter_instance_id,
  resume_fidelity,
  status,
  cwd,
  NULL AS model_id,
  system_prompt_hash,
  '{}' AS metadata_json,
  created_at_ms,
  updated_at_ms,
  updated_at_ms AS last_used_at_ms,
  CASE WHEN status = 'invalid' THEN updated_at_ms END AS invalidated_at_ms
FROM adapter_bindings;

CREATE VIEW omi_run_attempts AS
SELECT
  'att_' || nullif(lower(hex(attempt_id)), '') AS attempt_id,
  'run_' || lower(hex(run_id)) AS run_id,
  attempt_no,
  status,
  adapter_id,
  'node_' || lower(hex(node_id)) AS adapter_instance_id,
  'node_' || lower(hex(node_id)) AS runtime_node_id,
  'bind_' || nullif(lower(hex(binding_id)), '') AS binding_id,
  NULL AS adapter_native_run_id,
  'att_' || nullif(lower(hex(resume_from_attempt_id)), '') AS resume_from_attempt_id,
  NULL AS checkpoint_artifact_id,
  NULL AS retry_reason,
  retryable,
  cancellation_requested_at_ms,
  cancellation_dispatched_at_ms,
  cancellation_acknowledged_at_ms,
  started_at_ms,
  completed_at_ms,
  error_code,
  error_message,
  '{}' AS metadata_json,
  created_at_ms,
  coalesce(completed_at_ms, cancellation_acknowledged_at_ms, cancellation_dispatched_at_ms,
    cancellation_requested_at_ms, started_at_ms, created_at_ms) AS updated_at_ms
FROM run_attempts;

CREATE VIEW omi_events AS
SELECT
  e.event_seq,
  'evt_' || lower(hex(e.event_id)) AS event_id,
  'ses_' || lower(hex(e.session_id)) AS session_id,
  'run_' || nullif(lower(hex(e.run_id)), '') AS run_id,
  'att_' || nullif(lower(hex(e.attempt_id)), '') AS attempt_id,
  e.type,
  'core' AS retention_class,
  'ui' AS visibility,
  CASE WHEN e.message_id IS NULL THEN e.payload ELSE json_insert(e.payload, '$.message', json_object(
    'messageId', 'msg_' || lower(hex(m.message_id)),
    'sessionId', 'ses_' || lower(hex(m.session_id)),
    'runId', 'run_' || nullif(lower(hex(m.run_id)), ''),
    'role', m.role,
    'status', m.status,
    'content', json(m.content),
    'createdAtMs', m.created_at_ms
  )) END AS payload_json,
  e.created_at_ms
FROM events AS e
LEFT JOIN messages AS m ON m.message_id = e.message_id;

CREATE VIEW omi_artifacts AS
SELECT
  'art_' || lower(hex(artifact_id)) AS artifact_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  'run_' || nullif(lower(hex(run_id)), '') AS run_id,
  'att_' || nullif(lower(hex(attempt_id)), '') AS attempt_id,
  kind,
  role,
  uri,
  display_name,
  mime_type,
  content_hash,
  size_bytes,
  '{}' AS metadata_json,
  created_at_ms
FROM artifacts;

CREATE VIEW omi_delegations AS
SELECT
  'del_' || lower(hex(delegation_id)) AS delegation_id,
  'ses_' || lower(hex(parent_session_id)) AS parent_session_id,
  'run_' || lower(hex(parent_run_id)) AS parent_run_id,
  'ses_' || lower(hex(child_session_id)) AS child_session_id,
  'run_' || lower(hex(child_run_id)) AS child_run_id,
  mode,
  status,
  objective,
  '{}' AS request_json,
  'art_' || nullif(lower(hex(result_artifact_id)), '') AS result_artifact_id,
  created_at_ms,
  completed_at_ms
FROM delegations;

CREATE VIEW omi_grants AS
SELECT
  'grant_' || lower(hex(grant_id)) AS grant_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  'run_' || nullif(lower(hex(run_id)), '') AS run_id,
  capability,
  operation,
  resource_pattern,
  effect,
  source,
  '{}' AS constraints_json,
  created_at_ms,
  expires_at_ms,
  NULL AS revoked_at_ms
FROM grants;
