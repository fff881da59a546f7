-- facts.exported: 2 while the memories file has the line of a fact in another spelling.
DROP INDEX facts_unwritten;
CREATE INDEX facts_unwritten ON facts (scope) WHERE exported <> (retired_at IS NULL AND NOT ended);
