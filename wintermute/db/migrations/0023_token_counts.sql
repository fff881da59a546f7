-- What a model's server counted beside our estimates of the same requests (owner: llm) -------------

CREATE TABLE token_counts (
    model      TEXT NOT NULL,
    base_url   TEXT NOT NULL,
    estimated  REAL NOT NULL,                      -- tokens, with earlier requests counting less
    reported   REAL NOT NULL,
    counted_at TEXT NOT NULL,
    PRIMARY KEY (model, base_url)
) WITHOUT ROWID;
