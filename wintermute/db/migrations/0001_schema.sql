-- All that Wintermute keeps, in the order in which a message meets it. Each table says what a row is, and
-- which part of the program owns it: only that part's store writes it. Times are UTC texts, as `clock.stamp`
-- writes them; a scope is 'person:@ann:example.org' or 'room:!abc'.

-- Messages in and out ----------------------------------------------------------------------------------

-- An event that came in and concerns us (owner: mailbox). One that cannot be decrypted yet is *locked*, one
-- that can be read but not be trusted yet *untrusted*; both keep their raw JSON. A message that is held for
-- the pace of a conversation is a line of context with a time (F-048).
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
    edits           TEXT,                             -- the event whose text this row replaces
    replies_to      TEXT,                             -- the event that this one answers, in its room
    raw             TEXT NOT NULL,                    -- JSON of the event; '' once it was redacted
    sent_at         TEXT NOT NULL,
    received_at     TEXT NOT NULL,
    not_before      TEXT,                             -- waiting: cast again no earlier (L-034)
    state           TEXT NOT NULL CHECK (state IN
        ('locked', 'untrusted', 'waiting', 'casting', 'answered', 'ignored'))
);
CREATE INDEX inbox_open ON inbox (conversation_id, seq) WHERE state IN ('waiting', 'casting');
CREATE INDEX inbox_held ON inbox (state, seq) WHERE state IN ('locked', 'untrusted');
CREATE INDEX inbox_by_conversation ON inbox (conversation_id, seq);
CREATE INDEX inbox_edits ON inbox (edits) WHERE edits IS NOT NULL;
CREATE INDEX inbox_replies ON inbox (replies_to) WHERE replies_to IS NOT NULL;
CREATE INDEX inbox_context ON inbox (conversation_id, seq) WHERE kind = 'context' AND body <> '';
CREATE INDEX inbox_messages ON inbox (conversation_id, seq) WHERE kind = 'message';
CREATE INDEX inbox_paced ON inbox (conversation_id) WHERE kind = 'context' AND not_before IS NOT NULL;
CREATE INDEX inbox_erased ON inbox (conversation_id) WHERE body = '' AND kind <> 'context';

-- A message of ours on its way to a room, in order per room; also a change of one that is there
-- (owner: mailbox). An answer that grows has two rows: the draft (`grows`) and the answer (`continues`).
CREATE TABLE outbox (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    room_id         TEXT NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('reply', 'notice', 'event')),
    body            TEXT NOT NULL,                    -- Markdown
    cast_id         TEXT REFERENCES casts (id),
    answers         TEXT,                             -- event id of the message it answers
    cause           TEXT,                             -- the task and due moment that it is of
    meant_for       TEXT NOT NULL DEFAULT '',         -- a scope: it is sent only where that fits
    unsolicited     INTEGER NOT NULL DEFAULT 0,       -- 1: nobody asked for it, so it waits in quiet hours (U-017)
    apart           INTEGER NOT NULL DEFAULT 0,       -- 1: in an encryption session of its own
    late_after      TEXT,                             -- sent after this moment, it ends with
    late_note       TEXT NOT NULL DEFAULT '',
    awaits          TEXT,                             -- a message: once it is answered, this notice goes
    changes         TEXT,                             -- the event of ours that gets another text, or "" goes
    edits_of        TEXT,                             -- an event of ours that was redacted: its edits are to go as well
    grows           TEXT,                             -- a draft: the message it is for, as first written; kind 'event'
    continues       TEXT,                             -- the row whose event has this text from now on, by an edit
    reacts_to       TEXT,                             -- the event of ours on which `body` is put, one reaction each
    reactions       TEXT NOT NULL DEFAULT '',         -- to put on this message once it is in its room, parted by blanks
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'sent', 'stuck')),
    problem         TEXT,
    created_at      TEXT NOT NULL,
    sent_at         TEXT
);
CREATE INDEX outbox_next ON outbox (room_id, apart DESC, reacts_to IS NOT NULL, seq) WHERE state = 'waiting';
CREATE INDEX outbox_stuck ON outbox (seq) WHERE state = 'stuck';
CREATE INDEX outbox_by_conversation ON outbox (conversation_id, seq);
CREATE INDEX outbox_answers ON outbox (answers) WHERE answers IS NOT NULL;
CREATE INDEX outbox_awaits ON outbox (awaits) WHERE awaits IS NOT NULL;
CREATE INDEX outbox_changes ON outbox (changes) WHERE changes IS NOT NULL;
CREATE INDEX outbox_grows ON outbox (grows) WHERE grows IS NOT NULL;
CREATE INDEX outbox_continues ON outbox (continues) WHERE continues IS NOT NULL;
CREATE INDEX outbox_erased ON outbox (conversation_id) WHERE body = '';

-- One event of a message of ours, with the transaction id that makes it come once (owner: mailbox).
CREATE TABLE outbox_parts (
    outbox_id        TEXT NOT NULL REFERENCES outbox (id),
    n                INTEGER NOT NULL,
    txn_id           TEXT NOT NULL UNIQUE,
    content          TEXT NOT NULL,                   -- JSON of the event's content, in clear
    state            TEXT NOT NULL CHECK (state IN ('waiting', 'sent')),
    event_id         TEXT,
    attempts         INTEGER NOT NULL DEFAULT 0,
    device_id        TEXT,                            -- the device of the first attempt
    first_attempt_at TEXT,
    PRIMARY KEY (outbox_id, n)
) WITHOUT ROWID;
CREATE INDEX outbox_parts_by_event ON outbox_parts (event_id) WHERE event_id IS NOT NULL;

-- An invitation that is to be accepted or declined (owner: mailbox).
CREATE TABLE invitations (
    room_id     TEXT PRIMARY KEY,
    inviter     TEXT NOT NULL,
    welcome     INTEGER NOT NULL,                     -- 1 join, 0 decline
    state       TEXT NOT NULL CHECK (state IN ('pending', 'joined')),
    received_at TEXT NOT NULL
);

-- A Matrix room that we are or were in (owner: mailbox). Rooms follow each other: a scope is a name, and
-- which room it lives in is known here.
CREATE TABLE rooms (
    room_id     TEXT PRIMARY KEY,
    encrypted   INTEGER NOT NULL DEFAULT 0,           -- once 1, for ever 1: nothing is sent in clear there
    state       TEXT NOT NULL DEFAULT 'joined' CHECK (state IN ('joined', 'left')),
    successor   TEXT NOT NULL DEFAULT '',             -- the room that its tombstone names
    predecessor TEXT NOT NULL DEFAULT '',             -- the room that its creation names
    moved_to    TEXT NOT NULL DEFAULT '',             -- where the conversation of this room went on
    scope       TEXT NOT NULL DEFAULT '',             -- that lives here; '': called after this room
    last_event  TEXT NOT NULL DEFAULT '',             -- the newest that a sync brought (F-058)
    exchange    TEXT NOT NULL DEFAULT ''              -- JSON: how quickly somebody answers us; '' before we spoke (F-048)
);

-- A notice that was sent, so that it is not sent too often (owner: mailbox).
CREATE TABLE notices (
    key     TEXT PRIMARY KEY,                         -- the subject, and where
    said_at TEXT NOT NULL
);

-- The loom: what was asked and what came of it, append-only -----------------------------------------------

-- Anything with a history of its own (owner: loom).
CREATE TABLE conversations (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL CHECK (kind IN ('room', 'thread', 'terminal', 'sub_session', 'job')),
    room_id     TEXT,
    thread_id   TEXT NOT NULL DEFAULT '',             -- root event of a Matrix thread; '' = the room itself
    starter     TEXT,                                 -- of a thread: who wrote its root, where that addressed us
    scope       TEXT NOT NULL,
    backend     TEXT,                                 -- chosen by `/model`; NULL: that of the role
    parent_cast TEXT REFERENCES casts (id),           -- of a sub-session: the cast and turn that asked for it
    parent_turn TEXT REFERENCES turns (id),
    outlives    INTEGER NOT NULL DEFAULT 0,           -- 1: does not end with its parent's cast
    depth       INTEGER NOT NULL DEFAULT 0,
    created_at  TEXT NOT NULL,
    UNIQUE (room_id, thread_id)
);
CREATE INDEX conversations_by_parent ON conversations (parent_cast) WHERE parent_cast IS NOT NULL;

-- A path through a conversation's turns; the newest is the current one (owner: loom).
CREATE TABLE branches (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    forked_from     TEXT REFERENCES turns (id),
    reason          TEXT NOT NULL CHECK (reason IN ('start', 'new', 'edit', 'fork', 'scope')),
    scope           TEXT NOT NULL,                    -- whose memory it may touch: a cast stays in the scope it began in
    created_at      TEXT NOT NULL
);
CREATE INDEX branches_by_conversation ON branches (conversation_id, seq);

-- One run of the loop for one intent (owner: loom).
CREATE TABLE casts (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    branch_id     TEXT NOT NULL REFERENCES branches (id),
    event_id      TEXT,                               -- the inbox row it answers
    entity_id     TEXT NOT NULL,
    intent        TEXT NOT NULL,                      -- the model's task, as it sees it
    context_block TEXT NOT NULL DEFAULT '',           -- sent with the message, and shown again as it was
    origin        TEXT NOT NULL CHECK (origin IN ('owner', 'other', 'timer', 'system')),
    taint         INTEGER NOT NULL DEFAULT 0,
    wards         TEXT NOT NULL,                      -- JSON
    prompt_hash   TEXT REFERENCES prompts (hash),     -- of the newest request
    fold_refused  INTEGER NOT NULL DEFAULT 0,         -- turns for which a summary was of no use: asked again for twice as many
    bare          INTEGER NOT NULL DEFAULT 0,         -- 1: asked without what came since the last answer, which was refused
    state         TEXT NOT NULL CHECK (state IN ('running', 'terminated', 'truncated')),
    reason        TEXT,
    result        TEXT,
    started_at    TEXT NOT NULL,
    ended_at      TEXT
);
CREATE INDEX casts_by_branch ON casts (branch_id, seq);
CREATE INDEX casts_by_event ON casts (event_id);
CREATE INDEX casts_running ON casts (state) WHERE state = 'running';

-- One answer of a model, stored before its gates run (owner: loom). `provider_fields` go with anything
-- forgotten that was in view when they were made, for nobody can search them.
CREATE TABLE turns (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    cast_id         TEXT NOT NULL REFERENCES casts (id),
    parent_id       TEXT REFERENCES turns (id),
    entity_id       TEXT NOT NULL,
    utterance       TEXT NOT NULL,
    calls           TEXT NOT NULL,                    -- JSON list of {id, name, arguments}
    context_block   TEXT NOT NULL DEFAULT '',         -- stands behind the results of its calls
    finish_reason   TEXT NOT NULL,
    backend         TEXT NOT NULL,
    model           TEXT NOT NULL,
    sender          TEXT NOT NULL DEFAULT '',         -- a hash of backend, address and model
    provider_fields TEXT NOT NULL DEFAULT '',         -- JSON that this sender wants back with the calls
    prompt_hash     TEXT REFERENCES prompts (hash),
    tokens_in       INTEGER NOT NULL,
    tokens_out      INTEGER NOT NULL,
    tokens_cached   INTEGER NOT NULL,
    ms              INTEGER NOT NULL,
    waited_ms       INTEGER NOT NULL DEFAULT 0,       -- before its first token: that does not count
    error           TEXT,                             -- set: no answer came; the row is the record of that
    created_at      TEXT NOT NULL
);
CREATE INDEX turns_by_cast ON turns (cast_id, seq);
CREATE INDEX turns_with_fields ON turns (cast_id) WHERE provider_fields <> '';

-- One call of a gate, and its result (owner: loom).
CREATE TABLE observations (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id      TEXT NOT NULL REFERENCES turns (id),
    n            INTEGER NOT NULL,                    -- place of the call in its utterance, from 0
    gate         TEXT NOT NULL,
    args         TEXT,                                -- JSON
    result       TEXT,
    is_error     INTEGER NOT NULL DEFAULT 0,
    tool_call_id TEXT,
    via          TEXT NOT NULL CHECK (via IN ('call', 'tag')),
    state        TEXT NOT NULL CHECK (state IN ('started', 'completed')),
    started_at   TEXT NOT NULL,
    completed_at TEXT,
    UNIQUE (turn_id, n)
);

-- A summary that stands for the first turns of a branch in what the model sees (owner: loom). What was
-- looked up before `made_at` is shown no more.
CREATE TABLE folds (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    branch_id     TEXT NOT NULL REFERENCES branches (id),
    from_turn     TEXT NOT NULL REFERENCES turns (id),
    to_turn       TEXT NOT NULL REFERENCES turns (id),
    turns         INTEGER NOT NULL,                   -- it covers the path from the first to this one
    made_at       INTEGER NOT NULL,                   -- the newest turn's seq by then
    summary       TEXT NOT NULL,
    tokens_before INTEGER NOT NULL,
    tokens_after  INTEGER NOT NULL,
    night         TEXT NOT NULL DEFAULT '',           -- that made it; '': an answer needed it
    created_at    TEXT NOT NULL
);
CREATE INDEX folds_by_branch ON folds (branch_id, seq);
CREATE INDEX folds_of_nights ON folds (night) WHERE night <> '';

-- A reaction of a person to an answer, as a reward for its turn (owner: loom; X-026).
CREATE TABLE rewards (
    id         TEXT PRIMARY KEY,
    turn_id    TEXT NOT NULL REFERENCES turns (id),
    value      INTEGER NOT NULL CHECK (value IN (-1, 1)),
    sender     TEXT NOT NULL,
    event_id   TEXT UNIQUE,
    created_at TEXT NOT NULL
);

-- A message that a person worded anew (owner: loom).
CREATE TABLE edits (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id        TEXT NOT NULL UNIQUE,
    edited          TEXT NOT NULL,                    -- the event it changes
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    sender          TEXT NOT NULL,
    text            TEXT NOT NULL,
    created_at      TEXT NOT NULL
);
CREATE INDEX edits_by_message ON edits (edited, seq);
CREATE INDEX edits_of_conversation ON edits (conversation_id, seq);

-- A system message that a model was given, in parts: the minute in it changes often, the parts rarely
-- (owner: loom).
CREATE TABLE prompts (
    hash  TEXT PRIMARY KEY,
    parts TEXT NOT NULL                               -- JSON list of [name, hash of a prompt part], joined: the prompt
) WITHOUT ROWID;

-- A part of such messages (owner: loom).
CREATE TABLE prompt_parts (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;

-- Nothing of the loom is deleted, and nothing of it changes but for what a redaction blanks and what a cast
-- adds while it runs.
CREATE TRIGGER branches_no_delete BEFORE DELETE ON branches
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER casts_no_delete BEFORE DELETE ON casts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER turns_no_delete BEFORE DELETE ON turns
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER observations_no_delete BEFORE DELETE ON observations
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER folds_no_delete BEFORE DELETE ON folds
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER rewards_no_delete BEFORE DELETE ON rewards
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER edits_no_delete BEFORE DELETE ON edits
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompts_no_delete BEFORE DELETE ON prompts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompt_parts_no_delete BEFORE DELETE ON prompt_parts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER branches_no_change BEFORE UPDATE ON branches
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER rewards_no_change BEFORE UPDATE ON rewards
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompts_no_change BEFORE UPDATE ON prompts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompt_parts_no_change BEFORE UPDATE ON prompt_parts WHEN NEW.hash IS NOT OLD.hash OR NEW.text IS NOT ''
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER edits_no_change BEFORE UPDATE ON edits
WHEN NOT (NEW.seq IS OLD.seq AND NEW.event_id IS OLD.event_id AND NEW.edited IS OLD.edited
    AND NEW.conversation_id IS OLD.conversation_id AND NEW.sender IS OLD.sender
    AND NEW.created_at IS OLD.created_at AND NEW.text IS '')
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER casts_no_change BEFORE UPDATE ON casts
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.event_id IS OLD.event_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.origin IS OLD.origin AND NEW.wards IS OLD.wards
    AND NEW.started_at IS OLD.started_at
    AND (NEW.context_block IN (OLD.context_block, '') OR OLD.state = 'running')
    AND (NEW.fold_refused IS OLD.fold_refused OR OLD.state = 'running')
    AND (NEW.bare IS OLD.bare OR OLD.state = 'running' AND NEW.bare IS 1)
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
        -- running or ended: less of what was said before its message or of what this replies to, for a redaction
        OR (NEW.state IS OLD.state AND NEW.reason IS OLD.reason AND NEW.result IS OLD.result
            AND NEW.ended_at IS OLD.ended_at AND NEW.taint IS OLD.taint AND NEW.prompt_hash IS OLD.prompt_hash
            AND ((length(NEW.intent) < length(OLD.intent) AND instr(OLD.intent, '<room_context>') > 0
                AND instr(OLD.intent, '</room_context>') > 0
                AND substr(NEW.intent, 1, instr(OLD.intent, '<room_context>') + 14)
                    IS substr(OLD.intent, 1, instr(OLD.intent, '<room_context>') + 14)
                AND substr(NEW.intent, instr(NEW.intent, '</room_context>'))
                    IS substr(OLD.intent, instr(OLD.intent, '</room_context>')))
              OR (instr(OLD.intent, '<replied_to>') > 0 AND instr(OLD.intent, '</replied_to>') > 0
                AND NEW.intent IS substr(OLD.intent, 1, instr(OLD.intent, '<replied_to>') + 12)
                    || '[deleted]' || char(10) || substr(OLD.intent, instr(OLD.intent, '</replied_to>')))))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER turns_no_change BEFORE UPDATE ON turns
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.cast_id IS OLD.cast_id AND NEW.parent_id IS OLD.parent_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.finish_reason IS OLD.finish_reason AND NEW.backend IS OLD.backend
    AND NEW.model IS OLD.model AND NEW.tokens_in IS OLD.tokens_in AND NEW.tokens_out IS OLD.tokens_out
    AND NEW.tokens_cached IS OLD.tokens_cached AND NEW.ms IS OLD.ms AND NEW.created_at IS OLD.created_at
    AND NEW.prompt_hash IS OLD.prompt_hash AND NEW.waited_ms IS OLD.waited_ms AND NEW.sender IS OLD.sender
    AND NEW.provider_fields IN (OLD.provider_fields, '')
    AND ( -- a redaction; or a block while its cast runs, which may go at any time, and so may the fields
        (NEW.utterance IS '' AND NEW.calls IS '[]' AND NEW.context_block IN (OLD.context_block, '')
            AND (NEW.error IS OLD.error OR (OLD.error IS NOT NULL AND NEW.error IS '')))
        OR (NEW.utterance IS OLD.utterance AND NEW.calls IS OLD.calls AND NEW.error IS OLD.error
            AND (NEW.context_block, NEW.provider_fields) IS NOT (OLD.context_block, OLD.provider_fields)
            AND (NEW.context_block IN (OLD.context_block, '')
                OR EXISTS (SELECT 1 FROM casts WHERE id = NEW.cast_id AND state = 'running')))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER observations_no_change BEFORE UPDATE ON observations
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
CREATE TRIGGER folds_no_change BEFORE UPDATE ON folds
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.from_turn IS OLD.from_turn
    AND NEW.to_turn IS OLD.to_turn AND NEW.created_at IS OLD.created_at AND NEW.tokens_before IS OLD.tokens_before
    AND NEW.tokens_after IS OLD.tokens_after AND NEW.turns IS OLD.turns AND NEW.made_at IS OLD.made_at
    AND NEW.night IS OLD.night AND NEW.summary IS ''
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

-- Work that is handed out or owed ------------------------------------------------------------------------

-- A sub-session: work that a turn handed out (owner: loom).
CREATE TABLE sub_sessions (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,             -- 'sub_' and 8 hex digits
    blocking        INTEGER NOT NULL,                 -- 1: its parent's cast waits for it, and ends it
    conversation_id TEXT NOT NULL REFERENCES conversations (id),   -- its own
    branch_id       TEXT NOT NULL REFERENCES branches (id),
    cast_id         TEXT REFERENCES casts (id),       -- NULL until it starts
    parent_cast     TEXT NOT NULL REFERENCES casts (id),
    parent_turn     TEXT NOT NULL REFERENCES turns (id),
    n               INTEGER NOT NULL,                 -- which call of that turn,
    item            INTEGER NOT NULL,                 -- and which item of a batch
    parent          TEXT REFERENCES sub_sessions (id),   -- the sub-session it belongs to; NULL: the room
    room            TEXT NOT NULL REFERENCES conversations (id),
    room_turn       TEXT NOT NULL REFERENCES turns (id),   -- the turn of the room below which it hangs
    root_event      TEXT,                             -- the inbox row that the room's cast answers
    workflow        TEXT NOT NULL,                    -- the same for all that dependencies connect
    name            TEXT,
    objective       TEXT NOT NULL,
    context         TEXT NOT NULL,
    mode            TEXT NOT NULL,
    tools           TEXT NOT NULL,                    -- JSON list of names
    role            TEXT NOT NULL,
    backend         TEXT,
    wards           TEXT NOT NULL,                    -- JSON
    depth           INTEGER NOT NULL,                 -- levels of sub-sessions that may be below it
    scope           TEXT NOT NULL,
    origin          TEXT NOT NULL,
    not_before      TEXT,
    missing         INTEGER NOT NULL,                 -- how many it depends on are not done yet
    held            INTEGER NOT NULL,                 -- 1: the turn that spawned it may yet spawn what depends on it
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

-- One sub-session that waits for another (owner: loom).
CREATE TABLE sub_session_edges (
    depends_on TEXT NOT NULL REFERENCES sub_sessions (id),
    node       TEXT NOT NULL REFERENCES sub_sessions (id),
    PRIMARY KEY (depends_on, node)
) WITHOUT ROWID;
CREATE INDEX sub_session_edges_by_node ON sub_session_edges (node);

-- Work in the background that is owed until it is done (owner: jobs).
CREATE TABLE jobs (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    scope      TEXT NOT NULL DEFAULT '',
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    args       TEXT NOT NULL DEFAULT '{}',            -- JSON
    progress   TEXT NOT NULL DEFAULT '{}',            -- JSON: where to go on
    attempts   INTEGER NOT NULL DEFAULT 0,            -- that ended with the same error
    failures   INTEGER NOT NULL DEFAULT 0,            -- in a row, with whatever error
    crashes    INTEGER NOT NULL DEFAULT 0,            -- that interrupted it
    last_error TEXT,
    not_before TEXT,
    waits_for  TEXT NOT NULL DEFAULT '',              -- in words; '': nothing but its time
    created_at TEXT NOT NULL,
    ended_at   TEXT,
    UNIQUE (name, key)
);
CREATE INDEX jobs_by_state ON jobs (name, state, scope);

-- A goal, a reminder or a scheduled action (owner: tasks).
CREATE TABLE tasks (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,             -- task_ and 8 hex digits
    scope           TEXT NOT NULL,                    -- or 'global'
    conversation_id TEXT REFERENCES conversations (id),   -- where it was made; NULL: on the command line
    content         TEXT NOT NULL,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10),
    mode            TEXT NOT NULL DEFAULT 'reminder'
        CHECK (mode IN ('reminder', 'autonomous_notify', 'autonomous_silent')),
    ai_prompt       TEXT NOT NULL DEFAULT '',
    schedule        TEXT,                             -- JSON; NULL: it is never due
    zone            TEXT NOT NULL DEFAULT '',         -- in which rule_due was computed
    rule_due        TEXT,                             -- the next moment of its schedule
    snoozed         TEXT,                             -- a moment beside the schedule
    next_due        TEXT GENERATED ALWAYS AS
        (min(coalesce(rule_due, snoozed), coalesce(snoozed, rule_due))) VIRTUAL,
    held            INTEGER NOT NULL DEFAULT 0,       -- 1: due, but there is no room for it now
    failures        INTEGER NOT NULL DEFAULT 0,       -- of its runs, in a row
    status          TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'deleted')),
    status_before   TEXT,                             -- of a deleted task: what it was, for its restoration
    reason          TEXT NOT NULL DEFAULT '',         -- why it was completed
    made_by         TEXT NOT NULL DEFAULT '',         -- the cause of the change that made it: a person's is theirs to end (T-058)
    origins         TEXT NOT NULL DEFAULT '[]',       -- JSON list: the events that asked for it
    created_at      TEXT NOT NULL,
    changed_at      TEXT NOT NULL
);
CREATE INDEX tasks_in_order ON tasks (status, priority, seq, scope);
CREATE INDEX tasks_due ON tasks (next_due, seq) WHERE status = 'active' AND held = 0 AND next_due IS NOT NULL;
CREATE INDEX tasks_held ON tasks (seq) WHERE held = 1;

-- One due moment of a task, claimed before it is acted upon (owner: tasks).
CREATE TABLE occurrences (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id         TEXT NOT NULL REFERENCES tasks (id),
    due_at          TEXT NOT NULL,
    mode            TEXT NOT NULL,                    -- as the task was when it fell due,
    content         TEXT NOT NULL,                    -- frozen with it
    state           TEXT NOT NULL CHECK (state IN ('claimed', 'done', 'failed', 'missed')),
    missed          INTEGER NOT NULL DEFAULT 0,       -- due moments of a time when we were away, this one among them
    conversation_id TEXT NOT NULL REFERENCES conversations (id),   -- where it is said
    outbox_id       TEXT,                             -- the message that says it
    cast_id         TEXT REFERENCES casts (id),       -- of a run that has begun
    not_before      TEXT,                             -- a run that was put off: until this second of the monotonic clock
    interruptions   INTEGER NOT NULL DEFAULT 0,
    answers         TEXT NOT NULL DEFAULT '',         -- the reactions that were followed, each once
    result          TEXT NOT NULL DEFAULT '',         -- of a run, or why it failed
    claimed_at      TEXT NOT NULL,
    ended_at        TEXT,
    UNIQUE (task_id, due_at)
);
CREATE UNIQUE INDEX occurrences_claimed ON occurrences (task_id) WHERE state = 'claimed';   -- one of a task at a time
CREATE INDEX occurrences_by_outbox ON occurrences (outbox_id) WHERE outbox_id IS NOT NULL;
CREATE INDEX occurrences_delivered ON occurrences (conversation_id, iif(mode = 'reminder', claimed_at, ended_at))
    WHERE outbox_id IS NOT NULL;

-- Memory -----------------------------------------------------------------------------------------------

-- One atomic memory (owner: memory). Retired is what waits for its end (30 days of undo), ended what has
-- stopped being true (M-074).
CREATE TABLE facts (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,    -- the strict order of what is equally old (M-003)
    id          TEXT NOT NULL UNIQUE,
    scope       TEXT NOT NULL,
    text        TEXT NOT NULL,                        -- one line
    key         TEXT NOT NULL,                        -- the text whatever its case and spacing: equal facts are one (M-007)
    source      TEXT NOT NULL CHECK (source IN ('user_explicit', 'harvest', 'dreaming_merge')),
    speaker     TEXT,                                 -- who said it, where that is known
    taint       INTEGER NOT NULL DEFAULT 0,
    protected   INTEGER NOT NULL DEFAULT 0,           -- 1: the person's own words, or made of such in any generation
    origins     TEXT NOT NULL DEFAULT '[]',           -- JSON list: events, turns, changes it was learnt from
    place       INTEGER NOT NULL DEFAULT 0,           -- unique in its scope; those of one conversation follow each other
    place_before INTEGER,                             -- where it stood before it was merged, which it goes back to
    created_at  TEXT NOT NULL,                        -- of an imported fact: its own age (M-067)
    stored_at   TEXT NOT NULL,                        -- since when it is here, or here again
    said_at     TEXT,                                 -- when it was last said; NULL: when it was created
    valid_from  TEXT NOT NULL,
    valid_to    TEXT,                                 -- until when it was true; NULL: it still is
    ended       INTEGER NOT NULL DEFAULT 0,           -- 1 once valid_to has passed: in no prompt, list or file
    retired_at  TEXT,                                 -- NULL while it is kept
    retired_by  TEXT,                                 -- the cause of that; 'edit': its line was removed by hand
    replaced_by TEXT,                                 -- the fact that took its place
    once_replaced_by TEXT,                            -- and that an undo took away again: there again if that is undone (M-076)
    archived    INTEGER NOT NULL DEFAULT 0,           -- 1: not used for long, so only found by who looks for it (M-060)
    examined    INTEGER NOT NULL DEFAULT 0,           -- 1: its neighbours were looked at since it says what it says
    queued      INTEGER NOT NULL DEFAULT 0,           -- 1: it is still to be brought together with the others of its scope
    exported    INTEGER NOT NULL DEFAULT 0,           -- 1 while MEMORIES.txt has its line; 2 while it has another spelling
    retained    INTEGER NOT NULL DEFAULT 0,           -- 1: missing in a file that was saved, and kept; 2: the owner knows
    accesses    INTEGER NOT NULL DEFAULT 0,
    accessed_at TEXT
);
CREATE UNIQUE INDEX facts_places ON facts (scope, place);
CREATE UNIQUE INDEX facts_live ON facts (scope, key) WHERE retired_at IS NULL AND NOT ended;
CREATE INDEX facts_newest ON facts (scope, created_at, seq) WHERE retired_at IS NULL;
CREATE INDEX facts_retired ON facts (retired_at) WHERE retired_at IS NOT NULL;
CREATE INDEX facts_ending ON facts (valid_to) WHERE valid_to IS NOT NULL AND NOT ended;
CREATE INDEX facts_replaced ON facts (replaced_by) WHERE replaced_by IS NOT NULL;
CREATE INDEX facts_unwritten ON facts (scope) WHERE exported <> (retired_at IS NULL AND NOT ended);
CREATE INDEX facts_retained ON facts (seq) WHERE retained = 1;
CREATE INDEX facts_queued ON facts (scope, taint, seq) WHERE queued;
CREATE INDEX facts_archived ON facts (scope, seq) WHERE archived;
CREATE INDEX facts_unexamined ON facts (scope, examined, seq)
    WHERE examined <> 1 AND retired_at IS NULL AND NOT ended;
CREATE INDEX facts_places_before ON facts (scope, place_before) WHERE place_before IS NOT NULL;

-- The words of all facts that are kept (owner: memory). Derived: rebuilt whenever it is not what the rows
-- say. `scope` is one token, so that a search reads the rows of its scope only.
CREATE VIRTUAL TABLE facts_fts USING fts5 (
    scope, words, detail = column, tokenize = "unicode61 remove_diacritics 2"
);

-- A model of meaning, by its size (owner: memory).
CREATE TABLE embedding_spaces (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    model     TEXT NOT NULL,
    dimension INTEGER NOT NULL,
    same      REAL,                                   -- likeness from which texts say the same; NULL: nobody knows
    related   REAL,
    floor     REAL,                                   -- under it a likeness means nothing
    local     INTEGER NOT NULL DEFAULT 0,             -- 1 once every fact had its vectors in fact_vectors
    qdrant    INTEGER NOT NULL DEFAULT 0,             -- the same of the collection
    UNIQUE (model, dimension)
);

-- The meaning of a chunk of a fact, as plain numbers that any installation can open and erase (owner: memory).
CREATE TABLE fact_vectors (
    id     INTEGER PRIMARY KEY,
    seq    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    space  INTEGER NOT NULL REFERENCES embedding_spaces (id) ON DELETE CASCADE,
    chunk  INTEGER NOT NULL,                          -- a long text has several, from 0
    scope  TEXT NOT NULL,
    digest BLOB NOT NULL,                             -- of the text that was embedded
    vector BLOB,                                      -- signed bytes; NULL: a text without a word
    bits   BLOB,                                      -- the sign of each number of the vector
    UNIQUE (seq, space, chunk)
);
CREATE INDEX facts_vec ON fact_vectors (space, scope, seq, bits);   -- all that the first look of a search reads

-- A chunk that a Qdrant server has, or may have (owner: memory): no vector, no text.
CREATE TABLE qdrant_points (
    point  TEXT PRIMARY KEY,
    seq    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    space  INTEGER NOT NULL REFERENCES embedding_spaces (id) ON DELETE CASCADE,
    chunk  INTEGER NOT NULL,
    digest BLOB NOT NULL,
    sent   INTEGER NOT NULL DEFAULT 0,                -- 0: perhaps it has arrived
    UNIQUE (seq, chunk)
) WITHOUT ROWID;
CREATE INDEX qdrant_points_by_space ON qdrant_points (space, seq);

-- A point that must leave the server (owner: memory).
CREATE TABLE qdrant_gone (point TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TRIGGER qdrant_points_gone AFTER DELETE ON qdrant_points
BEGIN INSERT INTO qdrant_gone VALUES (OLD.point) ON CONFLICT DO NOTHING; END;

-- Whoever retires, ends or rewords a fact need not think of its vectors, of its neighbours, or of its place.
CREATE TRIGGER facts_mean_something_else AFTER UPDATE OF text, retired_at, ended ON facts
WHEN NEW.retired_at IS NOT NULL OR NEW.ended OR NEW.text IS NOT OLD.text
BEGIN
    DELETE FROM fact_vectors WHERE seq = OLD.seq;
    DELETE FROM qdrant_points WHERE seq = OLD.seq;
END;
CREATE TRIGGER facts_say_something_else AFTER UPDATE OF text, retired_at, ended ON facts
WHEN NEW.examined AND (NEW.text IS NOT OLD.text OR NEW.retired_at IS NULL AND OLD.retired_at IS NOT NULL
                       OR NOT NEW.ended AND OLD.ended)
BEGIN
    UPDATE facts SET examined = 0 WHERE seq = NEW.seq;
END;
-- When a fact is back, it stands where it stood, and whoever stands there by then goes where it was
-- meanwhile; so do those that gave these places away later, once they are back.
CREATE TRIGGER facts_stand_where_they_stood AFTER UPDATE OF retired_at, ended ON facts
WHEN NEW.place_before IS NOT NULL AND NEW.retired_at IS NULL AND NOT NEW.ended
     AND (OLD.retired_at IS NOT NULL OR OLD.ended)
BEGIN
    UPDATE facts SET place = -1 WHERE seq = NEW.seq;
    UPDATE facts SET place = NEW.place WHERE scope = NEW.scope AND place = NEW.place_before;
    UPDATE facts SET place = NEW.place_before, place_before = NULL WHERE seq = NEW.seq;
    UPDATE facts SET place_before = iif(place_before = NEW.place, NEW.place_before, NEW.place)
    WHERE scope = NEW.scope AND place_before IN (NEW.place, NEW.place_before)
        AND coalesce(retired_at, valid_to) > coalesce(OLD.retired_at, OLD.valid_to);
END;

-- A fact that was found for a message, also one that was in view already: for /why, and for its use
-- (owner: memory; M-024).
CREATE TABLE recalled (
    cast_id TEXT NOT NULL REFERENCES casts (id),
    fact    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    place   INTEGER NOT NULL,                         -- 1: the best
    score   REAL NOT NULL,
    PRIMARY KEY (cast_id, fact)
) WITHOUT ROWID;
CREATE INDEX recalled_facts ON recalled (fact);

-- A scope whose memories file was looked at: a two-way view of the facts, or an export that nobody reads
-- (owner: memory; M-077).
CREATE TABLE memories_files (
    scope TEXT PRIMARY KEY,
    live  INTEGER NOT NULL                            -- 1: an edit there counts
) WITHOUT ROWID;

-- A line of the last versions of such a file, which are counted per scope (owner: memory).
CREATE TABLE file_lines (
    scope      TEXT NOT NULL,
    fact       INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,   -- a forgotten one is in no version
    added_in   INTEGER NOT NULL,                      -- the first version that has the line
    removed_in INTEGER,                               -- the first that has not; NULL: the newest has it
    by_us      INTEGER NOT NULL,                      -- 1: we wrote the line; 0: a person did
    PRIMARY KEY (fact, added_in)
) WITHOUT ROWID;
CREATE INDEX file_lines_by_scope ON file_lines (scope, removed_in);

-- A bullet of core.md that we wrote of our own, so that it may go again; its digest, for the words are in
-- the file (owner: memory).
CREATE TABLE unowned_bullets (
    scope  TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (scope, digest)
) WITHOUT ROWID;

-- How far a conversation was read for memories (owner: night).
CREATE TABLE harvests (
    conversation_id TEXT PRIMARY KEY REFERENCES conversations (id),
    upto            INTEGER NOT NULL,                 -- the last inbox row that was read,
    casts           INTEGER NOT NULL DEFAULT 0,       -- the newest cast then: what could be decrypted only later is newer,
    edits           INTEGER NOT NULL DEFAULT 0,       -- and the newest edit of older messages
    at              TEXT NOT NULL
) WITHOUT ROWID;

-- A message that is read once more for memories, as what was learnt from it and others was lost with the
-- others (owner: night; M-030).
CREATE TABLE harvest_repeats (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    event_id        TEXT NOT NULL,
    excluded        TEXT NOT NULL                     -- JSON: what people took back of it, unreadable: `memory.origins.gist` of each
);
CREATE INDEX harvest_repeats_by_conversation ON harvest_repeats (conversation_id, event_id);

-- The wiki -----------------------------------------------------------------------------------------------

-- A conversation that became pages, by a job in the wiki's folder `sleep` (owner: night).
CREATE TABLE consolidations (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    job             TEXT NOT NULL UNIQUE,
    conversation_id TEXT REFERENCES conversations (id),   -- NULL: a folder of messages
    raw             TEXT NOT NULL,                    -- the copy, as a path in the store
    upto            INTEGER NOT NULL DEFAULT 0,       -- how far it was read, as of harvests
    casts           INTEGER NOT NULL DEFAULT 0,
    edits           INTEGER NOT NULL DEFAULT 0,
    night           TEXT NOT NULL DEFAULT '',         -- that made the pages; '': a person asked for them
    change_set_id   TEXT,
    settled         INTEGER NOT NULL DEFAULT 0,       -- 0 until the pages are known to be in place, or taken back
    at              TEXT NOT NULL
);
CREATE INDEX consolidations_of_conversation ON consolidations (conversation_id, seq);
CREATE INDEX consolidations_open ON consolidations (seq) WHERE NOT settled;

-- An event, and the file of a raw copy that goes with it (owner: night; M-030).
CREATE TABLE raw_messages (
    event_id      TEXT NOT NULL,
    path          TEXT NOT NULL,
    consolidation INTEGER NOT NULL REFERENCES consolidations (seq) ON DELETE CASCADE,
    PRIMARY KEY (event_id, path)
) WITHOUT ROWID;
CREATE INDEX raw_messages_of_job ON raw_messages (consolidation);

-- A line of a page, by its digest, and the event or raw copy that it came from (owner: wiki).
CREATE TABLE page_lines (
    path   TEXT NOT NULL,
    line   TEXT NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (path, line, source)
) WITHOUT ROWID;
CREATE INDEX page_lines_of_source ON page_lines (source);

-- Changes and nights ---------------------------------------------------------------------------------------

-- Changes that were made together, to be undone together (owner: changes).
CREATE TABLE change_sets (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    cause      TEXT NOT NULL CHECK (cause IN ('night', 'consolidation', 'harvest', 'reconstruction',
                                              'undo', 'import', 'edit', 'tool', 'command')),
    scope      TEXT NOT NULL,
    cast_id    TEXT REFERENCES casts (id),
    undoes     TEXT REFERENCES change_sets (id),
    answers    TEXT NOT NULL DEFAULT '',              -- the question of a night that a person said yes to by it
    summary    TEXT NOT NULL DEFAULT '',
    key        TEXT UNIQUE,                           -- the command that made it: said twice, it is found again
    created_at TEXT NOT NULL
);
CREATE INDEX change_sets_by_scope ON change_sets (scope, seq);
CREATE INDEX change_sets_undoing ON change_sets (undoes) WHERE undoes IS NOT NULL;

-- One item of a change set (owner: changes).
CREATE TABLE changes (
    change_set_id TEXT NOT NULL REFERENCES change_sets (id),
    n             INTEGER NOT NULL,
    kind          TEXT NOT NULL,                      -- fact, core, skill, task, page
    item          TEXT NOT NULL,
    before        TEXT,                               -- JSON; NULL = did not exist
    after         TEXT,                               -- JSON; NULL = gone
    evidence      TEXT NOT NULL DEFAULT '[]',         -- JSON list of event, turn or change ids
    decision      INTEGER,                            -- `decisions.seq`: what it did
    placed        INTEGER NOT NULL DEFAULT 1,         -- 0 while a file may not be in place
    PRIMARY KEY (change_set_id, n)
) WITHOUT ROWID;
CREATE INDEX changes_by_item ON changes (kind, item);
CREATE INDEX changes_by_decision ON changes (decision) WHERE decision IS NOT NULL;
CREATE INDEX changes_unplaced ON changes (change_set_id, n) WHERE NOT placed;

-- One run of the nightly jobs (owner: night). An id is the local date, `20260504`, with `-2` and so on for
-- more of one day.
CREATE TABLE nights (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    date        TEXT NOT NULL,
    why         TEXT NOT NULL CHECK (why IN ('schedule', 'late', 'asked', 'command')),
    scope       TEXT NOT NULL DEFAULT '',             -- that it was asked to be about alone; '': all
    phase       TEXT NOT NULL DEFAULT '',             -- likewise
    state       TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped')),
    calls       INTEGER NOT NULL DEFAULT 0,
    tokens      INTEGER NOT NULL DEFAULT 0,
    usd         REAL NOT NULL DEFAULT 0,
    began_at    TEXT NOT NULL,
    ended_at    TEXT,
    reported_at TEXT                                  -- when the owner got the report, or need not
);
CREATE UNIQUE INDEX nights_once ON nights (date) WHERE why IN ('schedule', 'late');

-- What a phase of a night did in a scope (owner: night). It goes with what can no longer be undone.
CREATE TABLE night_phases (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    night        TEXT NOT NULL REFERENCES nights (id),
    scope        TEXT NOT NULL,
    name         TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'ok', 'failed', 'left')),
    before       INTEGER NOT NULL DEFAULT 0,
    after        INTEGER NOT NULL DEFAULT 0,
    note         TEXT NOT NULL DEFAULT '',
    tries        INTEGER NOT NULL DEFAULT 1,          -- how often it was begun
    calls        INTEGER NOT NULL DEFAULT 0,          -- of the last of these
    UNIQUE (night, scope, name)
);

-- A change that is wanted (owner: changes): by a night, under its number, or by what found it. One that waits
-- for an answer is open; one that is planned is applied, or becomes a question, before its night is over.
CREATE TABLE decisions (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    night      TEXT REFERENCES nights (id),           -- NULL until a night asks about it
    n          INTEGER,
    scope      TEXT NOT NULL,
    phase      TEXT NOT NULL DEFAULT '',
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('planned', 'done', 'open', 'refused', 'outdated')),
    before     TEXT NOT NULL DEFAULT '[]',
    after      TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',
    evidence   TEXT NOT NULL DEFAULT '[]',
    plan       TEXT NOT NULL DEFAULT '{}',            -- JSON: what applying it does
    loses      INTEGER NOT NULL DEFAULT 0,            -- facts of its scope that go by it
    digest     TEXT NOT NULL DEFAULT '',              -- of what is asked: it is not asked twice
    change_set TEXT,
    at         TEXT NOT NULL,
    UNIQUE (night, n)
);
CREATE INDEX decisions_open ON decisions (scope, seq) WHERE state = 'open';

-- A decision with what it changed, as kind and id; undone once an undo has all of it.
CREATE VIEW answered_decisions AS
SELECT d.seq, coalesce(d.night, '') AS night, coalesce(d.n, 0) AS n, d.scope, d.phase, d.kind,
    iif(d.state = 'done' AND EXISTS (SELECT 1 FROM changes WHERE decision = d.seq) AND NOT EXISTS (
        SELECT 1 FROM changes c WHERE c.decision = d.seq AND NOT EXISTS (
            SELECT 1 FROM change_sets s JOIN changes u ON u.change_set_id = s.id
            WHERE s.undoes = c.change_set_id AND (u.kind, u.item) = (c.kind, c.item))),
        'undone', d.state) AS state,
    d.before, d.after, d.reason, d.evidence, d.plan, d.loses, d.digest, d.change_set, d.at,
    (SELECT json_group_array(json_array(kind, item)) FROM changes WHERE decision = d.seq) AS names
FROM decisions d;

-- A scope that has its report of a night (owner: night): its people by a message, which may ask for a yes to
-- one item alone (`asks`), and the model with the message `event_id` of a person.
CREATE TABLE night_reports_sent (
    night     TEXT NOT NULL REFERENCES nights (id),
    scope     TEXT NOT NULL,
    outbox_id TEXT,
    asks      INTEGER,
    event_id  TEXT,
    PRIMARY KEY (night, scope)
) WITHOUT ROWID;
CREATE INDEX night_reports_sent_by_outbox ON night_reports_sent (outbox_id) WHERE outbox_id IS NOT NULL;

-- A question that a model or a person had, by a digest of all that was shown: it is not asked again until one
-- side of it is another (owner: night).
CREATE TABLE examined (
    scope  TEXT NOT NULL,
    digest TEXT NOT NULL,
    at     TEXT NOT NULL,
    PRIMARY KEY (scope, digest)
) WITHOUT ROWID;

-- Models -------------------------------------------------------------------------------------------------

-- What is known of a model at an address (owner: llm).
CREATE TABLE models (
    model             TEXT NOT NULL,
    base_url          TEXT NOT NULL,
    text_tool_calls   TEXT,                           -- since when it is known to write its calls as text
    thinks_aloud      TEXT,                           -- the same: it ends reasoning which it never began (F-020)
    estimated         REAL NOT NULL DEFAULT 0,        -- tokens of its requests, with earlier ones counting less,
    reported          REAL NOT NULL DEFAULT 0,        -- and how many of them its server counted
    PRIMARY KEY (model, base_url)
) WITHOUT ROWID;

-- One attempt to have an answer of a model (owner: llm). The bodies are there only while recording is on.
CREATE TABLE model_calls (
    id            TEXT PRIMARY KEY,
    cast_id       TEXT,
    role          TEXT NOT NULL,
    backend       TEXT NOT NULL,
    model         TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    outcome       TEXT NOT NULL,                      -- ok, or the problem in one word
    detail        TEXT NOT NULL DEFAULT '',
    tokens_in     INTEGER NOT NULL DEFAULT 0,
    tokens_out    INTEGER NOT NULL DEFAULT 0,
    tokens_cached INTEGER NOT NULL DEFAULT 0,
    usd           REAL NOT NULL DEFAULT 0,
    ms            INTEGER NOT NULL,
    request       TEXT,
    answer        TEXT,
    sources       TEXT,                               -- JSON list: events and facts that a question of our own is made of,
                                                      -- so that it goes when one of them is forgotten (M-030)
    created_at    TEXT NOT NULL
);
CREATE INDEX model_calls_by_day ON model_calls (created_at);
CREATE INDEX model_calls_by_cast ON model_calls (cast_id);
CREATE INDEX model_calls_of_record ON model_calls (cast_id) WHERE request IS NOT NULL OR detail <> '';
CREATE INDEX model_calls_sources ON model_calls (sources) WHERE sources IS NOT NULL;

-- The worst that a call can cost, reserved before it is made (owner: llm).
CREATE TABLE reservations (
    id         TEXT PRIMARY KEY,
    call_id    TEXT,
    day        TEXT NOT NULL,                         -- YYYY-MM-DD in the configured zone
    role       TEXT NOT NULL,
    backend    TEXT NOT NULL,
    tokens     INTEGER NOT NULL,
    usd        REAL NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL
);
CREATE INDEX reservations_by_day ON reservations (day);

-- The state of the program ---------------------------------------------------------------------------------

-- A part of the program that works, or does not (owner: health).
CREATE TABLE health (
    part       TEXT PRIMARY KEY,
    state      TEXT NOT NULL CHECK (state IN ('ok', 'warn', 'fail')),
    detail     TEXT NOT NULL,
    since      TEXT NOT NULL,
    updated_at TEXT NOT NULL
) WITHOUT ROWID;

-- A value that there is one of: a counter, the place in the sync stream up to which all is in the inbox, the last
-- reading of the clock (owner: db, for the part that reads it).
CREATE TABLE single_values (
    name  TEXT PRIMARY KEY,
    value NOT NULL                                    -- a number that is counted, or JSON
) WITHOUT ROWID;

-- A file that people edit: how it was when it could last be used (owner: health).
CREATE TABLE edited_files (
    name     TEXT PRIMARY KEY,                        -- as prompt and tools call it: 'data/core.md'
    text     TEXT,                                    -- NULL where something else keeps it, as facts do
    notified INTEGER NOT NULL DEFAULT 0               -- 1: the owner knows that it cannot be used
) WITHOUT ROWID;

-- A part of the prompt that is too long, which people in its scope know (owner: prompt).
CREATE TABLE oversize (
    scope       TEXT NOT NULL,
    component   TEXT NOT NULL CHECK (component IN ('memories', 'tasks', 'skills')),
    size        INTEGER NOT NULL,                     -- characters at the last notice
    notified_at TEXT NOT NULL,
    PRIMARY KEY (scope, component)
) WITHOUT ROWID;

-- Matrix: keys, devices, copies ----------------------------------------------------------------------------

-- An allowed person whose cross-signing identity was seen (owner: matrix).
CREATE TABLE people (
    user_id     TEXT PRIMARY KEY,
    master_key  TEXT NOT NULL,                        -- of that identity: the first one, or one that was trusted since
    changed_to  TEXT,                                 -- the homeserver's now, if it is another: a master key,
                                                      -- or '' for none at all or not a sound one
    notified    TEXT,                                 -- the change that they know of
    verified    TEXT,                                 -- the master key with which they compared emojis with us
    ours        TEXT,                                 -- and our own master key then
    seen_at     TEXT NOT NULL,
    changed_at  TEXT
) WITHOUT ROWID;

-- A device with a signature of its person: once seen it stays, for what the device sent (owner: matrix).
CREATE TABLE signed_devices (
    user_id     TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    ed25519     TEXT NOT NULL,
    curve25519  TEXT NOT NULL,
    master_key  TEXT NOT NULL,                        -- of the identity that signed it
    seen_at     TEXT NOT NULL,
    PRIMARY KEY (user_id, ed25519, curve25519, master_key)
) WITHOUT ROWID;

-- A verification by comparing emojis; it stays for a day after its end (owner: matrix).
CREATE TABLE verifications (
    txn_id      TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    room_id     TEXT NOT NULL,                        -- '': between devices
    phase       TEXT NOT NULL,
    shown       TEXT NOT NULL DEFAULT '',             -- what is to be compared
    code        TEXT NOT NULL DEFAULT '',             -- why it was cancelled
    began_at    TEXT NOT NULL,
    changed_at  TEXT NOT NULL,
    PRIMARY KEY (user_id, txn_id)
) WITHOUT ROWID;

-- An encryption session and the device that made it: seen once, it stays so, also when the device is gone
-- (owner: matrix).
CREATE TABLE session_owners (
    room_id    TEXT NOT NULL,
    sender_key TEXT NOT NULL,                         -- Curve25519 key of the device
    session_id TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    device_id  TEXT NOT NULL,
    ed25519    TEXT NOT NULL,
    PRIMARY KEY (room_id, sender_key, session_id)
) WITHOUT ROWID;

-- An encrypted message that came in, so that it does not come again under another id (owner: matrix).
CREATE TABLE seen_messages (
    message  BLOB PRIMARY KEY,                        -- 16 bytes for its sender key, session and index in it
    event_id TEXT NOT NULL
) WITHOUT ROWID;

-- A key that somebody's client does not give us, by its own word; anybody could have written it: it names a
-- cause, no more (owner: matrix).
CREATE TABLE withheld_keys (
    sender      TEXT NOT NULL,
    room_id     TEXT NOT NULL,                        -- '' with m.no_olm, which is of all sessions of a device
    session_id  TEXT NOT NULL,                        -- likewise
    sender_key  TEXT NOT NULL,
    code        TEXT NOT NULL,
    received_at TEXT NOT NULL,
    PRIMARY KEY (sender, room_id, session_id, sender_key)
) WITHOUT ROWID;

-- A number that we left at the homeserver, so that data that went back are noticed (owner: matrix; F-009).
CREATE TABLE epochs (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    device_id TEXT NOT NULL,
    value     TEXT NOT NULL,                          -- the newest may not have reached the homeserver
    UNIQUE (device_id, value)
);

-- A time when these data were found to be an earlier copy of what was used since (owner: matrix; F-009).
CREATE TABLE rollbacks (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    evidence   TEXT NOT NULL UNIQUE,                  -- the homeserver's value, or a message of ours that we do not know
    since      TEXT,                                  -- when these data were last in use; NULL: never, or another copy runs
    noticed_at TEXT NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0             -- 1: all that was said meanwhile is known, and the rooms know
);

-- The web door ---------------------------------------------------------------------------------------------

-- A browser that is logged in (owner: web). A rollback that is newer, or another token, ends its session.
CREATE TABLE web_sessions (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    hash     TEXT NOT NULL UNIQUE,                    -- of its cookie
    token    TEXT NOT NULL,                           -- the hash of the token of that time
    rollback INTEGER NOT NULL,                        -- the newest that was known then
    made_at  TEXT NOT NULL,
    used_at  TEXT NOT NULL
);

-- A login address (owner: web).
CREATE TABLE web_links (
    hash     TEXT PRIMARY KEY,
    rollback INTEGER NOT NULL,
    made_at  TEXT NOT NULL,
    used_at  TEXT                                     -- NULL: not yet
) WITHOUT ROWID;
