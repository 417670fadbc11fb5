-- The structured output of a run as JSON: value, fits, error.
ALTER TABLE runs ADD COLUMN output TEXT;

-- final_text is all text of the agent on the run's path, and not that of its last message alone.
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
    SELECT group_concat(block.value ->> '$.text', '' ORDER BY m.pos, block.key)
    FROM path
    JOIN messages AS m ON m.line = path.line AND m.pos > path.above AND m.pos <= path.pos
    JOIN json_each(m.content) AS block
    WHERE m.run_id = r.run_id AND m.role = 'assistant' AND block.value ->> '$.type' = 'text'
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
