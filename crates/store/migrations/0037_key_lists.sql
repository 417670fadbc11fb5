-- What a key's holder may use, as JSON lists; NULL for everything. The spend per day in billionths of a US dollar.
ALTER TABLE api_keys ADD COLUMN adapters TEXT;
ALTER TABLE api_keys ADD COLUMN models TEXT;
ALTER TABLE api_keys ADD COLUMN tools TEXT;
ALTER TABLE api_keys ADD COLUMN spend_per_day_nanos INTEGER CHECK (spend_per_day_nanos >= 0);

-- The cost of the runs of a key with a spend per day, by days of UTC since 1970. `at_least` if a part of it is unknown.
CREATE TABLE key_spend (
  key_id BLOB NOT NULL CHECK (length(key_id) = 16),
  day INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  at_least INTEGER NOT NULL CHECK (at_least IN (0, 1)),
  PRIMARY KEY (key_id, day)
) STRICT, WITHOUT ROWID;
