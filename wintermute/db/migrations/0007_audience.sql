-- Who may read it is decided when it is sent: each answer says what it was made for (owner: mailbox) --

UPDATE outbox SET meant_for = (SELECT scope FROM conversations c WHERE c.id = outbox.conversation_id)
    WHERE state <> 'sent' AND kind = 'reply' AND meant_for = '';
