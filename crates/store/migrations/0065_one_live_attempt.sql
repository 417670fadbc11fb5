-- At most one attempt of a run is live. As an index, this rule wrote one page more in both commits of a turn.
DROP INDEX run_attempts_one_live_uq;

CREATE TRIGGER run_attempts_one_live_added BEFORE INSERT ON run_attempts
WHEN NEW.status <> 'succeeded' AND NEW.status <> 'failed' AND NEW.status <> 'cancelled' AND NEW.status <> 'timed_out'
  AND NEW.status <> 'orphaned' AND EXISTS (
    SELECT 1 FROM run_attempts WHERE run_id = NEW.run_id AND attempt_no <> NEW.attempt_no
      AND status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
      AND status <> 'orphaned')
BEGIN
  SELECT raise(ABORT, 'another attempt of the run is live');
END;

CREATE TRIGGER run_attempts_one_live_changed BEFORE UPDATE OF run_id, attempt_no, status ON run_attempts
WHEN NEW.status <> 'succeeded' AND NEW.status <> 'failed' AND NEW.status <> 'cancelled' AND NEW.status <> 'timed_out'
  AND NEW.status <> 'orphaned' AND EXISTS (
    SELECT 1 FROM run_attempts WHERE run_id = NEW.run_id AND attempt_no <> OLD.attempt_no
      AND status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out'
      AND status <> 'orphaned')
BEGIN
  SELECT raise(ABORT, 'another attempt of the run is live');
END;
