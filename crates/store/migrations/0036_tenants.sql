-- The org that each owner belongs to: that of the first key for it. NULL for an owner of no org. An owner that has keys or
-- sessions but no row here is claimed for the org of the oldest of them, when it is first asked for.
CREATE TABLE owners (
  owner_id TEXT PRIMARY KEY,
  org_id TEXT,
  claimed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO owners (owner_id, org_id, claimed_at_ms)
SELECT owner_id, org_id, created_at_ms FROM (
  SELECT owner_id, org_id, created_at_ms,
    row_number() OVER (PARTITION BY owner_id ORDER BY created_at_ms, org_id IS NOT NULL, org_id) AS place
  FROM (
    SELECT owner_id, org_id, created_at_ms FROM api_keys
    UNION ALL
    SELECT owner_id, org_id, created_at_ms FROM sessions WHERE status <> 'deleted'
  )
) WHERE place = 1;

-- The owner who opened or adopted a native session first. Stays when the session is deleted: the agent still has it.
CREATE TABLE native_owners (
  adapter_id TEXT NOT NULL,
  adapter_native_session_id TEXT NOT NULL,
  owner_id TEXT NOT NULL,
  PRIMARY KEY (adapter_id, adapter_native_session_id)
) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO native_owners (adapter_id, adapter_native_session_id, owner_id)
SELECT b.adapter_id, b.adapter_native_session_id, s.owner_id
FROM adapter_bindings b JOIN sessions s USING (session_id)
WHERE b.adapter_native_session_id IS NOT NULL
ORDER BY b.created_at_ms, b.binding_id;
