"""The store of facts: each kept once per scope, retired rather than deleted, with every change on record."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from wintermute.changes.change_sets import KEPT, Cause, Change, ChangeSets, Reason
from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import SCOPES, SearchableText, TextMatches
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
    FactCounts,
    FileLine,
    NewFact,
    Queue,
    ReplacementResult,
    Source,
    entry,
    fact_of,
    facts_of,
    is_protected,
    key,
    merge_duplicates,
    renamed,
    replacement_plan,
    retirements,
    revived,
    state_of,
    wanted,
    without_refused,
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
"""True now, or true at that moment; a fact stored afterwards has no known beginning."""
LIVE = TRUE.replace("{}.", "")
"""Remembered and true; other facts are kept for an undo, or for questions about the past (M-074)."""
TRUE_THEN = WAS_TRUE.replace("{}.", "")
ACTIVE = f"{LIVE} AND NOT archived"
"""Live and not archived; archived facts are found by a search only (M-060)."""
ARCHIVING = "archived = :archived, examined = iif(archived AND NOT :archived, 0, examined)"
LISTED = f"({LIVE})"
"""The fact has a line in the memories file; written as in the index `facts_unwritten`."""
IN_LIST = "IN (SELECT value FROM json_each(?))"
# `+scope` beside it: otherwise SQLite reads the whole scope to find a few ids.

SPLIT = "split"
"""Name of the job that splits a long text."""
NOBODY: Mapping[str, int] = {}

OnNewTexts = Callable[[Transaction], Awaitable[None]]

FACTS = SearchableText("facts", ("text",), of=f"+scope IN {SCOPES}")
_line = reader(FileLine)
_queue = reader(Queue)


class Facts:
    """The memories of each person and room. Also the `Rows` of kind "fact" for an undo.

    Work on many facts at once runs in a thread beside the event loop.
    """

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        clock: Clock,
        new_id: NewId,
        on_new_texts: OnNewTexts | None = None,
        health: Health | None = None,
    ) -> None:
        """`on_new_texts`: called when texts are new, in the same transaction.

        `health`: gets a report when the index of words had to be repaired.
        """
        self._database = database
        self._changes = changes
        self._clock = clock
        self._new_id = new_id
        self._on_new_texts = on_new_texts
        self.words = WordIndex(health)

    # Reading

    async def live(
        self, scope: str, tx: Transaction | None = None, stored_before: datetime | None = None
    ) -> list[Fact]:
        """Return the facts of a scope, oldest first; within a transaction, as it sees them.

        `stored_before`: without facts stored, or revived, since then, whatever their age.
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
        """Return `count` facts, newest first, from the one numbered `begin` on (M-002).

        `when`: include facts that were true at that moment.
        """
        if begin < 1:
            raise ToolFailed(f"begin counts from 1, the newest; {begin} is no place in the list")
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE scope = :scope AND {ACTIVE if when is None else TRUE_THEN}"
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
        """Return the live facts that were used most often, then the newest (M-016)."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE scope = ? AND {ACTIVE}"
            " ORDER BY accesses DESC, created_at DESC, seq DESC LIMIT ?",
            (scope, count),
        )
        return [fact_of(row) for row in rows]

    async def get(self, fact_id: str, scope: str | None = None) -> Fact | None:
        """Return one fact, live or retired; with `scope` only if it belongs there."""
        row = await self._database.row(
            "SELECT * FROM facts WHERE id = ? AND (scope = ? OR ? IS NULL)",
            (fact_id, scope, scope),
        )
        return fact_of(row) if row else None

    async def related_versions(self, ids: Iterable[str]) -> list[Fact]:
        """Return these facts, live or retired, with those they replaced and equal ones of their scope."""
        rows = await self._database.rows(
            "WITH RECURSIVE found (id) AS (SELECT value FROM json_each(?) UNION"
            "  SELECT f.id FROM found JOIN facts o ON o.id = found.id JOIN facts f"
            "  ON f.replaced_by = o.id AND f.retired_at IS NOT NULL OR (f.scope = o.scope AND f.key = o.key))"
            " SELECT * FROM facts WHERE id IN (SELECT id FROM found) ORDER BY seq",
            (json.dumps(list(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def saying(self, traces: TextMatches) -> list[Fact]:
        """Return the facts of all scopes, live or retired, that match one of the `traces`."""
        query = f"SELECT * FROM facts WHERE {FACTS.rows()} ORDER BY scope, seq"
        rows = await self._database.rows(query, traces.asked(FACTS))
        return await asyncio.to_thread(facts_of, rows)

    async def count(self, scope: str) -> int:
        """Count the live facts of a scope."""
        query = f"SELECT count(*) FROM facts WHERE scope = ? AND {LIVE}"
        (count,) = await self._database.scalars(query, (scope,))
        return int(count)

    async def scopes(self) -> list[str]:
        """Return every scope that has facts, for the command line of the machine's owner."""
        return await self._database.scalars(
            "SELECT DISTINCT scope FROM facts WHERE retired_at IS NULL ORDER BY scope"
        )

    async def stamps(self) -> dict[str, tuple[object, ...]]:
        """Return for each scope a value that changes whenever its facts do."""
        rows = await self._database.rows(
            f"SELECT scope, count(*), sum({ACTIVE}), max(stored_at), max(retired_at) FROM facts"
            " GROUP BY scope"
        )
        return {row[0]: tuple(row[n] for n in range(1, 5)) for row in rows}

    async def kept(self, scope: str) -> list[Fact]:
        """Return the facts of a scope, ended ones included, oldest first."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND retired_at IS NULL ORDER BY created_at, seq",
            (scope,),
        )
        return await asyncio.to_thread(facts_of, rows)

    async def _renew(self, tx: Transaction, ids: Collection[str]) -> None:
        """Index the present texts of these facts."""
        if ids:
            await self.words.reindex(tx, ids)
            await self._notify(tx)

    async def _notify(self, tx: Transaction) -> None:
        if self._on_new_texts is not None:
            await self._on_new_texts(tx)

    async def replacements(self, fact: Fact) -> tuple[list[Fact], list[Fact]]:
        """Return the facts that this one replaced, and those that replaced it, as far as they are kept."""
        before = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND replaced_by = ? ORDER BY created_at, seq",
            (fact.scope, fact.id),
        )
        after = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND id = ?", (fact.scope, fact.replaced_by)
        )
        return facts_of(before), facts_of(after)

    async def tallies(self) -> list[FactCounts]:
        """Count the facts of each scope that has some, by their state."""
        rows = await self._database.rows(
            f"SELECT scope, sum({LIVE}) AS live, sum({LIVE} AND archived) AS archived,"
            " sum(retired_at IS NULL AND ended) AS ended,"
            f" sum(retired_at IS NOT NULL) AS retired,"
            + ", ".join(f" sum({LIVE} AND source = '{each}') AS {each}" for each in SOURCES)
            + " FROM facts GROUP BY scope ORDER BY scope"
        )
        indexed = await self.words.counts(self._database)
        return [
            FactCounts(
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
        """Store one fact; an equal fact stays the only one (M-005 to M-007).

        `until`: when it stops, or stopped, being true. `queued_facts`: it still has to be consolidated with the others of
        its scope. Raises: ToolFailed for a text that is too short or too long, or holds a secret.
        """
        line = entry(text, most=most)
        new = NewFact(scope, line, source, speaker, tuple(origins), valid_to=until)
        (taken,) = await self.take(tx, [replace(new, taint=taint, queued=queued)])
        if taken.outcome == "refused":
            refuse_secret(line)
        if taken.change:
            await self._changes.record(tx, why, [taken.change])
        return taken.fact, taken.outcome

    async def end(
        self,
        tx: Transaction,
        why: Reason,
        fact_id: str,
        until: datetime,
        successor: str | None = None,
    ) -> Fact | None:
        """End a live fact of `why.scope` at a time; `successor`: id of the fact that is true since (M-074)."""
        row = await tx.row(
            f"SELECT * FROM facts WHERE id = ? AND scope = ? AND {LIVE}", (fact_id, why.scope)
        )
        if row is None:
            return None
        was = fact_of(row)
        now = replace(was, valid_to=until, replaced_by=successor)
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
    ) -> ReplacementResult:
        """Replace old facts by new ones, which are stored before the old ones are retired (M-057).

        An old fact that equals a new one stays. A text in place of the person's own words counts as such (M-042).
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
        planned = await asyncio.to_thread(
            replacement_plan, live, set(ids), scope, new, why.evidence
        )
        successor_of = {
            fact.id: successor
            for fact, successor in zip(planned.old, planned.successors, strict=True)
        }
        return await self.supersede(tx, why, planned.fresh, successor_of)

    async def supersede(
        self,
        tx: Transaction,
        why: Reason,
        fresh: Sequence[NewFact],
        successor_of: Mapping[str, int | None],
        ended: Mapping[str, int] = NOBODY,
    ) -> ReplacementResult:
        """Store `fresh`, then retire the facts of `successor_of`; those of `ended` were true until now.

        `successor_of`, `ended`: old id → index of its successor. An old fact stays that equals a new one, or whose
        successor was refused.
        """
        taken = await self.take(tx, fresh)
        successor_of = without_refused(successor_of, taken)
        ended = {old: n for old, n in ended.items() if taken[n].outcome != "refused"}
        stay = {done.fact.id for done in taken}
        places = {
            old: taken[successor].fact.id
            for old, successor in successor_of.items()
            if successor is not None and old not in stay
        }
        over = await self._overtake(
            tx, why.scope, {old: taken[n].fact.id for old, n in ended.items() if old not in stay}
        )
        retired = await self.retire_unrecorded(
            tx, why.scope, [old for old in successor_of if old not in stay], why.cause, places
        )
        changes = [done.change for done in taken if done.change] + over
        changes += await asyncio.to_thread(retirements, retired)
        return ReplacementResult(
            facts=tuple(done.fact for done in taken),
            outcomes=tuple(done.outcome for done in taken),
            retired=tuple(retired),
            ended=tuple(change.item for change in over),
            set_id=await self._changes.record(tx, why, changes) if changes else None,
        )

    async def _overtake(
        self, tx: Transaction, scope: str, successor_of: Mapping[str, str]
    ) -> list[Change]:
        """End facts now, each in favour of its successor; return the changes to record."""
        now, changes = self._clock.now(), []
        for was in await self.living(tx, scope, list(successor_of)):
            then = replace(was, valid_to=now, replaced_by=successor_of[was.id])
            await self._put_state(tx, was.id, state_of(then))
            changes.append(Change("fact", was.id, state_of(was), state_of(then)))
        return changes

    async def living(
        self, source: Transaction | Database, scope: str, ids: Collection[str]
    ) -> list[Fact]:
        """Return the live facts of the scope among these ids, in their order."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND {LIVE} ORDER BY seq",
            (json.dumps(list(ids)), scope),
        )
        return facts_of(rows)

    async def numbered(self, scope: str, seqs: Collection[int]) -> dict[int, Fact]:
        """Return the live facts of a scope by the row numbers that an index uses."""
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE seq {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(seqs)), scope),
        )
        return {row["seq"]: fact_of(row) for row in rows}

    async def rename(self, tx: Transaction, why: Reason, was: str) -> None:
        """Move the facts of a scope's former name to `why.scope`."""
        old = await self.live(was, tx)
        if not old:
            return
        taken = await self.take(tx, [renamed(fact, why.scope) for fact in old])
        new_ids = {fact.id: done.fact.id for fact, done in zip(old, taken, strict=True)}
        gone = await self.retire_unrecorded(tx, was, list(new_ids), why.cause, new_ids)
        changes = [done.change for done in taken if done.change]
        await self._changes.record(tx, why, [*changes, *retirements(gone)])

    # Facts to be consolidated with the others (M-031 to M-043); those with an end are not

    async def queues(self, source: Transaction | Database) -> list[Queue]:
        """Count the waiting facts of each scope, untrusted ones separately."""
        rows = await source.rows(
            "SELECT scope, taint, count(*) AS facts, max(stored_at) AS newest FROM facts"
            f" WHERE queued AND valid_to IS NULL AND {LIVE} GROUP BY scope, taint ORDER BY scope, taint"
        )
        return [_queue(row) for row in rows]

    async def queued_facts(
        self, scope: str, most: int, *, taint: bool, tx: Transaction | None = None
    ) -> list[Fact]:
        """Return the first facts that wait to be consolidated."""
        rows = await (tx or self._database).rows(
            f"SELECT * FROM facts WHERE queued AND scope = ? AND taint = ? AND {LIVE}"
            " AND valid_to IS NULL ORDER BY seq LIMIT ?",
            (scope, taint, most),
        )
        return facts_of(rows)

    async def unqueue(self, tx: Transaction, ids: Collection[str]) -> None:
        """Mark facts as consolidated, or as impossible to consolidate."""
        await tx.execute(
            f"UPDATE facts SET queued = 0 WHERE id {IN_LIST}", (json.dumps(list(ids)),)
        )

    # Writing, for callers that put the changes on record themselves

    async def take(self, tx: Transaction, new: Sequence[NewFact]) -> list[AddedFact]:
        """Store facts, except known ones and those that hold a secret; see `fact.met` (M-083)."""
        ids, pairs = await asyncio.to_thread(wanted, new)
        rows = await tx.rows(
            "SELECT f.* FROM json_each(?) w CROSS JOIN facts f ON f.id = w.value"
            " UNION SELECT f.* FROM json_each(?) w CROSS JOIN facts f ON f.retired_at IS NULL AND"
            " NOT f.ended AND f.scope = json_extract(w.value, '$[0]') AND f.key = json_extract(w.value, '$[1]')",
            (ids, pairs),
        )
        batch = await asyncio.to_thread(
            merge_duplicates, new, rows, self._clock.now(), self._new_id
        )
        await self._place(tx, batch.inserts)
        await tx.execute_many(*await asyncio.to_thread(insert_many, "facts", batch.inserts))
        await tx.execute_many(
            "UPDATE facts SET source = :source, origins = :origins, valid_to = :valid_to,"
            " ended = :ended, taint = :taint, protected = :protected, said_at = :said_at,"
            f" {ARCHIVING} WHERE id = :id",
            [stored(update) for update in batch.updates],
        )
        await self._renew(tx, [row["id"] for row in batch.inserts])
        return batch.results

    async def _place(self, tx: Transaction, rows: Sequence[Json]) -> None:
        """Number new rows in their order, with gaps where the conversation paused."""
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
        """Retire facts of a scope and return them. `places`: old id → id of the fact that replaces it."""
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
            await self._notify(tx)
        return gone

    async def revive(self, tx: Transaction, scope: str, texts: Sequence[str]) -> list[Fact]:
        """Bring back recently removed facts whose lines are written again (M-015).

        They keep their origins and age; some editors save in two steps.
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
        """Change the case or spacing of facts (id, text), as the memories file has it."""
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

    # Undo

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """Return the state of a fact for a change set; None if it is retired or missing."""
        row = await tx.row("SELECT * FROM facts WHERE id = ? AND retired_at IS NULL", (item,))
        return state_of(fact_of(row)) if row else None

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Restore a state of a fact; False if an equal one lives or the fact is gone for good.

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

    async def successors(self, tx: Transaction, items: Collection[str]) -> Mapping[str, str]:
        """Return, for facts that were merged or ended in favour of others, the ids of those others."""
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
            f"UPDATE facts SET text = :text, source = :source, speaker = :speaker, protected = :protected, {ARCHIVING},"
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
        """End the facts whose `valid_to` has passed, so that they leave the prompt, lists and files."""
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
            await self._notify(tx)

    async def purge(self, tx: Transaction, scope: str, ids: Iterable[str]) -> int:
        """Delete facts of a scope for good, with their recorded changes; return their number.

        Their lines must have left the file, or they would be learnt again: `FlatFile.forget`.
        """
        listed = json.dumps(list(ids))
        for vectors in ("fact_vectors", "qdrant_points"):
            # The embedding of the next fact included the end of the deleted text.
            await tx.execute(
                f"DELETE FROM {vectors} WHERE seq IN (SELECT n.seq FROM facts f JOIN facts n"
                f" ON n.scope = f.scope AND n.place = f.place + 1"
                f" WHERE f.id {IN_LIST} AND f.scope = ?)",
                (listed, scope),
            )
        await self._notify(tx)
        rows = await tx.rows(
            f"DELETE FROM facts WHERE +scope = ? AND id {IN_LIST} RETURNING id, seq",
            (scope, listed),
        )
        await self.words.drop(tx, [row["seq"] for row in rows])
        await self._changes.drop(tx, "fact", [row["id"] for row in rows])
        return len(rows)

    async def expire(self, tx: Transaction, before: datetime) -> int:
        """Delete facts that were retired before a moment and have left the file; return their number (M-065)."""
        return await tx.execute(
            "DELETE FROM facts WHERE retired_at < ? AND exported = 0", (stamp(before),)
        )

    # The memories file

    def now(self) -> datetime:
        """Return the time by which facts are stamped."""
        return self._clock.now()

    async def gone_since(
        self, tx: Transaction, scope: str, begun: datetime, but_by: Cause
    ) -> set[str]:
        """Return the keys of facts retired since `begun` by another cause than this one."""
        query = "SELECT key FROM facts WHERE scope = ? AND retired_at >= ? AND retired_by <> ?"
        return set(await tx.scalars(query, (scope, stamp(begun), but_by)))

    async def is_unwritten(self, scope: str) -> bool:
        """Check whether the memories file lacks a live fact or still has a retired one."""
        return await self._database.exists(
            f"SELECT 1 FROM facts WHERE scope = ? AND exported <> {LISTED} LIMIT 1",
            (scope,),
        )

    async def for_file(self, tx: Transaction, scope: str) -> list[FileLine]:
        """Return all live facts, oldest first, and other facts whose line is still in the file."""
        rows = await tx.rows(
            "SELECT id, key, text, exported = 1 AS exported, 1 AS live, created_at, seq FROM facts"
            f" WHERE scope = :scope AND {LIVE}"
            " UNION ALL SELECT id, key, text, 1, 0, created_at, seq FROM facts"
            f" WHERE scope = :scope AND exported <> {LISTED} AND NOT {LISTED}"
            " ORDER BY created_at, seq",
            {"scope": scope},
        )
        return await asyncio.to_thread(lambda: [_line(row) for row in rows])

    async def mark_unwritten(
        self, tx: Transaction, scope: str, ids: Collection[str] | None = None
    ) -> None:
        """Mark facts as not written, so that a missing line does not count as removed by a person.

        None: all facts, retired ones included, as the file is no view of them any more.
        """
        if ids is None:
            await tx.execute("UPDATE facts SET exported = 0 WHERE scope = ? AND exported", (scope,))
            return
        await tx.execute(
            f"UPDATE facts SET exported = 0 WHERE id {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(ids)), scope),
        )

    async def mark_written(self, tx: Transaction, scope: str) -> None:
        """Mark exactly the live facts as written to the memories file."""
        await tx.execute(
            f"UPDATE facts SET exported = {LISTED} WHERE scope = ? AND exported <> {LISTED}",
            (scope,),
        )
