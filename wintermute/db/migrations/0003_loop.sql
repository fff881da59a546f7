-- Each turn names the prompt it was asked with; prompts are kept in parts, for the minute in them
-- makes each a new one while its parts rarely change (owner: loom) -------------------------------

CREATE TABLE prompt_parts (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;
ALTER TABLE prompts ADD COLUMN parts TEXT NOT NULL DEFAULT '';   -- JSON list of [name, hash], joined: the prompt; '': see text
ALTER TABLE turns ADD COLUMN prompt_hash TEXT REFERENCES prompts (hash);

CREATE TRIGGER prompt_parts_stay BEFORE DELETE ON prompt_parts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER prompt_parts_fixed BEFORE UPDATE ON prompt_parts WHEN NEW.hash IS NOT OLD.hash OR NEW.text IS NOT ''
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
DROP TRIGGER prompts_fixed;
CREATE TRIGGER prompts_fixed BEFORE UPDATE ON prompts
WHEN NEW.hash IS NOT OLD.hash OR NEW.text IS NOT '' OR NEW.parts IS NOT OLD.parts
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
DROP TRIGGER turns_fixed;
CREATE TRIGGER turns_fixed BEFORE UPDATE ON turns
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.cast_id IS OLD.cast_id AND NEW.parent_id IS OLD.parent_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.finish_reason IS OLD.finish_reason AND NEW.backend IS OLD.backend
    AND NEW.model IS OLD.model AND NEW.tokens_in IS OLD.tokens_in AND NEW.tokens_out IS OLD.tokens_out
    AND NEW.tokens_cached IS OLD.tokens_cached AND NEW.ms IS OLD.ms AND NEW.created_at IS OLD.created_at
    AND NEW.prompt_hash IS OLD.prompt_hash
    AND (NEW.error IS OLD.error OR (OLD.error IS NOT NULL AND NEW.error IS ''))
    AND NEW.utterance IS '' AND NEW.calls IS '[]'
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

-- A fold covers the turns of its path from the first to the `turns`-th --------------------------

ALTER TABLE folds ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER folds_fixed;
CREATE TRIGGER folds_fixed BEFORE UPDATE ON folds
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.from_turn IS OLD.from_turn
    AND NEW.to_turn IS OLD.to_turn AND NEW.created_at IS OLD.created_at AND NEW.tokens_before IS OLD.tokens_before
    AND NEW.tokens_after IS OLD.tokens_after AND NEW.turns IS OLD.turns AND NEW.summary IS ''
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

-- A sub-session is a conversation of its own, below the turn that asked for it ------------------

ALTER TABLE conversations ADD COLUMN parent_turn TEXT REFERENCES turns (id);
ALTER TABLE conversations ADD COLUMN outlives INTEGER NOT NULL DEFAULT 0;   -- 1: does not end with its parent's cast
CREATE INDEX conversations_by_parent ON conversations (parent_cast) WHERE parent_cast IS NOT NULL;

-- What people changed of what they had said (owner: loom) ---------------------------------------

CREATE TABLE edits (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id        TEXT NOT NULL UNIQUE,
    edited          TEXT NOT NULL,                 -- the event it changes
    conversation_id TEXT NOT NULL REFERENCES conversations (id),
    sender          TEXT NOT NULL,
    text            TEXT NOT NULL,
    created_at      TEXT NOT NULL
);
CREATE TRIGGER edits_stay BEFORE DELETE ON edits
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
CREATE TRIGGER edits_fixed BEFORE UPDATE ON edits
WHEN NOT (NEW.seq IS OLD.seq AND NEW.event_id IS OLD.event_id AND NEW.edited IS OLD.edited
    AND NEW.conversation_id IS OLD.conversation_id AND NEW.sender IS OLD.sender
    AND NEW.created_at IS OLD.created_at AND NEW.text IS '')
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

ALTER TABLE inbox ADD COLUMN edits TEXT;            -- the event whose text this row replaces
CREATE INDEX inbox_edits ON inbox (edits) WHERE edits IS NOT NULL;
