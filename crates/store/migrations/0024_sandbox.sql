-- The confinement of an attempt's agent, as JSON. NULL in older rows.
ALTER TABLE run_attempts ADD COLUMN sandbox TEXT;
