-- Sessions that are going to wait for others, from before that is checked until the delegation is committed or refused. The
-- announcements of a server end with its lease.
CREATE TABLE announced_waits (
  wait_id bytea PRIMARY KEY,
  waiting_session_id bytea NOT NULL,
  awaited_session_id bytea NOT NULL,
  node_id bytea NOT NULL REFERENCES node_leases ON DELETE CASCADE
);
CREATE INDEX announced_waits_node_idx ON announced_waits (node_id);
