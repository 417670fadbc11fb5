//! Rules that PostgreSQL applies: each is one query that returns a sentence per finding. Rows of deleted sessions are left out:
//! they are removed in steps.

/// Events that disagree with other rows.
pub(super) const EVENT_RULES: &[&str] = &[
    "SELECT 'event ' || e.cursor || ' completes msg_' || encode(e.message_id, 'hex') || ', which is missing'
     FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id
     WHERE s.status <> 'deleted' AND e.type = 'message.completed' AND e.message_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.message_id = e.message_id)",
    "SELECT 'event ' || cursor || ' is at position ' || pos || ', before the event ahead of it'
     FROM (SELECT cursor, pos, lag(pos) OVER (PARTITION BY session_id ORDER BY cursor) AS earlier FROM events) AS e
     WHERE pos < earlier",
    "SELECT 'event ' || e.cursor || ' has a cursor that was lost with a restore'
     FROM events AS e JOIN lost_events AS l ON e.cursor > l.after_cursor AND e.cursor <= l.until_cursor",
    // Readers of all sessions find events by their owner.
    "SELECT 'event ' || e.cursor || ' belongs to ' || quote_literal(e.owner_id) || ', but its session to '
            || quote_literal(s.owner_id)
     FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id WHERE e.owner_id <> s.owner_id",
];

/// Trees that are not connected, and wrong counts of the keys of owners.
pub(super) const TREE_RULES: &[&str] = &[
    "SELECT 'the state of ' || quote_literal(owner_id) || ' counts ' || keys || ' keys instead of ' || found FROM (
       SELECT owner_id, keys, (SELECT count(*) FROM owner_state AS o WHERE o.owner_id = v.owner_id) AS found
       FROM owner_state_versions AS v) AS counted
     WHERE keys <> found",
    "SELECT 'line ' || line || ' begins beneath a message that is missing'
     FROM lines AS l WHERE parent_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages AS m WHERE m.line = l.parent_line AND m.pos = l.parent_pos)",
    "SELECT 'line ' || line || ' has ' || found || ' messages instead of ' || wanted FROM (
       SELECT line, end_pos - coalesce(parent_pos + 1, 0) AS wanted,
              (SELECT count(*) FROM messages AS m WHERE m.line = l.line) AS found FROM lines AS l) AS counted
     WHERE found <> wanted",
    "SELECT 'msg_' || encode(m.message_id, 'hex') || ' lies outside its line ' || m.line
     FROM messages AS m JOIN lines AS l ON l.line = m.line
     WHERE m.pos < coalesce(l.parent_pos + 1, 0) OR m.pos >= l.end_pos",
    "SELECT 'ses_' || encode(session_id, 'hex') || ' ends at a message that is missing'
     FROM sessions AS s WHERE status <> 'deleted' AND tip_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages AS m WHERE m.line = s.tip_line AND m.pos = s.tip_pos)",
    "SELECT 'ses_' || encode(session_id, 'hex') || ' continues another one after a message that is missing'
     FROM sessions AS s WHERE status <> 'deleted' AND base_line IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM messages AS m WHERE m.line = s.base_line AND m.pos = s.base_pos)",
    "SELECT 'ses_' || encode(c.session_id, 'hex') || ' chose line ' || c.to_line || ', which is missing'
     FROM cursors AS c JOIN sessions AS s ON s.session_id = c.session_id
     WHERE s.status <> 'deleted' AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.line = c.to_line)",
];
