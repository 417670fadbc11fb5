-- unfinished: as large as the number of bindings whose state ends with the process.
CREATE INDEX adapter_bindings_process_idx ON adapter_bindings(session_id)
  WHERE status = 'active' AND resume_fidelity <> 'native';
-- A replaced binding stays stale. An agent may give its native id to another session then.
DROP INDEX adapter_bindings_native_uq;
CREATE UNIQUE INDEX adapter_bindings_native_uq ON adapter_bindings(adapter_id, adapter_native_session_id)
  WHERE adapter_native_session_id IS NOT NULL AND status = 'active';

-- The request that made a delegation, as a JSON object; NULL in older rows.
ALTER TABLE delegations ADD COLUMN request_json TEXT;

DROP VIEW omi_delegations;
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
  coalesce(request_json, '{}') AS request_json,
  'art_' || nullif(lower(hex(result_artifact_id)), '') AS result_artifact_id,
  created_at_ms,
  completed_at_ms
FROM delegations;
