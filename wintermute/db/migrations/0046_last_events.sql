-- Where a room was read up to, for a homeserver that forgets our place in its stream (F-058) --------

ALTER TABLE rooms ADD COLUMN last_event TEXT NOT NULL DEFAULT '';    -- the newest that a sync brought
