-- Messages of people alone, for who looks how many of them were not read for memories yet.

CREATE INDEX inbox_messages ON inbox (conversation_id, seq) WHERE kind = 'message';
