"""Archiving of unused facts: they leave all prompts, and only a search finds them (M-060).

No model is asked. Like all losses, too many in one night become a question.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.decisions import Decision, digest_of
from wintermute.clock import stamp
from wintermute.db import Transaction
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.memory.archive import StaleFact, active_count, archive, stale
from wintermute.memory.fact import state_of
from wintermute.night.pipeline import PhaseStep, PhaseWork
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

FEW, AT_ONCE, MOST = 10, 50, 1_000
"""Facts up to which each is an item, facts of an item if there are more, and facts of a night."""


async def archive_facts(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Archive facts that are still unused; False if none is left."""
    facts = stores.facts
    before = facts.now() - timedelta(days=item.plan["days"])
    unused = {fact.id for fact in await stale(tx, item.scope, before, item.plan["least"])}
    still = [name for name in item.plan["facts"] if name in unused]
    facts_left = await facts.living(tx, item.scope, still)
    if not facts_left:
        return False
    await archive(tx, [fact.id for fact in facts_left])
    changes = [
        Change("fact", fact.id, state_of(fact), state_of(replace(fact, archived=True)))
        for fact in facts_left
    ]
    await stores.changes.record(tx, why, changes)
    return True


REST = DecisionKind(
    *("rest", "unused memory set aside", "unused memories set aside"),
    asks="Set this aside, so that only a search finds it?",
    did="set aside, found only by a search",
    executor=archive_facts,
    counts_members=True,
)


class Stale:
    """Phase that finds unused facts, if the prompt does not contain all memories anyway."""

    name: ClassVar = "stale"
    use: ClassVar = "set unused memories aside"
    kinds: ClassVar[Kinds] = (REST,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._settings = own.config.dreaming

    async def size(self, scope: str) -> int:
        """Count active facts."""
        return await active_count(self._stores.database, scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step, the longest unused facts first."""
        days = timedelta(days=self._settings.stale_days)
        before = self._stores.facts.now() - days
        least, database = self._settings.stale_min_access, self._stores.database
        unused = await stale(database, work.scope, before, least)
        decided = {name for item in work.so_far for name in _named(item)}
        digests = {_digest(fact): fact for fact in unused if fact.id not in decided}
        new = await self._stores.nights.not_yet_asked(work.scope, digests)
        wanted = [fact for digest, fact in digests.items() if digest in new]
        if not wanted:
            return
        taken = wanted[:MOST]
        yield PhaseStep(
            tuple(_item(part, days, least) for part in _groups(taken)),
            judged=tuple(map(_digest, taken)),
            note=f"{len(wanted) - MOST} more wait" if len(wanted) > MOST else "",
            unfinished=len(wanted) > MOST,
        )


def _named(item: Decision) -> Iterator[str]:
    """Yield the ids of facts that an item is about."""
    yield from item.evidence
    yield from (each["id"] for each in item.plan.get("members", ()))


def _digest(fact: StaleFact) -> str:
    """Return a digest with the last use, so that a fact used since can be archived again."""
    return digest_of("rest", fact.id, stamp(fact.used))


def _groups(facts: Sequence[StaleFact]) -> Iterator[Sequence[StaleFact]]:
    size = 1 if len(facts) <= FEW else AT_ONCE
    for n in range(0, len(facts), size):
        yield facts[n : n + size]


def _item(facts: Sequence[StaleFact], days: timedelta, least: int) -> Decision:
    return Decision(
        kind="rest",
        before=tuple(fact.text for fact in facts),
        after="",
        reason=f"not used for {days.days} days",
        plan={
            "facts": [fact.id for fact in facts],
            "days": days.days,
            "least": least,
            "outside": any(fact.taint for fact in facts),
        },
        evidence=tuple(fact.id for fact in facts),
        loses=len(facts),
    )
