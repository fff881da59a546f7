-- What was taken back may be taken out of what a cast was told that was said before its message, or
-- that this replies to (owner: loom) --

DROP TRIGGER casts_fixed;
CREATE TRIGGER casts_fixed BEFORE UPDATE ON casts
WHEN NOT (
    NEW.seq IS OLD.seq AND NEW.id IS OLD.id AND NEW.branch_id IS OLD.branch_id AND NEW.event_id IS OLD.event_id
    AND NEW.entity_id IS OLD.entity_id AND NEW.origin IS OLD.origin AND NEW.wards IS OLD.wards
    AND NEW.started_at IS OLD.started_at
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

-- What groups said and what may still be background of an answer (owner: mailbox) --

CREATE INDEX inbox_context ON inbox (conversation_id, seq) WHERE kind = 'context' AND body <> '';
CREATE INDEX inbox_replies ON inbox (replies_to) WHERE replies_to IS NOT NULL;
