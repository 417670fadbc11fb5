-- The blocks of 2,048 consecutive cursors in which an owner has events whose type begins with a word, such as `run`.
-- Readers of few types, and of owners with few events, skip all other blocks.
CREATE TABLE event_blocks (
  owner_id TEXT NOT NULL,
  word TEXT NOT NULL,
  block INTEGER NOT NULL,       -- event_seq >> 11
  PRIMARY KEY (owner_id, word, block)
) STRICT, WITHOUT ROWID;

INSERT INTO event_blocks (owner_id, word, block)
SELECT DISTINCT s.owner_id, substr(e.type, 1, instr(e.type, '.') - 1), e.event_seq >> 11
FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id;

-- Runs that did not succeed, by status. Most runs succeed and have no entry: the index costs a turn nothing.
CREATE INDEX runs_status_idx ON runs(owner_id, status, created_at_ms, run_id)
  WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out' OR status = 'orphaned';
