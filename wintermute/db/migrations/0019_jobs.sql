-- Whose work a job is, how often it failed in the same way in a row, and how often a crash
-- interrupted it. Nothing has written to the table before.
ALTER TABLE jobs ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_by_state ON jobs (name, state, scope);
