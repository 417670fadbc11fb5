-- The client tools of a session's runs, as a JSON list; NULL when there are none. The milliseconds that the idle session
-- stays in memory; NULL for the server's setting.
ALTER TABLE sessions ADD COLUMN tools TEXT;
ALTER TABLE sessions ADD COLUMN idle_unload_ms INTEGER CHECK (idle_unload_ms >= 0);
