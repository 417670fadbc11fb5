-- The messages up to the row of `meta` are in `owner_usage`, later ones are counted when it is read. Counting each message
-- as it was added wrote one page more in every commit.
INSERT INTO meta (name, value) SELECT 'messages_counted', coalesce(max(id), 0) FROM messages;

DROP TRIGGER message_added;

DROP TRIGGER message_changed;

CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages
WHEN OLD.id <= (SELECT value FROM meta WHERE name = 'messages_counted') BEGIN
  UPDATE owner_usage SET bytes = bytes + octet_length(NEW.content) - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = NEW.session_id);
END;

DROP TRIGGER message_removed;

-- A new message may get the id of the last one that was removed, and is not counted yet.
CREATE TRIGGER message_removed AFTER DELETE ON messages
WHEN OLD.id <= (SELECT value FROM meta WHERE name = 'messages_counted') BEGIN
  UPDATE owner_usage SET bytes = bytes - octet_length(OLD.content)
  WHERE owner_id = (SELECT owner_id FROM sessions WHERE session_id = OLD.session_id);
  UPDATE meta SET value = coalesce((SELECT max(id) FROM messages WHERE id < OLD.id), 0)
  WHERE name = 'messages_counted' AND value = OLD.id;
END;

DROP TRIGGER session_removed;

-- Messages that a fork still reads outlive their session, and count for nobody then.
CREATE TRIGGER session_removed BEFORE DELETE ON sessions BEGIN
  UPDATE owner_usage SET bytes = bytes - (
    SELECT coalesce(sum(octet_length(m.content)), 0)
    FROM lines AS l JOIN messages AS m ON m.line = l.line
    WHERE l.session_id = OLD.session_id AND m.session_id = OLD.session_id
      AND m.id <= (SELECT value FROM meta WHERE name = 'messages_counted')
  )
  WHERE owner_id = OLD.owner_id;
END;
