-- The bytes of artifacts that a server is storing or removing. Nobody stores bytes that another server removes, and the other
-- way round. The claims of a server end with its lease.
CREATE TABLE blob_claims (
  claim_id bytea PRIMARY KEY,
  content_hash text COLLATE "C" NOT NULL,
  removes boolean NOT NULL,
  node_id bytea NOT NULL REFERENCES node_leases ON DELETE CASCADE
);
CREATE INDEX blob_claims_hash_idx ON blob_claims (content_hash);
CREATE INDEX blob_claims_node_idx ON blob_claims (node_id);
