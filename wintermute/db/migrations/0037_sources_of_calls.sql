-- What a question of our own is made of, while it is on record: ids of events and facts as a JSON
-- list, so that it goes when one of them is forgotten, however it was shown (M-030; owner: llm).

ALTER TABLE model_calls ADD COLUMN sources TEXT;

CREATE INDEX model_calls_sources ON model_calls (sources) WHERE sources IS NOT NULL;
