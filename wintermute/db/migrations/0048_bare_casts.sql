-- A cast asked without what came between the last answer and its message, which was refused (owner: loom)
ALTER TABLE casts ADD COLUMN bare INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER casts_bare_fixed BEFORE UPDATE OF bare ON casts
WHEN NEW.bare IS NOT OLD.bare AND (OLD.state <> 'running' OR NEW.bare IS NOT 1)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
