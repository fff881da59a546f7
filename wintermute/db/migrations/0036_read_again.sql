-- Messages that are read once more for memories, as what was learnt from them and others was lost
-- with the others (M-030; owner: night). `but`: what people took back of it, unreadable.

CREATE TABLE harvests_again (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    event_id        TEXT NOT NULL,
    but             TEXT NOT NULL                     -- JSON: `memory.origins.gist` of each
);
CREATE INDEX harvests_again_by_conversation ON harvests_again (conversation_id, event_id);

-- Since when nothing is read for memories, while that is turned off (owner: night).

CREATE TABLE harvests_off (since TEXT NOT NULL);
