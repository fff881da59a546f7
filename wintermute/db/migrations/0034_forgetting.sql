-- What a deleted message leads to is found without a look at all that was ever said (M-030).
CREATE INDEX outbox_answers ON outbox (answers) WHERE answers IS NOT NULL;
CREATE INDEX model_calls_of_record ON model_calls (cast_id) WHERE request IS NOT NULL OR detail <> '';
CREATE INDEX facts_replaced ON facts (replaced_by) WHERE replaced_by IS NOT NULL;
