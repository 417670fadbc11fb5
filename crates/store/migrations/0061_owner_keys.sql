-- The number of keys in each owner's state. Counting them for each new key cost more with every key.
ALTER TABLE owner_state_versions ADD COLUMN keys INTEGER NOT NULL DEFAULT 0;
UPDATE owner_state_versions SET keys = (
  SELECT count(*) FROM owner_state WHERE owner_state.owner_id = owner_state_versions.owner_id
);
