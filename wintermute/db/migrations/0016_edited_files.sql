-- Files that people edit: what they last held in order, and what was said about them (owner: health) ----------

CREATE TABLE edited_files (
    name TEXT PRIMARY KEY,                           -- as prompt and tools call it: 'data/core.md'
    text TEXT,                                       -- NULL where something else keeps it, as facts do
    told INTEGER NOT NULL DEFAULT 0                  -- 1: the owner knows that it cannot be used
) WITHOUT ROWID;
