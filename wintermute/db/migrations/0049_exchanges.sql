-- How quickly somebody answers us in a room (F-048): JSON of a `TalkPace`; '' before we spoke there. A
-- message that is held for that is a line of context with a time; so is the last one, until that time.

ALTER TABLE rooms ADD COLUMN exchange TEXT NOT NULL DEFAULT '';
CREATE INDEX inbox_paced ON inbox (conversation_id) WHERE kind = 'context' AND not_before IS NOT NULL;
