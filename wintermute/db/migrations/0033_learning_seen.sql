-- What a job that was put off waits for, in words; '': nothing but its time (owner: jobs).

ALTER TABLE jobs ADD COLUMN waits_for TEXT NOT NULL DEFAULT '';

-- Answers that were to be JSON and could not be used, also when asked for once more: how often, and
-- what was wrong with the last one, never in its own words (owner: llm).

CREATE TABLE refused_answers (
    role   TEXT PRIMARY KEY,
    times  INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at     TEXT NOT NULL
);
