-- Grants can be revoked, and are listed by their time.

ALTER TABLE grants ADD COLUMN revoked_at_ms INTEGER;
ALTER TABLE grants ADD COLUMN revoked_by_json TEXT;              -- the one who revoked the grant

CREATE INDEX grants_created_idx ON grants(created_at_ms, grant_id);

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
  revoked_at_ms
FROM grants;
