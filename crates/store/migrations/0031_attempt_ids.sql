-- Attempts are looked up by their id.
CREATE INDEX run_attempts_id_idx ON run_attempts(attempt_id);
