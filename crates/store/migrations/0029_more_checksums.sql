-- Checksums of more rows. NULL in rows of earlier versions.
ALTER TABLE run_attempts ADD COLUMN checksum INTEGER;
-- Without the private data, which is erased with the end of the run.
ALTER TABLE steps ADD COLUMN checksum INTEGER;
ALTER TABLE digests ADD COLUMN checksum INTEGER;
ALTER TABLE artifacts ADD COLUMN checksum INTEGER;
