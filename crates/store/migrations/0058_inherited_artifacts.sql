-- The artifacts of a session that its forks have inherited: each fork has a copy of the record, and the bytes are shared.
CREATE TABLE inherited_artifacts (
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  artifact_id BLOB NOT NULL CHECK (length(artifact_id) = 16),
  content_hash TEXT,
  size_bytes INTEGER,
  artifact_json TEXT NOT NULL,
  PRIMARY KEY (session_id, artifact_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX inherited_artifacts_id_idx ON inherited_artifacts(artifact_id);
CREATE INDEX inherited_artifacts_hash_idx ON inherited_artifacts(content_hash, size_bytes)
  WHERE content_hash IS NOT NULL;

CREATE TRIGGER inherited_artifacts_loose AFTER DELETE ON inherited_artifacts WHEN old.content_hash IS NOT NULL BEGIN
  INSERT OR IGNORE INTO blobs_loose VALUES (old.content_hash);
END;
