-- The webhooks of owners. The secrets that sign deliveries are not stored: they are derived from the token of the state
-- directory.
CREATE TABLE webhooks (
  webhook_id BLOB PRIMARY KEY CHECK (length(webhook_id) = 16),
  owner_id TEXT NOT NULL,
  webhook_json TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX webhooks_owner_idx ON webhooks(owner_id);

-- Events that could not be delivered.
CREATE TABLE dead_letters (
  webhook_id BLOB NOT NULL REFERENCES webhooks(webhook_id),
  event_seq INTEGER NOT NULL,
  letter_json TEXT NOT NULL,
  PRIMARY KEY (webhook_id, event_seq)
) STRICT, WITHOUT ROWID;
