-- Feedback of readers on messages: one of each reader for a message of a session.
CREATE TABLE feedback (
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  message_id BLOB NOT NULL CHECK (length(message_id) = 16),
  owner_id TEXT NOT NULL,
  feedback_json TEXT NOT NULL,
  PRIMARY KEY (session_id, message_id, owner_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER session_feedback_removed BEFORE DELETE ON sessions BEGIN
  DELETE FROM feedback WHERE session_id = OLD.session_id;
END;
