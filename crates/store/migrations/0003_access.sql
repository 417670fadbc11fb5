-- Who may read what: keys, orgs and visibility; and what a session's runs use unless they say otherwise.

ALTER TABLE sessions ADD COLUMN org_id TEXT;
ALTER TABLE sessions ADD COLUMN visibility TEXT NOT NULL DEFAULT 'private'
  CHECK (visibility = 'private' OR (visibility = 'org' AND org_id IS NOT NULL));
ALTER TABLE sessions ADD COLUMN model TEXT;
ALTER TABLE sessions ADD COLUMN system_prompt TEXT;
ALTER TABLE sessions ADD COLUMN model_options TEXT;

-- session_page: what an org may read.
CREATE INDEX sessions_org_idx ON sessions(org_id, last_activity_at_ms, session_id)
  WHERE visibility = 'org' AND status <> 'deleted';

-- Of a secret only its hash is here. When a key was last used is not: it would be a write for each request.
CREATE TABLE api_keys (
  key_id BLOB PRIMARY KEY CHECK (length(key_id) = 16),
  name TEXT NOT NULL,
  owner_id TEXT NOT NULL,
  org_id TEXT,
  role TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
  hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER,
  revoked_at_ms INTEGER
) STRICT, WITHOUT ROWID;

-- key_page: all keys, and those of an org.
CREATE INDEX api_keys_recent_idx ON api_keys(created_at_ms, key_id);
CREATE INDEX api_keys_org_idx ON api_keys(org_id, created_at_ms, key_id) WHERE org_id IS NOT NULL;
-- owner_elsewhere.
CREATE INDEX api_keys_owner_idx ON api_keys(owner_id);
