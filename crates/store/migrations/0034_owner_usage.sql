-- What each owner stores, counted as it changes: a quota is checked without reading what is stored.
CREATE TABLE owner_usage (
  owner_id TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL,       -- of messages, as stored, and of artifacts
  artifacts INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO owner_usage (owner_id, bytes, artifacts)
SELECT owner_id, sum(bytes), sum(artifacts) FROM (
  SELECT s.owner_id, octet_length(m.content) AS bytes, 0 AS artifacts
  FROM messages AS m JOIN sessions AS s ON s.session_id = m.session_id
  UNION ALL
  SELECT s.owner_id, coalesce(a.size_bytes, 0), 1
  FROM artifacts AS a JOIN sessions AS s ON s.session_id = a.session_id
) GROUP BY owner_id;

CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
  INSERT INTO owner_usage (owner_id, bytes, artifacts)
  SELECT owner_id, octet_length(NEW.content), 0 FROM sessions WHERE session_id = NEW.session_id
  ON CONFLICT (owner_id) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages BEGIN
  UPDATE owner_usage SET bytes = bytes + octet_length(NEW.content) - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = NEW.session_id);
END;

CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
  UPDATE owner_usage SET bytes = bytes - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = OLD.session_id);
END;

CREATE TRIGGER artifact_added AFTER INSERT ON artifacts BEGIN
  INSERT INTO owner_usage (owner_id, bytes, artifacts)
  SELECT owner_id, coalesce(NEW.size_bytes, 0), 1 FROM sessions WHERE session_id = NEW.session_id
  ON CONFLICT (owner_id) DO UPDATE SET bytes = bytes + excluded.bytes, artifacts = artifacts + 1;
END;

CREATE TRIGGER artifact_removed AFTER DELETE ON artifacts BEGIN
  UPDATE owner_usage SET bytes = bytes - coalesce(OLD.size_bytes, 0), artifacts = artifacts - 1
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = OLD.session_id);
END;

-- Messages that a fork still reads outlive their session, and count for nobody then.
CREATE TRIGGER session_removed BEFORE DELETE ON sessions BEGIN
  UPDATE owner_usage SET bytes = bytes - (
    SELECT coalesce(sum(octet_length(m.content)), 0)
    FROM lines AS l JOIN messages AS m ON m.line = l.line
    WHERE l.session_id = OLD.session_id AND m.session_id = OLD.session_id
  )
  WHERE owner_id = OLD.owner_id;
END;
