-- What stands for the older messages of a path where a model is shown it, with the last message it stands for. A fork
-- may have made one on a line of another session: that other one does not use it.
CREATE TABLE digests (
  line INTEGER NOT NULL REFERENCES lines(line) ON DELETE CASCADE,
  pos INTEGER NOT NULL,
  session_id BLOB NOT NULL,
  message_id BLOB NOT NULL CHECK (length(message_id) = 16),
  prompt_message_id BLOB,
  summary TEXT,
  left_out INTEGER NOT NULL,
  below INTEGER NOT NULL,
  made_at_ms INTEGER NOT NULL,
  PRIMARY KEY (line, pos, session_id)
) STRICT, WITHOUT ROWID;

-- session_purge.
CREATE INDEX digests_session_idx ON digests(session_id);
