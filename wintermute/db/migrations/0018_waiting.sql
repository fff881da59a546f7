-- How much of a turn's time passed before its first token: that does not count (owner: loom) --

ALTER TABLE turns ADD COLUMN waited_ms INTEGER NOT NULL DEFAULT 0;
