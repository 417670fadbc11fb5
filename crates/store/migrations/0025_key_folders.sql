-- The folders in which agents of a key's holder may work, as a JSON list; NULL for those that its owner has by default.
ALTER TABLE api_keys ADD COLUMN folders TEXT;
