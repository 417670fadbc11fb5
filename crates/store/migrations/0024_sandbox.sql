-- The confinement of an attempt's agent, and the processes that its turn left running, as JSON. NULL in older rows.
ALTER TABLE run_attempts ADD COLUMN sandbox TEXT;
ALTER TABLE run_attempts ADD COLUMN left_running TEXT;
