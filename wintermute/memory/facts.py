"""The store of facts: kept once per scope, retired rather than deleted, every change on record."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from wintermute import db
from wintermute.changes.records import Change, Reason
from wintermute.changes.store import ChangeSets
from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.errors import ToolFailed
from wintermute.ids import NewId
from wintermute.memory.entry import LONGEST, MOST, entry, key
from wintermute.memory.guard import successors
from wintermute.memory.records import (
    EXPLICIT,
    Fact,
    NewFact,
    Outcome,
    Replaced,
    Row,
    Source,
    Taken,
)
from wintermute.messages import Json

IN_LIST = "IN (SELECT value FROM json_each(?))"
# `+scope` beside it: else SQLite reads the whole scope to find a few ids.


class Facts:
    """What is remembered of each person and room. Also the `Rows` of kind "fact" for an undo."""

    def __init__(
        self, database: Database, changes: ChangeSets, clock: Clock, new_id: NewId
    ) -> None:
        self._database = database
        self._changes = changes
        self._clock = clock
        self._new_id = new_id

    # Reading

    async def live(self, scope: str, tx: Transaction | None = None) -> list[Fact]:
        """The facts of a scope, oldest first; within a transaction, as it sees them."""
        rows = await (tx or self._database).rows(
            "SELECT * FROM facts WHERE scope = ? AND valid_to IS NULL ORDER BY created_at, seq",
            (scope,),
        )
        return [_fact(row) for row in rows]

    async def latest(self, scope: str, begin: int, count: int) -> list[Fact]:
        """`count` facts, newest first, from the one numbered `begin` on (M-002)."""
        if begin < 1:
            raise ToolFailed(f"begin counts from 1, the newest; {begin} is no place in the list")
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND valid_to IS NULL"
            " ORDER BY created_at DESC, seq DESC LIMIT ? OFFSET ?",
            (scope, max(0, count), begin - 1),
        )
        return [_fact(row) for row in rows]

    async def get(self, fact_id: str, scope: str | None = None) -> Fact | None:
        """One fact, live or retired; with `scope` only if it belongs there."""
        row = await self._database.row(
            "SELECT * FROM facts WHERE id = ? AND (scope = ? OR ? IS NULL)",
            (fact_id, scope, scope),
        )
        return _fact(row) if row else None

    async def lineage(self, ids: Iterable[str], recognisable: int) -> list[Fact]:
        """These facts, live or retired, with all that is the same at another time.

        That is: what they replaced, equal facts of their scope, and retired ones there that hold
        their text, if it has so many characters.
        """
        rows = await self._database.rows(
            "WITH RECURSIVE found (id) AS (SELECT value FROM json_each(?) UNION"
            "  SELECT f.id FROM found JOIN facts o ON o.id = found.id JOIN facts f"
            "  ON f.replaced_by = o.id OR (f.scope = o.scope AND (f.key = o.key OR"
            "   f.valid_to IS NOT NULL AND length(o.text) >= ?"
            "   AND instr(lower(f.text), lower(o.text)))))"
            " SELECT * FROM facts WHERE id IN (SELECT id FROM found) ORDER BY seq",
            (json.dumps(list(ids)), recognisable),
        )
        return [_fact(row) for row in rows]

    async def count(self, scope: str) -> int:
        """How many live facts a scope has."""
        row = await self._database.row(
            "SELECT count(*) AS n FROM facts WHERE scope = ? AND valid_to IS NULL", (scope,)
        )
        return int(row["n"]) if row else 0

    async def scopes(self) -> list[str]:
        """Every scope that has live facts: for the command line of the machine's owner."""
        rows = await self._database.rows(
            "SELECT DISTINCT scope FROM facts WHERE valid_to IS NULL ORDER BY scope"
        )
        return [row["scope"] for row in rows]

    # Writing, on record

    async def add(
        self,
        tx: Transaction,
        why: Reason,
        text: str,
        source: Source,
        *,
        scope: str,
        speaker: str | None = None,
        origins: Sequence[str] = (),
        most: int = MOST,
    ) -> tuple[Fact, Outcome]:
        """Remember one thing; an equal fact stays the only one (M-005 to M-007).

        Raises: ToolFailed for a text that is too short or too long.
        """
        new = NewFact(scope, entry(text, most), source, speaker, tuple(origins))
        taken = await self.take(tx, new)
        if taken.change:
            await self._changes.record(tx, why, [taken.change])
        return taken.fact, taken.outcome

    async def retire(self, tx: Transaction, why: Reason, ids: Iterable[str]) -> list[Fact]:
        """Take facts of `why.scope` out of use; those that were live, in order."""
        gone = await self.lay_down(tx, why.scope, ids)
        if gone:
            await self._changes.record(tx, why, [retirement(fact) for fact in gone])
        return gone

    async def replace(
        self,
        tx: Transaction,
        why: Reason,
        scope: str,
        old_ids: Iterable[str],
        new: Sequence[tuple[str, Source]],
    ) -> Replaced:
        """Let new facts stand for old ones: stored first, then the old ones retired (M-057).

        An old fact that equals a new one stays. What stands for the person's own words is their
        own words as well (M-042).
        """
        wanted = set(old_ids)
        texts = [entry(text, LONGEST) for text, _ in new]
        live = {key(fact.text): fact for fact in await self.live(scope, tx)}
        kept = {key(text) for text in texts}
        old = [fact for name, fact in live.items() if fact.id in wanted and name not in kept]
        heirs = _heirs(old, texts)
        taken = []
        for n, (text, (_, source)) in enumerate(zip(texts, new, strict=True)):
            replaced = [fact for fact in old if n in heirs[fact.id]]
            own = any(fact.source == EXPLICIT for fact in replaced)
            origins = {name: None for fact in replaced for name in fact.origins}
            if key(text) not in live:
                origins |= dict.fromkeys(why.evidence)
            fresh = NewFact(scope, text, EXPLICIT if own else source, origins=tuple(origins))
            taken.append(await self.take(tx, fresh))
        places = {name: taken[found[0]].fact.id for name, found in heirs.items() if found}
        retired = await self.lay_down(tx, scope, [fact.id for fact in old], places)
        changes = [done.change for done in taken if done.change] + [retirement(f) for f in retired]
        return Replaced(
            facts=tuple(done.fact for done in taken),
            outcomes=tuple(done.outcome for done in taken),
            retired=tuple(retired),
            set_id=await self._changes.record(tx, why, changes) if changes else None,
        )

    # Writing, for callers that put the changes on record themselves

    async def take(self, tx: Transaction, new: NewFact) -> Taken:
        """Store a fact, unless its id is known or an equal one lives in its scope."""
        found = await tx.row(
            "SELECT * FROM facts WHERE id = :id"
            " UNION ALL SELECT * FROM facts WHERE scope = :scope AND key = :key"
            " AND valid_to IS NULL",
            {"id": new.id, "scope": new.scope, "key": key(new.text)},
        )
        if found is None:
            return await self._store(tx, new)
        known = _fact(found)
        if known.id == new.id:
            return Taken(known, "known", None)
        return await self._meet(tx, known, new)

    async def _store(self, tx: Transaction, new: NewFact) -> Taken:
        at = new.at or self._clock.now()
        fact = Fact(
            id=new.id or self._new_id("fact"),
            scope=new.scope,
            text=new.text,
            source=new.source,
            speaker=new.speaker,
            origins=new.origins,
            created_at=at,
            valid_from=new.valid_from or at,
        )
        await tx.execute(
            "INSERT INTO facts (id, scope, text, key, source, speaker, origins, created_at,"
            " valid_from) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                fact.id,
                fact.scope,
                fact.text,
                key(fact.text),
                fact.source,
                fact.speaker,
                json.dumps(fact.origins),
                stamp(at),
                stamp(fact.valid_from),
            ),
        )
        return Taken(fact, "stored", Change("fact", fact.id, None, _state(fact), fact.origins))

    async def _meet(self, tx: Transaction, known: Fact, new: NewFact) -> Taken:
        """An equal fact: where both came from is kept, and the stronger source (M-007)."""
        raised = new.source == EXPLICIT != known.source
        fact = replace(
            known,
            source=new.source if raised else known.source,
            origins=tuple(dict.fromkeys([*known.origins, *new.origins])),
        )
        if fact != known:
            await tx.execute(
                "UPDATE facts SET source = ?, origins = ? WHERE id = ?",
                (fact.source, json.dumps(fact.origins), fact.id),
            )
        if not raised:
            return Taken(fact, "known", None)
        change = Change("fact", fact.id, _state(known), _state(fact), new.origins)
        return Taken(fact, "raised", change)

    async def lay_down(
        self,
        tx: Transaction,
        scope: str,
        ids: Iterable[str],
        places: Mapping[str, str] | None = None,
    ) -> list[Fact]:
        """Retire facts of a scope; those that were live. `places`: who took whose place."""
        wanted = json.dumps(list(ids))
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND valid_to IS NULL"
            " ORDER BY created_at, seq",
            (wanted, scope),
        )
        await tx.execute(
            "UPDATE facts SET valid_to = ?, replaced_by ="
            " (SELECT value FROM json_each(?) p WHERE p.key = facts.id)"
            f" WHERE id {IN_LIST} AND +scope = ? AND valid_to IS NULL",
            (stamp(self._clock.now()), json.dumps(places or {}), wanted, scope),
        )
        return [_fact(row) for row in rows]

    async def reword(self, tx: Transaction, scope: str, fact_id: str, text: str) -> Change | None:
        """Give a fact another case or spacing, as the memories file has it; None: not possible."""
        row = await tx.row("SELECT * FROM facts WHERE id = ? AND scope = ?", (fact_id, scope))
        if row is None or row["valid_to"] is not None or row["key"] != key(text):
            return None
        await tx.execute("UPDATE facts SET text = ? WHERE id = ?", (text, fact_id))
        before = _fact(row)
        return Change("fact", fact_id, _state(before), _state(replace(before, text=text)))

    # The way back

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """What a change set says of a fact; None: retired, or not there."""
        row = await tx.row("SELECT * FROM facts WHERE id = ? AND valid_to IS NULL", (item,))
        return _state(_fact(row)) if row else None

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Make the fact this again; False where an equal one lives or it is gone for good.

        A retired fact comes back under its id. `why` is on record already.
        """
        row = await tx.row("SELECT * FROM facts WHERE id = ?", (item,))
        if row is None:
            return False
        if state is None:
            return bool(await self.lay_down(tx, row["scope"], [item]))
        # Another key would be another line in the file; only case and spacing ever change.
        if (row["scope"], row["key"]) != (state["scope"], key(state["text"])):
            return False
        done = await tx.execute(
            "UPDATE facts SET text = :text, source = :source, speaker = :speaker,"
            # A line that must be written anew counts as not written.
            " exported = CASE WHEN text = :text THEN exported ELSE 0 END,"
            " valid_to = NULL, replaced_by = NULL"
            " WHERE id = :id AND NOT EXISTS (SELECT 1 FROM facts o WHERE o.scope = facts.scope"
            "  AND o.key = facts.key AND o.valid_to IS NULL AND o.id <> facts.id)",
            {
                "id": item,
                "text": state["text"],
                "source": state["source"],
                "speaker": state.get("speaker"),
            },
        )
        return done == 1

    async def purge(self, tx: Transaction, scope: str, ids: Iterable[str]) -> list[str]:
        """Delete facts of a scope for good; the ids that were there.

        Their lines must have left the file, or they would be learnt again: `FlatFile.forget`.
        """
        rows = await tx.rows(
            f"DELETE FROM facts WHERE +scope = ? AND id {IN_LIST} RETURNING id",
            (scope, json.dumps(list(ids))),
        )
        return [row["id"] for row in rows]

    async def expire(self, tx: Transaction, before: datetime) -> int:
        """Delete what was retired before a moment and has left the file; how many (M-065)."""
        return await tx.execute(
            "DELETE FROM facts WHERE valid_to < ? AND exported = 0", (stamp(before),)
        )

    # The memories file

    async def is_unwritten(self, scope: str) -> bool:
        """Whether the memories file lacks a live fact or still has a retired one."""
        row = await self._database.row(
            "SELECT 1 FROM facts WHERE scope = ? AND exported = (valid_to IS NOT NULL) LIMIT 1",
            (scope,),
        )
        return row is not None

    async def for_file(self, tx: Transaction, scope: str) -> list[Row]:
        """All live facts, oldest first, and the retired ones whose line is still in the file."""
        rows = await tx.rows(
            "SELECT id, key, text, exported, 1 AS live, created_at, seq FROM facts"
            " WHERE scope = :scope AND valid_to IS NULL"
            " UNION ALL SELECT id, key, text, exported, 0, created_at, seq FROM facts"
            " WHERE scope = :scope AND exported = (valid_to IS NOT NULL) AND valid_to IS NOT NULL"
            " ORDER BY created_at, seq",
            {"scope": scope},
        )
        return [
            Row(row["id"], row["key"], row["text"], bool(row["live"]), bool(row["exported"]))
            for row in rows
        ]

    async def written(self, tx: Transaction, scope: str) -> None:
        """The memories file now has exactly the live facts."""
        await tx.execute(
            "UPDATE facts SET exported = (valid_to IS NULL)"
            " WHERE scope = ? AND exported = (valid_to IS NOT NULL)",
            (scope,),
        )


def retirement(fact: Fact) -> Change:
    """How a fact that goes is recorded."""
    return Change("fact", fact.id, _state(fact), None)


def _heirs(old: Sequence[Fact], texts: Sequence[str]) -> dict[str, Sequence[int]]:
    """Which new texts stand for each old fact: the best by words, or the only one.

    The person's own words get lost in nothing: unrecognised, they are in any of the new texts.
    """
    everyone = range(len(texts))
    unrecognised = everyone if len(texts) == 1 else ()
    return {
        fact.id: (
            [heir] if heir is not None else (everyone if fact.source == EXPLICIT else unrecognised)
        )
        for fact, heir in zip(old, successors([f.text for f in old], texts), strict=True)
    }


def _state(fact: Fact) -> Json:
    state: Json = {"scope": fact.scope, "text": fact.text, "source": fact.source}
    return state | {"speaker": fact.speaker} if fact.speaker else state


def _fact(row: db.Row) -> Fact:
    return Fact(
        id=row["id"],
        scope=row["scope"],
        text=row["text"],
        source=row["source"],
        speaker=row["speaker"],
        origins=tuple(json.loads(row["origins"])),
        created_at=moment(row["created_at"]),
        valid_from=moment(row["valid_from"]),
        valid_to=moment(row["valid_to"]) if row["valid_to"] else None,
        replaced_by=row["replaced_by"],
    )
