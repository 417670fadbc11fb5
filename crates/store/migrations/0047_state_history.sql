-- The last changes of each key of state, and who made them.
CREATE TABLE state_history (
  place TEXT NOT NULL,          -- the id of a session or a run, or 'owner:' and the name of an owner
  key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  change TEXT NOT NULL,         -- as JSON
  checksum INTEGER,
  PRIMARY KEY (place, key, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER run_history_removed AFTER DELETE ON runs BEGIN
  DELETE FROM state_history WHERE place = 'run_' || lower(hex(OLD.run_id));
END;

CREATE TRIGGER session_history_removed AFTER DELETE ON sessions BEGIN
  DELETE FROM state_history WHERE place = 'ses_' || lower(hex(OLD.session_id));
END;

-- Facts that agents propose to remember, and that nobody has decided about.
CREATE INDEX artifacts_undecided_idx ON artifacts(created_at_ms, artifact_id)
WHERE kind = 'memory_candidate' AND metadata_json ->> '$.decision' IS NULL;
