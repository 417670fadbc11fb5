-- A session that another server has been made the home of, and that it has to load because of unfinished work.
ALTER TABLE leases ADD COLUMN handed boolean NOT NULL DEFAULT false;
CREATE INDEX leases_handed_idx ON leases (node_id) WHERE handed;
