-- How many turns a summary was asked for in a cast that was of no use, so that it is asked for again
-- only when there is as much again to sum up (owner: loom) ---------------------------------------

ALTER TABLE casts ADD COLUMN fold_refused INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER casts_folds_fixed BEFORE UPDATE OF fold_refused ON casts
WHEN OLD.state <> 'running' AND NEW.fold_refused IS NOT OLD.fold_refused
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
