-- The goals of a run and the plan of its agent, as JSON. NULL if there are none.
ALTER TABLE runs ADD COLUMN goals TEXT;
ALTER TABLE runs ADD COLUMN tasks TEXT;

-- The goal types of owners. A run keeps the type that it was accepted with.
CREATE TABLE goal_types (
  owner_id TEXT NOT NULL,
  name TEXT NOT NULL,
  type_json TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, name)
) STRICT, WITHOUT ROWID;

-- The runs of a session that have goals or a plan.
CREATE INDEX runs_planned_idx ON runs(session_id, run_no) WHERE goals IS NOT NULL OR tasks IS NOT NULL;
