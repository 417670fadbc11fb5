-- The servers that share the database. Times are those of the database.
CREATE TABLE nodes (
  node_id bytea PRIMARY KEY,
  name text NOT NULL,
  address text NOT NULL,
  version text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The lease of the database: one row. Its holder is the active server. Without a time the lease is free.
CREATE TABLE server_lease (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  node_id bytea,
  -- The machine, its start and the state directory of the holder: whoever owns that directory knows that the holder has ended.
  place text,
  -- The number of the holder's boot.
  epoch bigint NOT NULL DEFAULT 0,
  -- Until then the holder may write.
  expires_at timestamptz,
  -- From then on another server may take the lease.
  free_at timestamptz,
  taken_at timestamptz,
  -- How often a server took the lease of another one that had not given it back.
  takeovers bigint NOT NULL DEFAULT 0
);
INSERT INTO server_lease DEFAULT VALUES;
