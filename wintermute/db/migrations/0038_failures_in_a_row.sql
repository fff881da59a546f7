-- How often in a row a job failed, in whatever way; `attempts` counts the same error (owner: jobs).

ALTER TABLE jobs ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
