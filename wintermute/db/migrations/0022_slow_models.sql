-- Models that write their calls as text, as `check` has found them (owner: llm) ------------------

CREATE TABLE spelled_calls (
    model    TEXT NOT NULL,
    base_url TEXT NOT NULL,
    found_at TEXT NOT NULL,
    PRIMARY KEY (model, base_url)
) WITHOUT ROWID;

-- A notice that stands until a message has its answer, and what changes an event of ours (owner: mailbox) --

ALTER TABLE outbox ADD COLUMN awaits TEXT;         -- the message: once it is answered, the notice goes
ALTER TABLE outbox ADD COLUMN changes TEXT;        -- the event of ours that gets another text, or "" goes
CREATE INDEX outbox_awaits ON outbox (awaits) WHERE awaits IS NOT NULL;
