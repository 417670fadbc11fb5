-- Forks, pins, titles, search; children by index.

ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned = 0 OR pinned = 1);
ALTER TABLE sessions ADD COLUMN title_source TEXT;
ALTER TABLE sessions ADD COLUMN forked_from_session_id BLOB;
ALTER TABLE sessions ADD COLUMN forked_from_message_id BLOB;
-- The last message that a fork sees of the lines of others.
ALTER TABLE sessions ADD COLUMN base_line INTEGER;
ALTER TABLE sessions ADD COLUMN base_pos INTEGER;
-- The title as search_titles knows it, and its row there.
ALTER TABLE sessions ADD COLUMN searched_title TEXT;
ALTER TABLE sessions ADD COLUMN searched_row INTEGER;

-- Whoever named a session so far was a person.
UPDATE sessions SET title_source = 'manual' WHERE title IS NOT NULL;

-- session_page, of what is kept at hand.
CREATE INDEX sessions_pinned_idx ON sessions(owner_id, last_activity_at_ms, session_id)
  WHERE pinned = 1 AND status <> 'deleted';
-- session_forks.
CREATE INDEX sessions_forks_idx ON sessions(forked_from_session_id) WHERE forked_from_session_id IS NOT NULL;
-- session_purge: does a fork still see this line? What it sees is its base now, wherever it stands.
CREATE INDEX sessions_base_idx ON sessions(base_line) WHERE base_line IS NOT NULL;
DROP INDEX sessions_tip_idx;
-- search_index: titles that are not searched yet.
CREATE INDEX sessions_unsearched_idx ON sessions(session_id) WHERE title IS NOT searched_title;

-- The lines beneath a message, and the roots of a session, in the order of opening.
DROP INDEX lines_parent_idx;
CREATE INDEX lines_parent_idx ON lines(parent_line, parent_pos) WHERE parent_line IS NOT NULL;
CREATE INDEX lines_roots_idx ON lines(session_id) WHERE parent_line IS NULL;

-- Texts are folded before they come here, so that every store finds the same: words and spaces, nothing else.
-- A row has the id of its message; the text itself stays in messages.
CREATE VIRTUAL TABLE search_messages USING fts5(text, content = '', contentless_delete = 1, tokenize = 'ascii');
CREATE VIRTUAL TABLE search_titles USING fts5(session_id UNINDEXED, text, tokenize = 'ascii');
-- Messages up to this id are in search_messages.
INSERT INTO meta VALUES ('searched', 0);
