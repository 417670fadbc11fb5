//! The statements that write, one per table and kind of change. Each takes any number of rows, as one array per column.

use super::values::Column;

/// A kind of change of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Sessions,
    Runs,
    Attempts,
    Steps,
    StepsSeal,
    StepInputs,
    Feedback,
    InheritedArtifacts,
    Pins,
    PinsGone,
    Digests,
    Messages,
    MessagePlaces,
    Lines,
    Cursors,
    CursorsGone,
    /// Streamed text of a commit. It replaces stored text at the same positions.
    Chunks,
    /// Streamed text of the flusher, which does not replace stored text.
    ChunksNew,
    ChunksGone,
    Retention,
    Effects,
    EffectsGone,
    Requests,
    Inbox,
    InboxGone,
    Bindings,
    /// Fails if another owner has a native session with the same native key.
    NativeOfOthers,
    /// Fails if the owner does not have the native session.
    NativeOwn,
    NativeOwners,
    Spends,
    Grants,
    Artifacts,
    ArtifactsGone,
    SessionState,
    RunState,
    StateBack,
    LineOrders,
    StateHistory,
    /// Drops the oldest changes of a key beyond the limit.
    StateHistoryCut,
    Delegations,
    Events,
}

/// A statement with the rows that it writes.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) columns: Vec<Column>,
}

impl Table {
    /// The number of leading cells that identify a row. Of several rows with the same key, a statement writes the last. 0
    /// if rows have no key, or the database must see all of them.
    pub(super) const fn key_cells(self) -> usize {
        match self {
            Self::Sessions | Self::Runs | Self::StepsSeal | Self::Messages | Self::MessagePlaces => 1,
            Self::Lines | Self::Bindings | Self::Grants | Self::Artifacts | Self::ArtifactsGone => 1,
            Self::Delegations => 1,
            Self::StepInputs
            | Self::Chunks
            | Self::Inbox
            | Self::InboxGone
            | Self::RunState
            | Self::InheritedArtifacts
            | Self::Pins
            | Self::PinsGone
            | Self::StateHistoryCut => 2,
            Self::Steps | Self::Digests | Self::Cursors | Self::CursorsGone | Self::Effects => 3,
            Self::EffectsGone | Self::StateHistory | Self::Feedback => 3,
            _ => 0,
        }
    }

    /// True if a row may depend on a change by an earlier row of the same commit.
    pub(super) const fn is_sequential(self) -> bool {
        matches!(self, Self::StateBack)
    }

    /// The statement.
    pub(super) const fn sql(self) -> &'static str {
        match self {
            Self::Sessions => SESSIONS,
            Self::Runs => RUNS,
            Self::Attempts => ATTEMPTS,
            Self::Steps => STEPS,
            Self::StepsSeal => STEPS_SEAL,
            Self::StepInputs => STEP_INPUTS,
            Self::Feedback => FEEDBACK,
            Self::InheritedArtifacts => INHERITED_ARTIFACTS,
            Self::Pins => PINS,
            Self::PinsGone => PINS_GONE,
            Self::Digests => DIGESTS,
            Self::Messages => MESSAGES,
            Self::MessagePlaces => MESSAGE_PLACES,
            Self::Lines => LINES,
            Self::Cursors => CURSORS,
            Self::CursorsGone => CURSORS_GONE,
            Self::Chunks => CHUNKS,
            Self::ChunksNew => CHUNKS_NEW,
            Self::ChunksGone => CHUNKS_GONE,
            Self::Retention => RETENTION,
            Self::Effects => EFFECTS,
            Self::EffectsGone => EFFECTS_GONE,
            Self::Requests => REQUESTS,
            Self::Inbox => INBOX,
            Self::InboxGone => INBOX_GONE,
            Self::Bindings => BINDINGS,
            Self::NativeOfOthers => NATIVE_OF_OTHERS,
            Self::NativeOwn => NATIVE_OWN,
            Self::NativeOwners => NATIVE_OWNERS,
            Self::Spends => SPENDS,
            Self::Grants => GRANTS,
            Self::Artifacts => ARTIFACTS,
            Self::ArtifactsGone => ARTIFACTS_GONE,
            Self::SessionState => SESSION_STATE,
            Self::RunState => RUN_STATE,
            Self::StateBack => STATE_BACK,
            Self::LineOrders => LINE_ORDERS,
            Self::StateHistory => STATE_HISTORY,
            Self::StateHistoryCut => STATE_HISTORY_CUT,
            Self::Delegations => DELEGATIONS,
            Self::Events => EVENTS,
        }
    }
}

const STEPS: &str = "INSERT INTO steps (run_id, step_no, step_id, completed_at, private, body)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6)
 ON CONFLICT (run_id, step_no, step_id) DO UPDATE SET
   completed_at = excluded.completed_at, private = excluded.private, body = excluded.body";

const STEPS_SEAL: &str = "UPDATE steps SET private = NULL WHERE run_id = ANY ($1) AND private IS NOT NULL";

const STEP_INPUTS: &str = "INSERT INTO step_inputs (session_id, hash, input)
 SELECT * FROM unnest($1, $2, $3) ON CONFLICT (session_id, hash) DO NOTHING";

const FEEDBACK: &str = "INSERT INTO feedback (session_id, message_id, owner_id, body)
 SELECT * FROM unnest($1, $2, $3, $4)
 ON CONFLICT (session_id, message_id, owner_id) DO UPDATE SET body = excluded.body";

const INHERITED_ARTIFACTS: &str =
    "INSERT INTO inherited_artifacts (session_id, artifact_id, content_hash, size_bytes, body)
 SELECT * FROM unnest($1, $2, $3, $4, $5) ON CONFLICT (session_id, artifact_id) DO NOTHING";

const PINS: &str = "INSERT INTO pins (owner_id, session_id, pinned_at)
 SELECT * FROM unnest($1, $2, $3) ON CONFLICT (owner_id, session_id) DO NOTHING";

const PINS_GONE: &str = "DELETE FROM pins AS p USING unnest($1, $2) AS u(owner_id, session_id)
 WHERE p.owner_id = u.owner_id AND p.session_id = u.session_id";

const DIGESTS: &str =
    "INSERT INTO digests (line, pos, session_id, message_id, prompt_id, summary, left_out, below_tokens,
   made_at)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)
 ON CONFLICT (line, pos, session_id) DO UPDATE SET
   message_id = excluded.message_id, prompt_id = excluded.prompt_id, summary = excluded.summary,
   left_out = excluded.left_out, below_tokens = excluded.below_tokens, made_at = excluded.made_at";

const MESSAGES: &str = "INSERT INTO messages (message_id, session_id, line, pos, status, content_bytes, body)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7)
 ON CONFLICT (message_id) DO UPDATE SET
   session_id = excluded.session_id, line = excluded.line, pos = excluded.pos,
   status = excluded.status, content_bytes = excluded.content_bytes, body = excluded.body";

const MESSAGE_PLACES: &str = "WITH placed AS (
   UPDATE messages AS m SET line = u.line, pos = u.pos, status = 'completed'
   FROM unnest($1, $2, $3, $4) AS u(id, session_id, line, pos)
   WHERE m.message_id = u.id AND m.session_id = u.session_id RETURNING 1)
 SELECT expect_rows(count(*), cardinality($1), 'message') FROM placed";

const CURSORS: &str =
    "INSERT INTO cursors (session_id, line, pos, to_line) SELECT * FROM unnest($1, $2, $3, $4)
 ON CONFLICT (session_id, line, pos) DO UPDATE SET to_line = excluded.to_line";

const CURSORS_GONE: &str = "DELETE FROM cursors AS c USING unnest($1, $2, $3) AS u(session_id, line, pos)
 WHERE c.session_id = u.session_id AND c.line = u.line AND c.pos = u.pos";

const CHUNKS: &str = "INSERT INTO chunks (session_id, pos, message_id, block, text)
 SELECT * FROM unnest($1, $2, $3, $4, $5)
 ON CONFLICT (session_id, pos) DO UPDATE SET
   message_id = excluded.message_id, block = excluded.block, text = excluded.text";

const CHUNKS_NEW: &str = "INSERT INTO chunks (session_id, pos, message_id, block, text)
 SELECT * FROM unnest($1, $2, $3, $4, $5) AS u(session_id, pos, message_id, block, text)
 WHERE NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.message_id = u.message_id)
 ON CONFLICT DO NOTHING";

const CHUNKS_GONE: &str = "DELETE FROM chunks AS c USING unnest($1, $2) AS u(session_id, before)
 WHERE c.session_id = u.session_id AND c.pos < u.before";

const RETENTION: &str = "INSERT INTO retention (session_id, floor_cursor, floor_pos, pruned)
 SELECT DISTINCT ON (session_id) session_id, cursor, pos, false
 FROM unnest($1, $2, $3) AS u(session_id, cursor, pos) ORDER BY session_id, cursor DESC
 ON CONFLICT (session_id) DO UPDATE SET
   floor_cursor = excluded.floor_cursor, floor_pos = excluded.floor_pos, pruned = false
 WHERE retention.floor_cursor < excluded.floor_cursor";

const EFFECTS: &str =
    "INSERT INTO effects (session_id, run_id, tool_use_id, started_at, message_id, name, result)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7)
 ON CONFLICT (session_id, run_id, tool_use_id) DO UPDATE SET
   started_at = excluded.started_at, message_id = excluded.message_id, name = excluded.name,
   result = excluded.result";

const EFFECTS_GONE: &str =
    "DELETE FROM effects AS e USING unnest($1, $2, $3) AS u(session_id, run_id, tool_use_id)
 WHERE e.session_id = u.session_id AND e.run_id = u.run_id AND e.tool_use_id = u.tool_use_id";

const INBOX_GONE: &str = "DELETE FROM inbox AS i USING unnest($1, $2) AS u(session_id, event_id)
 WHERE i.session_id = u.session_id AND i.event_id = u.event_id";

const BINDINGS: &str =
    "INSERT INTO bindings (binding_id, session_id, adapter_id, generation, native_id, active, process_local,
   body)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
 ON CONFLICT (binding_id) DO UPDATE SET
   native_id = excluded.native_id, active = excluded.active,
   process_local = excluded.process_local, body = excluded.body";

const NATIVE_OF_OTHERS: &str = "SELECT expect_rows(count(*), 0, 'native')
 FROM unnest($1, $2) AS u(key, owner_id) JOIN native_owners AS n ON n.native_key = u.key
 WHERE n.owner_id <> u.owner_id";

const NATIVE_OWN: &str = "SELECT expect_rows(count(n.owner_id), cardinality($1), 'native')
 FROM unnest($1, $2, $3) AS u(adapter_id, native_id, owner_id) LEFT JOIN native_owners AS n
   ON n.adapter_id = u.adapter_id AND n.native_id = u.native_id AND n.owner_id = u.owner_id";

const NATIVE_OWNERS: &str = "INSERT INTO native_owners (adapter_id, native_id, owner_id, native_key)
 SELECT * FROM unnest($1, $2, $3, $4) ON CONFLICT DO NOTHING";

const SPENDS: &str = "INSERT INTO key_spend (key_id, day, cost_nanos, at_least)
 SELECT key_id, day, least(sum(cost), 9223372036854775807)::bigint, bool_or(at_least)
 FROM unnest($1, $2, $3, $4) AS u(key_id, day, cost, at_least)
 GROUP BY key_id, day ORDER BY key_id, day
 ON CONFLICT (key_id, day) DO UPDATE SET
   cost_nanos = least(key_spend.cost_nanos::numeric + excluded.cost_nanos, 9223372036854775807)::bigint,
   at_least = key_spend.at_least OR excluded.at_least";

const GRANTS: &str =
    "INSERT INTO grants (grant_id, session_id, run_id, created_at, expires_at, revoked_at, revoked_by, body)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
 ON CONFLICT (grant_id) DO UPDATE SET
   run_id = excluded.run_id, created_at = excluded.created_at, expires_at = excluded.expires_at,
   revoked_at = coalesce(grants.revoked_at, excluded.revoked_at),
   revoked_by = coalesce(grants.revoked_by, excluded.revoked_by), body = excluded.body";

const ARTIFACTS: &str =
    "INSERT INTO artifacts (artifact_id, session_id, run_id, content_hash, size_bytes, undecided, created_at,
   body)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
 ON CONFLICT (artifact_id) DO UPDATE SET
   session_id = excluded.session_id, run_id = excluded.run_id,
   content_hash = excluded.content_hash, size_bytes = excluded.size_bytes,
   undecided = excluded.undecided, created_at = excluded.created_at, body = excluded.body";

const ARTIFACTS_GONE: &str = "WITH gone AS (
   DELETE FROM artifacts AS a USING unnest($1, $2) AS u(id, session_id)
   WHERE a.artifact_id = u.id AND a.session_id = u.session_id RETURNING a.content_hash)
 INSERT INTO blobs_loose SELECT DISTINCT content_hash FROM gone WHERE content_hash IS NOT NULL
 ON CONFLICT DO NOTHING";

const SESSION_STATE: &str =
    "INSERT INTO session_state (session_id, line, pos, aside, cursor, key, version, updated_at, value)
 SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const RUN_STATE: &str =
    "INSERT INTO run_state (run_id, key, version, updated_at, value) SELECT * FROM unnest($1, $2, $3, $4, $5)
 ON CONFLICT (run_id, key) DO UPDATE SET
   version = excluded.version, updated_at = excluded.updated_at, value = excluded.value";

const STATE_BACK: &str =
    "UPDATE session_state AS s SET pos = s.pos - 1 FROM unnest($1, $2, $3) AS u(line, pos, key)
 WHERE s.line = u.line AND s.pos = u.pos AND s.key = u.key AND s.pos > 0";

const LINE_ORDERS: &str =
    "UPDATE lines SET opened_cursor = u.opened FROM unnest($1, $2, $3) AS u(line, session_id, opened)
  WHERE lines.line = u.line AND lines.session_id = u.session_id";

const STATE_HISTORY: &str =
    "INSERT INTO state_history (place, key, version, change) SELECT * FROM unnest($1, $2, $3, $4)
 ON CONFLICT (place, key, version) DO UPDATE SET change = excluded.change";

const DELEGATIONS: &str = "INSERT INTO delegations (delegation_id, parent_session_id, parent_run_id, child_session_id, child_run_id,
   result_id, created_at, body)
 SELECT u.* FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
   AS u(id, parent, parent_run, child, child_run, result, at, body)
 JOIN sessions AS s ON s.session_id = u.parent AND s.status <> 'deleted'
 ON CONFLICT (delegation_id) DO UPDATE SET
   result_id = excluded.result_id, created_at = excluded.created_at, body = excluded.body";

const SESSIONS: &str = "INSERT INTO sessions (session_id, owner_id, org_id, visibility, key, external_kind, external_id,
    legacy_scope, legacy_key, status, surface_kind, pinned, created_at, last_activity_at, forked_from, tip_line, tip_pos,
    base_line, base_pos, body)
  SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
  ON CONFLICT (session_id) DO UPDATE SET
    owner_id = excluded.owner_id, org_id = excluded.org_id, visibility = excluded.visibility, key = excluded.key,
    external_kind = excluded.external_kind, external_id = excluded.external_id, legacy_scope = excluded.legacy_scope,
    legacy_key = excluded.legacy_key, status = excluded.status, surface_kind = excluded.surface_kind,
    pinned = excluded.pinned, created_at = excluded.created_at, last_activity_at = excluded.last_activity_at,
    forked_from = excluded.forked_from, tip_line = excluded.tip_line, tip_pos = excluded.tip_pos,
    base_line = excluded.base_line, base_pos = excluded.base_pos, body = excluded.body";

const RUNS: &str = "INSERT INTO runs (run_id, session_id, owner_id, run_no, client_id, request_id, fingerprint, fixed,
    created_cursor, created_at, status, ended, pen_line, pen_pos, wait, planned, body)
  SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
  ON CONFLICT (run_id) DO UPDATE SET
    status = excluded.status, ended = excluded.ended, pen_line = excluded.pen_line, pen_pos = excluded.pen_pos,
    wait = excluded.wait, planned = excluded.planned, body = excluded.body";

/// The number of an attempt must not belong to another attempt.
const ATTEMPTS: &str = "WITH written AS (
    INSERT INTO attempts (run_id, attempt_no, attempt_id, ended, body) SELECT * FROM unnest($1, $2, $3, $4, $5)
    ON CONFLICT (run_id, attempt_no) DO UPDATE SET ended = excluded.ended, body = excluded.body
    WHERE attempts.attempt_id = excluded.attempt_id RETURNING 1)
  SELECT expect_rows(count(*), cardinality($1), 'attempt') FROM written";

/// A line whose parent line belongs to another session is a line of a fork, which sees the state as of its creation.
const LINES: &str =
    "INSERT INTO lines (line, session_id, parent_line, parent_pos, end_pos, abandoned, opened_by,
    opened_cursor)
  SELECT u.line, u.session_id, u.parent_line, u.parent_pos, u.end_pos, u.abandoned, u.session_id, CASE
    WHEN EXISTS (SELECT 1 FROM lines AS p WHERE p.line = u.parent_line AND p.opened_by <> u.session_id)
    THEN coalesce((SELECT min(cursor) - 1 FROM events AS e WHERE e.session_id = u.session_id), u.before)
    ELSE u.before END
  FROM unnest($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY
    AS u(line, session_id, parent_line, parent_pos, end_pos, abandoned, before, place)
  ORDER BY u.place
  ON CONFLICT (line) DO UPDATE SET parent_line = excluded.parent_line, parent_pos = excluded.parent_pos,
    end_pos = excluded.end_pos, abandoned = excluded.abandoned";

/// An expired request with the same key is replaced. `$7` is the retention in milliseconds, the same in each row.
const REQUESTS: &str = "WITH written AS (
    INSERT INTO requests (owner_id, operation, key, fingerprint, answer, created_at)
    SELECT u.owner_id, u.operation, u.key, u.fingerprint, u.answer, u.at
    FROM unnest($1, $2, $3, $4, $5, $6) AS u(owner_id, operation, key, fingerprint, answer, at)
    ON CONFLICT (owner_id, operation, key) DO UPDATE SET
      fingerprint = excluded.fingerprint, answer = excluded.answer, created_at = excluded.created_at
    WHERE requests.created_at < excluded.created_at - ($7::bigint[])[1] RETURNING 1)
  SELECT expect_rows(count(*), cardinality($1), 'request') FROM written";

/// A note for a session that is gone or deleted is dropped.
const INBOX: &str = "INSERT INTO inbox (session_id, event_id, created_at, note)
  SELECT u.session_id, u.event_id, u.at, u.note
  FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS u(session_id, event_id, at, note, place)
  JOIN sessions AS s ON s.session_id = u.session_id AND s.status <> 'deleted'
  ORDER BY u.place
  ON CONFLICT (session_id, event_id) DO UPDATE SET created_at = excluded.created_at, note = excluded.note";

/// Keeps the last 50 changes of each key.
const STATE_HISTORY_CUT: &str = "DELETE FROM state_history AS h USING unnest($1, $2) AS u(place, key)
  WHERE h.place = u.place AND h.key = u.key AND h.version <= (
    SELECT version FROM state_history AS k WHERE k.place = u.place AND k.key = u.key
    ORDER BY version DESC LIMIT 1 OFFSET 50)";

/// The event of a session that does not exist gets no owner, which the table refuses.
const EVENTS: &str = "INSERT INTO events (cursor, event_id, session_id, owner_id, run_id, attempt_id, message_id, type, pos,
    created_at, payload)
  SELECT u.cursor, u.event_id, u.session_id, s.owner_id, u.run_id, u.attempt_id, u.message_id, u.type, u.pos, u.at,
    u.payload
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    AS u(cursor, event_id, session_id, run_id, attempt_id, message_id, type, pos, at, payload)
  LEFT JOIN sessions AS s ON s.session_id = u.session_id";

#[cfg(test)]
mod tests {
    use mainspring_core::state::HISTORY_CHANGES;

    use super::*;

    #[test]
    fn the_history_statement_keeps_as_many_changes_as_core_demands() {
        assert!(STATE_HISTORY_CUT.contains(&format!("OFFSET {HISTORY_CHANGES})")));
    }
}
