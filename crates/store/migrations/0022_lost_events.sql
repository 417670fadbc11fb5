-- The cursors between a backup and its restore: events that are lost may have had them, and new events do not get them.
CREATE TABLE lost_events (
  after_seq INTEGER PRIMARY KEY, -- the last cursor in the backup
  until_seq INTEGER NOT NULL     -- new events come after this one
) STRICT;
