-- The sessions that each reader has pinned. The pins so far were those of the sessions' owners.
CREATE TABLE pins (
  owner_id text COLLATE "C" NOT NULL,
  session_id bytea NOT NULL,
  pinned_at bigint NOT NULL,
  PRIMARY KEY (owner_id, session_id)
);
CREATE INDEX pins_session ON pins (session_id);

INSERT INTO pins (owner_id, session_id, pinned_at)
SELECT owner_id, session_id, last_activity_at FROM sessions WHERE pinned AND status <> 'deleted';
