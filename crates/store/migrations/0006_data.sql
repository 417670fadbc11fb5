-- State of sessions, runs and owners; what artifacts are found by.

-- A line knows who opened it, even after a purge has handed it on, and which events had happened by then: state that
-- was written later at the point it hangs beneath is not seen from it. A fork's lines count from the fork's own birth.
ALTER TABLE lines ADD COLUMN opened_by BLOB;
ALTER TABLE lines ADD COLUMN opened_seq INTEGER NOT NULL DEFAULT -1;
UPDATE lines SET opened_by = session_id;

-- session_purge: does a line stand on what this session wrote before every message, or on lines of others?
CREATE INDEX lines_opened_idx ON lines(opened_by);

-- Each row is what a key holds from a point on. Nothing is overwritten, since an older fork may see the row before.
CREATE TABLE session_state (
  id INTEGER PRIMARY KEY,
  session_id BLOB NOT NULL,     -- who wrote it; may outlive its session, while a fork reads it
  line INTEGER REFERENCES lines(line),
  pos INTEGER,
  aside INTEGER NOT NULL CHECK (aside IN (0, 1)),
  away INTEGER NOT NULL CHECK (away IN (0, 1)), -- on no line of its own
  seq INTEGER NOT NULL,         -- the last event before it
  key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  updated_at_ms INTEGER NOT NULL,
  value TEXT,                   -- NULL: removed
  CHECK ((line IS NULL) = (pos IS NULL))
) STRICT;

-- state_get: the nearest on a line; state_page: the next key on it.
CREATE UNIQUE INDEX session_state_line_uq ON session_state(line, key, pos, version, session_id) WHERE line IS NOT NULL;
-- The same before every message.
CREATE INDEX session_state_root_idx ON session_state(session_id, key, version) WHERE line IS NULL;
-- A version is given once.
CREATE UNIQUE INDEX session_state_version_uq ON session_state(session_id, key, version);
-- session_purge.
CREATE INDEX session_state_away_idx ON session_state(session_id) WHERE away = 1;

CREATE TABLE run_state (
  run_id BLOB NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE,
  key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  updated_at_ms INTEGER NOT NULL,
  value TEXT,                   -- NULL: removed, so that its version is not used again
  PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

-- Versions come from one counter, so that a key which is removed and made again never has an old one.
CREATE TABLE owner_state (
  owner_id TEXT NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (owner_id, key)
) STRICT, WITHOUT ROWID;

-- artifact_page of a run.
CREATE INDEX artifacts_run_idx ON artifacts(run_id, created_at_ms) WHERE run_id IS NOT NULL;
-- blob_used, blob_page: bytes stay while a row names them.
CREATE INDEX artifacts_hash_idx ON artifacts(content_hash, size_bytes) WHERE content_hash IS NOT NULL;

-- Hashes of artifacts that are gone, until their bytes have been looked at.
CREATE TABLE blobs_loose (
  content_hash TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TRIGGER artifacts_loose AFTER DELETE ON artifacts WHEN old.content_hash IS NOT NULL BEGIN
  INSERT OR IGNORE INTO blobs_loose VALUES (old.content_hash);
END;
