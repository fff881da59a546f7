-- Whose device speaks (owner: matrix, people) ------------------------------------------------------

CREATE TABLE people (                              -- allowed people whose cross-signing identity was seen
    user_id     TEXT PRIMARY KEY,
    master_key  TEXT NOT NULL,                     -- of that identity: the first one, or what was trusted since
    changed_to  TEXT,                              -- what the homeserver says instead: another master key,
                                                   -- '' none at all or not a sound one; NULL: the same
    told        TEXT,                              -- the change that they were told of
    verified    TEXT,                              -- the master key with which they compared emojis with us
    ours        TEXT,                              -- and our own master key then
    seen_at     TEXT NOT NULL,
    changed_at  TEXT
) WITHOUT ROWID;

CREATE TABLE signed_devices (                      -- a signature once seen stays, for what the device sent
    user_id     TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    ed25519     TEXT NOT NULL,
    curve25519  TEXT NOT NULL,
    master_key  TEXT NOT NULL,                     -- of the identity that signed it
    seen_at     TEXT NOT NULL,
    PRIMARY KEY (user_id, ed25519, curve25519, master_key)
) WITHOUT ROWID;

CREATE TABLE verifications (                       -- by comparing emojis; kept for a day after their end
    txn_id      TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    room_id     TEXT NOT NULL,                     -- '': between devices
    phase       TEXT NOT NULL,
    shown       TEXT NOT NULL DEFAULT '',          -- what is to be compared
    code        TEXT NOT NULL DEFAULT '',          -- why it was cancelled
    began_at    TEXT NOT NULL,
    changed_at  TEXT NOT NULL,
    PRIMARY KEY (user_id, txn_id)
) WITHOUT ROWID;

-- What can be read but not yet be trusted is a state of its own (owner: mailbox) -------------------

CREATE TABLE inbox_with_untrusted (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id        TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    room_id         TEXT NOT NULL,
    sender          TEXT NOT NULL,
    sender_name     TEXT NOT NULL,
    origin          TEXT NOT NULL CHECK (origin IN ('owner', 'other', 'timer', 'system')),
    kind            TEXT NOT NULL CHECK (kind IN ('message', 'command', 'event', 'context', 'locked')),
    body            TEXT NOT NULL,
    direct          INTEGER NOT NULL,
    by_bot          INTEGER NOT NULL DEFAULT 0,
    raw             TEXT NOT NULL,                 -- JSON of the event; '' once it was redacted
    sent_at         TEXT NOT NULL,
    received_at     TEXT NOT NULL,
    not_before      TEXT,                          -- waiting: cast again no earlier (L-034)
    state           TEXT NOT NULL CHECK (state IN
        ('locked', 'untrusted', 'waiting', 'casting', 'answered', 'ignored')),
    edits           TEXT                           -- the event whose text this row replaces
);
INSERT INTO inbox_with_untrusted SELECT seq, event_id, conversation_id, room_id, sender, sender_name,
    origin, kind, body, direct, by_bot, raw, sent_at, received_at, not_before, state, edits FROM inbox;
DROP TABLE inbox;
ALTER TABLE inbox_with_untrusted RENAME TO inbox;
CREATE INDEX inbox_open ON inbox (conversation_id, seq) WHERE state IN ('waiting', 'casting');
CREATE INDEX inbox_held ON inbox (state, seq) WHERE state IN ('locked', 'untrusted');
CREATE INDEX inbox_by_conversation ON inbox (conversation_id, seq);
CREATE INDEX inbox_edits ON inbox (edits) WHERE edits IS NOT NULL;

-- A notice about a changed identity goes before what waits for it (owner: mailbox) -----------------

ALTER TABLE outbox ADD COLUMN apart INTEGER NOT NULL DEFAULT 0;   -- 1: in an encryption session of its own
DROP INDEX outbox_next;
CREATE INDEX outbox_next ON outbox (room_id, apart DESC, reacts_to IS NOT NULL, seq) WHERE state = 'waiting';
