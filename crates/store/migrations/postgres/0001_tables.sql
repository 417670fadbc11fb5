-- The tables of a new database. An id is 16 bytes, a time is in milliseconds. `body` is the row's value as JSON; the other
-- columns are those by which rows are found, ordered or constrained, and the parts that the public JSON form leaves out.
-- JSON is stored as text: text of agents may contain U+0000, which neither `jsonb` nor plain text can hold.

CREATE TABLE meta (
  name text COLLATE "C" PRIMARY KEY,
  value bigint NOT NULL
);

CREATE TABLE histories (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  token text COLLATE "C" NOT NULL,
  after_cursor bigint NOT NULL
);

-- The right to write a session. A commit locks the row and compares the epoch.
CREATE TABLE leases (
  session_id bytea PRIMARY KEY,
  epoch bigint NOT NULL,
  node_id bytea NOT NULL
);
CREATE SEQUENCE lease_epochs;

CREATE TABLE sessions (
  session_id bytea PRIMARY KEY CHECK (length(session_id) = 16),
  owner_id text COLLATE "C" NOT NULL,
  org_id text COLLATE "C",
  visibility text COLLATE "C" NOT NULL CHECK (visibility = 'private' OR (visibility = 'org' AND org_id IS NOT NULL)),
  key text COLLATE "C",
  external_kind text COLLATE "C",
  external_id text COLLATE "C",
  legacy_scope text COLLATE "C",
  legacy_key text COLLATE "C",
  status text COLLATE "C" NOT NULL CHECK (status IN ('open', 'archived', 'closed', 'deleted')),
  surface_kind text COLLATE "C" NOT NULL,
  pinned boolean NOT NULL,
  created_at bigint NOT NULL,
  last_activity_at bigint NOT NULL,
  forked_from bytea,
  tip_line bigint,
  tip_pos bigint,
  base_line bigint,
  base_pos bigint,
  body text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX sessions_key_uq ON sessions (owner_id, key) WHERE key IS NOT NULL AND status <> 'deleted';
CREATE UNIQUE INDEX sessions_external_uq ON sessions (owner_id, external_kind, external_id)
  WHERE external_kind IS NOT NULL AND status <> 'deleted';
CREATE UNIQUE INDEX sessions_legacy_uq ON sessions (owner_id, legacy_scope, legacy_key)
  WHERE legacy_scope IS NOT NULL AND status <> 'deleted';
CREATE INDEX sessions_recent_idx ON sessions (owner_id, last_activity_at, session_id) WHERE status <> 'deleted';
CREATE INDEX sessions_org_idx ON sessions (org_id, last_activity_at, session_id)
  WHERE visibility = 'org' AND status <> 'deleted';
CREATE INDEX sessions_deleted_idx ON sessions (session_id) WHERE status = 'deleted';
CREATE INDEX sessions_forks_idx ON sessions (forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX sessions_base_idx ON sessions (base_line) WHERE base_line IS NOT NULL;

CREATE TABLE runs (
  run_id bytea PRIMARY KEY CHECK (length(run_id) = 16),
  session_id bytea NOT NULL REFERENCES sessions,
  owner_id text COLLATE "C" NOT NULL,
  run_no bigint NOT NULL CHECK (run_no > 0),
  client_id text COLLATE "C",
  request_id text COLLATE "C",
  fingerprint bytea NOT NULL,
  fixed text COLLATE "C" NOT NULL,              -- the other parts of the request that never change
  created_cursor bigint NOT NULL,   -- every event of the run lies after it
  created_at bigint NOT NULL,
  -- What stands above never changes.
  status text COLLATE "C" NOT NULL,
  ended boolean NOT NULL,
  pen_line bigint,
  pen_pos bigint,
  wait text COLLATE "C",                        -- the parts of a wait that its public form leaves out
  planned boolean NOT NULL,         -- the run has goals or tasks
  body text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX runs_request_uq ON runs (owner_id, client_id, request_id)
  WHERE client_id IS NOT NULL AND request_id IS NOT NULL;
CREATE UNIQUE INDEX runs_session_uq ON runs (session_id, run_no);
CREATE UNIQUE INDEX runs_live_uq ON runs (session_id, (CASE status WHEN 'queued' THEN run_no ELSE 0 END)) WHERE NOT ended;
CREATE INDEX runs_planned_idx ON runs (session_id, run_no) WHERE planned;
CREATE INDEX runs_recent_idx ON runs (owner_id, created_at, run_id);
CREATE INDEX runs_failed_idx ON runs (owner_id, status, created_at, run_id) WHERE ended AND status <> 'succeeded';

CREATE TABLE attempts (
  run_id bytea NOT NULL REFERENCES runs ON DELETE CASCADE,
  attempt_no bigint NOT NULL CHECK (attempt_no > 0),
  attempt_id bytea NOT NULL,
  ended boolean NOT NULL,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (run_id, attempt_no)
);
CREATE UNIQUE INDEX attempts_live_uq ON attempts (run_id) WHERE NOT ended;

CREATE TABLE steps (
  run_id bytea NOT NULL REFERENCES runs ON DELETE CASCADE,
  step_no bigint NOT NULL CHECK (step_no > 0),
  step_id bytea NOT NULL,
  completed_at bigint NOT NULL,
  private text COLLATE "C",
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (run_id, step_no, step_id)
);

CREATE TABLE lines (
  id bigint GENERATED ALWAYS AS IDENTITY,   -- the order of opening
  line bigint PRIMARY KEY,
  session_id bytea NOT NULL,                -- may outlive its session, while a fork reads it
  parent_line bigint REFERENCES lines,
  parent_pos bigint,
  end_pos bigint NOT NULL,
  abandoned boolean NOT NULL,
  opened_by bytea NOT NULL,
  opened_cursor bigint NOT NULL
);
CREATE INDEX lines_session_idx ON lines (session_id, id);
CREATE INDEX lines_parent_idx ON lines (parent_line) WHERE parent_line IS NOT NULL;
CREATE INDEX lines_opened_idx ON lines (opened_by);

CREATE TABLE cursors (
  session_id bytea NOT NULL,
  line bigint NOT NULL,
  pos bigint NOT NULL,
  to_line bigint NOT NULL,
  PRIMARY KEY (session_id, line, pos)
);

CREATE TABLE messages (
  message_id bytea PRIMARY KEY CHECK (length(message_id) = 16),
  arrival bigint GENERATED ALWAYS AS IDENTITY,
  session_id bytea NOT NULL,
  line bigint REFERENCES lines,
  pos bigint,
  status text COLLATE "C" NOT NULL,
  content_bytes bigint NOT NULL,
  body text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX messages_place_uq ON messages (line, pos) WHERE line IS NOT NULL;
CREATE UNIQUE INDEX messages_arrival_uq ON messages (arrival);
CREATE INDEX messages_session_idx ON messages (session_id);

-- System prompt, tools and options that models were given, once per session.
CREATE TABLE step_inputs (
  session_id bytea NOT NULL,
  hash text COLLATE "C" NOT NULL,
  input text COLLATE "C" NOT NULL,              -- as JSON
  PRIMARY KEY (session_id, hash)
);

CREATE TABLE digests (
  line bigint NOT NULL REFERENCES lines,
  pos bigint NOT NULL,
  session_id bytea NOT NULL,
  message_id bytea NOT NULL,
  prompt_id bytea,
  summary text COLLATE "C",                     -- as JSON
  left_out bigint NOT NULL,
  below_tokens bigint NOT NULL,
  made_at bigint NOT NULL,
  PRIMARY KEY (line, pos, session_id)
);
CREATE INDEX digests_session_idx ON digests (session_id);

CREATE TABLE chunks (
  session_id bytea NOT NULL,
  pos bigint NOT NULL,
  message_id bytea NOT NULL,
  block bigint NOT NULL,
  text bytea NOT NULL,              -- UTF-8, which may contain U+0000
  PRIMARY KEY (session_id, pos)
);

CREATE TABLE effects (
  id bigint GENERATED ALWAYS AS IDENTITY,
  session_id bytea NOT NULL,
  run_id bytea NOT NULL,
  tool_use_id text COLLATE "C" NOT NULL,
  started_at bigint,
  message_id bytea,
  name text COLLATE "C" NOT NULL,               -- as JSON
  result text COLLATE "C",
  PRIMARY KEY (session_id, run_id, tool_use_id)
);

CREATE TABLE requests (
  owner_id text COLLATE "C" NOT NULL,
  operation text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL,
  answer text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  PRIMARY KEY (owner_id, operation, key)
);
CREATE INDEX requests_age_idx ON requests (created_at);

CREATE TABLE inbox (
  id bigint GENERATED ALWAYS AS IDENTITY,
  session_id bytea NOT NULL,
  event_id bytea NOT NULL,
  created_at bigint NOT NULL,
  note text COLLATE "C" NOT NULL,
  PRIMARY KEY (session_id, event_id)
);

CREATE TABLE bindings (
  binding_id bytea PRIMARY KEY,
  session_id bytea NOT NULL REFERENCES sessions,
  adapter_id text COLLATE "C" NOT NULL,
  generation bigint NOT NULL CHECK (generation > 0),
  native_id text COLLATE "C",
  active boolean NOT NULL,
  process_local boolean NOT NULL,
  body text COLLATE "C" NOT NULL,
  UNIQUE (session_id, adapter_id, generation)
);
CREATE UNIQUE INDEX bindings_active_uq ON bindings (session_id, adapter_id) WHERE active;
CREATE UNIQUE INDEX bindings_native_uq ON bindings (adapter_id, native_id) WHERE active AND native_id IS NOT NULL;
CREATE INDEX bindings_process_idx ON bindings (session_id) WHERE active AND process_local;

CREATE TABLE native_owners (
  adapter_id text COLLATE "C" NOT NULL,
  native_id text COLLATE "C" NOT NULL,
  owner_id text COLLATE "C" NOT NULL,
  native_key text COLLATE "C" NOT NULL,
  PRIMARY KEY (adapter_id, native_id)
);
CREATE INDEX native_owners_key_idx ON native_owners (native_key, owner_id);

CREATE TABLE grants (
  grant_id bytea PRIMARY KEY,
  session_id bytea NOT NULL REFERENCES sessions,
  run_id bytea,
  created_at bigint NOT NULL,
  expires_at bigint,
  revoked_at bigint,
  revoked_by text COLLATE "C",
  body text COLLATE "C" NOT NULL
);
CREATE INDEX grants_session_idx ON grants (session_id);

CREATE TABLE artifacts (
  artifact_id bytea PRIMARY KEY,
  session_id bytea NOT NULL REFERENCES sessions,
  run_id bytea,
  content_hash text COLLATE "C",
  size_bytes bigint,
  undecided boolean NOT NULL,
  created_at bigint NOT NULL,
  body text COLLATE "C" NOT NULL
);
CREATE INDEX artifacts_session_idx ON artifacts (session_id, created_at, artifact_id);
CREATE INDEX artifacts_age_idx ON artifacts (created_at, artifact_id);
CREATE INDEX artifacts_hash_idx ON artifacts (content_hash) WHERE content_hash IS NOT NULL;
CREATE INDEX artifacts_undecided_idx ON artifacts (created_at, artifact_id) WHERE undecided;

CREATE TABLE blobs_loose (
  content_hash text COLLATE "C" PRIMARY KEY
);

CREATE TABLE delegations (
  delegation_id bytea PRIMARY KEY,
  parent_session_id bytea NOT NULL REFERENCES sessions,
  parent_run_id bytea NOT NULL,
  child_session_id bytea NOT NULL,
  child_run_id bytea NOT NULL UNIQUE,
  result_id bytea,
  created_at bigint NOT NULL,
  body text COLLATE "C" NOT NULL
);
CREATE INDEX delegations_parent_idx ON delegations (parent_session_id, parent_run_id);

CREATE TABLE retention (
  session_id bytea PRIMARY KEY REFERENCES sessions,
  floor_cursor bigint NOT NULL,
  floor_pos bigint NOT NULL,
  pruned boolean NOT NULL
);
CREATE INDEX retention_unpruned_idx ON retention (session_id) WHERE NOT pruned;

CREATE TABLE events (
  cursor bigint PRIMARY KEY,
  event_id bytea NOT NULL,
  session_id bytea NOT NULL REFERENCES sessions,
  owner_id text COLLATE "C" NOT NULL,
  run_id bytea,
  attempt_id bytea,
  message_id bytea,                 -- the message or result that is joined to the payload on read
  type text COLLATE "C" NOT NULL,
  pos bigint NOT NULL,
  created_at bigint NOT NULL,
  payload text COLLATE "C" NOT NULL
);
CREATE INDEX events_session_idx ON events (session_id, cursor);
CREATE INDEX events_owner_idx ON events (owner_id, cursor);

CREATE TABLE session_state (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_id bytea NOT NULL,        -- who wrote it; may outlive its session, while a fork reads it
  line bigint REFERENCES lines,
  pos bigint,
  aside boolean NOT NULL,
  cursor bigint NOT NULL,           -- events before the row have lower cursors
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL CHECK (version > 0),
  updated_at bigint NOT NULL,
  value text COLLATE "C"
);
CREATE UNIQUE INDEX session_state_version_uq ON session_state (session_id, key, version);
CREATE INDEX session_state_line_idx ON session_state (line, key) WHERE line IS NOT NULL;

CREATE TABLE run_state (
  run_id bytea NOT NULL REFERENCES runs ON DELETE CASCADE,
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL CHECK (version > 0),
  updated_at bigint NOT NULL,
  value text COLLATE "C",
  PRIMARY KEY (run_id, key)
);

CREATE TABLE owner_state (
  owner_id text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  updated_at bigint NOT NULL,
  value text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner_id, key)
);
CREATE TABLE owner_state_versions (
  owner_id text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL
);

CREATE TABLE state_history (
  place text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  change text COLLATE "C" NOT NULL,
  PRIMARY KEY (place, key, version)
);

CREATE TABLE api_keys (
  key_id bytea PRIMARY KEY,
  owner_id text COLLATE "C" NOT NULL,
  org_id text COLLATE "C",
  hash bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
  created_at bigint NOT NULL,
  body text COLLATE "C" NOT NULL
);
CREATE INDEX api_keys_recent_idx ON api_keys (created_at, key_id);
CREATE INDEX api_keys_owner_idx ON api_keys (owner_id);

CREATE TABLE owners (
  owner_id text COLLATE "C" PRIMARY KEY,
  org_id text COLLATE "C",
  claimed_at bigint NOT NULL
);

CREATE TABLE key_spend (
  key_id bytea NOT NULL,
  day bigint NOT NULL,
  cost_nanos bigint NOT NULL,
  at_least boolean NOT NULL,
  PRIMARY KEY (key_id, day)
);

CREATE TABLE agents (
  owner_id text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  hash bytea NOT NULL,
  created_at bigint NOT NULL,
  definition text COLLATE "C",                  -- NULL: deleted
  PRIMARY KEY (owner_id, agent_id, version)
);

CREATE TABLE goal_types (
  owner_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner_id, name)
);

CREATE TABLE feedback (
  session_id bytea NOT NULL,
  message_id bytea NOT NULL,
  owner_id text COLLATE "C" NOT NULL,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (session_id, message_id, owner_id)
);

CREATE TABLE webhooks (
  webhook_id bytea PRIMARY KEY,
  owner_id text COLLATE "C" NOT NULL,
  body text COLLATE "C" NOT NULL
);
CREATE TABLE dead_letters (
  webhook_id bytea NOT NULL REFERENCES webhooks ON DELETE CASCADE,
  cursor bigint NOT NULL,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (webhook_id, cursor)
);

-- Fails a statement that has not written the expected number of rows. The message is the name of the conflict.
CREATE FUNCTION expect_rows(actual bigint, expected bigint, conflict text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF actual <> expected THEN
    RAISE EXCEPTION USING ERRCODE = 'MS001', MESSAGE = conflict;
  END IF;
END
$$;
