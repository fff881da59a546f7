-- Fields that a model wants back with its calls, and whose these are. They go with anything forgotten
-- that was in view when they were made, for nobody can search them (owner: loom) -----------------

ALTER TABLE turns ADD COLUMN sender TEXT NOT NULL DEFAULT '';   -- a hash of backend, address and model
ALTER TABLE turns ADD COLUMN kept TEXT NOT NULL DEFAULT '';     -- JSON, for this sender alone
CREATE INDEX turns_kept ON turns (cast_id) WHERE kept <> '';

DROP TRIGGER turns_fixed;
CREATE TRIGGER turns_fixed BEFORE UPDATE ON turns
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.cast_id IS OLD.cast_id AND NEW.parent_id IS OLD.parent_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.finish_reason IS OLD.finish_reason AND NEW.backend IS OLD.backend
    AND NEW.model IS OLD.model AND NEW.tokens_in IS OLD.tokens_in AND NEW.tokens_out IS OLD.tokens_out
    AND NEW.tokens_cached IS OLD.tokens_cached AND NEW.ms IS OLD.ms AND NEW.created_at IS OLD.created_at
    AND NEW.prompt_hash IS OLD.prompt_hash AND NEW.waited_ms IS OLD.waited_ms AND NEW.sender IS OLD.sender
    AND NEW.kept IN (OLD.kept, '')
    AND ( -- a redaction; or a block while its cast runs, which may go at any time, and so may the fields
        (NEW.utterance IS '' AND NEW.calls IS '[]' AND NEW.block IN (OLD.block, '')
            AND (NEW.error IS OLD.error OR (OLD.error IS NOT NULL AND NEW.error IS '')))
        OR (NEW.utterance IS OLD.utterance AND NEW.calls IS OLD.calls AND NEW.error IS OLD.error
            AND (NEW.block, NEW.kept) IS NOT (OLD.block, OLD.kept)
            AND (NEW.block IN (OLD.block, '') OR EXISTS (SELECT 1 FROM casts WHERE id = NEW.cast_id AND state = 'running')))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
