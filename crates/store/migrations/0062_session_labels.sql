-- The labels that a server of a cluster must have to execute the session's runs, as a JSON list; NULL when there are none.
ALTER TABLE sessions ADD COLUMN labels TEXT;
