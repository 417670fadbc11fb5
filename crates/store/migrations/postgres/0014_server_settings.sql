-- The settings of a server that have to be the same on all servers, as JSON: some values, and digests of groups.
ALTER TABLE nodes ADD COLUMN settings text NOT NULL DEFAULT '{}';
