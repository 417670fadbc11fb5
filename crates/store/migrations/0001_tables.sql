-- The tables. Ids are 16-byte blobs, times are milliseconds since 1970, JSON is text.
-- An index is here only if a read, a purge or a uniqueness rule needs it; each says which.
-- For a list of more than two, IN fills a temporary tree in each statement that checks it: what every turn writes
-- spells its comparisons out.

CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  session_id BLOB PRIMARY KEY CHECK (length(session_id) = 16),
  owner_id TEXT NOT NULL,
  agent_definition_id TEXT NOT NULL,
  key TEXT,
  title TEXT,
  status TEXT NOT NULL CHECK (status = 'open' OR status = 'archived' OR status = 'closed' OR status = 'deleted'),
  surface_kind TEXT NOT NULL,
  external_ref_kind TEXT,
  external_ref_id TEXT,
  legacy_client_scope TEXT,
  legacy_session_key TEXT,
  default_adapter_id TEXT NOT NULL,
  default_cwd TEXT,
  model_profile TEXT,
  metadata_json TEXT NOT NULL,
  tip_line INTEGER,
  tip_pos INTEGER,
  tip_message_id BLOB,
  version INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  last_activity_at_ms INTEGER NOT NULL,
  CHECK ((external_ref_kind IS NULL) = (external_ref_id IS NULL)),
  CHECK ((legacy_client_scope IS NULL) = (legacy_session_key IS NULL)),
  CHECK ((tip_line IS NULL) = (tip_pos IS NULL))
) STRICT;

-- Names: unique per owner, and free again once their session is deleted.
CREATE UNIQUE INDEX sessions_key_uq ON sessions(owner_id, key)
  WHERE key IS NOT NULL AND status <> 'deleted';
CREATE UNIQUE INDEX sessions_external_ref_uq ON sessions(owner_id, external_ref_kind, external_ref_id)
  WHERE external_ref_kind IS NOT NULL AND status <> 'deleted';
CREATE UNIQUE INDEX sessions_legacy_alias_uq ON sessions(owner_id, legacy_client_scope, legacy_session_key)
  WHERE legacy_client_scope IS NOT NULL AND status <> 'deleted';
-- session_page.
CREATE INDEX sessions_recent_idx ON sessions(owner_id, last_activity_at_ms, session_id)
  WHERE status <> 'deleted';
-- unfinished: what is still to be purged.
CREATE INDEX sessions_deleted_idx ON sessions(session_id) WHERE status = 'deleted';
-- session_purge: does a fork still stand on this line?
CREATE INDEX sessions_tip_idx ON sessions(tip_line) WHERE tip_line IS NOT NULL;

CREATE TABLE runs (
  run_id BLOB PRIMARY KEY CHECK (length(run_id) = 16),
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  owner_id TEXT NOT NULL,
  run_no INTEGER NOT NULL CHECK (run_no > 0),
  parent_run_id BLOB,
  client_id TEXT,
  request_id TEXT,
  idempotency_key TEXT,
  fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 16),
  mode TEXT NOT NULL CHECK (mode IN ('ask', 'act')),
  prompt_message_id BLOB,
  options TEXT,                 -- NULL when there are none
  place TEXT,                   -- NULL for the tip
  created_seq INTEGER NOT NULL, -- every event of the run lies after this one
  created_at_ms INTEGER NOT NULL,
  -- What stands above never changes.
  adapter_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (
    status = 'running' OR status = 'succeeded' OR status = 'queued' OR status = 'starting' OR status = 'waiting_input'
    OR status = 'waiting_approval' OR status = 'cancelling' OR status = 'failed' OR status = 'cancelled'
    OR status = 'timed_out' OR status = 'orphaned'
  ),
  active_attempt_id BLOB,
  retry_at_ms INTEGER,
  wait TEXT,
  reason TEXT,
  error_code TEXT,
  error_message TEXT,
  pen_line INTEGER,
  pen_pos INTEGER,
  attempts INTEGER NOT NULL,
  last_attempt_id BLOB,
  final_message_id BLOB,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  started_at_ms INTEGER,
  completed_at_ms INTEGER,
  updated_at_ms INTEGER NOT NULL,
  CHECK ((pen_line IS NULL) = (pen_pos IS NULL))
) STRICT;

-- Acceptance is exactly-once. An idempotency key is kept in requests, for 24 hours, and not here for ever.
CREATE UNIQUE INDEX runs_request_uq ON runs(owner_id, client_id, request_id)
  WHERE client_id IS NOT NULL AND request_id IS NOT NULL;
-- The runs of a session in order of acceptance, and its latest.
CREATE UNIQUE INDEX runs_session_uq ON runs(session_id, run_no);
-- run_page.
CREATE INDEX runs_recent_idx ON runs(owner_id, created_at_ms, run_id);
-- unfinished, session_load: as large as what is unfinished. And at most one run of a session is active: all that are
-- not queued have the same place.
CREATE UNIQUE INDEX runs_live_uq ON runs(session_id, CASE status WHEN 'queued' THEN run_no ELSE 0 END)
  WHERE status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
    AND status <> 'orphaned';

CREATE TABLE adapter_bindings (
  binding_id BLOB PRIMARY KEY CHECK (length(binding_id) = 16),
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  adapter_id TEXT NOT NULL,
  binding_generation INTEGER NOT NULL CHECK (binding_generation > 0),
  adapter_native_session_id TEXT,
  resume_fidelity TEXT NOT NULL CHECK (resume_fidelity IN ('native', 'reconstructed', 'none')),
  status TEXT NOT NULL CHECK (status IN ('active', 'stale', 'invalid', 'closed')),
  boot_node_id BLOB NOT NULL,
  stands_at_message_id BLOB,
  cwd TEXT,
  system_prompt_hash TEXT,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  UNIQUE (session_id, adapter_id, binding_generation)
) STRICT;

CREATE UNIQUE INDEX adapter_bindings_one_active_uq ON adapter_bindings(session_id, adapter_id)
  WHERE status = 'active';
CREATE UNIQUE INDEX adapter_bindings_native_uq ON adapter_bindings(adapter_id, adapter_native_session_id)
  WHERE adapter_native_session_id IS NOT NULL AND status <> 'closed';

-- One tree holds it all: an attempt is only ever read through its run, and its id has 122 random bits.
CREATE TABLE run_attempts (
  run_id BLOB NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE,
  attempt_no INTEGER NOT NULL CHECK (attempt_no > 0),
  attempt_id BLOB NOT NULL CHECK (length(attempt_id) = 16),
  status TEXT NOT NULL CHECK (
    status = 'running' OR status = 'succeeded' OR status = 'queued' OR status = 'starting' OR status = 'waiting_input'
    OR status = 'waiting_approval' OR status = 'cancelling' OR status = 'failed' OR status = 'cancelled'
    OR status = 'timed_out' OR status = 'orphaned'
  ),
  adapter_id TEXT NOT NULL,
  node_id BLOB NOT NULL,
  binding_id BLOB,
  resume_from_attempt_id BLOB,
  error_code TEXT,
  error_message TEXT,
  retryable INTEGER NOT NULL CHECK (retryable IN (0, 1)),
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  cancellation_requested_at_ms INTEGER,
  cancellation_dispatched_at_ms INTEGER,
  cancellation_acknowledged_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  started_at_ms INTEGER,
  completed_at_ms INTEGER,
  PRIMARY KEY (run_id, attempt_no)
) STRICT, WITHOUT ROWID;

-- At most one attempt of a run has not ended.
CREATE UNIQUE INDEX run_attempts_one_live_uq ON run_attempts(run_id)
  WHERE status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
    AND status <> 'orphaned';

-- event_seq comes from the writer's counter: it is never used again, which a rowid alone would be after a purge.
-- No unique index on event_id: 122 random bits suffice, and it would double the cost of an insert. No index by
-- run: a run's events lie in its session's, after runs.created_seq.
CREATE TABLE events (
  event_seq INTEGER PRIMARY KEY,
  event_id BLOB NOT NULL,
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  run_id BLOB,
  attempt_id BLOB,
  message_id BLOB,              -- message.completed: the message is joined to the payload on read
  type TEXT NOT NULL,
  pos INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL,
  payload TEXT NOT NULL
) STRICT;

CREATE INDEX events_session_idx ON events(session_id, event_seq);

CREATE TABLE lines (
  id INTEGER PRIMARY KEY,       -- the order of opening
  line INTEGER NOT NULL UNIQUE,
  session_id BLOB NOT NULL,     -- may outlive its session, while a fork reads it
  parent_line INTEGER REFERENCES lines(line),
  parent_pos INTEGER,
  end_pos INTEGER NOT NULL,
  abandoned INTEGER NOT NULL CHECK (abandoned IN (0, 1)),
  CHECK ((parent_line IS NULL) = (parent_pos IS NULL))
) STRICT;

CREATE INDEX lines_session_idx ON lines(session_id);
-- session_purge: does another line hang beneath this one?
CREATE INDEX lines_parent_idx ON lines(parent_line) WHERE parent_line IS NOT NULL;

CREATE TABLE cursors (
  session_id BLOB NOT NULL,
  line INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  to_line INTEGER NOT NULL,
  PRIMARY KEY (session_id, line, pos)
) STRICT, WITHOUT ROWID;

-- The only home of text. Wide rows, so a rowid table: content never moves when an index splits.
CREATE TABLE messages (
  id INTEGER PRIMARY KEY,
  message_id BLOB NOT NULL UNIQUE CHECK (length(message_id) = 16),
  session_id BLOB NOT NULL,
  run_id BLOB,
  role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
  status TEXT NOT NULL CHECK (
    status = 'completed' OR status = 'not_started' OR status = 'generating' OR status = 'failed' OR status = 'cancelled'
  ),
  line INTEGER REFERENCES lines(line),
  pos INTEGER,
  input_tokens INTEGER,         -- NULL when the usage is not known
  output_tokens INTEGER,
  cache_read_tokens INTEGER,
  cache_write_tokens INTEGER,
  cost_nanos INTEGER,
  created_at_ms INTEGER NOT NULL,
  content TEXT NOT NULL,
  CHECK ((line IS NULL) = (pos IS NULL))
) STRICT;

CREATE UNIQUE INDEX messages_place_uq ON messages(line, pos) WHERE line IS NOT NULL;
-- session_purge: prompts that never got a place.
CREATE INDEX messages_unplaced_idx ON messages(session_id) WHERE line IS NULL;

CREATE TABLE chunks (
  session_id BLOB NOT NULL,
  pos INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  block INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (session_id, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE effects (
  id INTEGER PRIMARY KEY,
  session_id BLOB NOT NULL,
  run_id BLOB NOT NULL,
  tool_use_id TEXT NOT NULL,
  name TEXT NOT NULL,
  UNIQUE (session_id, run_id, tool_use_id)
) STRICT;

CREATE TABLE requests (
  owner_id TEXT NOT NULL,
  operation TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 16),
  answer TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, operation, key)
) STRICT, WITHOUT ROWID;

-- requests_forget.
CREATE INDEX requests_age_idx ON requests(created_at_ms);

CREATE TABLE inbox (
  id INTEGER PRIMARY KEY,
  session_id BLOB NOT NULL,
  event_id BLOB NOT NULL,
  created_at_ms INTEGER NOT NULL,
  item TEXT NOT NULL,
  UNIQUE (session_id, event_id)
) STRICT;

CREATE TABLE artifacts (
  artifact_id BLOB PRIMARY KEY CHECK (length(artifact_id) = 16),
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  run_id BLOB,
  attempt_id BLOB,
  kind TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('input', 'result', 'checkpoint', 'tool_output', 'log', 'other')),
  uri TEXT NOT NULL,
  display_name TEXT,
  mime_type TEXT,
  content_hash TEXT,
  size_bytes INTEGER,
  created_at_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX artifacts_session_idx ON artifacts(session_id, created_at_ms);

CREATE TABLE delegations (
  delegation_id BLOB PRIMARY KEY CHECK (length(delegation_id) = 16),
  parent_session_id BLOB NOT NULL REFERENCES sessions(session_id),
  parent_run_id BLOB NOT NULL,
  child_session_id BLOB NOT NULL,
  child_run_id BLOB NOT NULL UNIQUE,
  mode TEXT NOT NULL CHECK (mode IN ('call', 'spawn', 'continue')),
  status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')),
  objective TEXT NOT NULL,
  result_artifact_id BLOB,
  created_at_ms INTEGER NOT NULL,
  completed_at_ms INTEGER
) STRICT;

CREATE INDEX delegations_parent_idx ON delegations(parent_session_id, parent_run_id);

CREATE TABLE grants (
  grant_id BLOB PRIMARY KEY CHECK (length(grant_id) = 16),
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  run_id BLOB,
  capability TEXT NOT NULL,
  operation TEXT NOT NULL,
  resource_pattern TEXT NOT NULL,
  effect TEXT NOT NULL CHECK (effect IN ('allow', 'deny')),
  source TEXT NOT NULL CHECK (source IN ('legacy_default', 'policy', 'user', 'system')),
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER
) STRICT;

CREATE INDEX grants_session_idx ON grants(session_id);
