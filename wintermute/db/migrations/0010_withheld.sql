-- Keys that somebody's client does not give us, by its own word (owner: matrix, withheld) ----------

CREATE TABLE withheld (                            -- anybody could have written it: it names a cause, no more
    sender      TEXT NOT NULL,
    room_id     TEXT NOT NULL,                     -- '' with m.no_olm, which is of all sessions of a device
    session_id  TEXT NOT NULL,                     -- likewise
    sender_key  TEXT NOT NULL,
    code        TEXT NOT NULL,
    received_at TEXT NOT NULL,
    PRIMARY KEY (sender, room_id, session_id, sender_key)
) WITHOUT ROWID;
