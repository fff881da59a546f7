-- What people reply to, so that the model can be shown it (owner: mailbox) ------------------------

ALTER TABLE inbox ADD COLUMN replies_to TEXT;      -- the event that this one answers, in its room
