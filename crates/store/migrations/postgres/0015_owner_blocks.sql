-- What each server that executes sessions may use of the limits of an owner, and how much it wants: of active runs (pool 0)
-- and of queued prompts (pool 1). The sum over the servers is at most the limit. The blocks of a server end with its lease.
CREATE TABLE owner_blocks (
  owner_id text COLLATE "C" NOT NULL,
  pool bigint NOT NULL,
  node_id bytea NOT NULL REFERENCES node_leases ON DELETE CASCADE,
  held bigint NOT NULL CHECK (held >= 0),
  wanted bigint NOT NULL,
  PRIMARY KEY (owner_id, pool, node_id)
);
CREATE INDEX owner_blocks_node_idx ON owner_blocks (node_id);
