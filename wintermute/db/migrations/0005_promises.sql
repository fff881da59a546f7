-- When a task is due, and what happens then (owner: tasks) --------------------------------------

ALTER TABLE tasks ADD COLUMN schedule TEXT;             -- JSON; NULL: it is never due
ALTER TABLE tasks ADD COLUMN mode TEXT NOT NULL DEFAULT 'reminder'
    CHECK (mode IN ('reminder', 'autonomous_notify', 'autonomous_silent'));
ALTER TABLE tasks ADD COLUMN ai_prompt TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN rule_due TEXT;             -- the next moment of its schedule, UTC
ALTER TABLE tasks ADD COLUMN snoozed TEXT;              -- a moment beside the schedule, UTC
ALTER TABLE tasks ADD COLUMN next_due TEXT GENERATED ALWAYS AS
    (min(coalesce(rule_due, snoozed), coalesce(snoozed, rule_due))) VIRTUAL;
ALTER TABLE tasks ADD COLUMN zone TEXT NOT NULL DEFAULT '';   -- in which rule_due was computed
ALTER TABLE tasks ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;   -- of its runs, in a row
ALTER TABLE tasks ADD COLUMN held INTEGER NOT NULL DEFAULT 0;   -- 1: due, but there is no room for it now
CREATE INDEX tasks_due ON tasks (next_due, seq) WHERE status = 'active' AND held = 0 AND next_due IS NOT NULL;
CREATE INDEX tasks_held ON tasks (seq) WHERE held = 1;

CREATE TABLE occurrences (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id         TEXT NOT NULL REFERENCES tasks (id),
    due_at          TEXT NOT NULL,
    mode            TEXT NOT NULL,                      -- as the task was when it fell due,
    content         TEXT NOT NULL,                      -- frozen with it
    state           TEXT NOT NULL CHECK (state IN ('claimed', 'done', 'failed', 'missed')),
    missed          INTEGER NOT NULL DEFAULT 0,         -- due moments of a time when we were away, this one among them
    conversation_id TEXT NOT NULL REFERENCES conversations (id),   -- where it is said
    outbox_id       TEXT,                               -- the message that says it
    cast_id         TEXT REFERENCES casts (id),         -- of a run that has begun
    not_before      TEXT,                               -- a run that was put off: until then
    interruptions   INTEGER NOT NULL DEFAULT 0,
    answers         TEXT NOT NULL DEFAULT '',           -- the reactions that were followed, each once
    result          TEXT NOT NULL DEFAULT '',           -- of a run: what came of it, or why it failed
    claimed_at      TEXT NOT NULL,
    ended_at        TEXT,
    UNIQUE (task_id, due_at)
);
CREATE UNIQUE INDEX occurrences_claimed ON occurrences (task_id) WHERE state = 'claimed';   -- one of a task at a time
CREATE INDEX occurrences_by_outbox ON occurrences (outbox_id) WHERE outbox_id IS NOT NULL;
CREATE INDEX occurrences_told ON occurrences (conversation_id, iif(mode = 'reminder', claimed_at, ended_at))
    WHERE outbox_id IS NOT NULL;

-- A message that says of itself when it is late; and signs to put on a message (owner: mailbox) ---

ALTER TABLE outbox ADD COLUMN late_after TEXT;          -- sent after this moment, it ends with
ALTER TABLE outbox ADD COLUMN late_mark TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN meant_for TEXT NOT NULL DEFAULT '';   -- a scope: it is said only where that fits
ALTER TABLE outbox ADD COLUMN reacts_to TEXT;           -- the event of ours on which `body` is put, sign by sign
CREATE INDEX outbox_next ON outbox (room_id, reacts_to IS NOT NULL, seq) WHERE state = 'waiting';
DROP INDEX outbox_open;
