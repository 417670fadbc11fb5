-- The highest number in mainspring_schema that a server knows: others hand it no session that a later version may have
-- written. Versions before this migration do not announce theirs.
ALTER TABLE node_leases ADD COLUMN schema_version bigint NOT NULL DEFAULT 0;
