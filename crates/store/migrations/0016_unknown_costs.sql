-- What a run cost may be unknown: cost_nanos is -1 then, and cost_usd is null.
DROP VIEW omi_runs;

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
  CASE WHEN r.cost_nanos >= 0 THEN r.cost_nanos / 1e9 END AS cost_usd,
  r.created_at_ms,
  r.started_at_ms,
  r.completed_at_ms,
  r.updated_at_ms
FROM runs AS r
JOIN sessions AS s ON s.session_id = r.session_id AND s.status <> 'deleted';
