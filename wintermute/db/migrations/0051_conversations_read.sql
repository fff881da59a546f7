-- A conversation as a page of the web door reads it: from its newest message back (V-029).

CREATE INDEX outbox_by_conversation ON outbox (conversation_id, seq);
CREATE INDEX outbox_changes ON outbox (changes) WHERE changes IS NOT NULL;
