-- A tool call that has ended keeps its result until the message of its round holds it. Calls of earlier versions have
-- neither a start time nor a result.
ALTER TABLE effects ADD COLUMN started_at_ms INTEGER;
ALTER TABLE effects ADD COLUMN result TEXT;
ALTER TABLE effects ADD COLUMN message_id BLOB;
