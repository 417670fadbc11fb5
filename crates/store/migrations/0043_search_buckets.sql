-- The last message that was indexed before words had tags. Later ones are indexed with the tag of their owner and bucket.
INSERT INTO meta (name, value) SELECT 'searched_untagged', value FROM meta WHERE name = 'searched';
