-- What a message is said for is named in its mark (owner: mailbox) ---------------------------------

ALTER TABLE outbox ADD COLUMN cause TEXT;          -- the task and due moment that it is of

-- Who encrypted what (owner: matrix, sessions) -----------------------------------------------------

CREATE TABLE session_owners (                      -- seen once, it stays so, also when the device is gone
    room_id    TEXT NOT NULL,
    sender_key TEXT NOT NULL,                      -- Curve25519 key of the device
    session_id TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    device_id  TEXT NOT NULL,
    ed25519    TEXT NOT NULL,
    PRIMARY KEY (room_id, sender_key, session_id)
) WITHOUT ROWID;

CREATE TABLE taken_messages (                      -- what was taken in comes no second time under another id
    message  BLOB PRIMARY KEY,                     -- 16 bytes for its sender key, session and index in it
    event_id TEXT NOT NULL
) WITHOUT ROWID;
