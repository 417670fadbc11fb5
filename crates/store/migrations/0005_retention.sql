-- Where a session's events begin: what lies up to the floor is gone for every reader, whether it is removed yet or not.
CREATE TABLE retention (
  session_id BLOB PRIMARY KEY REFERENCES sessions(session_id),
  floor_seq INTEGER NOT NULL,
  floor_pos INTEGER NOT NULL,   -- the stream goes on from here when no event is left
  pruned INTEGER NOT NULL CHECK (pruned IN (0, 1))
) STRICT, WITHOUT ROWID;

-- unfinished: what is still to be removed.
CREATE INDEX retention_unpruned_idx ON retention(session_id) WHERE pruned = 0;
