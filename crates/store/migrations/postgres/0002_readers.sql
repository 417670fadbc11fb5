-- The sessions that each reader has pinned. The pins so far were those of the sessions' owners.
CREATE TABLE pins (
  owner_id text COLLATE "C" NOT NULL,
  session_id bytea NOT NULL,
  pinned_at bigint NOT NULL,
  PRIMARY KEY (owner_id, session_id)
);
CREATE INDEX pins_session ON pins (session_id);

INSERT INTO pins (owner_id, session_id, pinned_at)
SELECT owner_id, session_id, last_activity_at FROM sessions WHERE pinned AND status <> 'deleted';

-- The artifacts of a session that its forks have inherited: each fork has a copy of the record, and the bytes are shared.
CREATE TABLE inherited_artifacts (
  session_id bytea NOT NULL REFERENCES sessions,
  artifact_id bytea NOT NULL,
  content_hash text COLLATE "C",
  size_bytes bigint,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (session_id, artifact_id)
);
CREATE INDEX inherited_artifacts_id ON inherited_artifacts (artifact_id);
CREATE INDEX inherited_artifacts_hash ON inherited_artifacts (content_hash) WHERE content_hash IS NOT NULL;
