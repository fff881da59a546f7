-- Conversations and what was done in them (owner: loom) ---------------------------------

CREATE TABLE conversations (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL CHECK (kind IN ('room', 'thread', 'terminal', 'sub_session', 'job')),
    room_id     TEXT,
    thread_id   TEXT NOT NULL DEFAULT '',          -- root event of a Matrix thread; '' = the room itself
    scope       TEXT NOT NULL,                     -- 'person:@ann:example.org' or 'room:!abc'
    parent_cast TEXT REFERENCES casts (id),
    depth       INTEGER NOT NULL DEFAULT 0,
    created_at  TEXT NOT NULL,
    UNIQUE (room_id, thread_id)
);

CREATE TABLE branches (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,   -- the newest branch of a conversation is the current one
    id              TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    forked_from     TEXT REFERENCES turns (id),
    reason          TEXT NOT NULL CHECK (reason IN ('start', 'new', 'edit', 'fork', 'scope')),
    created_at      TEXT NOT NULL
);
CREATE INDEX branches_by_conversation ON branches (conversation_id, seq);

CREATE TABLE prompts (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE casts (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    branch_id   TEXT NOT NULL REFERENCES branches (id),
    event_id    TEXT,                              -- the inbox row it answers
    entity_id   TEXT NOT NULL,
    intent      TEXT NOT NULL,                     -- what the model is asked, as it sees it
    origin      TEXT NOT NULL CHECK (origin IN ('owner', 'other', 'timer', 'system')),
    taint       INTEGER NOT NULL DEFAULT 0,
    wards       TEXT NOT NULL,                     -- JSON
    prompt_hash TEXT REFERENCES prompts (hash),    -- of the newest request
    state       TEXT NOT NULL CHECK (state IN ('running', 'terminated', 'truncated')),
    reason      TEXT,
    result      TEXT,
    started_at  TEXT NOT NULL,
    ended_at    TEXT
);
CREATE INDEX casts_by_branch ON casts (branch_id, seq);
CREATE INDEX casts_by_event ON casts (event_id);
CREATE INDEX casts_running ON casts (state) WHERE state = 'running';

CREATE TABLE turns (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    cast_id       TEXT NOT NULL REFERENCES casts (id),
    parent_id     TEXT REFERENCES turns (id),
    entity_id     TEXT NOT NULL,
    utterance     TEXT NOT NULL,
    calls         TEXT NOT NULL,                   -- JSON list of {id, name, arguments}
    finish_reason TEXT NOT NULL,
    backend       TEXT NOT NULL,
    model         TEXT NOT NULL,
    tokens_in     INTEGER NOT NULL,
    tokens_out    INTEGER NOT NULL,
    tokens_cached INTEGER NOT NULL,
    ms            INTEGER NOT NULL,
    error         TEXT,                            -- set: no answer came; the row is the record of that
    created_at    TEXT NOT NULL
);
CREATE INDEX turns_by_cast ON turns (cast_id, seq);
CREATE INDEX turns_by_parent ON turns (parent_id);

CREATE TABLE observations (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id      TEXT NOT NULL REFERENCES turns (id),
    n            INTEGER NOT NULL,                 -- place of the call in its utterance, from 0
    gate         TEXT NOT NULL,
    args         TEXT,                             -- JSON
    result       TEXT,
    is_error     INTEGER NOT NULL DEFAULT 0,
    tool_call_id TEXT,
    via          TEXT NOT NULL CHECK (via IN ('call', 'tag')),
    state        TEXT NOT NULL CHECK (state IN ('started', 'completed')),
    started_at   TEXT NOT NULL,
    completed_at TEXT,
    UNIQUE (turn_id, n)
);

CREATE TABLE folds (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    branch_id  TEXT NOT NULL REFERENCES branches (id),
    from_turn  TEXT NOT NULL REFERENCES turns (id),
    to_turn    TEXT NOT NULL REFERENCES turns (id),
    summary    TEXT NOT NULL,
    tokens_before INTEGER NOT NULL,
    tokens_after  INTEGER NOT NULL,
    created_at TEXT NOT NULL
);
CREATE INDEX folds_by_branch ON folds (branch_id, seq);

CREATE TABLE rewards (
    id         TEXT PRIMARY KEY,
    turn_id    TEXT NOT NULL REFERENCES turns (id),
    value      INTEGER NOT NULL CHECK (value IN (-1, 1)),
    sender     TEXT NOT NULL,
    event_id   TEXT UNIQUE,
    created_at TEXT NOT NULL
);

-- History is append-only (L-048). A redaction blanks content and keeps every id and link. -
-- Each comparison is true or false, never NULL: a WHEN that is NULL would let the change through.

CREATE TRIGGER branches_stay BEFORE DELETE ON branches
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER branches_fixed BEFORE UPDATE ON branches
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompts_stay BEFORE DELETE ON prompts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompts_fixed BEFORE UPDATE ON prompts WHEN NEW.hash IS NOT OLD.hash OR NEW.text IS NOT ''
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER casts_stay BEFORE DELETE ON casts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER casts_fixed BEFORE UPDATE ON casts
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.event_id IS OLD.event_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.origin IS OLD.origin AND NEW.wards IS OLD.wards
    AND NEW.started_at IS OLD.started_at
    AND (
        -- running: may end, with a reason, and notes the prompt of its newest request
        (OLD.state = 'running' AND NEW.intent IS OLD.intent AND NEW.taint >= OLD.taint
            AND (NEW.reason IS NOT NULL) = (NEW.state <> 'running')
            AND (NEW.result IS NOT NULL) = (NEW.state <> 'running')
            AND (NEW.ended_at IS NOT NULL) = (NEW.state <> 'running'))
        -- ended: only a redaction
        OR (OLD.state <> 'running' AND NEW.state IS OLD.state AND NEW.reason IS OLD.reason
            AND NEW.ended_at IS OLD.ended_at AND NEW.taint IS OLD.taint
            AND (NEW.prompt_hash IS OLD.prompt_hash OR NEW.prompt_hash IS NULL)
            AND (NEW.intent IS OLD.intent OR NEW.intent IS '')
            AND (NEW.result IS OLD.result OR NEW.result IS ''))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER turns_stay BEFORE DELETE ON turns
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER turns_fixed BEFORE UPDATE ON turns
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.cast_id IS OLD.cast_id AND NEW.parent_id IS OLD.parent_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.finish_reason IS OLD.finish_reason AND NEW.backend IS OLD.backend
    AND NEW.model IS OLD.model AND NEW.tokens_in IS OLD.tokens_in AND NEW.tokens_out IS OLD.tokens_out
    AND NEW.tokens_cached IS OLD.tokens_cached AND NEW.ms IS OLD.ms AND NEW.created_at IS OLD.created_at
    AND (NEW.error IS OLD.error OR (OLD.error IS NOT NULL AND NEW.error IS ''))
    AND NEW.utterance IS '' AND NEW.calls IS '[]'
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER observations_stay BEFORE DELETE ON observations
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER observations_fixed BEFORE UPDATE ON observations
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.turn_id IS OLD.turn_id AND NEW.n IS OLD.n AND NEW.gate IS OLD.gate
    AND NEW.tool_call_id IS OLD.tool_call_id AND NEW.via IS OLD.via AND NEW.started_at IS OLD.started_at
    AND (
        (OLD.state IS 'started' AND NEW.state IS 'completed' AND NEW.args IS OLD.args
            AND NEW.result IS NOT NULL AND NEW.completed_at IS NOT NULL)
        OR (OLD.state IS NEW.state AND NEW.completed_at IS OLD.completed_at AND NEW.is_error IS OLD.is_error
            AND (NEW.args IS OLD.args OR NEW.args IS NULL) AND NEW.result IS '')
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER folds_stay BEFORE DELETE ON folds
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER folds_fixed BEFORE UPDATE ON folds
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.from_turn IS OLD.from_turn
    AND NEW.to_turn IS OLD.to_turn AND NEW.created_at IS OLD.created_at AND NEW.tokens_before IS OLD.tokens_before
    AND NEW.tokens_after IS OLD.tokens_after AND NEW.summary IS ''
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER rewards_stay BEFORE DELETE ON rewards
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER rewards_fixed BEFORE UPDATE ON rewards
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

-- What came in and what goes out (owner: mailbox) ----------------------------------------

CREATE TABLE inbox (
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
    state           TEXT NOT NULL CHECK (state IN ('locked', 'waiting', 'casting', 'answered', 'ignored'))
);
CREATE INDEX inbox_open ON inbox (conversation_id, seq) WHERE state IN ('waiting', 'casting');
CREATE INDEX inbox_locked ON inbox (seq) WHERE state = 'locked';
CREATE INDEX inbox_by_conversation ON inbox (conversation_id, seq);

CREATE TABLE sync_token (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    account   TEXT NOT NULL,
    token     TEXT NOT NULL,
    stored_at TEXT NOT NULL
);

CREATE TABLE invitations (
    room_id     TEXT PRIMARY KEY,
    inviter     TEXT NOT NULL,
    welcome     INTEGER NOT NULL,                  -- 1 join, 0 decline
    state       TEXT NOT NULL CHECK (state IN ('pending', 'joined')),
    received_at TEXT NOT NULL
);

CREATE TABLE rooms (
    room_id   TEXT PRIMARY KEY,
    encrypted INTEGER NOT NULL DEFAULT 0,          -- once 1, for ever 1: nothing is sent in clear there
    state     TEXT NOT NULL DEFAULT 'joined' CHECK (state IN ('joined', 'left'))
);

CREATE TABLE notices (
    key     TEXT PRIMARY KEY,                      -- what was said, and where
    said_at TEXT NOT NULL
);

CREATE TABLE outbox (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    room_id         TEXT NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('reply', 'notice', 'event')),
    body            TEXT NOT NULL,                 -- Markdown
    cast_id         TEXT REFERENCES casts (id),
    answers         TEXT,                          -- event id of the message it answers
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'sent', 'stuck')),
    problem         TEXT,
    created_at      TEXT NOT NULL,
    sent_at         TEXT
);
CREATE INDEX outbox_open ON outbox (room_id, seq) WHERE state = 'waiting';
CREATE INDEX outbox_stuck ON outbox (seq) WHERE state = 'stuck';

CREATE TABLE outbox_parts (
    outbox_id TEXT NOT NULL REFERENCES outbox (id),
    n         INTEGER NOT NULL,
    txn_id    TEXT NOT NULL UNIQUE,
    content   TEXT NOT NULL,                       -- JSON of the event's content, in clear
    state     TEXT NOT NULL CHECK (state IN ('waiting', 'sent')),
    event_id  TEXT,
    attempts  INTEGER NOT NULL DEFAULT 0,
    device_id TEXT,                                -- the device of the first attempt
    first_attempt_at TEXT,
    PRIMARY KEY (outbox_id, n)
) WITHOUT ROWID;
CREATE INDEX outbox_parts_by_event ON outbox_parts (event_id) WHERE event_id IS NOT NULL;

-- Work that survives a restart (owner: jobs) ----------------------------------------------

CREATE TABLE jobs (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    args       TEXT NOT NULL DEFAULT '{}',         -- JSON
    progress   TEXT NOT NULL DEFAULT '{}',         -- JSON: where to go on
    attempts   INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    not_before TEXT,
    created_at TEXT NOT NULL,
    ended_at   TEXT,
    UNIQUE (name, key)
);

-- What unattended or bulk work changed, with its way back (owner: changes) ----------------

CREATE TABLE change_sets (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    cause      TEXT NOT NULL CHECK (cause IN ('night', 'consolidation', 'undo', 'import', 'edit', 'tool', 'command')),
    scope      TEXT NOT NULL,
    cast_id    TEXT REFERENCES casts (id),
    undoes     TEXT REFERENCES change_sets (id),
    summary    TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL
);

CREATE TABLE changes (
    change_set_id TEXT NOT NULL REFERENCES change_sets (id),
    n             INTEGER NOT NULL,
    kind          TEXT NOT NULL,                   -- fact, core, skill, task, page
    item          TEXT NOT NULL,
    before        TEXT,                            -- JSON; NULL = did not exist
    after         TEXT,                            -- JSON; NULL = gone
    evidence      TEXT NOT NULL DEFAULT '[]',      -- JSON list of event, turn or change ids
    PRIMARY KEY (change_set_id, n)
) WITHOUT ROWID;
CREATE INDEX changes_by_item ON changes (kind, item);

-- What models were asked and what it cost (owner: llm) ------------------------------------

CREATE TABLE model_calls (
    id            TEXT PRIMARY KEY,
    cast_id       TEXT,
    role          TEXT NOT NULL,
    backend       TEXT NOT NULL,
    model         TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    outcome       TEXT NOT NULL,                   -- ok, or what went wrong in one word
    detail        TEXT NOT NULL DEFAULT '',
    tokens_in     INTEGER NOT NULL DEFAULT 0,
    tokens_out    INTEGER NOT NULL DEFAULT 0,
    tokens_cached INTEGER NOT NULL DEFAULT 0,
    usd           REAL NOT NULL DEFAULT 0,
    ms            INTEGER NOT NULL,
    request       TEXT,                            -- bodies only when llm.record is on
    answer        TEXT,
    created_at    TEXT NOT NULL
);
CREATE INDEX model_calls_by_day ON model_calls (created_at);
CREATE INDEX model_calls_by_cast ON model_calls (cast_id);

CREATE TABLE reservations (
    id         TEXT PRIMARY KEY,
    call_id    TEXT,
    day        TEXT NOT NULL,                      -- YYYY-MM-DD in the configured zone
    role       TEXT NOT NULL,
    backend    TEXT NOT NULL,
    tokens     INTEGER NOT NULL,
    usd        REAL NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL
);
CREATE INDEX reservations_by_day ON reservations (day);

-- What works and what does not (owner: health) --------------------------------------------

CREATE TABLE health (
    part       TEXT PRIMARY KEY,
    state      TEXT NOT NULL CHECK (state IN ('ok', 'warn', 'fail')),
    detail     TEXT NOT NULL,
    since      TEXT NOT NULL,
    updated_at TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
