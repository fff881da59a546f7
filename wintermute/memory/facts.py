"""The store of facts: each is stored once per scope, and every change is recorded so that it can be undone.

state      columns                       meaning
live       retired_at NULL, ended 0      true now: in lists and the memories file
archived   live, archived 1              found by a search only (M-060); other live facts are active
ended      retired_at NULL, ended 1      true until `valid_to`; answers questions about the past (M-074)
retired    retired_at, retired_by set    soft-deleted, so that it can be restored
purged     no row                        deleted for good
"""

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
"""Live now, or at the moment `:when`; a fact stored after its end has no known beginning."""
LIVE = TRUE.replace("{}.", "")
WAS_LIVE_AT = WAS_TRUE.replace("{}.", "")
ACTIVE = f"{LIVE} AND NOT archived"
ARCHIVING = "archived = :archived, examined = iif(archived AND NOT :archived, 0, examined)"
"""Sets `archived`. A fact that is active again is examined again: the night compares it for contradictions."""
OUTDATED_LINE = 2
"""Value of `exported`: the file has the old spelling of the line; rewrite it. 1: it has the line; 0: it has not."""
IN_LIST = "IN (SELECT value FROM json_each(?))"
# Write `+scope` beside it: with `scope` SQLite reads the whole scope to find a few ids.

SPLIT = "split"
"""Name of the job that splits a long text."""
NONE_ENDED: Mapping[str, int] = {}

OnNewTexts = Callable[[Transaction], Awaitable[None]]

FACTS = SearchableText("facts", ("text",), of=f"+scope IN {SCOPES}")
_line = reader(FileLine)
_queue = reader(Queue)


class Facts:
    """The memories of each person and room. Implements the `Rows` protocol of `changes/undo.py`.

    Work on many facts at once runs in a thread beside the event loop.
    """

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        clock: Clock,
        new_id: NewId,
        on_change: OnNewTexts | None = None,
        health: Health | None = None,
    ) -> None:
        """`on_change`: called in the same transaction whenever facts change.

        `health`: gets a report when the index of words had to be repaired.
        """
        self._database = database
        self._changes = changes
        self._clock = clock
        self._new_id = new_id
        self._on_change = on_change
        self.words = WordIndex(health)

    # Reading

    async def live(
        self, scope: str, tx: Transaction | None = None, stored_before: datetime | None = None
    ) -> list[Fact]:
        """Return the live facts of a scope, oldest first; `tx`: as this transaction sees them.

        `stored_before`: leave out facts that were stored or restored since then.
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
        """Return `count` active facts, newest first, from number `begin` on; 1 is the newest (M-002).

        `when`: with archived facts, and with those that were true at that moment.
        """
        if begin < 1:
            raise ToolFailed(f"begin counts from 1, which is the newest; it cannot be {begin}")
        at = stamp(when) if when else None
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE scope = :scope AND {ACTIVE if when is None else WAS_LIVE_AT}"
            " ORDER BY created_at DESC, seq DESC LIMIT :count OFFSET :begin",
            {"scope": scope, "count": max(0, count), "begin": begin - 1, "when": at},
        )
        return [fact_of(row) for row in rows]

    async def most_used(self, scope: str, count: int, source: Transaction | Database) -> list[Fact]:
        """Return the active facts that were used most often, then the newest (M-016)."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE scope = ? AND {ACTIVE}"
            " ORDER BY accesses DESC, created_at DESC, seq DESC LIMIT ?",
            (scope, count),
        )
        return [fact_of(row) for row in rows]

    async def get(self, fact_id: str, scope: str | None = None) -> Fact | None:
        """Return one fact in any state; `scope`: only if it belongs to this scope."""
        row = await self._database.row(
            "SELECT * FROM facts WHERE id = ? AND (scope = ? OR ? IS NULL)",
            (fact_id, scope, scope),
        )
        return fact_of(row) if row else None

    async def related_versions(self, ids: Iterable[str]) -> list[Fact]:
        """Return these facts in any state, with those they replaced and equal ones of their scope."""
        rows = await self._database.rows(
            "WITH RECURSIVE found (id) AS (SELECT value FROM json_each(?) UNION"
            "  SELECT f.id FROM found JOIN facts o ON o.id = found.id JOIN facts f"
            "  ON f.replaced_by = o.id AND f.retired_at IS NOT NULL OR (f.scope = o.scope AND f.key = o.key))"
            " SELECT * FROM facts WHERE id IN (SELECT id FROM found) ORDER BY seq",
            (json.dumps(list(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def saying(self, matches: TextMatches) -> list[Fact]:
        """Return the facts of all scopes, in any state, that match the search for a text to be forgotten."""
        query = f"SELECT * FROM facts WHERE {FACTS.rows()} ORDER BY scope, seq"
        rows = await self._database.rows(query, matches.asked(FACTS))
        return await asyncio.to_thread(facts_of, rows)

    async def count(self, scope: str) -> int:
        """Count the live facts of a scope."""
        query = f"SELECT count(*) FROM facts WHERE scope = ? AND {LIVE}"
        (count,) = await self._database.scalars(query, (scope,))
        return int(count)

    async def scopes(self) -> list[str]:
        """Return every scope that has live or ended facts."""
        return await self._database.scalars(
            "SELECT DISTINCT scope FROM facts WHERE retired_at IS NULL ORDER BY scope"
        )

    async def stamps(self) -> dict[str, tuple[object, ...]]:
        """Return for each scope a version: a value that changes whenever its facts change."""
        rows = await self._database.rows(
            f"SELECT scope, count(*), sum({ACTIVE}), max(stored_at), max(retired_at) FROM facts"
            " GROUP BY scope"
        )
        return {row[0]: tuple(row[n] for n in range(1, 5)) for row in rows}

    async def kept(self, scope: str) -> list[Fact]:
        """Return the live and ended facts of a scope, oldest first."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND retired_at IS NULL ORDER BY created_at, seq",
            (scope,),
        )
        return await asyncio.to_thread(facts_of, rows)

    async def _reindex(self, tx: Transaction, ids: Collection[str]) -> None:
        """Index the words of these facts again."""
        if ids:
            await self.words.reindex(tx, ids)
            await self._notify(tx)

    async def _notify(self, tx: Transaction) -> None:
        if self._on_change is not None:
            await self._on_change(tx)

    async def replacements(self, fact: Fact) -> tuple[list[Fact], list[Fact]]:
        """Return the facts that this one replaced, and those that replaced it; purged ones are missing."""
        before = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND replaced_by = ? ORDER BY created_at, seq",
            (fact.scope, fact.id),
        )
        after = await self._database.rows(
            "SELECT * FROM facts WHERE scope = ? AND id = ?", (fact.scope, fact.replaced_by)
        )
        return facts_of(before), facts_of(after)

    async def tallies(self) -> list[FactCounts]:
        """Count the facts of each scope by their state and source."""
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

    # Writing; these methods record their changes

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
        """Store one fact; an equal one is updated instead (M-005 to M-007).

        `until`: end of its truth, also in the past. `queued`: it waits for reconstruction. Raises: ToolFailed for a text
        that is too short or too long, or holds a secret.
        """
        line = entry(text, most=most)
        new = NewFact(scope, line, source, speaker, tuple(origins), valid_to=until)
        (added,) = await self.take(tx, [replace(new, taint=taint, queued=queued)])
        if added.outcome == "refused":
            refuse_secret(line)  # raises ToolFailed
        if added.change:
            await self._changes.record(tx, why, [added.change])
        return added.fact, added.outcome

    async def end(
        self,
        tx: Transaction,
        why: Reason,
        fact_id: str,
        until: datetime,
        successor: str | None = None,
    ) -> Fact | None:
        """End a live fact of `why.scope` at a time (M-074). `successor`: id of the fact that is true from then on."""
        row = await tx.row(
            f"SELECT * FROM facts WHERE id = ? AND scope = ? AND {LIVE}", (fact_id, why.scope)
        )
        if row is None:
            return None
        before = fact_of(row)
        after = replace(before, valid_to=until, replaced_by=successor)
        await self._put_state(tx, after.id, state_of(after))
        change = Change("fact", fact_id, state_of(before), state_of(after), tuple(why.evidence))
        await self._changes.record(tx, why, [change])
        return after

    async def replace(
        self,
        tx: Transaction,
        why: Reason,
        scope: str,
        old_ids: Iterable[str],
        new: Sequence[tuple[str, Source]],
    ) -> ReplacementResult:
        """Replace old facts by new ones, which are stored before the old ones are retired (M-057).

        An old fact that equals a new one stays. A text that replaces a person's own words is protected too (M-042).
        """
        ids = list(old_ids)
        keys = [key(entry(text, SHORTEST, LONGEST)) for text, _ in new]
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ?2 AND {LIVE} UNION"
            f" SELECT * FROM facts WHERE scope = ?2 AND key IN (SELECT value FROM json_each(?3)) AND {LIVE}"
            " ORDER BY created_at, seq",
            (json.dumps(ids), scope, json.dumps(keys)),
        )
        live = await asyncio.to_thread(facts_of, rows)
        plan = await asyncio.to_thread(replacement_plan, live, set(ids), scope, new, why.evidence)
        successor_of = {
            fact.id: successor for fact, successor in zip(plan.old, plan.successors, strict=True)
        }
        return await self.supersede(tx, why, plan.fresh, successor_of)

    async def supersede(
        self,
        tx: Transaction,
        why: Reason,
        fresh: Sequence[NewFact],
        successor_of: Mapping[str, int | None],
        ended: Mapping[str, int] = NONE_ENDED,
    ) -> ReplacementResult:
        """Store `fresh`, then retire the facts of `successor_of` and end those of `ended`, which were true until now.

        `successor_of`, `ended`: old id → index of its successor in `fresh`. An old fact is left as it is if it equals
        a new one, or if its successor was refused.
        """
        added = await self.take(tx, fresh)
        successor_of = without_refused(successor_of, added)
        ended = {old: n for old, n in ended.items() if added[n].outcome != "refused"}
        kept = {result.fact.id for result in added}
        successor_ids = {
            old: added[successor].fact.id
            for old, successor in successor_of.items()
            if successor is not None and old not in kept
        }
        ends = await self._end_now(
            tx, why.scope, {old: added[n].fact.id for old, n in ended.items() if old not in kept}
        )
        replaced = [old for old in successor_of if old not in kept]
        retired = await self.retire_unrecorded(tx, why.scope, replaced, why.cause, successor_ids)
        changes = [result.change for result in added if result.change] + ends
        changes += await asyncio.to_thread(retirements, retired)
        return ReplacementResult(
            facts=tuple(result.fact for result in added),
            outcomes=tuple(result.outcome for result in added),
            retired=tuple(retired),
            ended=tuple(change.item for change in ends),
            set_id=await self._changes.record(tx, why, changes) if changes else None,
        )

    async def _end_now(
        self, tx: Transaction, scope: str, successor_of: Mapping[str, str]
    ) -> list[Change]:
        """End facts now and store their successors; return the changes to record. `successor_of`: id → id."""
        now, changes = self._clock.now(), []
        for before in await self.living(tx, scope, list(successor_of)):
            after = replace(before, valid_to=now, replaced_by=successor_of[before.id])
            await self._put_state(tx, before.id, state_of(after))
            changes.append(Change("fact", before.id, state_of(before), state_of(after)))
        return changes

    async def living(
        self, source: Transaction | Database, scope: str, ids: Collection[str]
    ) -> list[Fact]:
        """Return the live facts of the scope among these ids, in the order of `seq`."""
        rows = await source.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND {LIVE} ORDER BY seq",
            (json.dumps(list(ids)), scope),
        )
        return facts_of(rows)

    async def numbered(self, scope: str, seqs: Collection[int]) -> dict[int, Fact]:
        """Return the live facts of a scope by `seq`, the row number that an index uses."""
        rows = await self._database.rows(
            f"SELECT * FROM facts WHERE seq {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(seqs)), scope),
        )
        return {row["seq"]: fact_of(row) for row in rows}

    async def rename(self, tx: Transaction, why: Reason, old_scope: str) -> None:
        """Move the live facts of a scope to `why.scope`, its new name."""
        old = await self.live(old_scope, tx)
        if not old:
            return
        added = await self.take(tx, [renamed(fact, why.scope) for fact in old])
        new_ids = {fact.id: result.fact.id for fact, result in zip(old, added, strict=True)}
        retired = await self.retire_unrecorded(tx, old_scope, list(new_ids), why.cause, new_ids)
        changes = [result.change for result in added if result.change]
        await self._changes.record(tx, why, [*changes, *retirements(retired)])

    # Facts that wait for reconstruction (M-031 to M-043); facts with an end do not

    async def queues(self, source: Transaction | Database) -> list[Queue]:
        """Count the facts of each scope that wait for reconstruction, untrusted ones separately."""
        rows = await source.rows(
            "SELECT scope, taint, count(*) AS facts, max(stored_at) AS newest FROM facts"
            f" WHERE queued AND valid_to IS NULL AND {LIVE} GROUP BY scope, taint ORDER BY scope, taint"
        )
        return [_queue(row) for row in rows]

    async def queued_facts(
        self, scope: str, most: int, *, taint: bool, tx: Transaction | None = None
    ) -> list[Fact]:
        """Return the first facts that wait for reconstruction."""
        rows = await (tx or self._database).rows(
            f"SELECT * FROM facts WHERE queued AND scope = ? AND taint = ? AND {LIVE}"
            " AND valid_to IS NULL ORDER BY seq LIMIT ?",
            (scope, taint, most),
        )
        return facts_of(rows)

    async def unqueue(self, tx: Transaction, ids: Collection[str]) -> None:
        """Mark facts as reconstructed, or as impossible to reconstruct."""
        await tx.execute(
            f"UPDATE facts SET queued = 0 WHERE id {IN_LIST}", (json.dumps(list(ids)),)
        )

    # Writing, for callers that record the changes themselves

    async def take(self, tx: Transaction, new: Sequence[NewFact]) -> list[AddedFact]:
        """Store facts, except known ones and those that hold a secret; see `fact.merge_duplicates` (M-083)."""
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
        await self._set_positions(tx, batch.inserts)
        await tx.execute_many(*await asyncio.to_thread(insert_many, "facts", batch.inserts))
        await tx.execute_many(
            "UPDATE facts SET source = :source, origins = :origins, valid_to = :valid_to,"
            " ended = :ended, taint = :taint, protected = :protected, said_at = :said_at,"
            f" {ARCHIVING} WHERE id = :id",
            [stored(update) for update in batch.updates],
        )
        await self._reindex(tx, [row["id"] for row in batch.inserts])
        return batch.results

    async def _set_positions(self, tx: Transaction, rows: Sequence[Json]) -> None:
        """Set the column `place` of new rows: consecutive numbers, with a gap for a pause or another speaker."""
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
            position, last_speaker, last_at = last.get(row["scope"], (0, None, at))
            row["place"] = place_after(
                position, apart=are_apart(last_speaker, last_at, speaker, at)
            )
            last[row["scope"]] = (row["place"], speaker, at)

    async def retire_unrecorded(
        self,
        tx: Transaction,
        scope: str,
        ids: Iterable[str],
        cause: Cause,
        successor_ids: Mapping[str, str] | None = None,
    ) -> list[Fact]:
        """Retire facts of a scope and return them. `successor_ids`: old id → id of the fact that replaces it."""
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND retired_at IS NULL"
            " ORDER BY created_at, seq",
            (json.dumps(list(ids)), scope),
        )
        facts = await asyncio.to_thread(facts_of, rows)
        now, successor_ids = stamp(self._clock.now()), successor_ids or {}
        await tx.execute_many(
            # The file has no line that a person has removed.
            "UPDATE facts SET retired_at = ?1, retired_by = ?2,"
            " replaced_by = coalesce(?3, replaced_by, iif(?2 = 'undo', once_replaced_by, NULL)),"
            " exported = exported AND ?2 <> 'edit' WHERE id = ?4",
            [(now, cause, successor_ids.get(fact.id), fact.id) for fact in facts],
        )
        await self.words.drop(tx, [row["seq"] for row in rows])
        if facts:
            await self._notify(tx)
        return facts

    async def revive(self, tx: Transaction, scope: str, texts: Sequence[str]) -> list[Fact]:
        """Restore facts whose lines were removed from the memories file and are back in it (M-015).

        They keep their origins and age. Some editors empty a file before they write it.
        """
        texts_by_key = await asyncio.to_thread(lambda: {key(text): text for text in texts})
        rows = await tx.rows(
            "SELECT * FROM facts WHERE scope = ? AND retired_at > ? AND retired_by = 'edit'"
            f" AND key {IN_LIST} ORDER BY retired_at, seq",
            (scope, stamp(self._clock.now() - KEPT), json.dumps(list(texts_by_key))),
        )
        facts = await asyncio.to_thread(revived, rows, texts_by_key)
        now = stamp(self._clock.now())
        await tx.execute_many(
            "UPDATE facts SET text = ?, stored_at = ?, exported = 0, retired_at = NULL,"
            " retired_by = NULL, replaced_by = NULL, protected = 1 WHERE id = ?",
            [(fact.text, now, fact.id) for fact in facts],
        )
        await self._reindex(tx, [fact.id for fact in facts])
        return facts

    async def reword(
        self, tx: Transaction, scope: str, pairs: Sequence[tuple[str, str]]
    ) -> list[Change]:
        """Take the case and spacing of texts from the memories file. `pairs`: (id, text); return the changes."""
        texts = dict(pairs)
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE id {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(texts)), scope),
        )
        facts = [fact_of(row) for row in rows if row["key"] == key(texts[row["id"]])]
        await tx.execute_many(
            "UPDATE facts SET text = ? WHERE id = ?", [(texts[fact.id], fact.id) for fact in facts]
        )
        await self._reindex(tx, [fact.id for fact in facts])
        return [
            Change("fact", f.id, state_of(f), state_of(replace(f, text=texts[f.id]))) for f in facts
        ]

    # Undo

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """Return the state of a fact; None if it is retired or purged. Implements `Rows`."""
        row = await tx.row("SELECT * FROM facts WHERE id = ? AND retired_at IS NULL", (item,))
        return state_of(fact_of(row)) if row else None

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Restore a state of a fact; False if an equal one is live or the fact was purged. Implements `Rows`.

        A retired fact gets its old id. The caller has recorded `why`.
        """
        row = await tx.row("SELECT * FROM facts WHERE id = ?", (item,))
        if row is None:
            return False
        if state is None:
            return bool(await self.retire_unrecorded(tx, row["scope"], [item], why.cause))
        # A fact keeps its key: only case and spacing of its text may change.
        if (row["scope"], row["key"]) != (state["scope"], key(state["text"])):
            return False
        return await self._put_state(tx, item, state)

    async def successors(self, tx: Transaction, items: Collection[str]) -> Mapping[str, str]:
        """Return the ids of the successors of facts that were merged or ended. Implements `Rows`."""
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
        updated = await tx.execute(
            f"UPDATE facts SET text = :text, source = :source, speaker = :speaker, protected = :protected, {ARCHIVING},"
            # If the file has the line, it has the old spelling.
            f" exported = CASE WHEN text = :text OR NOT exported THEN exported ELSE {OUTDATED_LINE} END,"
            " stored_at = CASE WHEN retired_at IS NULL THEN stored_at ELSE :now END,"
            " retired_at = NULL, retired_by = NULL, replaced_by = :heir,"
            " once_replaced_by = coalesce(replaced_by, once_replaced_by),"
            " valid_to = :until, ended = :ended"
            " WHERE id = :id AND (:ended OR NOT EXISTS (SELECT 1 FROM facts o WHERE"
            "  o.scope = facts.scope AND o.key = facts.key AND o.retired_at IS NULL AND NOT o.ended"
            "  AND o.id <> facts.id))",
            values,
        )
        await self._reindex(tx, [item])
        return updated == 1

    async def lapse(self) -> None:
        """Mark the facts whose `valid_to` has passed as ended: no prompt, list or file has them any more."""
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
        """Purge facts of a scope, with their recorded changes; return their number.

        Remove their lines from the memories file first (`FlatFile.forget`), or they are read in again.
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
        """Purge facts that were retired before a moment and are not in the file; return their number (M-065)."""
        return await tx.execute(
            "DELETE FROM facts WHERE retired_at < ? AND exported = 0", (stamp(before),)
        )

    # The memories file

    def now(self) -> datetime:
        """Return the time of the clock that dates facts."""
        return self._clock.now()

    async def gone_since(
        self, tx: Transaction, scope: str, begun: datetime, but_by: Cause
    ) -> set[str]:
        """Return the keys of facts that were retired since `begun` by a cause other than `but_by`."""
        query = "SELECT key FROM facts WHERE scope = ? AND retired_at >= ? AND retired_by <> ?"
        return set(await tx.scalars(query, (scope, stamp(begun), but_by)))

    async def is_unwritten(self, scope: str) -> bool:
        """Check whether the memories file lacks a live fact, or has one that is not live."""
        # The same expression as in the index `facts_unwritten`.
        return await self._database.exists(
            f"SELECT 1 FROM facts WHERE scope = ? AND exported <> ({LIVE}) LIMIT 1",
            (scope,),
        )

    async def for_file(self, tx: Transaction, scope: str) -> list[FileLine]:
        """Return all live facts, and others that are still in the file; oldest first."""
        rows = await tx.rows(
            "SELECT id, key, text, exported = 1 AS exported, 1 AS live, created_at, seq FROM facts"
            f" WHERE scope = :scope AND {LIVE}"
            " UNION ALL SELECT id, key, text, 1, 0, created_at, seq FROM facts"
            f" WHERE scope = :scope AND exported <> ({LIVE}) AND NOT ({LIVE})"
            " ORDER BY created_at, seq",
            {"scope": scope},
        )
        return await asyncio.to_thread(lambda: [_line(row) for row in rows])

    async def mark_unwritten(
        self, tx: Transaction, scope: str, ids: Collection[str] | None = None
    ) -> None:
        """Mark live facts as not in the file, so that a missing line does not count as removed by a person.

        `ids` None: all facts of the scope, retired ones too; the file is only an export from then on.
        """
        if ids is None:
            await tx.execute("UPDATE facts SET exported = 0 WHERE scope = ? AND exported", (scope,))
            return
        await tx.execute(
            f"UPDATE facts SET exported = 0 WHERE id {IN_LIST} AND +scope = ? AND {LIVE}",
            (json.dumps(list(ids)), scope),
        )

    async def mark_written(self, tx: Transaction, scope: str) -> None:
        """Mark exactly the live facts as being in the memories file."""
        await tx.execute(
            f"UPDATE facts SET exported = ({LIVE}) WHERE scope = ? AND exported <> ({LIVE})",
            (scope,),
        )
