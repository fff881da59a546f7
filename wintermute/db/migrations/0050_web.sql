-- Who is logged in to the web door (owner: web), as hashes and times. `copies`: the newest earlier copy
-- of our data that was known then (F-009); a later one ends sessions and login addresses of before.
-- `token`: the hash of the token of that time; another token ends the session.

CREATE TABLE web_sessions (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    hash    TEXT NOT NULL UNIQUE,
    token   TEXT NOT NULL,
    copies  INTEGER NOT NULL,
    made_at TEXT NOT NULL,
    used_at TEXT NOT NULL
);

CREATE TABLE web_links (
    hash    TEXT PRIMARY KEY,
    copies  INTEGER NOT NULL,
    made_at TEXT NOT NULL,
    used_at TEXT                      -- NULL: not yet
) WITHOUT ROWID;

-- One row. `id`: what this data folder's cookie is called. `address`: where the daemon serves pages now.
CREATE TABLE web_door (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    id      TEXT NOT NULL,
    address TEXT
);
