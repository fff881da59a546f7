-- What could be decrypted only after its place was read for memories is read later (owner: night):
-- its cast is newer than the newest there was then.

ALTER TABLE harvests ADD COLUMN casts INTEGER NOT NULL DEFAULT 0;
UPDATE harvests SET casts = (SELECT coalesce(max(seq), 0) FROM casts);

-- How messages were worded last, by the message.

CREATE INDEX edits_by_message ON edits (edited, seq);
