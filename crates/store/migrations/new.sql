-- The tables of a new database, as the migrations up to 0065 leave them.
-- Made by: cargo run -p mainspring-store --example new_database > crates/store/migrations/new.sql

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
  last_activity_at_ms INTEGER NOT NULL, org_id TEXT, visibility TEXT NOT NULL DEFAULT 'private'
  CHECK (visibility = 'private' OR (visibility = 'org' AND org_id IS NOT NULL)), model TEXT, system_prompt TEXT, model_options TEXT, pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned = 0 OR pinned = 1), title_source TEXT, forked_from_session_id BLOB, forked_from_message_id BLOB, base_line INTEGER, base_pos INTEGER, searched_title TEXT, searched_row INTEGER, checksum INTEGER, rules TEXT, tools TEXT, idle_unload_ms INTEGER CHECK (idle_unload_ms >= 0), labels TEXT,
  CHECK ((external_ref_kind IS NULL) = (external_ref_id IS NULL)),
  CHECK ((legacy_client_scope IS NULL) = (legacy_session_key IS NULL)),
  CHECK ((tip_line IS NULL) = (tip_pos IS NULL))
) STRICT;

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
  updated_at_ms INTEGER NOT NULL, steers INTEGER CHECK (steers = 1), merged_into_run_id BLOB CHECK (length(merged_into_run_id) = 16), budget TEXT, checksum INTEGER, state_checksum INTEGER, output TEXT, retried_at_ms INTEGER, system_prompt_hash TEXT, goals TEXT, tasks TEXT,
  CHECK ((pen_line IS NULL) = (pen_pos IS NULL))
) STRICT;

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
  updated_at_ms INTEGER NOT NULL, reconstructed INTEGER NOT NULL DEFAULT 0 CHECK (reconstructed IN (0, 1)), adapter_instance_id TEXT, instance_boot INTEGER, model_id TEXT, metadata_json TEXT, last_used_at_ms INTEGER, invalidated_at_ms INTEGER, invalidation_reason TEXT,
  UNIQUE (session_id, adapter_id, binding_generation)
) STRICT;

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
  completed_at_ms INTEGER, retry_reason TEXT, sandbox TEXT, left_running TEXT, adapter_instance_id TEXT, adapter_native_run_id TEXT, metadata_json TEXT, checksum INTEGER, checkpoint_artifact_id BLOB,
  PRIMARY KEY (run_id, attempt_no)
) STRICT, WITHOUT ROWID;

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
, checksum INTEGER) STRICT;

CREATE TABLE lines (
  id INTEGER PRIMARY KEY,       -- the order of opening
  line INTEGER NOT NULL UNIQUE,
  session_id BLOB NOT NULL,     -- may outlive its session, while a fork reads it
  parent_line INTEGER REFERENCES lines(line),
  parent_pos INTEGER,
  end_pos INTEGER NOT NULL,
  abandoned INTEGER NOT NULL CHECK (abandoned IN (0, 1)), opened_by BLOB, opened_seq INTEGER NOT NULL DEFAULT -1,
  CHECK ((parent_line IS NULL) = (parent_pos IS NULL))
) STRICT;

CREATE TABLE cursors (
  session_id BLOB NOT NULL,
  line INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  to_line INTEGER NOT NULL,
  PRIMARY KEY (session_id, line, pos)
) STRICT, WITHOUT ROWID;

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
  content TEXT NOT NULL, checksum INTEGER, agent TEXT, external_id TEXT,
  CHECK ((line IS NULL) = (pos IS NULL))
) STRICT;

CREATE TABLE chunks (
  session_id BLOB NOT NULL,
  pos INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  block INTEGER NOT NULL,
  text TEXT NOT NULL, checksum INTEGER,
  PRIMARY KEY (session_id, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE effects (
  id INTEGER PRIMARY KEY,
  session_id BLOB NOT NULL,
  run_id BLOB NOT NULL,
  tool_use_id TEXT NOT NULL,
  name TEXT NOT NULL, started_at_ms INTEGER, result TEXT, message_id BLOB, checksum INTEGER,
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
, metadata_json TEXT, checksum INTEGER) STRICT;

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
, request_json TEXT) STRICT;

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
, constraints_json TEXT, revoked_at_ms INTEGER, revoked_by_json TEXT) STRICT;

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
, folders TEXT, adapters TEXT, models TEXT, tools TEXT, spend_per_day_nanos INTEGER CHECK (spend_per_day_nanos >= 0)) STRICT, WITHOUT ROWID;

CREATE VIRTUAL TABLE search_messages USING fts5(text, content = '', contentless_delete = 1, tokenize = 'ascii');

CREATE VIRTUAL TABLE search_titles USING fts5(session_id UNINDEXED, text, tokenize = 'ascii');

CREATE TABLE retention (
  session_id BLOB PRIMARY KEY REFERENCES sessions(session_id),
  floor_seq INTEGER NOT NULL,
  floor_pos INTEGER NOT NULL,   -- the stream goes on from here when no event is left
  pruned INTEGER NOT NULL CHECK (pruned IN (0, 1))
) STRICT, WITHOUT ROWID;

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
  value TEXT, checksum INTEGER,                   -- NULL: removed
  CHECK ((line IS NULL) = (pos IS NULL))
) STRICT;

CREATE TABLE run_state (
  run_id BLOB NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE,
  key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  updated_at_ms INTEGER NOT NULL,
  value TEXT, checksum INTEGER,                   -- NULL: removed, so that its version is not used again
  PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE owner_state (
  owner_id TEXT NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  value TEXT NOT NULL, checksum INTEGER,
  PRIMARY KEY (owner_id, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE blobs_loose (
  content_hash TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
  run_id BLOB NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE,
  step_no INTEGER NOT NULL CHECK (step_no > 0),
  step_id BLOB NOT NULL CHECK (length(step_id) = 16),
  attempt_id BLOB NOT NULL CHECK (length(attempt_id) = 16),
  agent TEXT NOT NULL,
  provider TEXT NOT NULL,
  model TEXT NOT NULL,
  model_profile TEXT,
  prompt_message_id BLOB,
  prompt_messages INTEGER NOT NULL,
  output_message_id BLOB,
  tool_calls TEXT NOT NULL,
  stop_reason TEXT NOT NULL CHECK (stop_reason IN ('stop', 'length', 'tool_use', 'refusal', 'error', 'cancelled')),
  error_code TEXT,
  error_message TEXT,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  raw_usage TEXT NOT NULL,
  started_at_ms INTEGER NOT NULL,
  first_piece_at_ms INTEGER,
  completed_at_ms INTEGER NOT NULL,
  private TEXT, checksum INTEGER, prompt_digest_id BLOB, input_hash TEXT, raw TEXT,
  PRIMARY KEY (run_id, step_no, step_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE digests (
  line INTEGER NOT NULL REFERENCES lines(line) ON DELETE CASCADE,
  pos INTEGER NOT NULL,
  session_id BLOB NOT NULL,
  message_id BLOB NOT NULL CHECK (length(message_id) = 16),
  prompt_message_id BLOB,
  summary TEXT,
  left_out INTEGER NOT NULL,
  below INTEGER NOT NULL,
  made_at_ms INTEGER NOT NULL, checksum INTEGER,
  PRIMARY KEY (line, pos, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
  owner_id TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  hash BLOB NOT NULL CHECK (length(hash) = 32),
  definition_json TEXT,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, agent_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE wal_token (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  mark BLOB NOT NULL,
  token BLOB NOT NULL CHECK (length(token) = 16),
  previous BLOB NOT NULL CHECK (length(previous) = 16),
  schema_cookie INTEGER NOT NULL
) STRICT;

CREATE TABLE lost_events (
  after_seq INTEGER PRIMARY KEY, -- the last cursor in the backup
  until_seq INTEGER NOT NULL     -- new events come after this one
) STRICT;

CREATE TABLE histories (
  id INTEGER PRIMARY KEY,
  token TEXT NOT NULL UNIQUE,
  after_seq INTEGER NOT NULL
);

CREATE TABLE owner_usage (
  owner_id TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL,       -- of messages, as stored, and of artifacts
  artifacts INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE owners (
  owner_id TEXT PRIMARY KEY,
  org_id TEXT,
  claimed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE native_owners (
  adapter_id TEXT NOT NULL,
  adapter_native_session_id TEXT NOT NULL,
  owner_id TEXT NOT NULL, native_key TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (adapter_id, adapter_native_session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE key_spend (
  key_id BLOB NOT NULL CHECK (length(key_id) = 16),
  day INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  at_least INTEGER NOT NULL CHECK (at_least IN (0, 1)),
  PRIMARY KEY (key_id, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE owner_state_versions (
  owner_id TEXT PRIMARY KEY,
  version INTEGER NOT NULL
, keys INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;

CREATE TABLE event_blocks (
  owner_id TEXT NOT NULL,
  word TEXT NOT NULL,
  block INTEGER NOT NULL,       -- event_seq >> 11
  PRIMARY KEY (owner_id, word, block)
) STRICT, WITHOUT ROWID;

CREATE TABLE state_history (
  place TEXT NOT NULL,          -- the id of a session or a run, or 'owner:' and the name of an owner
  key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  change TEXT NOT NULL,         -- as JSON
  checksum INTEGER,
  PRIMARY KEY (place, key, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE webhooks (
  webhook_id BLOB PRIMARY KEY CHECK (length(webhook_id) = 16),
  owner_id TEXT NOT NULL,
  webhook_json TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
  webhook_id BLOB NOT NULL REFERENCES webhooks(webhook_id),
  event_seq INTEGER NOT NULL,
  letter_json TEXT NOT NULL,
  PRIMARY KEY (webhook_id, event_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE step_inputs (
  session_id BLOB NOT NULL CHECK (length(session_id) = 16),
  hash TEXT NOT NULL CHECK (length(hash) = 64),
  input TEXT NOT NULL,
  PRIMARY KEY (session_id, hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE goal_types (
  owner_id TEXT NOT NULL,
  name TEXT NOT NULL,
  type_json TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE feedback (
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  message_id BLOB NOT NULL CHECK (length(message_id) = 16),
  owner_id TEXT NOT NULL,
  feedback_json TEXT NOT NULL,
  PRIMARY KEY (session_id, message_id, owner_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE pins (
  owner_id TEXT NOT NULL,
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  pinned_at_ms INTEGER NOT NULL,
  PRIMARY KEY (owner_id, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE inherited_artifacts (
  session_id BLOB NOT NULL REFERENCES sessions(session_id),
  artifact_id BLOB NOT NULL CHECK (length(artifact_id) = 16),
  content_hash TEXT,
  size_bytes INTEGER,
  artifact_json TEXT NOT NULL,
  PRIMARY KEY (session_id, artifact_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE edge_records (
  kind TEXT NOT NULL,
  scope TEXT NOT NULL,
  record_id TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (kind, scope, record_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX sessions_key_uq ON sessions(owner_id, key)
  WHERE key IS NOT NULL AND status <> 'deleted';

CREATE UNIQUE INDEX sessions_external_ref_uq ON sessions(owner_id, external_ref_kind, external_ref_id)
  WHERE external_ref_kind IS NOT NULL AND status <> 'deleted';

CREATE UNIQUE INDEX sessions_legacy_alias_uq ON sessions(owner_id, legacy_client_scope, legacy_session_key)
  WHERE legacy_client_scope IS NOT NULL AND status <> 'deleted';

CREATE INDEX sessions_recent_idx ON sessions(owner_id, last_activity_at_ms, session_id)
  WHERE status <> 'deleted';

CREATE INDEX sessions_deleted_idx ON sessions(session_id) WHERE status = 'deleted';

CREATE UNIQUE INDEX runs_request_uq ON runs(owner_id, client_id, request_id)
  WHERE client_id IS NOT NULL AND request_id IS NOT NULL;

CREATE UNIQUE INDEX runs_session_uq ON runs(session_id, run_no);

CREATE INDEX runs_recent_idx ON runs(owner_id, created_at_ms, run_id);

CREATE UNIQUE INDEX runs_live_uq ON runs(session_id, CASE status WHEN 'queued' THEN run_no ELSE 0 END)
  WHERE status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
    AND status <> 'orphaned';

CREATE UNIQUE INDEX adapter_bindings_one_active_uq ON adapter_bindings(session_id, adapter_id)
  WHERE status = 'active';

CREATE INDEX events_session_idx ON events(session_id, event_seq);

CREATE INDEX lines_session_idx ON lines(session_id);

CREATE UNIQUE INDEX messages_place_uq ON messages(line, pos) WHERE line IS NOT NULL;

CREATE INDEX messages_unplaced_idx ON messages(session_id) WHERE line IS NULL;

CREATE INDEX requests_age_idx ON requests(created_at_ms);

CREATE INDEX artifacts_session_idx ON artifacts(session_id, created_at_ms);

CREATE INDEX delegations_parent_idx ON delegations(parent_session_id, parent_run_id);

CREATE INDEX grants_session_idx ON grants(session_id);

CREATE INDEX sessions_org_idx ON sessions(org_id, last_activity_at_ms, session_id)
  WHERE visibility = 'org' AND status <> 'deleted';

CREATE INDEX api_keys_recent_idx ON api_keys(created_at_ms, key_id);

CREATE INDEX api_keys_org_idx ON api_keys(org_id, created_at_ms, key_id) WHERE org_id IS NOT NULL;

CREATE INDEX api_keys_owner_idx ON api_keys(owner_id);

CREATE INDEX sessions_forks_idx ON sessions(forked_from_session_id) WHERE forked_from_session_id IS NOT NULL;

CREATE INDEX sessions_base_idx ON sessions(base_line) WHERE base_line IS NOT NULL;

CREATE INDEX sessions_unsearched_idx ON sessions(session_id) WHERE title IS NOT searched_title;

CREATE INDEX lines_parent_idx ON lines(parent_line, parent_pos) WHERE parent_line IS NOT NULL;

CREATE INDEX lines_roots_idx ON lines(session_id) WHERE parent_line IS NULL;

CREATE INDEX retention_unpruned_idx ON retention(session_id) WHERE pruned = 0;

CREATE INDEX lines_opened_idx ON lines(opened_by);

CREATE UNIQUE INDEX session_state_line_uq ON session_state(line, key, pos, version, session_id) WHERE line IS NOT NULL;

CREATE INDEX session_state_root_idx ON session_state(session_id, key, version) WHERE line IS NULL;

CREATE UNIQUE INDEX session_state_version_uq ON session_state(session_id, key, version);

CREATE INDEX session_state_away_idx ON session_state(session_id) WHERE away = 1;

CREATE INDEX artifacts_run_idx ON artifacts(run_id, created_at_ms) WHERE run_id IS NOT NULL;

CREATE INDEX artifacts_hash_idx ON artifacts(content_hash, size_bytes) WHERE content_hash IS NOT NULL;

CREATE INDEX digests_session_idx ON digests(session_id);

CREATE INDEX adapter_bindings_process_idx ON adapter_bindings(session_id)
  WHERE status = 'active' AND resume_fidelity <> 'native';

CREATE UNIQUE INDEX adapter_bindings_native_uq ON adapter_bindings(adapter_id, adapter_native_session_id)
  WHERE adapter_native_session_id IS NOT NULL AND status = 'active';

CREATE INDEX grants_created_idx ON grants(created_at_ms, grant_id);

CREATE INDEX run_attempts_id_idx ON run_attempts(attempt_id);

CREATE INDEX native_owners_key_idx ON native_owners(native_key, owner_id);

CREATE INDEX runs_status_idx ON runs(owner_id, status, created_at_ms, run_id)
  WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out' OR status = 'orphaned';

CREATE INDEX artifacts_undecided_idx ON artifacts(created_at_ms, artifact_id)
WHERE kind = 'memory_candidate' AND metadata_json ->> '$.decision' IS NULL;

CREATE INDEX webhooks_owner_idx ON webhooks(owner_id);

CREATE INDEX runs_planned_idx ON runs(session_id, run_no) WHERE goals IS NOT NULL OR tasks IS NOT NULL;

CREATE INDEX pins_session_idx ON pins(session_id);

CREATE INDEX inherited_artifacts_id_idx ON inherited_artifacts(artifact_id);

CREATE INDEX inherited_artifacts_hash_idx ON inherited_artifacts(content_hash, size_bytes)
  WHERE content_hash IS NOT NULL;

CREATE VIEW omi_sessions AS
SELECT
  'ses_' || lower(hex(session_id)) AS session_id,
  owner_id,
  agent_definition_id,
  title,
  status,
  surface_kind,
  external_ref_kind,
  external_ref_id,
  legacy_client_scope,
  legacy_session_key,
  default_adapter_id,
  default_cwd,
  model_profile,
  metadata_json,
  created_at_ms,
  updated_at_ms,
  last_activity_at_ms
FROM sessions
WHERE status <> 'deleted';

CREATE VIEW omi_delegations AS
SELECT
  'del_' || lower(hex(delegation_id)) AS delegation_id,
  'ses_' || lower(hex(parent_session_id)) AS parent_session_id,
  'run_' || lower(hex(parent_run_id)) AS parent_run_id,
  'ses_' || lower(hex(child_session_id)) AS child_session_id,
  'run_' || lower(hex(child_run_id)) AS child_run_id,
  mode,
  status,
  objective,
  coalesce(request_json, '{}') AS request_json,
  'art_' || nullif(lower(hex(result_artifact_id)), '') AS result_artifact_id,
  created_at_ms,
  completed_at_ms
FROM delegations;

CREATE VIEW omi_adapter_bindings AS
SELECT
  'bind_' || lower(hex(binding_id)) AS binding_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  adapter_id,
  binding_generation,
  adapter_native_session_id,
  CASE WHEN instance_boot = (SELECT value FROM meta WHERE name = 'boot') THEN adapter_instance_id END
    AS adapter_instance_id,
  resume_fidelity,
  status,
  cwd,
  model_id,
  system_prompt_hash,
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms,
  updated_at_ms,
  last_used_at_ms,
  invalidated_at_ms,
  -- Not a column of the original.
  invalidation_reason
FROM adapter_bindings;

CREATE VIEW omi_events AS
SELECT
  e.event_seq,
  'evt_' || lower(hex(e.event_id)) AS event_id,
  'ses_' || lower(hex(e.session_id)) AS session_id,
  'run_' || nullif(lower(hex(e.run_id)), '') AS run_id,
  'att_' || nullif(lower(hex(e.attempt_id)), '') AS attempt_id,
  e.type,
  CASE WHEN e.type IN ('progress.updated', 'tool.updated') THEN 'transient' ELSE 'core' END AS retention_class,
  CASE WHEN e.type IN ('attempt.created', 'attempt.started', 'attempt.confined', 'attempt.cancel_dispatch',
    'binding.created', 'binding.resumed', 'binding.stale', 'binding.replaced', 'step.completed') THEN 'internal'
    ELSE 'ui' END AS visibility,
  CASE WHEN e.message_id IS NULL THEN e.payload ELSE json_insert(e.payload, '$.message', json_object(
    'messageId', 'msg_' || lower(hex(m.message_id)),
    'sessionId', 'ses_' || lower(hex(m.session_id)),
    'runId', 'run_' || nullif(lower(hex(m.run_id)), ''),
    'role', m.role,
    'status', m.status,
    'content', json(m.content),
    'createdAtMs', m.created_at_ms
  )) END AS payload_json,
  e.created_at_ms
FROM events AS e
LEFT JOIN messages AS m ON m.message_id = e.message_id;

CREATE VIEW omi_artifacts AS
SELECT
  'art_' || lower(hex(artifact_id)) AS artifact_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  'run_' || nullif(lower(hex(run_id)), '') AS run_id,
  'att_' || nullif(lower(hex(attempt_id)), '') AS attempt_id,
  kind,
  role,
  uri,
  display_name,
  mime_type,
  content_hash,
  size_bytes,
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms
FROM artifacts;

CREATE VIEW omi_grants AS
SELECT
  'grant_' || lower(hex(grant_id)) AS grant_id,
  'ses_' || lower(hex(session_id)) AS session_id,
  'run_' || nullif(lower(hex(run_id)), '') AS run_id,
  capability,
  operation,
  resource_pattern,
  effect,
  source,
  coalesce(constraints_json, '{}') AS constraints_json,
  created_at_ms,
  expires_at_ms,
  revoked_at_ms
FROM grants;

CREATE VIEW omi_runs AS
SELECT
  'run_' || lower(hex(r.run_id)) AS run_id,
  'ses_' || lower(hex(r.session_id)) AS session_id,
  'run_' || nullif(lower(hex(r.parent_run_id)), '') AS parent_run_id,
  nullif(CASE WHEN instr(r.client_id, '#') > 0 THEN substr(r.client_id, 1, instr(r.client_id, '#') - 1)
    ELSE r.client_id END, '') AS client_id,
  r.request_id,
  r.idempotency_key,
  r.status,
  r.mode,
  json_object(
    'prompt',
    (SELECT coalesce(group_concat(value ->> '$.text', ''), '') FROM messages AS p, json_each(p.content)
      WHERE p.message_id = r.prompt_message_id AND value ->> '$.type' = 'text'),
    'systemPrompt',
    r.options ->> '$.systemPrompt'
  ) AS input_json,
  r.system_prompt_hash,
  r.options ->> '$.modelProfile' AS model_profile,
  r.options ->> '$.model' AS requested_model_id,
  r.options ->> '$.cwd' AS cwd,
  CASE WHEN r.completed_at_ms IS NOT NULL THEN (
    -- The path from the last message up to the prompt; without a prompt, the line of the last message.
    WITH RECURSIVE path(line, pos, above) AS (
      SELECT f.line, f.pos, coalesce(p.pos, l.parent_pos, -1)
      FROM messages AS f
      JOIN lines AS l ON l.line = f.line
      LEFT JOIN messages AS p ON p.message_id = r.prompt_message_id
      WHERE f.message_id = r.final_message_id
      UNION ALL
      SELECT l.parent_line, l.parent_pos, path.above
      FROM path
      JOIN lines AS l ON l.line = path.line
      WHERE l.parent_pos > path.above
    )
    -- Ordered in a query of its own: SQLite before 3.44 cannot read a schema with an ordered aggregate.
    SELECT group_concat(part, '') FROM (
      SELECT block.value ->> '$.text' AS part
      FROM path
      JOIN messages AS m ON m.line = path.line AND m.pos > path.above AND m.pos <= path.pos
      JOIN json_each(m.content) AS block
      WHERE m.run_id = r.run_id AND m.role = 'assistant' AND block.value ->> '$.type' = 'text'
      ORDER BY m.pos, block.key
    )
  ) END AS final_text,
  CASE WHEN r.output ->> '$.fits' THEN r.output -> '$.value' END AS result_json,
  r.error_code,
  r.error_message,
  CASE WHEN r.usage_known THEN r.input_tokens END AS input_tokens,
  CASE WHEN r.usage_known THEN r.output_tokens END AS output_tokens,
  CASE WHEN r.usage_known THEN r.cache_read_tokens END AS cache_read_tokens,
  CASE WHEN r.usage_known THEN r.cache_write_tokens END AS cache_write_tokens,
  CASE WHEN r.cost_nanos >= 0 THEN r.cost_nanos / 1e9 END AS cost_usd,
  r.created_at_ms,
  r.started_at_ms,
  r.completed_at_ms,
  r.updated_at_ms
FROM (
  -- The usage is a lower bound where cost_nanos is less than -1. If that bound is 0, nothing is known.
  SELECT *, cost_nanos >= -1 OR max(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens) > 0 AS usage_known
  FROM runs
) AS r
JOIN sessions AS s ON s.session_id = r.session_id AND s.status <> 'deleted';

CREATE VIEW omi_run_attempts AS
SELECT
  'att_' || nullif(lower(hex(attempt_id)), '') AS attempt_id,
  'run_' || lower(hex(run_id)) AS run_id,
  attempt_no,
  status,
  adapter_id,
  coalesce(adapter_instance_id, 'node_' || lower(hex(node_id))) AS adapter_instance_id,
  'node_' || lower(hex(node_id)) AS runtime_node_id,
  'bind_' || nullif(lower(hex(binding_id)), '') AS binding_id,
  adapter_native_run_id,
  'att_' || nullif(lower(hex(resume_from_attempt_id)), '') AS resume_from_attempt_id,
  'art_' || nullif(lower(hex(checkpoint_artifact_id)), '') AS checkpoint_artifact_id,
  retry_reason,
  retryable,
  cancellation_requested_at_ms,
  cancellation_dispatched_at_ms,
  cancellation_acknowledged_at_ms,
  started_at_ms,
  completed_at_ms,
  error_code,
  error_message,
  coalesce(metadata_json, '{}') AS metadata_json,
  created_at_ms,
  coalesce(completed_at_ms, cancellation_acknowledged_at_ms, cancellation_dispatched_at_ms,
    cancellation_requested_at_ms, started_at_ms, created_at_ms) AS updated_at_ms
FROM run_attempts;

CREATE TRIGGER artifacts_loose AFTER DELETE ON artifacts WHEN old.content_hash IS NOT NULL BEGIN
  INSERT OR IGNORE INTO blobs_loose VALUES (old.content_hash);
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

CREATE TRIGGER run_history_removed AFTER DELETE ON runs BEGIN
  DELETE FROM state_history WHERE place = 'run_' || lower(hex(OLD.run_id));
END;

CREATE TRIGGER session_history_removed AFTER DELETE ON sessions BEGIN
  DELETE FROM state_history WHERE place = 'ses_' || lower(hex(OLD.session_id));
END;

CREATE TRIGGER session_feedback_removed BEFORE DELETE ON sessions BEGIN
  DELETE FROM feedback WHERE session_id = OLD.session_id;
END;

CREATE TRIGGER session_pins_removed BEFORE DELETE ON sessions BEGIN
  DELETE FROM pins WHERE session_id = OLD.session_id;
END;

CREATE TRIGGER inherited_artifacts_loose AFTER DELETE ON inherited_artifacts WHEN old.content_hash IS NOT NULL BEGIN
  INSERT OR IGNORE INTO blobs_loose VALUES (old.content_hash);
END;

CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages
WHEN OLD.id <= (SELECT value FROM meta WHERE name = 'messages_counted') BEGIN
  UPDATE owner_usage SET bytes = bytes + octet_length(NEW.content) - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = NEW.session_id);
END;

CREATE TRIGGER message_removed AFTER DELETE ON messages
WHEN OLD.id <= (SELECT value FROM meta WHERE name = 'messages_counted') BEGIN
  UPDATE owner_usage SET bytes = bytes - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = OLD.session_id);
  UPDATE meta SET value = coalesce((SELECT max(id) FROM messages WHERE id < OLD.id), 0)
  WHERE name = 'messages_counted' AND value = OLD.id;
END;

CREATE TRIGGER session_removed BEFORE DELETE ON sessions BEGIN
  UPDATE owner_usage SET bytes = bytes - (
    SELECT coalesce(sum(octet_length(m.content)), 0)
    FROM lines AS l JOIN messages AS m ON m.line = l.line
    WHERE l.session_id = OLD.session_id AND m.session_id = OLD.session_id
      AND m.id <= (SELECT value FROM meta WHERE name = 'messages_counted')
  )
  WHERE owner_id = OLD.owner_id;
END;

CREATE TRIGGER run_attempts_one_live_added BEFORE INSERT ON run_attempts
WHEN NEW.status <> 'succeeded' AND NEW.status <> 'failed' AND NEW.status <> 'cancelled' AND NEW.status <> 'timed_out'
  AND NEW.status <> 'orphaned' AND EXISTS (
    SELECT 1 FROM run_attempts WHERE run_id = NEW.run_id AND attempt_no <> NEW.attempt_no
      AND status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
      AND status <> 'orphaned')
BEGIN
  SELECT raise(ABORT, 'another attempt of the run is live');
END;

CREATE TRIGGER run_attempts_one_live_changed BEFORE UPDATE OF run_id, attempt_no, status ON run_attempts
WHEN NEW.status <> 'succeeded' AND NEW.status <> 'failed' AND NEW.status <> 'cancelled' AND NEW.status <> 'timed_out'
  AND NEW.status <> 'orphaned' AND EXISTS (
    SELECT 1 FROM run_attempts WHERE run_id = NEW.run_id AND attempt_no <> OLD.attempt_no
      AND status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
      AND status <> 'orphaned')
BEGIN
  SELECT raise(ABORT, 'another attempt of the run is live');
END;

INSERT INTO meta VALUES ('messages_counted', 0);
INSERT INTO meta VALUES ('searched', 0);
INSERT INTO meta VALUES ('searched_untagged', 0);
INSERT INTO wal_token VALUES (1, x'4D53505257414C31', randomblob(16), zeroblob(16), 0);
