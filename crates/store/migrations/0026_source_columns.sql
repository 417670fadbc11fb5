-- Columns of the original daemon's tables that had no value here.

-- The process of the agent runtime that last served a binding, and the start of mainspring in which it did: the name of a
-- process means nothing after the next start.
ALTER TABLE adapter_bindings ADD COLUMN adapter_instance_id TEXT;
ALTER TABLE adapter_bindings ADD COLUMN instance_boot INTEGER;
ALTER TABLE adapter_bindings ADD COLUMN model_id TEXT;
ALTER TABLE adapter_bindings ADD COLUMN metadata_json TEXT;       -- NULL when it is empty
ALTER TABLE adapter_bindings ADD COLUMN last_used_at_ms INTEGER;
ALTER TABLE adapter_bindings ADD COLUMN invalidated_at_ms INTEGER;
ALTER TABLE adapter_bindings ADD COLUMN invalidation_reason TEXT;

UPDATE adapter_bindings SET last_used_at_ms = used.at
FROM (
  SELECT binding_id, max(coalesce(completed_at_ms, started_at_ms, created_at_ms)) AS at
  FROM run_attempts WHERE binding_id IS NOT NULL GROUP BY binding_id
) AS used
WHERE used.binding_id = adapter_bindings.binding_id;
-- Nothing changes such a binding but its end. The reason is in its event.
UPDATE adapter_bindings SET invalidated_at_ms = updated_at_ms WHERE status = 'stale' OR status = 'invalid';

ALTER TABLE run_attempts ADD COLUMN adapter_instance_id TEXT;
ALTER TABLE run_attempts ADD COLUMN adapter_native_run_id TEXT;
ALTER TABLE run_attempts ADD COLUMN metadata_json TEXT;           -- NULL when it is empty

ALTER TABLE artifacts ADD COLUMN metadata_json TEXT;              -- NULL when it is empty
ALTER TABLE grants ADD COLUMN constraints_json TEXT;              -- NULL when there are none
ALTER TABLE runs ADD COLUMN system_prompt_hash TEXT;              -- NULL in runs of earlier versions

-- A name that nobody gave is NULL. What follows # in the id of a client tells its connections apart.
DROP VIEW omi_runs;

CREATE VIEW omi_runs AS
SELECT
  'run_' || lower(hex(r.run_id)) AS run_id,
  'ses_' || lower(hex(r.session_id)) AS session_id,
  'run_' || nullif(lower(hex(r.parent_run_id)), '') AS parent_run_id,
  nullif(CASE WHEN instr(r.client_id, '#') > 0 THEN substr(r.client_id, 1, instr(r.client_id, '#') - 1)
    ELSE r.client_id END, '') AS client_id,
  r.request_id,
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
  r.system_prompt_hash,
  r.options ->> '$.modelProfile' AS model_profile,
  r.options ->> '$.model' AS requested_model_id,
  r.options ->> '$.cwd' AS cwd,
  CASE WHEN r.completed_at_ms IS NOT NULL THEN (
    -- The path from the last message up to the prompt; without a prompt, the line of the last message.
    WITH RECURSIVE path(line, pos, above) AS (
      SELECT f.line, f.pos, coalesce(p.pos, l.parent_pos, -1)
      FROM messages AS f
      JOIN lines AS l ON l.line = f.line
      LEFT JOIN messages AS p ON p.message_id = r.prompt_message_id
      WHERE f.message_id = r.final_message_id
      UNION ALL
      SELECT l.parent_line, l.parent_pos, path.above
      FROM path
      JOIN lines AS l ON l.line = path.line
      WHERE l.parent_pos > path.above
    )
    -- Ordered in a query of its own: SQLite before 3.44 cannot read a schema with an ordered aggregate.
    SELECT group_concat(part, '') FROM (
      SELECT block.value ->> '$.text' AS part
      FROM path
      JOIN messages AS m ON m.line = path.line AND m.pos > path.above AND m.pos <= path.pos
      JOIN json_each(m.content) AS block
      WHERE m.run_id = r.run_id AND m.role = 'assistant' AND block.value ->> '$.type' = 'text'
      ORDER BY m.pos, block.key
    )
  ) END AS final_text,
  CASE WHEN r.output ->> '$.fits' THEN r.output -> '$.value' END AS result_json,
  r.error_code,
  r.error_message,
  r.input_tokens,
  r.output_tokens,
  r.cache_read_tokens,
  r.cache_write_tokens,
  CASE WHEN r.cost_nanos >= 0 THEN r.cost_nanos / 1e9 END AS cost_usd,
  r.created_at_ms,
  r.started_at_ms,
  r.completed_at_ms,
  r.updated_at_ms
FROM runs AS r
JOIN sessions AS s ON s.session_id = r.session_id AND s.status <> 'deleted';

DROP VIEW omi_adapter_bindings;
CREATE VIEW omi_adapter_bindings AS
SELECT
  'bind_' || lower(hex(binding_id)) AS binding_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  adapter_id,
  binding_generation,
  adapter_native_session_id,
  CASE WHEN instance_boot = (SELECT value FROM meta WHERE name = 'boot') THEN adapter_instance_id END
    AS adapter_instance_id,
  resume_fidelity,
  status,
  cwd,
  model_id,
  system_prompt_hash,
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms,
  updated_at_ms,
  last_used_at_ms,
  invalidated_at_ms,
  -- Not a column of the original.
  invalidation_reason
FROM adapter_bindings;

-- An attempt without a process of its own is executed by mainspring itself.
DROP VIEW omi_run_attempts;
CREATE VIEW omi_run_attempts AS
SELECT
  'att_' || nullif(lower(hex(attempt_id)), '') AS attempt_id,
  'run_' || lower(hex(run_id)) AS run_id,
  attempt_no,
  status,
  adapter_id,
  coalesce(adapter_instance_id, 'node_' || lower(hex(node_id))) AS adapter_instance_id,
  'node_' || lower(hex(node_id)) AS runtime_node_id,
  'bind_' || nullif(lower(hex(binding_id)), '') AS binding_id,
  adapter_native_run_id,
  'att_' || nullif(lower(hex(resume_from_attempt_id)), '') AS resume_from_attempt_id,
  NULL AS checkpoint_artifact_id,
  retry_reason,
  retryable,
  cancellation_requested_at_ms,
  cancellation_dispatched_at_ms,
  cancellation_acknowledged_at_ms,
  started_at_ms,
  completed_at_ms,
  error_code,
  error_message,
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms,
  coalesce(completed_at_ms, cancellation_acknowledged_at_ms, cancellation_dispatched_at_ms,
    cancellation_requested_at_ms, started_at_ms, created_at_ms) AS updated_at_ms
FROM run_attempts;

DROP VIEW omi_events;
CREATE VIEW omi_events AS
SELECT
  e.event_seq,
  'evt_' || lower(hex(e.event_id)) AS event_id,
  'ses_' || lower(hex(e.session_id)) AS session_id,
  'run_' || nullif(lower(hex(e.run_id)), '') AS run_id,
  'att_' || nullif(lower(hex(e.attempt_id)), '') AS attempt_id,
  e.type,
  CASE WHEN e.type IN ('progress.updated', 'tool.updated') THEN 'transient' ELSE 'core' END AS retention_class,
  CASE WHEN e.type IN ('attempt.created', 'attempt.started', 'attempt.confined', 'attempt.cancel_dispatch',
    'binding.created', 'binding.resumed', 'binding.stale', 'binding.replaced', 'step.completed') THEN 'internal'
    ELSE 'ui' END AS visibility,
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

DROP VIEW omi_artifacts;
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
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms
FROM artifacts;

DROP VIEW omi_grants;
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
  coalesce(constraints_json, '{}') AS constraints_json,
  created_at_ms,
  expires_at_ms,
  NULL AS revoked_at_ms
FROM grants;
