-- What a run may still use, as of its latest model call.
ALTER TABLE runs ADD COLUMN budget TEXT;
