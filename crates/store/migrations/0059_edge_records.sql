-- Small records that the edge of another API keeps: requests that may be repeated, agents to launch.
CREATE TABLE edge_records (
  kind TEXT NOT NULL,
  scope TEXT NOT NULL,
  record_id TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (kind, scope, record_id)
) STRICT, WITHOUT ROWID;
