-- When the clock of the machine was believed the last time (owner: health) -------------------------

CREATE TABLE clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    wall    TEXT NOT NULL,                         -- what it showed then, UTC
    steady  REAL NOT NULL,                         -- and a clock that counts seconds from the boot
    boot    TEXT NOT NULL                          -- which boot that was
);

-- What waits does so until a moment of the steady clock, in seconds; a start lets all of it go ------

UPDATE inbox SET not_before = NULL WHERE not_before IS NOT NULL;
UPDATE occurrences SET not_before = '0' WHERE not_before IS NOT NULL;

-- A reminder ends with the message that says it; before, it ended seconds later --------------------

UPDATE tasks SET status = 'completed', reason = 'delivered' WHERE status = 'active'
    AND schedule IS NOT NULL AND next_due IS NULL AND id IN (SELECT task_id FROM occurrences
        WHERE state = 'claimed' AND mode = 'reminder'
        AND outbox_id IN (SELECT id FROM outbox WHERE state = 'sent'));
UPDATE occurrences SET state = 'done', ended_at = (SELECT sent_at FROM outbox WHERE id = outbox_id)
    WHERE state = 'claimed' AND mode = 'reminder'
    AND outbox_id IN (SELECT id FROM outbox WHERE state = 'sent');
