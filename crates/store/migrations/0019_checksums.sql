-- Checksums of the stored form of rows, compared on every read. NULL in rows of earlier versions.
ALTER TABLE sessions ADD COLUMN checksum INTEGER;
-- Of what never changes, and of the rest.
ALTER TABLE runs ADD COLUMN checksum INTEGER;
ALTER TABLE runs ADD COLUMN state_checksum INTEGER;
ALTER TABLE messages ADD COLUMN checksum INTEGER;
ALTER TABLE events ADD COLUMN checksum INTEGER;
ALTER TABLE effects ADD COLUMN checksum INTEGER;
ALTER TABLE chunks ADD COLUMN checksum INTEGER;
ALTER TABLE session_state ADD COLUMN checksum INTEGER;
ALTER TABLE run_state ADD COLUMN checksum INTEGER;
ALTER TABLE owner_state ADD COLUMN checksum INTEGER;
