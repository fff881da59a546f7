-- Counts messages of which nothing is kept any more: an open page looks whether they became more (V-015).

CREATE INDEX inbox_erased ON inbox (conversation_id) WHERE body = '' AND kind <> 'context';
CREATE INDEX outbox_erased ON outbox (conversation_id) WHERE body = '';
