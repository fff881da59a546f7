-- Whose memory a branch may touch: a cast stays in the scope it began in (owner: loom) --------

ALTER TABLE branches ADD COLUMN scope TEXT NOT NULL DEFAULT '';   -- '' before this migration: as its conversation

-- What is remembered (owner: memory) -------------------------------------------------------

CREATE TABLE facts (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,   -- the strict order of what is equally old (M-003)
    id          TEXT NOT NULL UNIQUE,
    scope       TEXT NOT NULL,                       -- 'person:@ann:example.org' or 'room:!abc'
    text        TEXT NOT NULL,                       -- one line
    key         TEXT NOT NULL,                       -- the text whatever its case and spacing: equal facts are one (M-007)
    source      TEXT NOT NULL CHECK (source IN ('user_explicit', 'harvest', 'dreaming_merge')),
    speaker     TEXT,                                -- who said it, where that is known
    taint       INTEGER NOT NULL DEFAULT 0,
    origins     TEXT NOT NULL DEFAULT '[]',          -- JSON list: events, turns, changes it was learnt from
    created_at  TEXT NOT NULL,                       -- of an imported fact: its own age (M-067)
    stored_at   TEXT NOT NULL,                       -- since when it is here, or here again
    valid_from  TEXT NOT NULL,
    valid_to    TEXT,                                -- NULL while it is live; else when it was retired
    retired_by  TEXT,                                -- the cause of that; 'edit': its line was removed by hand
    replaced_by TEXT,                                -- the fact that took its place
    exported    INTEGER NOT NULL DEFAULT 0,          -- 1 while MEMORIES.txt has its line
    accesses    INTEGER NOT NULL DEFAULT 0,
    accessed_at TEXT
);
CREATE UNIQUE INDEX facts_live ON facts (scope, key) WHERE valid_to IS NULL;
CREATE INDEX facts_newest ON facts (scope, created_at, seq) WHERE valid_to IS NULL;
CREATE INDEX facts_retired ON facts (valid_to) WHERE valid_to IS NOT NULL;
CREATE INDEX facts_unwritten ON facts (scope) WHERE exported = (valid_to IS NOT NULL);

-- What must happen (owner: tasks) ----------------------------------------------------------

CREATE TABLE tasks (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,            -- task_ and 8 hex digits
    scope           TEXT NOT NULL,                   -- as of facts, or 'global'
    conversation_id TEXT REFERENCES conversations (id),  -- where it was made; NULL: on the command line
    content         TEXT NOT NULL,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10),
    status          TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'deleted')),
    status_before   TEXT,                            -- of a deleted task: what it was, for its restoration
    reason          TEXT NOT NULL DEFAULT '',        -- why it was completed
    origins         TEXT NOT NULL DEFAULT '[]',      -- JSON list: the events that asked for it
    created_at      TEXT NOT NULL,
    changed_at      TEXT NOT NULL
);
CREATE INDEX tasks_in_order ON tasks (status, priority, seq, scope);

-- What was said about a part of the prompt that is too long (owner: prompt) ------------------

CREATE TABLE oversize (
    scope     TEXT NOT NULL,
    component TEXT NOT NULL CHECK (component IN ('memories', 'tasks', 'skills')),
    size      INTEGER NOT NULL,                      -- characters when it was last said
    told_at   TEXT NOT NULL,
    PRIMARY KEY (scope, component)
) WITHOUT ROWID;

CREATE INDEX change_sets_by_scope ON change_sets (scope, seq);
CREATE INDEX change_sets_undoing ON change_sets (undoes) WHERE undoes IS NOT NULL;
