"""Casts, turns and observations: written as they happen, never changed afterwards (L-045, L-048)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Row, Transaction
from wintermute.db.traces import holds
from wintermute.ids import NewId
from wintermute.loom.records import Cast, CastState, Observation, Turn
from wintermute.messages import Call, Json, Origin, Reply

_OF_EVENTS = "event_id IN (SELECT value FROM json_each(:events))"
_ENDED = "SELECT id FROM casts WHERE state <> 'running'"
_TURN_HOLDS = " OR ".join(map(holds, ("utterance", "calls", "error")))
_OBSERVATION_HOLDS = " OR ".join(map(holds, ("args", "result")))


class Casts:
    """The store of casts and what was said and done in them."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def start(
        self,
        tx: Transaction,
        branch_id: str,
        event_id: str | None,
        intent: str,
        origin: Origin,
        wards: Json,
    ) -> Cast:
        """Record that work on an intent begins."""
        cast = Cast(
            id=self._new_id("cast"),
            branch_id=branch_id,
            event_id=event_id,
            entity_id=self._new_id("entity"),
            intent=intent,
            origin=origin,
            wards=wards,
            state="running",
            reason=None,
            result=None,
            started_at=self._clock.now(),
        )
        await tx.execute(
            "INSERT INTO casts (id, branch_id, event_id, entity_id, intent, origin, wards, state,"
            " started_at) VALUES (?, ?, ?, ?, ?, ?, ?, 'running', ?)",
            (
                cast.id,
                branch_id,
                event_id,
                cast.entity_id,
                intent,
                origin,
                json.dumps(wards),
                stamp(cast.started_at),
            ),
        )
        return cast

    async def end(
        self, tx: Transaction, cast_id: str, state: CastState, reason: str, result: str
    ) -> bool:
        """Record how a running cast ended; False when it had an end before."""
        ended = await tx.execute(
            "UPDATE casts SET state = ?, reason = ?, result = ?, ended_at = ?"
            " WHERE id = ? AND state = 'running'",
            (state, reason, result, stamp(self._clock.now()), cast_id),
        )
        return ended == 1

    async def prompted(self, tx: Transaction, cast_id: str, prompt: str) -> None:
        """Record the system prompt of the newest request; each text is stored once."""
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        await tx.execute(
            "INSERT INTO prompts (hash, text) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (digest, prompt),
        )
        await tx.execute("UPDATE casts SET prompt_hash = ? WHERE id = ?", (digest, cast_id))

    async def add_turn(
        self, tx: Transaction, cast: Cast, parent_id: str | None, reply: Reply, error: str | None
    ) -> Turn:
        """Record an utterance before anything is done about it."""
        turn = Turn(
            id=self._new_id("turn"),
            parent_id=parent_id,
            utterance=reply.text,
            calls=reply.calls,
            finish_reason=reply.finish_reason,
            tokens=reply.usage.tokens_in + reply.usage.tokens_out,
            ms=reply.ms,
            error=error,
        )
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in reply.calls]
        await tx.execute(
            "INSERT INTO turns (id, cast_id, parent_id, entity_id, utterance, calls, finish_reason,"
            " backend, model, tokens_in, tokens_out, tokens_cached, ms, error, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                turn.id,
                cast.id,
                parent_id,
                cast.entity_id,
                turn.utterance,
                json.dumps(calls),
                turn.finish_reason,
                reply.backend,
                reply.model,
                reply.usage.tokens_in,
                reply.usage.tokens_out,
                reply.usage.tokens_cached,
                turn.ms,
                error,
                stamp(self._clock.now()),
            ),
        )
        return turn

    async def begin_observation(
        self, tx: Transaction, turn_id: str, n: int, call: Call, args: Json | None
    ) -> None:
        """Record that a gate starts, before it has any effect."""
        await tx.execute(
            "INSERT INTO observations (turn_id, n, gate, args, tool_call_id, via, state, started_at)"
            " VALUES (?, ?, ?, ?, ?, 'call', 'started', ?)",
            (turn_id, n, call.name, _json(args), call.id, stamp(self._clock.now())),
        )

    async def complete_observation(
        self, tx: Transaction, turn_id: str, n: int, result: Any, is_error: bool
    ) -> None:
        """Record what a started gate gave."""
        await tx.execute(
            "UPDATE observations SET result = ?, is_error = ?, state = 'completed',"
            " completed_at = ? WHERE turn_id = ? AND n = ? AND state = 'started'",
            (json.dumps(result), is_error, stamp(self._clock.now()), turn_id, n),
        )

    async def forget(
        self, tx: Transaction, events: Sequence[str], traces: Sequence[str]
    ) -> tuple[int, int]:
        """Blank the ended casts of these events, and whatever else holds one of the `traces`.

        Rows, ids and links stay (DESIGN §4), and running casts as they are. Returns how many casts
        and turns were blanked, and how many running casts should be.
        """
        asked = {"events": json.dumps(list(events)), "traces": json.dumps(list(traces))}
        intent, result = (f"({_OF_EVENTS} OR {holds(name)})" for name in ("intent", "result"))
        casts = await tx.execute(
            f"UPDATE casts SET intent = iif({intent}, '', intent),"
            f" result = iif({result}, '', result)"
            f" WHERE state <> 'running' AND intent || result <> '' AND ({intent} OR {result})",
            asked,
        )
        turns = await tx.execute(
            "UPDATE turns SET utterance = '', calls = '[]', error = iif(error IS NULL, NULL, '')"
            f" WHERE cast_id IN ({_ENDED}) AND (utterance, calls, coalesce(error, '')) <> ('', '[]', '')"
            f" AND (cast_id IN (SELECT id FROM casts WHERE {_OF_EVENTS}) OR {_TURN_HOLDS})",
            asked,
        )
        await tx.execute(
            "UPDATE observations SET args = NULL, result = '' WHERE turn_id IN"
            f" (SELECT id FROM turns WHERE cast_id IN ({_ENDED})) AND"
            " (turn_id IN (SELECT id FROM turns WHERE utterance = '' AND calls = '[]')"
            f" OR {_OBSERVATION_HOLDS})",
            asked,
        )
        await tx.execute(f"UPDATE folds SET summary = '' WHERE {holds('summary')}", asked)
        return casts + turns, await self._running_with(tx, asked)

    async def _running_with(self, tx: Transaction, asked: Json) -> int:
        row = await tx.row(
            f"SELECT count(*) AS n FROM casts WHERE state = 'running' AND ({_OF_EVENTS}"
            f" OR {holds('intent')}"
            f" OR id IN (SELECT cast_id FROM turns WHERE {_TURN_HOLDS})"
            " OR id IN (SELECT cast_id FROM turns WHERE id IN"
            f"  (SELECT turn_id FROM observations WHERE {_OBSERVATION_HOLDS})))",
            asked,
        )
        return int(row["n"]) if row else 0

    async def forget_prompts(self, tx: Transaction, traces: Sequence[str]) -> int:
        """Blank the system prompts that hold one of the `traces`; how many that was."""
        return await tx.execute(
            f"UPDATE prompts SET text = '' WHERE {holds('text')}",
            {"traces": json.dumps(list(traces))},
        )

    async def running(self, event_id: str) -> Cast | None:
        """The cast for this event that has begun and not ended, if any."""
        rows = await self._database.rows(
            "SELECT * FROM casts WHERE event_id = ? AND state = 'running'", (event_id,)
        )
        found = await self._with_turns(rows)
        return found[0] if found else None

    async def of_branch(self, branch_id: str) -> tuple[Cast, ...]:
        """All casts of a branch, oldest first, with their turns."""
        rows = await self._database.rows(
            "SELECT * FROM casts WHERE branch_id = ? ORDER BY seq", (branch_id,)
        )
        return await self._with_turns(rows)

    async def addressed(self, tx: Transaction, branch_id: str) -> bool:
        """Whether a person has said anything in this branch."""
        row = await tx.row(
            "SELECT 1 FROM casts WHERE branch_id = ? AND origin IN ('owner', 'other') LIMIT 1",
            (branch_id,),
        )
        return row is not None

    async def last_turn(self, tx: Transaction, branch_id: str) -> str | None:
        """The id of the newest turn of a branch: the parent of the next one."""
        row = await tx.row(
            "SELECT t.id FROM turns t JOIN casts c ON c.id = t.cast_id WHERE c.branch_id = ?"
            " ORDER BY t.seq DESC LIMIT 1",
            (branch_id,),
        )
        return row["id"] if row else None

    async def _with_turns(self, rows: Sequence[Row]) -> tuple[Cast, ...]:
        if not rows:
            return ()
        ids = json.dumps([row["id"] for row in rows])
        turns = await self._database.rows(
            "SELECT * FROM turns WHERE cast_id IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (ids,),
        )
        observations = await self._database.rows(
            "SELECT o.* FROM observations o JOIN turns t ON t.id = o.turn_id"
            " WHERE t.cast_id IN (SELECT value FROM json_each(?)) ORDER BY o.turn_id, o.n",
            (ids,),
        )
        seen: dict[str, list[Observation]] = {}
        for row in observations:
            seen.setdefault(row["turn_id"], []).append(_observation(row))
        said: dict[str, list[Turn]] = {}
        for row in turns:
            whole = replace(_turn(row), observations=tuple(seen.get(row["id"], ())))
            said.setdefault(row["cast_id"], []).append(whole)
        return tuple(replace(_cast(row), turns=tuple(said.get(row["id"], ()))) for row in rows)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _observation(row: Row) -> Observation:
    return Observation(
        n=row["n"],
        gate=row["gate"],
        args=json.loads(row["args"]) if row["args"] else None,
        result=json.loads(row["result"]) if row["result"] else row["result"],
        is_error=bool(row["is_error"]),
        tool_call_id=row["tool_call_id"],
        completed=row["state"] == "completed",
    )


def _turn(row: Row) -> Turn:
    return Turn(
        id=row["id"],
        parent_id=row["parent_id"],
        utterance=row["utterance"],
        calls=tuple(Call(**call) for call in json.loads(row["calls"])),
        finish_reason=row["finish_reason"],
        tokens=row["tokens_in"] + row["tokens_out"],
        ms=row["ms"],
        error=row["error"],
    )


def _cast(row: Row) -> Cast:
    return Cast(
        id=row["id"],
        branch_id=row["branch_id"],
        event_id=row["event_id"],
        entity_id=row["entity_id"],
        intent=row["intent"],
        origin=row["origin"],
        wards=json.loads(row["wards"]),
        state=row["state"],
        reason=row["reason"],
        result=row["result"],
        started_at=moment(row["started_at"]),
    )
