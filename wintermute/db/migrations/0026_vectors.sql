-- What facts mean, as vectors: plain rows, which any installation can open and erase (owner: memory) --

CREATE TABLE embedding_spaces (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    model     TEXT NOT NULL,
    dimension INTEGER NOT NULL,
    same      REAL,                                  -- likeness from which texts say the same; NULL: nobody knows
    related   REAL,
    floor     REAL,                                  -- under it a likeness means nothing
    local     INTEGER NOT NULL DEFAULT 0,            -- 1 once every fact had its vectors in fact_vectors
    qdrant    INTEGER NOT NULL DEFAULT 0,            -- the same of the collection
    UNIQUE (model, dimension)
);

CREATE TABLE fact_vectors (
    id     INTEGER PRIMARY KEY,
    seq    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    space  INTEGER NOT NULL REFERENCES embedding_spaces (id) ON DELETE CASCADE,
    piece  INTEGER NOT NULL,                         -- a long text has several, from 0
    scope  TEXT NOT NULL,
    digest BLOB NOT NULL,                            -- of the text that was embedded
    vector BLOB,                                     -- signed bytes; NULL: a text without a word
    signs  BLOB,                                     -- of the vector, one bit each
    UNIQUE (seq, space, piece)
);
CREATE INDEX facts_vec ON fact_vectors (space, scope, seq, signs);  -- all that the first look of a search reads

-- What a Qdrant server has of them, and what must leave it: no vector, no text.

CREATE TABLE qdrant_points (
    point  TEXT PRIMARY KEY,
    seq    INTEGER NOT NULL REFERENCES facts (seq) ON DELETE CASCADE,
    space  INTEGER NOT NULL REFERENCES embedding_spaces (id) ON DELETE CASCADE,
    piece  INTEGER NOT NULL,
    digest BLOB NOT NULL,
    sent   INTEGER NOT NULL DEFAULT 0,               -- 0: perhaps it has arrived
    UNIQUE (seq, piece)
) WITHOUT ROWID;
CREATE INDEX qdrant_points_by_space ON qdrant_points (space, seq);
CREATE TABLE qdrant_gone (point TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TRIGGER qdrant_points_gone AFTER DELETE ON qdrant_points
BEGIN INSERT INTO qdrant_gone VALUES (OLD.point) ON CONFLICT DO NOTHING; END;
CREATE TABLE qdrant_mark (mark TEXT NOT NULL);       -- one row: how a collection says that it is ours

-- Who retires, ends or rewords a fact need not think of its vectors.

CREATE TRIGGER facts_mean_something_else AFTER UPDATE OF text, retired_at, ended ON facts
WHEN NEW.retired_at IS NOT NULL OR NEW.ended OR NEW.text IS NOT OLD.text
BEGIN
    DELETE FROM fact_vectors WHERE seq = OLD.seq;
    DELETE FROM qdrant_points WHERE seq = OLD.seq;
END;
