-- The sessions that each reader has pinned. The pins so far were those of the sessions' owners.
CREATE TABLE pins (
  owner_id TEXT NOT NULL,
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  pinned_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, session_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX pins_session_idx ON pins(session_id);

INSERT INTO pins (owner_id, session_id, pinned_at_ms)
SELECT owner_id, session_id, updated_at_ms FROM sessions WHERE pinned = 1 AND status <> 'deleted';

-- The column `pinned` of sessions is not read any more.
DROP INDEX sessions_pinned_idx;

CREATE TRIGGER session_pins_removed BEFORE DELETE ON sessions BEGIN
  DELETE FROM pins WHERE session_id = OLD.session_id;
END;
