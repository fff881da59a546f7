-- What a phase of a night did in a scope, with counts before and after (owner: night): a row each, for a
-- night of many people notes thousands. `tries`: how often it was begun; `calls`: what it asked at last.
-- They go with what can no longer be undone; the night's own row stays.

CREATE TABLE night_phases (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    night  TEXT NOT NULL REFERENCES nights (id),
    scope  TEXT NOT NULL,
    name   TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'ok', 'failed', 'left')),
    before INTEGER NOT NULL DEFAULT 0,
    after  INTEGER NOT NULL DEFAULT 0,
    note   TEXT NOT NULL DEFAULT '',
    tries  INTEGER NOT NULL DEFAULT 1,
    calls  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (night, scope, name)
);

INSERT INTO night_phases (night, scope, name, status, before, after, note, tries, calls)
SELECT n.id, p.value ->> 'scope', p.value ->> 'name', p.value ->> 'status', p.value ->> 'before',
       p.value ->> 'after', p.value ->> 'note', p.value ->> 'tries', p.value ->> 'calls'
FROM nights n, json_each(n.phases) p ORDER BY n.seq, p.key;

ALTER TABLE nights DROP COLUMN phases;

-- `answers`: the question of a night that a person said yes to by it; '': none.

ALTER TABLE change_sets ADD COLUMN answers TEXT NOT NULL DEFAULT '';

-- `night`: which one made the summary; '': an answer took it.

ALTER TABLE folds ADD COLUMN night TEXT NOT NULL DEFAULT '';
CREATE INDEX folds_of_nights ON folds (night) WHERE night <> '';
DROP TRIGGER folds_fixed;
CREATE TRIGGER folds_fixed BEFORE UPDATE ON folds
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.from_turn IS OLD.from_turn
    AND NEW.to_turn IS OLD.to_turn AND NEW.created_at IS OLD.created_at AND NEW.tokens_before IS OLD.tokens_before
    AND NEW.tokens_after IS OLD.tokens_after AND NEW.turns IS OLD.turns AND NEW.made_at IS OLD.made_at
    AND NEW.night IS OLD.night AND NEW.summary IS ''
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
