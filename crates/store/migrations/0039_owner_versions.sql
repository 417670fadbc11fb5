-- The highest version of each owner's state. A count for all owners told each of them how often the others wrote. Owners of
-- earlier versions go on from that count, so that no version of theirs names two values.
CREATE TABLE owner_state_versions (
  owner_id TEXT PRIMARY KEY,
  version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO owner_state_versions (owner_id, version)
SELECT owner_id, value FROM (
  SELECT owner_id FROM owner_state UNION SELECT owner_id FROM owners UNION SELECT owner_id FROM sessions
  UNION SELECT owner_id FROM api_keys
) CROSS JOIN meta WHERE meta.name = 'owner_state';
DELETE FROM meta WHERE name = 'owner_state';
