-- What was in the place of a fact that an undo brought back: there again if that is undone (M-076).
ALTER TABLE facts ADD COLUMN once_replaced_by TEXT;

-- facts.exported: 2 while the memories file has the line of a fact in another spelling.
DROP INDEX facts_unwritten;
CREATE INDEX facts_unwritten ON facts (scope) WHERE exported <> (retired_at IS NULL AND NOT ended);
