-- What may not be done without a person waits for one (owner: changes). At most one of a kind waits
-- in a scope where each is a whole text, as core.md is.

CREATE TABLE proposals (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    scope      TEXT NOT NULL,
    kind       TEXT NOT NULL,                        -- fact, core, skill, task, page
    text       TEXT NOT NULL,                        -- what it would become
    reason     TEXT NOT NULL,                        -- why it was not done
    created_at TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'taken', 'refused', 'outdated'))
);
CREATE INDEX proposals_open ON proposals (scope, kind, seq) WHERE state = 'open';

-- The bullets of core.md that we wrote, from what nobody said in so many words: those that may go
-- again (owner: memory). Only their digests: the words are in the file.

CREATE TABLE free_bullets (
    scope  TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (scope, digest)
) WITHOUT ROWID;
