-- Whether these data are an earlier copy of what was used since (owner: matrix) -------------------

CREATE TABLE epochs (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    device_id TEXT NOT NULL,
    value     TEXT NOT NULL,                         -- one of ours; the newest may not have reached the homeserver
    UNIQUE (device_id, value)
);

CREATE TABLE copies (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sign       TEXT NOT NULL UNIQUE,                 -- what told us: the homeserver's value, or what we never said
    since      TEXT,                                 -- when these data were last in use; NULL: never, or another copy runs
    noticed_at TEXT NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0            -- 1: what was said meanwhile is known, and the rooms are told
);
