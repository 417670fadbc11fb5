-- The permits of a server that all servers share: what it needs, as JSON, what the leader has granted it, and what it may use
-- at this moment, of runs whose agent is a process and of others. They end with the row.
ALTER TABLE node_leases
  ADD COLUMN permits_no bigint NOT NULL DEFAULT 0,
  ADD COLUMN demand text NOT NULL DEFAULT '[]',
  ADD COLUMN workers_granted bigint NOT NULL DEFAULT 0,
  ADD COLUMN workers_held bigint NOT NULL DEFAULT 0,
  ADD COLUMN in_process_granted bigint NOT NULL DEFAULT 0,
  ADD COLUMN in_process_held bigint NOT NULL DEFAULT 0;
