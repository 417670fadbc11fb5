-- The form under which native ids are compared: adapters may start the same program, and a program may take two spellings
-- for the same id. `core/src/binding.rs` computes it for new rows.
ALTER TABLE native_owners ADD COLUMN native_key TEXT NOT NULL DEFAULT '';
UPDATE native_owners SET native_key = lower(replace(replace(replace(replace(replace(replace(replace(adapter_native_session_id, ' ', ''), char(9), ''), char(10), ''), char(13), ''),
  '-', ''), '{', ''), '}', ''));
CREATE INDEX native_owners_key_idx ON native_owners(native_key, owner_id);

-- A binding to a native session that another owner had first, through another adapter or in another spelling, is not used
-- again. The owner whose session is gone had it first.
UPDATE adapter_bindings SET status = 'invalid', invalidated_at_ms = updated_at_ms,
  invalidation_reason = 'its native session belongs to another owner'
WHERE status = 'active' AND adapter_native_session_id IS NOT NULL AND EXISTS (
  SELECT 1 FROM native_owners n
  WHERE n.native_key = lower(replace(replace(replace(replace(replace(replace(replace(adapter_bindings.adapter_native_session_id, ' ', ''), char(9), ''), char(10), ''), char(13), ''),
      '-', ''), '{', ''), '}', ''))
    AND (n.adapter_id <> adapter_bindings.adapter_id
      OR n.adapter_native_session_id <> adapter_bindings.adapter_native_session_id)
    AND n.owner_id <> (SELECT s.owner_id FROM sessions s WHERE s.session_id = adapter_bindings.session_id)
    AND NOT EXISTS (
      SELECT 1 FROM adapter_bindings later JOIN sessions s ON s.session_id = later.session_id
      WHERE later.adapter_id = n.adapter_id AND later.adapter_native_session_id = n.adapter_native_session_id
        AND s.owner_id = n.owner_id AND later.created_at_ms > adapter_bindings.created_at_ms
    )
);
