-- Files that people edit: what they last held in order, and what was said about them (owner: health) ----------

CREATE TABLE edited_files (
    name TEXT PRIMARY KEY,                           -- as prompt and tools call it: 'data/core.md'
    text TEXT,                                       -- NULL where something else keeps it, as facts do
    told INTEGER NOT NULL DEFAULT 0                  -- 1: the owner knows that it cannot be used
) WITHOUT ROWID;

-- The last versions of the memories files, without their text: a line is a fact (owner: memory) -------

CREATE TABLE file_lines (
    scope TEXT NOT NULL,
    fact  INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,  -- what is forgotten is in no version
    since INTEGER NOT NULL,                          -- the first version that has its line; counted per scope
    until INTEGER,                                   -- the first that has not; NULL: the newest has it
    ours  INTEGER NOT NULL,                          -- 1: we wrote the line; 0: a person did
    PRIMARY KEY (fact, since)
) WITHOUT ROWID;
CREATE INDEX file_lines_by_scope ON file_lines (scope, until);

CREATE TABLE kept_lines (
    fact INTEGER PRIMARY KEY REFERENCES facts (seq) ON DELETE CASCADE,  -- missing in a file that was saved, and kept
    told INTEGER NOT NULL DEFAULT 0                  -- 1: the owner knows
);
