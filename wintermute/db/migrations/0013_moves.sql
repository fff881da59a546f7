-- Rooms that follow each other: a scope is a name, which room it lives in is known here (owner: mailbox) --

ALTER TABLE rooms ADD COLUMN successor TEXT NOT NULL DEFAULT '';     -- the room that its tombstone names
ALTER TABLE rooms ADD COLUMN predecessor TEXT NOT NULL DEFAULT '';   -- the room that its creation names
ALTER TABLE rooms ADD COLUMN moved_to TEXT NOT NULL DEFAULT '';      -- where what was here went on
ALTER TABLE rooms ADD COLUMN scope TEXT NOT NULL DEFAULT '';         -- that lives here; '': called after this room
