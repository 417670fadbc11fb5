-- One row, which the first transaction of each WAL renews. The copy in the WAL names the token before it, so that a WAL
-- can be compared with the database beside it before SQLite replays it.
CREATE TABLE wal_token (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  mark BLOB NOT NULL,
  token BLOB NOT NULL CHECK (length(token) = 16),
  previous BLOB NOT NULL CHECK (length(previous) = 16),
  schema_cookie INTEGER NOT NULL
) STRICT;

INSERT INTO wal_token VALUES (1, x'4D53505257414C31', randomblob(16), zeroblob(16), 0);
