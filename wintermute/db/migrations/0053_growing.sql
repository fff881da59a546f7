-- Answers that grow, conversations in threads, and a model of one's own (X-023, X-036, X-042, X-048).

ALTER TABLE outbox ADD COLUMN grows TEXT;            -- a draft: the message it is for, as first written; kind 'event'
ALTER TABLE outbox ADD COLUMN continues TEXT;        -- the row whose event has this text from now on, by an edit
ALTER TABLE outbox ADD COLUMN edits_of TEXT;         -- an event of ours that was redacted: its edits are to go as well
ALTER TABLE conversations ADD COLUMN backend TEXT;   -- chosen by `/model`; NULL: that of the role
ALTER TABLE conversations ADD COLUMN starter TEXT;   -- of a thread: who wrote its root, where that addressed us

CREATE TABLE thoughts_aloud (                       -- models that end reasoning which they never began
    model    TEXT NOT NULL,
    base_url TEXT NOT NULL,
    found_at TEXT NOT NULL,
    PRIMARY KEY (model, base_url)
) WITHOUT ROWID;

CREATE INDEX outbox_grows ON outbox (grows) WHERE grows IS NOT NULL;
CREATE INDEX outbox_continues ON outbox (continues) WHERE continues IS NOT NULL;
