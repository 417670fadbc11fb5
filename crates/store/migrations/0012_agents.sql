-- Agents that an owner has defined. A version never changes: of one that was deleted the hash stays, so that its name
-- never comes to mean something else.
CREATE TABLE agents (
  owner_id TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  hash BLOB NOT NULL CHECK (length(hash) = 32),
  definition_json TEXT,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, agent_id, version)
) STRICT, WITHOUT ROWID;
