-- When it was last said, by the person if it is their own words; NULL: when it was created. Of two that
-- contradict each other it tells which is the newer evidence.

ALTER TABLE facts ADD COLUMN said_at TEXT;
