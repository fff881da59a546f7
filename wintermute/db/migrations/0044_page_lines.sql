-- Which messages a line of a page came from (owner: wiki). Only digests: the words are in the file.
-- `source`: the event that said it, or a raw copy, which is all that is in it.

CREATE TABLE page_lines (
    path   TEXT NOT NULL,
    line   TEXT NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (path, line, source)
) WITHOUT ROWID;
CREATE INDEX page_lines_of_source ON page_lines (source);
