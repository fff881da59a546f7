"""The store of facts: kept once per scope, retired rather than deleted, every change on record."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from wintermute.changes.change_sets import KEPT, Cause, Change, ChangeSets, Reason
from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import SCOPES, Kept, Traces
from wintermute.db.values import insert_many, reader, stored
from wintermute.errors import ToolFailed
from wintermute.health.health import Health
from wintermute.ids import NewId
from wintermute.memory.fact import (
    LONGEST,
    MOST,
    SHORTEST,
    SOURCES,
    AddedFact,
    AddOutcome,
    Fact,
    FileLine,
    NewFact,
    Queue,
    Replaced,
    Source,
    Tally,
    entry,
    fact_of,
    facts_of,
    is_protected,
    key,
    met,
    renamed,
    retirements,
    revived,
    standing,
    state_of,
    succession,
    wanted,
)
from wintermute.memory.index import WordIndex
from wintermute.memory.ranking import are_apart, place_after
from wintermute.messages import Json
from wintermute.secret_shapes import refuse_secret

TRUE = "{}.retired_at IS NULL AND NOT {}.ended"
WAS_TRUE = (
    "{}.retired_at IS NULL AND (NOT {}.ended OR {}.valid_to > :when AND"
    " ({}.valid_from <= :when OR {}.valid_from >= {}.valid_to))"
)
"""What is true, and what was at that moment; of what was told afterwards nobody knows since when."""
LIVE = TRUE.replace("{}.", "")
"""What is remembered and true; the rest is kept for an undo, or for what once was (M-074)."""
TRUE_THEN = WAS_TRUE.replace("{}.", "")
AWAKE = f"{LIVE} AND NOT archived"
"""What is also of use, as far as we know: the rest is found by who looks for it (M-060)."""
RESTING = "archived = :archived, examined = iif(archived AND NOT :archived, 0, examined)"
LISTED = f"({LIVE})"
"""Whether it has a line in the memories file; as the index `facts_unwritten` says it."""
IN_LIST = "IN (SELECT value FROM json_each(?))"
# `+scope` beside it: else SQLite reads the whole scope to find a few ids.

SPLIT = "split"
"""The name of the job that takes a long text apart."""
NOBODY: Mapping[str, int] = {}

Owing = Callable[[Transaction], Awaitable[None]]

FACTS = Kept("facts", ("text",), of=f"+scope IN {SCOPES}")
_line = reader(FileLine)
_queue = reader(Queue)


class Facts:
    """What is remembered of each person and room. Also the `Rows` of kind "fact" for an undo.

    What is done to many facts at once goes on beside the event loop.
    """

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        clock: Clock,
        new_id: NewId,
        owed: Owing | None = None,
        health: Health | None = None,
    ) -> None:
        """`owed`: what has to be told when texts are new, in the transaction in which they are.

        `health`: who is told when the index of words had to be mended.
        """
        self._database = database
        self._changes = changes
        self._clock = clock
        self._new_id = new_id
        self._owed = owed
        self.words = WordIndex(health)

    # Reading

    async def live(
        self, scope: str, tx: Transaction | None = None, stored_before: datetime | None = None
    ) -> list[Fact]:
        """The facts of a scope, oldest first; within a transaction, as it sees them.

        `stored_before`: without what was stored, or revived, since; whatever its age.
        """
        rows = await (tx or self._database).rows(
            f"SELECT * FROM facts WHERE scope = :scope AND {LIVE}"
            " AND (:before IS NULL OR stored_at < :before) ORDER BY created_at, seq",
            {"scope": scope, "before": stamp(stored_before) if stored_before else None},
        )
        return await asyncio.to_thread(facts_of, rows)

    async def latest(
        self, scope: str, begin: int, count: int, when: datetime | None = None
    ) -> list[Fact]:
        """`count` facts, newest first, from the one numbered `begin` on (M-002).

        `when`: also of those that were true at that moment.
        """
        if begin < 1:
            raise ToolFailed(f"begin counts from 1, the newest; {begin} is no place in the list")
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE scope = :scope AND {AWAKE if when is None else TRUE_THEN}"
            " ORDER BY created_at DESC, seq DESC LIMIT :count OFFSET :begin",
            {
                "scope": scope,
                "count": max(0, count),
                "begin": begin - 1,
                "when": stamp(when) if when else None,
            },
        )
        return [fact_of(row) for row in rows]

    async def most_used(self, scope: str, count: int, source: Transaction | Database) -> list[Fact]:
        """The live facts that were of use most often, then the newest (M-016)."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE scope = ? AND {AWAKE}"
            " ORDER BY accesses DESC, created_at DESC, seq DESC LIMIT ?",
            (scope, count),
        )
        return [fact_of(row) for row in rows]

    async def get(self, fact_id: str, scope: str | None = None) -> Fact | None:
        """One fact, live or retired; with `scope` only if it belongs there."""
        row = await self._database.row(
            "SELECT * FROM facts WHERE id = ? AND (scope = ? OR ? IS NULL)",
            (fact_id, scope, scope),
        )
        return fact_of(row) if row else None

    async def lineage(self, ids: Iterable[str]) -> list[Fact]:
        """These facts, live or retired, with what they replaced and equal facts of their scope."""
        rows = await self._database.rows(
            "WITH RECURSIVE found (id) AS (SELECT value FROM json_each(?) UNION"
            "  SELECT f.id FROM found JOIN facts o ON o.id = found.id JOIN facts f"
            "  ON f.replaced_by = o.id AND f.retired_at IS NOT NULL OR (f.scope = o.scope AND f.key = o.key))"
            " SELECT * FROM facts WHERE id IN (SELECT id FROM found) ORDER BY seq",
            (json.dumps(list(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def saying(self, traces: Traces) -> list[Fact]:
        """The facts of all scopes, live or retired, that hold one of the `traces`."""
        query = f"SELECT * FROM facts WHERE {FACTS.rows()} ORDER BY scope, seq"
        rows = await self._database.rows(query, traces.asked(FACTS))
        return await asyncio.to_thread(facts_of, rows)

    async def count(self, scope: str) -> int:
        """How many live facts a scope has."""
        query = f"SELECT count(*) FROM facts WHERE scope = ? AND {LIVE}"
        (count,) = await self._database.scalars(query, (scope,))
        return int(count)

    async def scopes(self) -> list[str]:
        """Every scope that has facts: for the command line of the machine's owner."""
        return await self._database.scalars(
            "SELECT DISTINCT scope FROM facts WHERE retired_at IS NULL ORDER BY scope"
        )

    async def stamps(self) -> dict[str, tuple[object, ...]]:
        """For each scope something that is another thing once its facts are."""
        rows = await self._database.rows(
            f"SELECT scope, count(*), sum({AWAKE}), max(stored_at), max(retired_at) FROM facts"
            " GROUP BY scope"
        )
        return {row[0]: tuple(row[n] for n in range(1, 5)) for row in rows}

    async def kept(self, scope: str) -> list[Fact]:
        """The facts of a scope with those that are no longer true, oldest first."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND retired_at IS NULL ORDER BY created_at, seq",
            (scope,),
        )
        return await asyncio.to_thread(facts_of, rows)

    async def _renew(self, tx: Transaction, ids: Collection[str]) -> None:
        """Let these facts be found by what they say now."""
        if ids:
            await self.words.renew(tx, ids)
            await self._tell(tx)

    async def _tell(self, tx: Transaction) -> None:
        if self._owed is not None:
            await self._owed(tx)

    async def kin(self, fact: Fact) -> tuple[list[Fact], list[Fact]]:
        """What a fact stands for by now, and what stands for it: as far as it is kept."""
        before = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND replaced_by = ? ORDER BY created_at, seq",
            (fact.scope, fact.id),
        )
        after = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND id = ?", (fact.scope, fact.replaced_by)
        )
        return facts_of(before), facts_of(after)

    async def tallies(self) -> list[Tally]:
        """How many facts there are, for each scope that has some."""
        rows = await self._database.rows(
            f"SELECT scope, sum({LIVE}) AS live, sum({LIVE} AND archived) AS archived,"
            " sum(retired_at IS NULL AND ended) AS ended,"
            f" sum(retired_at IS NOT NULL) AS retired,"
            + ", ".join(f" sum({LIVE} AND source = '{each}') AS {each}" for each in SOURCES)
            + " FROM facts GROUP BY scope ORDER BY scope"
        )
        indexed = await self.words.counts(self._database)
        return [
            Tally(
                *(row["scope"], row["live"], row["archived"], row["ended"], row["retired"]),
                by_source={each: row[each] for each in SOURCES},
                indexed=indexed.get(row["scope"], 0),
            )
            for row in rows
        ]

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
        until: datetime | None = None,
        taint: bool = False,
        queued: bool = True,
    ) -> tuple[Fact, AddOutcome]:
        """Remember one thing; an equal fact stays the only one (M-005 to M-007).

        `until`: when it stops, or stopped, being true. `queued`: it is to be brought together with
        the others of its scope. Raises: ToolFailed for a text that is too short or too long, or
        gives a secret away.
        """
        line = entry(text, most=most)
        new = NewFact(scope, line, source, speaker, tuple(origins), valid_to=until)
        (taken,) = await self.take(tx, [replace(new, taint=taint, queued=queued)])
        if taken.outcome == "refused":
            refuse_secret(line)
        if taken.change:
            await self._changes.record(tx, why, [taken.change])
        return taken.fact, taken.outcome

    async def retire(self, tx: Transaction, why: Reason, ids: Iterable[str]) -> list[Fact]:
        """Take facts of `why.scope` out of use; those that were live, in order."""
        gone = await self.retire_unrecorded(tx, why.scope, ids, why.cause)
        if gone:
            await self._changes.record(tx, why, await asyncio.to_thread(retirements, gone))
        return gone

    async def end(
        self, tx: Transaction, why: Reason, fact_id: str, until: datetime, heir: str | None = None
    ) -> Fact | None:
        """Let a live fact of `why.scope` be true until then; `heir`: what is true since (M-074)."""
        row = await tx.row(
            f"SELECT * FROM facts WHERE id = ? AND scope = ? AND {LIVE}", (fact_id, why.scope)
        )
        if row is None:
            return None
        was = fact_of(row)
        now = replace(was, valid_to=until, replaced_by=heir)
        await self._put_state(tx, now.id, state_of(now))
        await self._changes.record(
            tx, why, [Change("fact", was.id, state_of(was), state_of(now), tuple(why.evidence))]
        )
        return now

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
        ids = list(old_ids)
        names = [key(entry(text, SHORTEST, LONGEST)) for text, _ in new]
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ?2 AND {LIVE} UNION"
            f" SELECT * FROM facts WHERE scope = ?2 AND key IN (SELECT value FROM json_each(?3)) AND {LIVE}"
            " ORDER BY created_at, seq",
            (json.dumps(ids), scope, json.dumps(names)),
        )
        live = await asyncio.to_thread(facts_of, rows)
        planned = await asyncio.to_thread(succession, live, set(ids), scope, new, why.evidence)
        heirs = {fact.id: heir for fact, heir in zip(planned.old, planned.heirs, strict=True)}
        return await self.supersede(tx, why, planned.fresh, heirs)

    async def supersede(
        self,
        tx: Transaction,
        why: Reason,
        fresh: Sequence[NewFact],
        heirs: Mapping[str, int | None],
        ended: Mapping[str, int] = NOBODY,
    ) -> Replaced:
        """Store `fresh`, then retire the facts of `heirs`; those of `ended` were true until now.

        `heirs`, `ended`: for the id of an old fact the number of the new one in its place. An old
        fact that equals a new one stays, and so does one whose heir was refused.
        """
        taken = await self.take(tx, fresh)
        heirs = standing(heirs, taken)
        ended = {old: n for old, n in ended.items() if taken[n].outcome != "refused"}
        stay = {done.fact.id for done in taken}
        places = {
            old: taken[heir].fact.id
            for old, heir in heirs.items()
            if heir is not None and old not in stay
        }
        over = await self._overtake(
            tx, why.scope, {old: taken[n].fact.id for old, n in ended.items() if old not in stay}
        )
        retired = await self.retire_unrecorded(
            tx, why.scope, [old for old in heirs if old not in stay], why.cause, places
        )
        changes = [done.change for done in taken if done.change] + over
        changes += await asyncio.to_thread(retirements, retired)
        return Replaced(
            facts=tuple(done.fact for done in taken),
            outcomes=tuple(done.outcome for done in taken),
            retired=tuple(retired),
            ended=tuple(change.item for change in over),
            set_id=await self._changes.record(tx, why, changes) if changes else None,
        )

    async def _overtake(
        self, tx: Transaction, scope: str, heirs: Mapping[str, str]
    ) -> list[Change]:
        """Let facts be true until now, each in favour of its heir; how that is recorded."""
        now, changes = self._clock.now(), []
        for was in await self.living(tx, scope, list(heirs)):
            then = replace(was, valid_to=now, replaced_by=heirs[was.id])
            await self._put_state(tx, was.id, state_of(then))
            changes.append(Change("fact", was.id, state_of(was), state_of(then)))
        return changes

    async def living(
        self, source: Transaction | Database, scope: str, ids: Collection[str]
    ) -> list[Fact]:
        """Those of the facts with these ids that are live in the scope, in their order."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND {LIVE} ORDER BY seq",
            (json.dumps(list(ids)), scope),
        )
        return facts_of(rows)

    async def numbered(self, scope: str, seqs: Collection[int]) -> dict[int, Fact]:
        """The live facts of a scope by the numbers under which an index knows them."""
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE seq {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(seqs)), scope),
        )
        return {row["seq"]: fact_of(row) for row in rows}

    async def rename(self, tx: Transaction, why: Reason, was: str) -> None:
        """What is remembered under a name that a scope no longer has belongs to `why.scope`."""
        old = await self.live(was, tx)
        if not old:
            return
        taken = await self.take(tx, [renamed(fact, why.scope) for fact in old])
        heirs = {fact.id: done.fact.id for fact, done in zip(old, taken, strict=True)}
        gone = await self.retire_unrecorded(tx, was, list(heirs), why.cause, heirs)
        changes = [done.change for done in taken if done.change]
        await self._changes.record(tx, why, [*changes, *retirements(gone)])

    # What is to be brought together with the others (M-031 to M-043); what has an end stays apart

    async def queues(self, source: Transaction | Database) -> list[Queue]:
        """How many facts of each scope wait, those that may come from outside apart."""
        rows = await source.rows(
            "SELECT scope, taint, count(*) AS facts, max(stored_at) AS newest FROM facts"
            f" WHERE queued AND valid_to IS NULL AND {LIVE} GROUP BY scope, taint ORDER BY scope, taint"
        )
        return [_queue(row) for row in rows]

    async def queued(
        self, scope: str, most: int, *, taint: bool, tx: Transaction | None = None
    ) -> list[Fact]:
        """The first that wait."""
        rows = await (tx or self._database).rows(
            f"SELECT * FROM facts WHERE queued AND scope = ? AND taint = ? AND {LIVE}"
            " AND valid_to IS NULL ORDER BY seq LIMIT ?",
            (scope, taint, most),
        )
        return facts_of(rows)

    async def unqueue(self, tx: Transaction, ids: Collection[str]) -> None:
        """They were brought together with the others, or cannot be."""
        await tx.execute(
            f"UPDATE facts SET queued = 0 WHERE id {IN_LIST}", (json.dumps(list(ids)),)
        )

    # Writing, for callers that put the changes on record themselves

    async def take(self, tx: Transaction, new: Sequence[NewFact]) -> list[AddedFact]:
        """Store facts, but those that are known, or give a secret away; see `fact.met` (M-083)."""
        ids, pairs = await asyncio.to_thread(wanted, new)
        rows = await tx.rows(
            "SELECT f.* FROM json_each(?) w CROSS JOIN facts f ON f.id = w.value"
            " UNION SELECT f.* FROM json_each(?) w CROSS JOIN facts f ON f.retired_at IS NULL AND"
            " NOT f.ended AND f.scope = json_extract(w.value, '$[0]') AND f.key = json_extract(w.value, '$[1]')",
            (ids, pairs),
        )
        batch = await asyncio.to_thread(met, new, rows, self._clock.now(), self._new_id)
        await self._place(tx, batch.inserts)
        await tx.execute_many(*await asyncio.to_thread(insert_many, "facts", batch.inserts))
        await tx.execute_many(
            "UPDATE facts SET source = :source, origins = :origins, valid_to = :valid_to,"
            " ended = :ended, taint = :taint, protected = :protected, said_at = :said_at,"
            f" {RESTING} WHERE id = :id",
            [stored(update) for update in batch.updates],
        )
        await self._renew(tx, [row["id"] for row in batch.inserts])
        return batch.taken

    async def _place(self, tx: Transaction, rows: Sequence[Json]) -> None:
        """Give new rows their places, in their order."""
        last: dict[str, tuple[int, str | None, datetime]] = {}
        for scope in {row["scope"] for row in rows}:
            query = (
                "SELECT place, speaker, created_at FROM facts WHERE scope = ?"
                " ORDER BY place DESC LIMIT 1"
            )
            newest = await tx.row(query, (scope,))
            if newest is not None:
                at = moment(newest["created_at"])
                last[scope] = (newest["place"], newest["speaker"], at)
        for row in rows:
            speaker, at = row["speaker"], row["created_at"]
            place, before, then = last.get(row["scope"], (0, None, at))
            row["place"] = place_after(place, apart=are_apart(before, then, speaker, at))
            last[row["scope"]] = (row["place"], speaker, at)

    async def retire_unrecorded(
        self,
        tx: Transaction,
        scope: str,
        ids: Iterable[str],
        cause: Cause,
        places: Mapping[str, str] | None = None,
    ) -> list[Fact]:
        """Retire facts of a scope; those that were kept. `places`: who took whose place."""
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND retired_at IS NULL"
            " ORDER BY created_at, seq",
            (json.dumps(list(ids)), scope),
        )
        gone = await asyncio.to_thread(facts_of, rows)
        now, places = stamp(self._clock.now()), places or {}
        await tx.execute_many(
            # A line that was removed by hand is not in the file.
            "UPDATE facts SET retired_at = ?1, retired_by = ?2,"
            " replaced_by = coalesce(?3, replaced_by, iif(?2 = 'undo', once_replaced_by, NULL)),"
            " exported = exported AND ?2 <> 'edit' WHERE id = ?4",
            [(now, cause, places.get(fact.id), fact.id) for fact in gone],
        )
        await self.words.drop(tx, [row["seq"] for row in rows])
        if gone:
            await self._tell(tx)
        return gone

    async def revive(self, tx: Transaction, scope: str, texts: Sequence[str]) -> list[Fact]:
        """Bring back what was removed by hand not long ago and is written again (M-015).

        So it keeps where it is from and its age; an editor may have saved in two steps.
        """
        named = await asyncio.to_thread(lambda: {key(text): text for text in texts})
        rows = await tx.rows(
            "SELECT * FROM facts WHERE scope = ? AND retired_at > ? AND retired_by = 'edit'"
            f" AND key {IN_LIST} ORDER BY retired_at, seq",
            (scope, stamp(self._clock.now() - KEPT), json.dumps(list(named))),
        )
        facts = await asyncio.to_thread(revived, rows, named)
        now = stamp(self._clock.now())
        await tx.execute_many(
            "UPDATE facts SET text = ?, stored_at = ?, exported = 0, retired_at = NULL,"
            " retired_by = NULL, replaced_by = NULL, protected = 1 WHERE id = ?",
            [(fact.text, now, fact.id) for fact in facts],
        )
        await self._renew(tx, [fact.id for fact in facts])
        return facts

    async def reword(
        self, tx: Transaction, scope: str, pairs: Sequence[tuple[str, str]]
    ) -> list[Change]:
        """Give facts (id, text) another case or spacing, as the memories file has it."""
        texts = dict(pairs)
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(texts)), scope),
        )
        facts = [fact_of(row) for row in rows if row["key"] == key(texts[row["id"]])]
        await tx.execute_many(
            "UPDATE facts SET text = ? WHERE id = ?", [(texts[fact.id], fact.id) for fact in facts]
        )
        await self._renew(tx, [fact.id for fact in facts])
        return [
            Change("fact", f.id, state_of(f), state_of(replace(f, text=texts[f.id]))) for f in facts
        ]

    # The way back

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """What a change set says of a fact; None: retired, or not there."""
        row = await tx.row("SELECT * FROM facts WHERE id = ? AND retired_at IS NULL", (item,))
        return state_of(fact_of(row)) if row else None

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Make the fact this again; False where an equal one lives or it is gone for good.

        A retired fact comes back under its id. `why` is on record already.
        """
        row = await tx.row("SELECT * FROM facts WHERE id = ?", (item,))
        if row is None:
            return False
        if state is None:
            return bool(await self.retire_unrecorded(tx, row["scope"], [item], why.cause))
        # Another key would be another line in the file; only case and spacing ever change.
        if (row["scope"], row["key"]) != (state["scope"], key(state["text"])):
            return False
        return await self._put_state(tx, item, state)

    async def heirs(self, tx: Transaction, items: Collection[str]) -> Mapping[str, str]:
        """Of those of these facts that were merged into others, or ended for them, which that is."""
        rows = await tx.rows(
            f"SELECT id, replaced_by FROM facts WHERE id {IN_LIST} AND replaced_by IS NOT NULL"
            " AND (retired_at IS NULL AND ended OR valid_to IS NULL AND retired_at IS NOT NULL)",
            (json.dumps(list(items)),),
        )
        return {row["id"]: row["replaced_by"] for row in rows}

    async def _put_state(self, tx: Transaction, item: str, state: Json) -> bool:
        until = state.get("valid_to")
        values = {
            "id": item,
            "text": state["text"],
            "source": state["source"],
            "protected": is_protected(state),
            "archived": bool(state.get("resting")),
            "speaker": state.get("speaker"),
            "until": until,
            "ended": until is not None and until <= stamp(self._clock.now()),
            "heir": state.get("replaced_by"),
            "now": stamp(self._clock.now()),
        }
        done = await tx.execute(
            f"UPDATE facts SET text = :text, source = :source, speaker = :speaker, protected = :protected, {RESTING},"
            # A line in another spelling is in the file, and to be written anew.
            " exported = CASE WHEN text = :text OR NOT exported THEN exported ELSE 2 END,"
            " stored_at = CASE WHEN retired_at IS NULL THEN stored_at ELSE :now END,"
            " retired_at = NULL, retired_by = NULL, replaced_by = :heir,"
            " once_replaced_by = coalesce(replaced_by, once_replaced_by),"
            " valid_to = :until, ended = :ended"
            " WHERE id = :id AND (:ended OR NOT EXISTS (SELECT 1 FROM facts o WHERE"
            "  o.scope = facts.scope AND o.key = facts.key AND o.retired_at IS NULL AND NOT o.ended"
            "  AND o.id <> facts.id))",
            values,
        )
        await self._renew(tx, [item])
        return done == 1

    async def lapse(self) -> None:
        """What was true until a moment that has passed leaves the prompt, lists and files."""
        (next_end,) = await self._database.scalars(
            "SELECT min(valid_to) FROM facts WHERE valid_to IS NOT NULL AND NOT ended"
        )
        if next_end is None or next_end > (now := stamp(self._clock.now())):
            return
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE facts SET ended = 1 WHERE valid_to <= ? AND valid_to IS NOT NULL AND NOT ended",
                (now,),
            )
            await self._tell(tx)

    async def purge(self, tx: Transaction, scope: str, ids: Iterable[str]) -> list[str]:
        """Delete facts of a scope for good; the ids that were there.

        Their lines must have left the file, or they would be learnt again: `FlatFile.forget`.
        """
        listed = json.dumps(list(ids))
        for vectors in ("fact_vectors", "qdrant_points"):
            # What was said right after one of them was embedded with the end of its text.
            await tx.execute(
                f"DELETE FROM {vectors} WHERE seq IN (SELECT n.seq FROM facts f JOIN facts n"
                f" ON n.scope = f.scope AND n.place = f.place + 1"
                f" WHERE f.id {IN_LIST} AND f.scope = ?)",
                (listed, scope),
            )
        await self._tell(tx)
        rows = await tx.rows(
            f"DELETE FROM facts WHERE +scope = ? AND id {IN_LIST} RETURNING id, seq",
            (scope, listed),
        )
        await self.words.drop(tx, [row["seq"] for row in rows])
        return [row["id"] for row in rows]

    async def expire(self, tx: Transaction, before: datetime) -> int:
        """Delete what was retired before a moment and has left the file; how many (M-065)."""
        return await tx.execute(
            "DELETE FROM facts WHERE retired_at < ? AND exported = 0", (stamp(before),)
        )

    # The memories file

    def now(self) -> datetime:
        """The moment by which facts are stamped."""
        return self._clock.now()

    async def gone_since(
        self, tx: Transaction, scope: str, begun: datetime, but_by: Cause
    ) -> set[str]:
        """Keys of what was retired since `begun` by another cause than this one."""
        query = "SELECT key FROM facts WHERE scope = ? AND retired_at >= ? AND retired_by <> ?"
        return set(await tx.scalars(query, (scope, stamp(begun), but_by)))

    async def is_unwritten(self, scope: str) -> bool:
        """Whether the memories file lacks a live fact or still has a retired one."""
        return await self._database.exists(
            f"SELECT 1 FROM facts WHERE scope = ? AND exported <> {LISTED} LIMIT 1",
            (scope,),
        )

    async def for_file(self, tx: Transaction, scope: str) -> list[FileLine]:
        """All live facts, oldest first, and the others whose line is still in the file."""
        rows = await tx.rows(
            "SELECT id, key, text, exported = 1 AS exported, 1 AS live, created_at, seq FROM facts"
            f" WHERE scope = :scope AND {LIVE}"
            " UNION ALL SELECT id, key, text, 1, 0, created_at, seq FROM facts"
            f" WHERE scope = :scope AND exported <> {LISTED} AND NOT {LISTED}"
            " ORDER BY created_at, seq",
            {"scope": scope},
        )
        return await asyncio.to_thread(lambda: [_line(row) for row in rows])

    async def unwrite(
        self, tx: Transaction, scope: str, ids: Collection[str] | None = None
    ) -> None:
        """Let these facts count as not written: if their lines go now, nobody removed them.

        None: all, also those that are retired; the file is none of theirs any more.
        """
        if ids is None:
            await tx.execute("UPDATE facts SET exported = 0 WHERE scope = ? AND exported", (scope,))
            return
        await tx.execute(
            f"UPDATE facts SET exported = 0 WHERE id {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(ids)), scope),
        )

    async def written(self, tx: Transaction, scope: str) -> None:
        """The memories file now has exactly the live facts."""
        await tx.execute(
            f"UPDATE facts SET exported = {LISTED} WHERE scope = ? AND exported <> {LISTED}",
            (scope,),
        )
