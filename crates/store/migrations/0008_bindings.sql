-- Whether a binding was opened with the text of the path, because the runtime's own history was not to be had.
ALTER TABLE adapter_bindings ADD COLUMN reconstructed INTEGER NOT NULL DEFAULT 0 CHECK (reconstructed IN (0, 1));
