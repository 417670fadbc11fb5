-- The checkpoint that an attempt continues from.
ALTER TABLE run_attempts ADD COLUMN checkpoint_artifact_id BLOB;

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
  'art_' || nullif(lower(hex(checkpoint_artifact_id)), '') AS checkpoint_artifact_id,
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
