-- Small records that the edge of another API keeps: requests that may be repeated, agents to launch.
CREATE TABLE edge_records (
  kind text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  record_id text COLLATE "C" NOT NULL,
  body text COLLATE "C" NOT NULL,
  PRIMARY KEY (kind, scope, record_id)
);
