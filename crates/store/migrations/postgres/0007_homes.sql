-- Servers that execute sessions at the same time. Each has a lease of its own, and is the home of the sessions whose leases
-- name it. A row is removed when its server leaves, or when another one takes its sessions over.
CREATE TABLE node_leases (
  node_id bytea PRIMARY KEY,
  -- As in server_lease.
  place text,
  -- Until then the server may write.
  expires_at timestamptz NOT NULL,
  -- From then on another server may take its sessions over.
  free_at timestamptz NOT NULL
);

-- What a server can execute, as JSON, and the sessions that it has in memory.
ALTER TABLE nodes ADD COLUMN offer text NOT NULL DEFAULT '{"adapters":[]}', ADD COLUMN sessions bigint NOT NULL DEFAULT 0;

-- A session that is not in memory keeps its home while the server lives: its readers are there.
ALTER TABLE leases ADD COLUMN released boolean NOT NULL DEFAULT false;
CREATE INDEX leases_node_idx ON leases (node_id) WHERE NOT released;
