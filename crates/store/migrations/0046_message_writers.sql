-- The agent that wrote a message, and the id that another program gave to a message it appended. NULL if not known.
ALTER TABLE messages ADD COLUMN agent TEXT;
ALTER TABLE messages ADD COLUMN external_id TEXT;
