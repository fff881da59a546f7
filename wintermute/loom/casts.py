"""The store of casts, turns and observations: written as they happen, never changed afterwards (L-045, L-048).

The path of a branch: the branches it was forked from, each up to its fork, then itself. `PATH`
begins a statement that names `:branch`; its table `path` has a row for each branch and `until`, the
place of the last turn that belongs to the path. Places grow along a path.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from wintermute.clock import Clock, moment, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Row, Transaction
from wintermute.db.eraser import DerivedFrom, erase
from wintermute.db.text_search import (
    GONE,
    OF_BRANCHES,
    OF_CASTS,
    OURS_SINCE,
    SearchableText,
    TextMatches,
)
from wintermute.db.values import columns, insert, reader
from wintermute.ids import NewId
from wintermute.loom.records import BranchView, Cast, CastStatus, Fold, Observation, Turn
from wintermute.loom.sub_sessions import end_orphans
from wintermute.messages import Call, Json, Origin, Reply

LAST = 9223372036854775807

PATH = (
    f"WITH RECURSIVE path (branch_id, until) AS (SELECT :branch, {LAST}"
    " UNION ALL SELECT c.branch_id, t.seq FROM path p JOIN branches b ON b.id = p.branch_id"
    " JOIN turns t ON t.id = b.forked_from JOIN casts c ON c.id = t.cast_id)"
)
_OF_EVENTS = (  # casts of events, and of their sub-sessions
    "IN (WITH RECURSIVE told (id) AS (SELECT id FROM casts WHERE event_id IN"
    "  (SELECT value FROM json_each(:events)) UNION SELECT k.id FROM told"
    "  JOIN conversations v ON v.parent_cast = told.id JOIN branches o ON o.conversation_id = v.id"
    "  JOIN casts k ON k.branch_id = o.id) SELECT id FROM told)"
)
_BEGUN = "started_at >= :since"
_CASTS = f"+branch_id IN {OF_BRANCHES}"
_TURNS = f"(SELECT c.branch_id FROM casts c WHERE c.id = turns.cast_id) IN {OF_BRANCHES}"
_OBSERVED = (
    "(SELECT c.branch_id FROM turns t JOIN casts c ON c.id = t.cast_id"
    f" WHERE t.id = observations.turn_id) IN {OF_BRANCHES}"
)
_BY_US = (  # intents of sub-sessions, and events with their results
    f"{_BEGUN} AND (event_id IS NULL OR EXISTS"
    " (SELECT 1 FROM inbox i WHERE i.event_id = casts.event_id AND i.kind = 'event'))"
)
_RUNS = "SELECT coalesce(c.event_id, c.id) FROM casts c WHERE c.state = 'running' AND c.id"
_SUMMED = (  # erased casts with their last turn, in their conversation and room
    "(SELECT o.id AS conversation_id, c.seq,"
    "  (SELECT max(t.seq) FROM turns t WHERE t.cast_id = c.id) AS last_turn FROM casts c"
    " JOIN branches b ON b.id = c.branch_id JOIN conversations v ON v.id = b.conversation_id"
    f" JOIN conversations o ON o.id = v.id OR o.room_id = v.room_id WHERE c.id {OF_CASTS})"
)
INTENTS = SearchableText(
    *("casts", ("intent",)),
    where="intent <> ''",
    fixed=True,
    of=_CASTS,
    ours=_BY_US,
    derived=f"id {OF_CASTS}",
    waits="iif(state = 'running', coalesce(event_id, id), NULL)",
    dependents=(
        "UPDATE prompt_parts SET text = '' WHERE hash IN (SELECT part.value ->> 1 FROM turns t"
        " JOIN prompts p ON p.hash = t.prompt_hash JOIN json_each(p.parts) part"
        f" WHERE t.cast_id {OF_CASTS} AND part.value ->> 0 IN ('Task Context', 'Objective'))",
    ),
)
RESULTS = SearchableText(
    *("casts", ("result",)),
    where="result <> ''",
    of=_CASTS,
    ours=_BEGUN,
    derived=f"id {OF_CASTS}",
    waits=INTENTS.waits,
)
TURNS = SearchableText(
    *("turns", ("utterance", "calls", "error")),
    fixed=True,
    of=_TURNS,
    ours=OURS_SINCE,
    derived=f"cast_id {OF_CASTS}",
    waits=f"({_RUNS} = cast_id)",
    empties=(
        *("utterance = ''", "calls = '[]'", "context_block = ''", "provider_fields = ''"),
        "error = iif(error IS NULL, NULL, '')",
    ),
    dependents=(
        "UPDATE observations SET args = NULL, result = '' WHERE turn_id IN"
        f" (SELECT id FROM turns WHERE seq {GONE})",
        "UPDATE turns SET provider_fields = '' WHERE provider_fields <> '' AND"  # made with the text in view (F-040)
        f" {OURS_SINCE} AND cast_id IN (SELECT id FROM casts WHERE branch_id IN {OF_BRANCHES})",
    ),
)
OBSERVATIONS = SearchableText(
    *("observations", ("args", "result")),
    of=_OBSERVED,
    ours=_BEGUN,
    derived=f"turn_id IN (SELECT id FROM turns WHERE cast_id {OF_CASTS})",
    waits=f"({_RUNS} = (SELECT cast_id FROM turns WHERE id = turn_id))",
    empties=("args = NULL", "result = ''"),
)
# A summary repeats erased text in other words. So do prompts of its conversation, provider fields
# made since (F-040), and the other conversations of its room, which continue from it.
FOLDS = SearchableText(
    *("folds", ("summary",)),
    fixed=True,
    of=_CASTS,
    ours=OURS_SINCE,
    derived=f"EXISTS (SELECT 1 FROM {_SUMMED} e JOIN branches b ON b.id = folds.branch_id"
    "  WHERE e.conversation_id = b.conversation_id AND (e.last_turn IS NULL"
    "   OR e.last_turn >= (SELECT seq FROM turns WHERE id = from_turn))"
    "   AND e.seq <= (SELECT c.seq FROM turns t JOIN casts c ON c.id = t.cast_id"
    "    WHERE t.id = to_turn))",
    dependents=(
        "UPDATE turns SET provider_fields = '' WHERE provider_fields <> '' AND cast_id IN"
        f" (SELECT c.id FROM {_SUMMED} e JOIN branches b ON b.conversation_id = e.conversation_id"
        "  JOIN casts c ON c.branch_id = b.id AND c.seq >= e.seq)",
        "UPDATE prompt_parts SET text = '' WHERE hash IN (SELECT x.hash FROM folds f"
        " JOIN branches b ON b.id = f.branch_id"
        " JOIN branches o ON o.conversation_id = b.conversation_id"
        " JOIN casts c ON c.branch_id = o.id JOIN turns t ON t.cast_id = c.id"
        " JOIN prompts p ON p.hash = t.prompt_hash"
        " JOIN json_each(p.parts) part JOIN prompt_parts x ON x.hash = part.value ->> 1"
        f" WHERE f.seq {GONE} AND instr(x.text, '[Folded: turns 1-' || f.turns || ']'))",
    ),
)
LOOM = (INTENTS, RESULTS, TURNS, OBSERVATIONS, FOLDS)
BLOCKS = (
    SearchableText(
        "casts", ("context_block",), where="context_block <> ''", of=_CASTS, ours=_BEGUN
    ),
    SearchableText(
        "turns", ("context_block",), where="context_block <> ''", of=_TURNS, ours=OURS_SINCE
    ),
)
PROMPTS = (  # a prompt part may belong to several scopes
    SearchableText("prompt_parts", ("text",), "hash", ours="TRUE"),
    *BLOCKS,
)
_observation = reader(Observation)
_turn = reader(Turn, "observations")
_cast = reader(Cast, "turns")


class Casts:
    """The store of casts with their turns and observations."""

    def __init__(
        self, database: Database, clock: Clock, new_id: NewId, redact: Redaction = UNHIDDEN
    ) -> None:
        """Take the database.

        `redact` hides our own secrets, should a prompt file have one (L-089).
        """
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._redact = redact

    async def start(
        self,
        tx: Transaction,
        branch_id: str,
        event_id: str | None,
        intent: str,
        origin: Origin,
        wards: Json,
        *,
        taint: bool = False,
        bare: bool = False,
    ) -> Cast:
        """Record the start of a cast. `taint`: its intent contains text of other people."""
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
            bare=bare,
            taint=taint,
        )
        tx.defer(*insert("casts", columns(cast, "turns")))
        return cast

    async def end(
        self, tx: Transaction, cast_id: str, state: CastStatus, reason: str, result: str
    ) -> bool:
        """Record the end of a running cast; False if it had ended before.

        The sub-sessions that it waits for end with it (L-062).
        """
        ended = await tx.execute(
            "UPDATE casts SET state = ?, reason = ?, result = ?, ended_at = ?"
            " WHERE id = ? AND state = 'running'",
            (state, reason, result, stamp(self._clock.now()), cast_id),
        )
        if ended == 0:
            return False
        tx.defer(
            "WITH RECURSIVE below (id) AS (SELECT :cast UNION SELECT k.id FROM below"
            " JOIN conversations c ON c.parent_cast = below.id AND NOT c.outlives"
            " JOIN branches b ON b.conversation_id = c.id JOIN casts k ON k.branch_id = b.id)"
            " UPDATE casts SET state = 'truncated', reason = 'parent_terminated', result = '',"
            " ended_at = :now WHERE state = 'running' AND id IN (SELECT id FROM below)",
            {"cast": cast_id, "now": stamp(self._clock.now())},
        )
        await end_orphans(tx, self._clock.now())
        return True

    async def record_prompt(
        self, tx: Transaction, cast_id: str, pieces: Sequence[tuple[str, str]]
    ) -> str:
        """Record the system prompt of the newest request; return its hash.

        `pieces` are names and texts that make the prompt when joined; each is stored once.
        """
        redacted = [(self._redact(name), self._redact(text)) for name, text in pieces]
        hashed = [(name, _digest(text), text) for name, text in redacted]
        whole = _digest("".join(text for _, text in redacted))
        if await tx.execute(
            "INSERT INTO prompts (hash, parts) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (whole, json.dumps([(name, digest) for name, digest, _ in hashed])),
        ):
            await tx.execute_many(
                "INSERT INTO prompt_parts (hash, text) VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(digest, text) for _, digest, text in hashed],
            )
        tx.defer(
            "UPDATE casts SET prompt_hash = :hash WHERE id = :cast AND prompt_hash IS NOT :hash",
            {"hash": whole, "cast": cast_id},
        )
        return whole

    async def set_block(
        self, tx: Transaction, cast_id: str, turn_id: str | None, block: str
    ) -> str:
        """Store the context block behind the intent of a running cast, or behind one of its turns.

        Returns the stored text. If the cast was ended meanwhile, nothing is stored.
        """
        kept = self._redact(block)
        values = {"block": kept, "cast": cast_id, "turn": turn_id}
        if turn_id is None:
            change = (
                "UPDATE casts SET context_block = :block WHERE id = :cast AND state = 'running'"
            )
        else:
            change = (
                "UPDATE turns SET context_block = :block WHERE id = :turn AND context_block <> :block"
                " AND EXISTS (SELECT 1 FROM casts WHERE id = :cast AND state = 'running')"
            )
        tx.defer(change, values)
        return kept

    async def strip(self, tx: Transaction, cast_id: str) -> None:
        """Show a running cast's message without the parts before it from now on (F-038)."""
        query = "UPDATE casts SET bare = 1 WHERE id = ? AND state = 'running'"
        await tx.execute(query, (cast_id,))

    async def refuse_fold(self, tx: Transaction, cast_id: str, turns: int) -> None:
        """Record that a summary of `turns` turns, asked for in a running cast, was unusable."""
        await tx.execute(
            "UPDATE casts SET fold_refused = ? WHERE id = ? AND state = 'running'",
            (turns, cast_id),
        )

    async def prompt(self, digest: str) -> tuple[tuple[str, str], ...]:
        """Return the named pieces of a system prompt."""
        row = await self._database.row("SELECT parts FROM prompts WHERE hash = ?", (digest,))
        if row is None:
            raise LookupError(digest)
        texts = await self._database.rows(
            "SELECT hash, text FROM prompt_parts WHERE hash IN"
            " (SELECT value ->> 1 FROM json_each(?))",
            (row["parts"],),
        )
        known = {each["hash"]: each["text"] for each in texts}
        return tuple((name, known[part]) for name, part in json.loads(row["parts"]))

    async def add_turn(
        self,
        tx: Transaction,
        cast: Cast,
        parent_id: str | None,
        reply: Reply,
        error: str | None,
        prompt_hash: str | None = None,
    ) -> Turn:
        """Record an utterance before its calls are run.

        `prompt_hash` None: the request had no system prompt.
        """
        turn = Turn(
            id=self._new_id("turn"),
            parent_id=parent_id,
            utterance=reply.text,
            calls=reply.calls,
            finish_reason=reply.finish_reason,
            tokens=reply.usage.tokens_in + reply.usage.tokens_out,
            ms=reply.ms,
            waited_ms=reply.waited_ms,
            error=error,
            backend=reply.backend,
            sender=reply.sender,
            provider_fields=reply.kept,
        )
        calls = [
            {"id": c.id, "name": c.name, "arguments": c.arguments}
            | ({"via": c.via} if c.via != "call" else {})
            for c in reply.calls
        ]
        values = columns(turn, "seq", "tokens", "observations") | columns(reply.usage)
        values |= {
            "cast_id": cast.id,
            "entity_id": cast.entity_id,
            "calls": calls,
            "model": reply.model,
            "created_at": self._clock.now(),
            "prompt_hash": prompt_hash,
        }
        (seq,) = await tx.scalars(*insert("turns", values, "RETURNING seq"))
        return replace(turn, seq=seq)

    async def begin_observation(
        self, tx: Transaction, turn_id: str, n: int, call: Call, args: Json | None
    ) -> None:
        """Record that a gate starts, before it has any effect."""
        values = {"turn_id": turn_id, "n": n, "gate": call.name, "args": args, "via": call.via}
        values |= {"tool_call_id": call.id, "state": "started", "started_at": self._clock.now()}
        await tx.execute(*insert("observations", values))

    async def results(self, cast_id: str, gate: str) -> list[Any]:
        """Return all results of one gate in a cast so far, in order, errors included."""
        rows = await self._database.rows(
            "SELECT o.result FROM turns t JOIN observations o ON o.turn_id = t.id"
            " WHERE t.cast_id = ? AND o.gate = ? AND o.state = 'completed' ORDER BY t.seq, o.n",
            (cast_id, gate),
        )
        return [json.loads(row["result"] or "null") for row in rows]

    async def complete_observation(
        self, tx: Transaction, turn_id: str, n: int, result: Any, is_error: bool
    ) -> None:
        """Record the result of a started gate."""
        await tx.execute(
            "UPDATE observations SET result = ?, is_error = ?, state = 'completed',"
            " completed_at = ? WHERE turn_id = ? AND n = ? AND state = 'started'",
            (json.dumps(result), is_error, stamp(self._clock.now()), turn_id, n),
        )

    async def taint(self, tx: Transaction, turn_id: str) -> None:
        """Taint a turn's cast, which got untrusted text, and the casts that wait for it."""
        await tx.execute(
            "WITH RECURSIVE above (id) AS (SELECT cast_id FROM turns WHERE id = ? UNION"
            " SELECT v.parent_cast FROM above JOIN casts k ON k.id = above.id"
            " JOIN branches b ON b.id = k.branch_id JOIN conversations v ON v.id = b.conversation_id"
            " WHERE v.parent_cast IS NOT NULL)"
            " UPDATE casts SET taint = 1 WHERE state = 'running' AND NOT taint"
            " AND id IN (SELECT id FROM above)",
            (turn_id,),
        )

    async def inherit_taint(self, tx: Transaction, cast_id: str, turn_id: str) -> None:
        """Taint a cast that gets the results of a turn's sub-sessions, if one of these is tainted."""
        await tx.execute(
            "UPDATE casts SET taint = 1 WHERE id = ? AND EXISTS (SELECT 1 FROM conversations v"
            " JOIN branches b ON b.conversation_id = v.id JOIN casts k ON k.branch_id = b.id"
            " WHERE v.parent_turn = ? AND k.taint)",
            (cast_id, turn_id),
        )

    async def is_tainted(self, tx: Transaction, cast_id: str) -> bool:
        """Return True if a cast has seen untrusted text."""
        return await tx.exists("SELECT 1 FROM casts WHERE id = ? AND taint", (cast_id,))

    async def came_of(self, tx: Transaction, events: Collection[str]) -> DerivedFrom:
        """Return these events with their casts, for the eraser."""
        return DerivedFrom(events, await self.of_events(tx, events))

    async def retract_answer(self, tx: Transaction, cast_id: str) -> None:
        """Blank the texts of an ended cast, and summaries of it: its answer was retracted."""
        await erase(tx, [RESULTS, TURNS, OBSERVATIONS], came=DerivedFrom(casts=[cast_id]))
        events = await tx.scalars("SELECT event_id FROM casts WHERE id = ?", (cast_id,))
        await erase(tx, [FOLDS], came=await self.came_of(tx, events))

    async def in_groups(
        self, tx: Transaction, conversation_id: str, sender: str
    ) -> list[tuple[str, str | None, str]]:
        """Return the casts of a conversation whose context lines include this person's.

        Each with its event and its intent.
        """
        rows = await tx.rows(
            "SELECT c.id, c.event_id, c.intent FROM casts c JOIN branches b ON b.id = c.branch_id"
            " WHERE b.conversation_id = ? AND instr(c.intent, '<room_context>')"
            " AND instr(c.intent, ?)",
            (conversation_id, sender),
        )
        return [(row["id"], row["event_id"], row["intent"]) for row in rows]

    async def quoting(
        self, tx: Transaction, room_id: str, events: Collection[str]
    ) -> list[tuple[str, str, str]]:
        """Return the casts whose message replies to one of these events in a room: conversation, id and intent."""
        rows = await tx.rows(
            "SELECT b.conversation_id, c.id, c.intent FROM inbox i JOIN casts c ON c.event_id = i.event_id"
            " JOIN branches b ON b.id = c.branch_id WHERE i.replies_to IN"
            " (SELECT value FROM json_each(?)) AND i.room_id = ? ORDER BY c.seq",
            (json.dumps(sorted(events)), room_id),
        )
        return [(row["conversation_id"], row["id"], row["intent"]) for row in rows]

    async def cut_context(self, tx: Transaction, cast_id: str, intent: str) -> None:
        """Replace a cast's intent by one with less context, and blank the summaries that include it."""
        events = await tx.scalars(  # a trigger allows only to cut its context
            "UPDATE casts SET intent = ? WHERE id = ? RETURNING event_id", (intent, cast_id)
        )
        await erase(tx, [FOLDS], came=await self.came_of(tx, events))

    async def from_first(
        self, tx: Transaction, conversation_id: str, casts: Sequence[str], among: Sequence[str]
    ) -> list[str]:
        """Return the casts `among` that may have seen one of `casts`: from the first of them on.

        In this conversation, and in the others of its room, because a thread may have it in view.
        """
        return await tx.scalars(
            "SELECT c.id FROM json_each(:among) a CROSS JOIN casts c ON c.id = a.value"
            " JOIN branches b ON b.id = c.branch_id JOIN conversations v ON v.id = :conversation"
            " JOIN conversations o ON o.id = b.conversation_id"
            " WHERE (o.id = v.id OR o.room_id = v.room_id) AND c.seq >= (SELECT min(seq)"
            "  FROM casts WHERE id IN (SELECT value FROM json_each(:casts)))",
            {
                "among": json.dumps(list(among)),
                "conversation": conversation_id,
                "casts": json.dumps(list(casts)),
            },
        )

    async def of_events(self, tx: Transaction, events: Collection[str]) -> list[str]:
        """Return the ids of the casts for these events."""
        parameters = {"events": json.dumps(list(events))}
        return await tx.scalars(f"SELECT id FROM casts WHERE id {_OF_EVENTS}", parameters)

    async def count_matching(self, traces: TextMatches, events: Sequence[str]) -> int:
        """Count other casts whose turns or calls contain one of the `traces`."""
        parameters = {"events": json.dumps(list(events))} | traces.asked(TURNS, OBSERVATIONS)
        (count,) = await self._database.scalars(
            f"SELECT count(DISTINCT cast_id) FROM turns WHERE ({TURNS.rows()} OR id IN (SELECT turn_id"
            f" FROM observations WHERE {OBSERVATIONS.rows()})) AND cast_id NOT {_OF_EVENTS}",
            parameters,
        )
        return int(count)

    async def reasons(self, tx: Transaction, events: Sequence[str]) -> list[str]:
        """Return the end reasons of the newest ended cast for each of these events."""
        return await tx.scalars(
            "SELECT reason FROM casts WHERE seq IN (SELECT max(seq) FROM casts"
            " WHERE event_id IN (SELECT value FROM json_each(?)) GROUP BY event_id)"
            " AND reason IS NOT NULL",
            (json.dumps(list(events)),),
        )

    async def last_begun(self, tx: Transaction, event_id: str) -> datetime | None:
        """Return the start of the newest cast for this event; None if there is none."""
        query = "SELECT max(started_at) FROM casts WHERE event_id = ?"
        (begun,) = await tx.scalars(query, (event_id,))
        return moment(begun) if begun else None

    async def turns_of(self, tx: Transaction, events: Sequence[str]) -> list[str]:
        """Return the ids of the turns for these events."""
        parameters = {"events": json.dumps(list(events))}
        return await tx.scalars(f"SELECT id FROM turns WHERE cast_id {_OF_EVENTS}", parameters)

    async def running(self, event_id: str) -> Cast | None:
        """Return the running cast for this event, if any."""
        query = "SELECT * FROM casts WHERE event_id = ? AND state = 'running'"
        casts = await self._with_turns(await self._database.rows(query, (event_id,)))
        return casts[0] if casts else None

    async def get(self, cast_id: str) -> Cast:
        """Return one cast with its turns."""
        rows = await self._database.rows("SELECT * FROM casts WHERE id = ?", (cast_id,))
        (cast,) = await self._with_turns(rows)
        return cast

    async def of_branch(self, branch_id: str) -> tuple[Cast, ...]:
        """Return all casts that began in a branch, oldest first, with their turns."""
        query = "SELECT * FROM casts WHERE branch_id = ? ORDER BY seq"
        return await self._with_turns(await self._database.rows(query, (branch_id,)))

    async def past(self, branch_id: str, fold: Fold | None) -> BranchView:
        """Return the path of a branch as the model sees it after this fold; None: all of it (L-052)."""
        rows = await self._database.rows(
            f"{PATH} SELECT c.*, p.until FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " AND c.seq >= :from ORDER BY c.seq",
            {"branch": branch_id, "from": fold.last_cast if fold else 0},
        )
        until = {row["id"]: row["until"] for row in rows}
        after = fold.last_turn if fold else 0
        casts = []
        for cast in await self._with_turns(rows):
            turns = tuple(turn for turn in cast.turns if after < turn.seq <= until[cast.id])
            folded_away = cast.turns and not turns and cast.state != "running"
            if (until[cast.id] == LAST or turns) and not folded_away:
                casts.append(cast if len(turns) == len(cast.turns) else replace(cast, turns=turns))
        return BranchView(fold, tuple(casts))

    async def casts_with_blocks(self, cast_id: str) -> list[str]:
        """Return the casts whose context blocks were in view when a cast began, newest first.

        None in the layout `system`, where the system message has everything.
        """
        row = await self._database.row(
            "SELECT branch_id, seq, started_at FROM casts WHERE id = ?", (cast_id,)
        )
        if row is None:
            return []
        parameters = {"branch": row["branch_id"], "cast": row["seq"], "begun": row["started_at"]}
        (folded,) = await self._database.scalars(
            f"{PATH} SELECT max(t.seq) FROM path p JOIN folds f ON f.branch_id = p.branch_id"
            " AND f.created_at < :begun AND f.summary <> ''"
            " JOIN turns t ON t.id = f.to_turn AND t.seq <= p.until",
            parameters,
        )
        return await self._database.scalars(
            f"{PATH} SELECT c.id FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            f" AND c.seq < :cast AND c.context_block <> '' AND (p.until = {LAST} OR EXISTS (SELECT 1"
            "  FROM turns t WHERE t.cast_id = c.id AND t.seq <= p.until)) AND NOT EXISTS (SELECT 1 FROM turns t"
            "   WHERE t.cast_id = c.id AND t.seq <= :folded) ORDER BY c.seq DESC",
            parameters | {"folded": folded or 0},
        )

    async def since(
        self, tx: Transaction, branch_id: str, events: Sequence[str]
    ) -> tuple[Cast, ...]:
        """Return all casts from the first one for these events on, also in branches begun by an edit.

        Casts of branches before `/new`, or before people joined, are left out (L-074, M-010).
        """
        rows = await tx.rows(
            "WITH history (id) AS (SELECT b.id FROM branches b JOIN branches o"
            "  ON o.conversation_id = b.conversation_id AND o.id = :branch WHERE b.seq >="
            "   (SELECT max(seq) FROM branches WHERE conversation_id = o.conversation_id"
            "    AND reason <> 'edit'))"
            " SELECT c.* FROM casts c WHERE c.branch_id IN history AND c.seq >="
            "  (SELECT min(seq) FROM casts WHERE branch_id IN history AND event_id IN"
            "   (SELECT value FROM json_each(:events))) ORDER BY c.seq",
            {"branch": branch_id, "events": json.dumps(list(events))},
        )
        return await self._with_turns(rows)

    async def running_and_in_scope(self, cast_id: str) -> tuple[bool, bool]:
        """Return whether a cast is still running, and `in_scope` of its branch."""
        row = await self._database.row(
            "SELECT c.state = 'running' AS runs, EXISTS (SELECT 1 FROM branches b JOIN branches n"
            " ON n.conversation_id = b.conversation_id AND n.seq > b.seq AND n.reason = 'scope'"
            " WHERE b.id = c.branch_id) AS has_moved FROM casts c WHERE c.id = ?",
            (cast_id,),
        )
        return (bool(row["runs"]), not row["has_moved"]) if row else (False, True)

    async def in_scope(self, source: Transaction | Database, branch_id: str) -> bool:
        """Return True if the scope has not changed since a branch began (F-004).

        A person who joined and left again counts as a change: the conversation continues in a new
        branch.
        """
        return not await source.exists(
            "SELECT 1 FROM branches b JOIN branches n ON n.conversation_id = b.conversation_id"
            " AND n.seq > b.seq AND n.reason = 'scope' WHERE b.id = ?",
            (branch_id,),
        )

    async def turn_before(
        self, tx: Transaction, branch_id: str, cast: Cast
    ) -> tuple[str, int] | None:
        """Return id and place of the last turn in view before a cast; None if there is none."""
        row = await tx.row(
            f"{PATH} SELECT t.id, t.seq FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " JOIN turns t ON t.cast_id = c.id AND t.seq <= p.until"
            " WHERE c.seq < (SELECT seq FROM casts WHERE id = :cast) ORDER BY t.seq DESC LIMIT 1",
            {"branch": branch_id, "cast": cast.id},
        )
        return (row["id"], row["seq"]) if row else None

    async def addressed(self, tx: Transaction, branch_id: str) -> bool:
        """Return True if a person's message is in view of this branch."""
        return await tx.exists(
            f"{PATH} SELECT 1 FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " WHERE c.origin IN ('owner', 'other') AND EXISTS"
            "  (SELECT 1 FROM turns t WHERE t.cast_id = c.id AND t.seq <= p.until"
            f"   UNION ALL SELECT 1 WHERE p.until = {LAST}) LIMIT 1",
            {"branch": branch_id},
        )

    async def last_turn(self, tx: Transaction, cast_id: str) -> tuple[bool, str | None]:
        """Return whether a cast is still running, and the parent of its next turn.

        The parent is the newest turn of its branch, or the one the branch was forked from.
        """
        row = await tx.row(
            "SELECT k.state = 'running' AS runs, coalesce((SELECT t.id FROM casts c JOIN turns t ON t.cast_id = c.id"
            "   WHERE c.branch_id = b.id ORDER BY c.seq DESC, t.seq DESC LIMIT 1),"
            "  b.forked_from, v.parent_turn) AS id"
            " FROM casts k JOIN branches b ON b.id = k.branch_id"
            " JOIN conversations v ON v.id = b.conversation_id WHERE k.id = ?",
            (cast_id,),
        )
        return (bool(row["runs"]), row["id"]) if row else (False, None)

    async def _with_turns(self, rows: Sequence[Row]) -> tuple[Cast, ...]:
        if not rows:
            return ()
        ids = json.dumps([row["id"] for row in rows])
        turns = await self._database.rows(
            "SELECT *, tokens_in + tokens_out AS tokens FROM turns"
            " WHERE cast_id IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (ids,),
        )
        observations = await self._database.rows(
            "SELECT o.*, o.state = 'completed' AS completed FROM observations o"
            " JOIN turns t ON t.id = o.turn_id"
            " WHERE t.cast_id IN (SELECT value FROM json_each(?)) ORDER BY o.turn_id, o.n",
            (ids,),
        )
        observations_by_turn: dict[str, list[Observation]] = {}
        for row in observations:
            observations_by_turn.setdefault(row["turn_id"], []).append(_observation(row))
        turns_by_cast: dict[str, list[Turn]] = {}
        for row in turns:
            turn = _turn(row, observations=tuple(observations_by_turn.get(row["id"], ())))
            turns_by_cast.setdefault(row["cast_id"], []).append(turn)
        return tuple(_cast(row, turns=tuple(turns_by_cast.get(row["id"], ()))) for row in rows)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
