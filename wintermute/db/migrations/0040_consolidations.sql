-- Conversations that became pages of the wiki, by the jobs in its folder `sleep` (owner: night).
-- `upto`, `casts`: how far a chat was read by then. `settled`: 0 until it is known that the pages are
-- in place; who comes next finds out, and takes back what came to nothing.

CREATE TABLE consolidations (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    job             TEXT NOT NULL UNIQUE,
    conversation_id TEXT REFERENCES conversations (id),  -- NULL: a folder of messages
    raw             TEXT NOT NULL,                       -- the copy, as a path in the store
    upto            INTEGER NOT NULL DEFAULT 0,
    casts           INTEGER NOT NULL DEFAULT 0,
    change_set_id   TEXT,
    settled         INTEGER NOT NULL DEFAULT 0,
    at              TEXT NOT NULL
);
CREATE INDEX consolidations_of_conversation ON consolidations (conversation_id, seq);
CREATE INDEX consolidations_open ON consolidations (seq) WHERE NOT settled;

-- Which file of a raw copy says what was said in an event, so that it goes with it (M-030).

CREATE TABLE raw_messages (
    event_id      TEXT NOT NULL,
    path          TEXT NOT NULL,
    consolidation INTEGER NOT NULL REFERENCES consolidations (seq) ON DELETE CASCADE,
    PRIMARY KEY (event_id, path)
) WITHOUT ROWID;
CREATE INDEX raw_messages_of_job ON raw_messages (consolidation);
