-- Work in the background has causes of its own (owner: changes). A CHECK cannot be widened, so both
-- tables are copied; the one that refers goes first.

CREATE TABLE new_change_sets (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    cause      TEXT NOT NULL CHECK (cause IN ('night', 'consolidation', 'harvest', 'reconstruction',
                                              'undo', 'import', 'edit', 'tool', 'command')),
    scope      TEXT NOT NULL,
    cast_id    TEXT REFERENCES casts (id),
    undoes     TEXT REFERENCES new_change_sets (id),
    summary    TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL
);
INSERT INTO new_change_sets SELECT seq, id, cause, scope, cast_id, undoes, summary, created_at
FROM change_sets ORDER BY seq;
CREATE TABLE new_changes (
    change_set_id TEXT NOT NULL REFERENCES new_change_sets (id),
    n             INTEGER NOT NULL,
    kind          TEXT NOT NULL,                   -- fact, core, skill, task, page
    item          TEXT NOT NULL,
    before        TEXT,                            -- JSON; NULL = did not exist
    after         TEXT,                            -- JSON; NULL = gone
    evidence      TEXT NOT NULL DEFAULT '[]',      -- JSON list of event, turn or change ids
    PRIMARY KEY (change_set_id, n)
) WITHOUT ROWID;
INSERT INTO new_changes SELECT change_set_id, n, kind, item, before, after, evidence FROM changes;
DROP TABLE changes;
DROP TABLE change_sets;
ALTER TABLE new_change_sets RENAME TO change_sets;
ALTER TABLE new_changes RENAME TO changes;
CREATE INDEX changes_by_item ON changes (kind, item);
CREATE INDEX change_sets_by_scope ON change_sets (scope, seq);
CREATE INDEX change_sets_undoing ON change_sets (undoes) WHERE undoes IS NOT NULL;

-- How far a conversation was read for memories (owner: night). What was said before this version is not.

CREATE TABLE harvests (
    conversation_id TEXT PRIMARY KEY REFERENCES conversations (id),
    upto            INTEGER NOT NULL,                -- the last inbox row that was
    at              TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO harvests (conversation_id, upto, at)
SELECT conversation_id, max(seq), max(received_at) FROM inbox GROUP BY conversation_id;

-- Which facts are still to be brought together with the others of their scope (owner: memory).

ALTER TABLE facts ADD COLUMN queued INTEGER NOT NULL DEFAULT 0;
CREATE INDEX facts_queued ON facts (scope, taint, seq) WHERE queued;
