-- When it was last said, by the person if it is their own words; NULL: when it was created. Of two that
-- contradict each other it tells which is the newer evidence.

ALTER TABLE facts ADD COLUMN said_at TEXT;

-- `place_before`: where a fact stood that gave its place to what it was merged into. When it is back, it
-- stands there again, and whoever stands there by then goes where it was meanwhile; so do those that
-- gave these places away later, once they are back.

ALTER TABLE facts ADD COLUMN place_before INTEGER;
CREATE INDEX facts_places_before ON facts (scope, place_before) WHERE place_before IS NOT NULL;

CREATE TRIGGER facts_stand_where_they_stood AFTER UPDATE OF retired_at, ended ON facts
WHEN NEW.place_before IS NOT NULL AND NEW.retired_at IS NULL AND NOT NEW.ended
     AND (OLD.retired_at IS NOT NULL OR OLD.ended)
BEGIN
    UPDATE facts SET place = -1 WHERE seq = NEW.seq;
    UPDATE facts SET place = NEW.place WHERE scope = NEW.scope AND place = NEW.place_before;
    UPDATE facts SET place = NEW.place_before, place_before = NULL WHERE seq = NEW.seq;
    UPDATE facts SET place_before = iif(place_before = NEW.place, NEW.place_before, NEW.place)
    WHERE scope = NEW.scope AND place_before IN (NEW.place, NEW.place_before)
        AND coalesce(retired_at, valid_to) > coalesce(OLD.retired_at, OLD.valid_to);
END;
