-- Usage of which nothing is known is NULL in the view, as in the original, not 0.
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
  CASE WHEN r.usage_known THEN r.input_tokens END AS input_tokens,
  CASE WHEN r.usage_known THEN r.output_tokens END AS output_tokens,
  CASE WHEN r.usage_known THEN r.cache_read_tokens END AS cache_read_tokens,
  CASE WHEN r.usage_known THEN r.cache_write_tokens END AS cache_write_tokens,
  CASE WHEN r.cost_nanos >= 0 THEN r.cost_nanos / 1e9 END AS cost_usd,
  r.created_at_ms,
  r.started_at_ms,
  r.completed_at_ms,
  r.updated_at_ms
FROM (
  -- The usage is a lower bound where cost_nanos is less than -1. If that bound is 0, nothing is known.
  SELECT *, cost_nanos >= -1 OR max(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens) > 0 AS usage_known
  FROM runs
) AS r
JOIN sessions AS s ON s.session_id = r.session_id AND s.status <> 'deleted';
