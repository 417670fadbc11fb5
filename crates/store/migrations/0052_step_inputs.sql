-- What a step was given besides messages, by its hash; the message of the digest that was sent in place of older messages;
-- and the response as the provider reported it, as JSON.
ALTER TABLE steps ADD COLUMN prompt_digest_id BLOB;
ALTER TABLE steps ADD COLUMN input_hash TEXT;
ALTER TABLE steps ADD COLUMN raw TEXT;

-- System prompt, tools and options that models were given, once per session.
CREATE TABLE step_inputs (
  session_id BLOB NOT NULL CHECK (length(session_id) = 16),
  hash TEXT NOT NULL CHECK (length(hash) = 64),
  input TEXT NOT NULL,
  PRIMARY KEY (session_id, hash)
) STRICT, WITHOUT ROWID;
