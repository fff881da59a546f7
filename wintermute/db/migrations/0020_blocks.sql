-- What a prompt brings with a message and what changed while it was answered: told once, and shown
-- again as it was. A fold knows which turn was the newest when it was made: after it the telling
-- begins anew, and what was looked up before it is shown no more (owner: loom) ------------------

ALTER TABLE casts ADD COLUMN block TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN block TEXT NOT NULL DEFAULT '';   -- stands behind the results of its calls
ALTER TABLE folds ADD COLUMN made_at INTEGER NOT NULL DEFAULT 0;   -- the newest turn's seq

DROP TRIGGER casts_fixed;
CREATE TRIGGER casts_fixed BEFORE UPDATE ON casts
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.event_id IS OLD.event_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.origin IS OLD.origin AND NEW.wards IS OLD.wards
    AND NEW.started_at IS OLD.started_at
    AND (NEW.block IS OLD.block OR NEW.block IS '' OR OLD.state = 'running')
    AND (
        -- running: may end, with a reason, and notes the prompt of its newest request
        (OLD.state = 'running' AND NEW.intent IS OLD.intent AND NEW.taint >= OLD.taint
            AND (NEW.reason IS NOT NULL) = (NEW.state <> 'running')
            AND (NEW.result IS NOT NULL) = (NEW.state <> 'running')
            AND (NEW.ended_at IS NOT NULL) = (NEW.state <> 'running'))
        -- ended: only a redaction
        OR (OLD.state <> 'running' AND NEW.state IS OLD.state AND NEW.reason IS OLD.reason
            AND NEW.ended_at IS OLD.ended_at AND NEW.taint IS OLD.taint
            AND (NEW.prompt_hash IS OLD.prompt_hash OR NEW.prompt_hash IS NULL)
            AND (NEW.intent IS OLD.intent OR NEW.intent IS '')
            AND (NEW.result IS OLD.result OR NEW.result IS ''))
        -- running or ended: less of what was said before, all else as it is
        OR (NEW.state IS OLD.state AND NEW.reason IS OLD.reason AND NEW.result IS OLD.result
            AND NEW.ended_at IS OLD.ended_at AND NEW.taint IS OLD.taint AND NEW.prompt_hash IS OLD.prompt_hash
            AND ((length(NEW.intent) < length(OLD.intent) AND instr(OLD.intent, '<room_context>') > 0
                AND instr(OLD.intent, '</room_context>') > 0
                AND substr(NEW.intent, 1, instr(OLD.intent, '<room_context>') + 14)
                    IS substr(OLD.intent, 1, instr(OLD.intent, '<room_context>') + 14)
                AND substr(NEW.intent, instr(NEW.intent, '</room_context>'))
                    IS substr(OLD.intent, instr(OLD.intent, '</room_context>')))
              OR (instr(OLD.intent, '<replied_to>') > 0 AND instr(OLD.intent, '</replied_to>') > 0
                AND NEW.intent IS substr(OLD.intent, 1, instr(OLD.intent, '<replied_to>') + 12)
                    || '[deleted]' || char(10) || substr(OLD.intent, instr(OLD.intent, '</replied_to>')))))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

DROP TRIGGER turns_fixed;
CREATE TRIGGER turns_fixed BEFORE UPDATE ON turns
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.cast_id IS OLD.cast_id AND NEW.parent_id IS OLD.parent_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.finish_reason IS OLD.finish_reason AND NEW.backend IS OLD.backend
    AND NEW.model IS OLD.model AND NEW.tokens_in IS OLD.tokens_in AND NEW.tokens_out IS OLD.tokens_out
    AND NEW.tokens_cached IS OLD.tokens_cached AND NEW.ms IS OLD.ms AND NEW.created_at IS OLD.created_at
    AND NEW.prompt_hash IS OLD.prompt_hash AND NEW.waited_ms IS OLD.waited_ms
    AND (
        -- a redaction
        (NEW.utterance IS '' AND NEW.calls IS '[]'
            AND (NEW.error IS OLD.error OR (OLD.error IS NOT NULL AND NEW.error IS ''))
            AND (NEW.block IS OLD.block OR NEW.block IS ''))
        -- a block, while its cast runs; it may be taken away at any time
        OR (NEW.utterance IS OLD.utterance AND NEW.calls IS OLD.calls AND NEW.error IS OLD.error
            AND NEW.block IS NOT OLD.block
            AND (NEW.block IS '' OR EXISTS (SELECT 1 FROM casts WHERE id = NEW.cast_id AND state = 'running')))
    )
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;

DROP TRIGGER folds_fixed;
CREATE TRIGGER folds_fixed BEFORE UPDATE ON folds
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.from_turn IS OLD.from_turn
    AND NEW.to_turn IS OLD.to_turn AND NEW.created_at IS OLD.created_at AND NEW.tokens_before IS OLD.tokens_before
    AND NEW.tokens_after IS OLD.tokens_after AND NEW.turns IS OLD.turns AND NEW.made_at IS OLD.made_at
    AND NEW.summary IS ''
)
BEGIN SELECT RAISE(ABORT, 'loom is append-only'); END;
