-- The rules about what a session's agents may do, as a JSON list. NULL when there are none.
ALTER TABLE sessions ADD COLUMN rules TEXT;
