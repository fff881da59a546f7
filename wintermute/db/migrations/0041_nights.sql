-- What was tidied while nobody watched (owner: night). An id is the local date, `20260504`, with `-2` and
-- so on for more of one day. `phases`: what each did in each scope, with counts before and after.
-- `scope`, `phase`: what it was asked to be about alone; '': all.

CREATE TABLE nights (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    date     TEXT NOT NULL,
    why      TEXT NOT NULL CHECK (why IN ('schedule', 'late', 'asked', 'command')),
    scope    TEXT NOT NULL DEFAULT '',
    phase    TEXT NOT NULL DEFAULT '',
    state    TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped')),
    phases   TEXT NOT NULL DEFAULT '[]',
    calls    INTEGER NOT NULL DEFAULT 0,
    tokens   INTEGER NOT NULL DEFAULT 0,
    usd      REAL NOT NULL DEFAULT 0,
    began_at TEXT NOT NULL,
    ended_at TEXT,
    told_at  TEXT                                    -- when the owner was told, or need not be
);
CREATE UNIQUE INDEX nights_once ON nights (date) WHERE why IN ('schedule', 'late');

-- `plan`: what applying it does. `names`: what it changed, as kind and id, in `change_set`. What waits
-- for an answer is open; what is planned is applied, or becomes a question, before the night is over.

CREATE TABLE night_items (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    night      TEXT NOT NULL REFERENCES nights (id),
    n          INTEGER NOT NULL,
    scope      TEXT NOT NULL,
    phase      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('planned', 'done', 'open', 'refused', 'outdated', 'undone')),
    before     TEXT NOT NULL DEFAULT '[]',
    after      TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',
    evidence   TEXT NOT NULL DEFAULT '[]',
    plan       TEXT NOT NULL DEFAULT '{}',
    loses      INTEGER NOT NULL DEFAULT 0,           -- facts of its scope that go by it
    names      TEXT NOT NULL DEFAULT '[]',
    change_set TEXT,
    at         TEXT NOT NULL,
    UNIQUE (night, n)
);
CREATE INDEX night_items_open ON night_items (scope, seq) WHERE state IN ('open', 'planned');

-- What a model was asked about, or a person, by a digest of all that was shown: it is not asked again
-- until one side of it is another.

CREATE TABLE judged (
    scope  TEXT NOT NULL,
    digest TEXT NOT NULL,
    at     TEXT NOT NULL,
    PRIMARY KEY (scope, digest)
) WITHOUT ROWID;

-- `protected`: the person's own words, or made of such in any generation. `resting`: not used for long,
-- so that it is in no prompt, list or file, but is found by who looks for it (M-060). `judged`: 1: its
-- neighbours were looked at since it said what it says.

ALTER TABLE facts ADD COLUMN protected INTEGER NOT NULL DEFAULT 0;
ALTER TABLE facts ADD COLUMN resting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE facts ADD COLUMN judged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX facts_resting ON facts (scope, seq) WHERE resting;
UPDATE facts SET protected = 1 WHERE source = 'user_explicit';
CREATE INDEX facts_unjudged ON facts (scope, judged, seq) WHERE judged <> 1 AND retired_at IS NULL AND NOT ended;

CREATE TRIGGER facts_say_something_else AFTER UPDATE OF text, retired_at, ended ON facts
WHEN NEW.judged AND (NEW.text IS NOT OLD.text OR NEW.retired_at IS NULL AND OLD.retired_at IS NOT NULL
                     OR NOT NEW.ended AND OLD.ended)
BEGIN
    UPDATE facts SET judged = 0 WHERE seq = NEW.seq;
END;

-- Who was told of a night: those of a scope by a message, which may ask for a yes to one item alone
-- (`asks`), and the model with the message `event_id` of a person.

CREATE TABLE night_told (
    night     TEXT NOT NULL REFERENCES nights (id),
    scope     TEXT NOT NULL,
    outbox_id TEXT,
    asks      INTEGER,
    event_id  TEXT,
    PRIMARY KEY (night, scope)
) WITHOUT ROWID;
CREATE INDEX night_told_outbox ON night_told (outbox_id) WHERE outbox_id IS NOT NULL;

-- `signs`: what is put on a message once it is in its room, parted by blanks.

ALTER TABLE outbox ADD COLUMN signs TEXT NOT NULL DEFAULT '';

-- `made_by`: the cause of the change that made it; '': nobody knows any more. What a person made is
-- theirs to end (T-058).

ALTER TABLE tasks ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
UPDATE tasks SET made_by = coalesce((
    SELECT s.cause FROM changes c JOIN change_sets s ON s.id = c.change_set_id
    WHERE c.kind = 'task' AND c.item = tasks.id AND c.before IS NULL ORDER BY s.seq LIMIT 1), '');

-- `answers`: the question of a night that a person said yes to by it; '': none.

ALTER TABLE change_sets ADD COLUMN answers TEXT NOT NULL DEFAULT '';

-- `night`: which one made the pages, or the summary; '': a person asked for them, or an answer took it.

ALTER TABLE consolidations ADD COLUMN night TEXT NOT NULL DEFAULT '';
ALTER TABLE folds ADD COLUMN night TEXT NOT NULL DEFAULT '';
CREATE INDEX folds_of_nights ON folds (night) WHERE night <> '';

-- A question that a night asks about a proposal is one as long as the proposal waits.

CREATE TRIGGER proposals_wait_no_more AFTER UPDATE OF state ON proposals
WHEN NEW.state IN ('refused', 'outdated')
BEGIN
    UPDATE night_items SET state = NEW.state
    WHERE state = 'open' AND plan ->> '$.proposal' = NEW.id;
END;

CREATE TRIGGER proposals_are_gone AFTER DELETE ON proposals WHEN OLD.state = 'open'
BEGIN
    UPDATE night_items SET state = 'outdated'
    WHERE state = 'open' AND plan ->> '$.proposal' = OLD.id;
END;
