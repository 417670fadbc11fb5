-- The processes that have written events, so that a reader's position in another history is noticed.
CREATE TABLE histories (
  id INTEGER PRIMARY KEY,
  token TEXT NOT NULL UNIQUE,
  after_seq INTEGER NOT NULL
);
