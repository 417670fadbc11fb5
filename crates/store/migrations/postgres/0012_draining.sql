-- True for a server that hands its sessions over because it is going to stop: others place nothing on it.
ALTER TABLE node_leases ADD COLUMN draining boolean NOT NULL DEFAULT false;
