-- Sub-sessions: work that a turn handed out (owner: delegation) ---------------------------------

CREATE TABLE sub_sessions (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,              -- 'sub_' and 8 hex digits
    blocking        INTEGER NOT NULL,                  -- 1: its parent's cast waits for it, and ends it
    conversation_id TEXT NOT NULL REFERENCES conversations (id),   -- its own
    branch_id       TEXT NOT NULL REFERENCES branches (id),
    cast_id         TEXT REFERENCES casts (id),        -- NULL until it starts
    parent_cast     TEXT NOT NULL REFERENCES casts (id),
    parent_turn     TEXT NOT NULL REFERENCES turns (id),
    n               INTEGER NOT NULL,                  -- which call of that turn,
    item            INTEGER NOT NULL,                  -- and which item of a batch
    parent          TEXT REFERENCES sub_sessions (id), -- the sub-session it belongs to; NULL: the room
    room            TEXT NOT NULL REFERENCES conversations (id),
    room_turn       TEXT NOT NULL REFERENCES turns (id),   -- the turn of the room below which it hangs
    root_event      TEXT,                              -- the inbox row that the room's cast answers
    workflow        TEXT NOT NULL,                     -- the same for all that dependencies connect
    name            TEXT,
    objective       TEXT NOT NULL,
    context         TEXT NOT NULL,
    mode            TEXT NOT NULL,
    tools           TEXT NOT NULL,                     -- JSON list of names
    role            TEXT NOT NULL,
    backend         TEXT,
    wards           TEXT NOT NULL,                     -- JSON
    depth           INTEGER NOT NULL,                  -- levels of sub-sessions that may be below it
    scope           TEXT NOT NULL,
    origin          TEXT NOT NULL,
    not_before      TEXT,
    missing         INTEGER NOT NULL,                  -- how many it depends on are not done yet
    held            INTEGER NOT NULL,                  -- 1: the turn that spawned it may yet spawn what depends on it
    state           TEXT NOT NULL CHECK (state IN
        ('waiting', 'running', 'collecting', 'done', 'failed', 'timed_out', 'ended')),
    reason          TEXT,
    result          TEXT NOT NULL DEFAULT '',
    interruptions   INTEGER NOT NULL DEFAULT 0,
    created_at      TEXT NOT NULL,
    started_at      TEXT,
    ended_at        TEXT,
    UNIQUE (parent_turn, n, item)
);
CREATE UNIQUE INDEX sub_sessions_by_name ON sub_sessions (parent_cast, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX sub_sessions_by_cast ON sub_sessions (cast_id) WHERE cast_id IS NOT NULL;
CREATE INDEX sub_sessions_by_parent ON sub_sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sub_sessions_by_workflow ON sub_sessions (workflow);
CREATE INDEX sub_sessions_ready ON sub_sessions (missing, held, seq) WHERE state = 'waiting';
CREATE INDEX sub_sessions_held ON sub_sessions (parent_turn) WHERE held = 1;
CREATE INDEX sub_sessions_due ON sub_sessions (missing, not_before)
    WHERE state = 'waiting' AND not_before IS NOT NULL;
CREATE INDEX sub_sessions_open ON sub_sessions (room)
    WHERE state IN ('waiting', 'running', 'collecting');
CREATE INDEX sub_sessions_open_by_parent ON sub_sessions (parent)
    WHERE state IN ('waiting', 'running', 'collecting');
CREATE INDEX sub_sessions_open_by_workflow ON sub_sessions (workflow)
    WHERE state IN ('waiting', 'running', 'collecting');
CREATE INDEX sub_sessions_waited_for ON sub_sessions (parent_cast)
    WHERE blocking = 1 AND state IN ('waiting', 'running', 'collecting');

CREATE TABLE sub_session_edges (
    depends_on TEXT NOT NULL REFERENCES sub_sessions (id),
    node       TEXT NOT NULL REFERENCES sub_sessions (id),
    PRIMARY KEY (depends_on, node)
) WITHOUT ROWID;
CREATE INDEX sub_session_edges_by_node ON sub_session_edges (node);
