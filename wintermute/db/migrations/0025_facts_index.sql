-- What was retired, and what has stopped being true, are two things (M-074; owner: memory) ------------

ALTER TABLE facts RENAME COLUMN valid_to TO retired_at;  -- NULL while it is kept; else since when it waits for its end
ALTER TABLE facts ADD COLUMN valid_to TEXT;          -- until when it was true; NULL: it still is
ALTER TABLE facts ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;  -- 1 once valid_to has passed: in no prompt, list or file

-- Messages of one conversation that became facts one after the other have places one after the other;
-- between any others some are left out. No two of a scope have the same.
ALTER TABLE facts ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
UPDATE facts SET place = 4 * seq;
CREATE UNIQUE INDEX facts_places ON facts (scope, place);

DROP INDEX facts_live;
DROP INDEX facts_newest;
DROP INDEX facts_retired;
DROP INDEX facts_unwritten;
CREATE UNIQUE INDEX facts_live ON facts (scope, key) WHERE retired_at IS NULL AND NOT ended;
CREATE INDEX facts_newest ON facts (scope, created_at, seq) WHERE retired_at IS NULL AND NOT ended;
CREATE INDEX facts_kept ON facts (scope, created_at, seq) WHERE retired_at IS NULL;
CREATE INDEX facts_retired ON facts (retired_at) WHERE retired_at IS NOT NULL;
CREATE INDEX facts_ending ON facts (valid_to) WHERE valid_to IS NOT NULL AND NOT ended;
CREATE INDEX facts_unwritten ON facts (scope) WHERE exported = (retired_at IS NOT NULL OR ended);

-- The words of all facts that are kept; derived: rebuilt whenever it is not what the rows say.
-- `scope` is one token, so that a search reads the rows of its scope only.

CREATE VIRTUAL TABLE facts_fts USING fts5 (
    scope, words, detail = column, tokenize = "unicode61 remove_diacritics 2"
);

-- Whose memories file is a two-way view of the facts, and whose an export that nobody reads (M-077) -------

CREATE TABLE memories_files (
    scope TEXT PRIMARY KEY,                          -- one without a row has not been looked at yet
    live  INTEGER NOT NULL                           -- 1: what is edited there counts
) WITHOUT ROWID;
INSERT INTO memories_files (scope, live) SELECT DISTINCT scope, 1 FROM facts WHERE exported;

-- What memory brought to a message, also what was in view already: for /why, and for its use (M-024) ------

CREATE TABLE recalled (
    cast_id TEXT NOT NULL REFERENCES casts (id),
    fact    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    place   INTEGER NOT NULL,                        -- 1: what fitted best
    score   REAL NOT NULL,
    PRIMARY KEY (cast_id, fact)
) WITHOUT ROWID;
CREATE INDEX recalled_facts ON recalled (fact);
