-- Prompts that join the run that is active, instead of running by themselves.
ALTER TABLE runs ADD COLUMN steers INTEGER CHECK (steers = 1);
ALTER TABLE runs ADD COLUMN merged_into_run_id BLOB CHECK (length(merged_into_run_id) = 16);
