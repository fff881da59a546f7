-- What nobody asked for waits in quiet hours (U-017).

ALTER TABLE outbox ADD COLUMN unasked INTEGER NOT NULL DEFAULT 0;
