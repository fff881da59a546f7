-- Up to which noted edit of older messages a conversation was read again, for memories and for pages
-- (owner: night). Those from before this version stay unread: nobody expects them any more.

ALTER TABLE harvests ADD COLUMN edits INTEGER NOT NULL DEFAULT 0;
UPDATE harvests SET edits = (SELECT coalesce(max(seq), 0) FROM edits);
ALTER TABLE consolidations ADD COLUMN edits INTEGER NOT NULL DEFAULT 0;
UPDATE consolidations SET edits = (SELECT coalesce(max(seq), 0) FROM edits);
CREATE INDEX edits_of_conversation ON edits (conversation_id, seq);
