"""What the day left to be learnt, before a night looks at what is known: it counts as the day's."""

import logging
from collections.abc import AsyncIterator
from typing import ClassVar

from wintermute.changes.change_sets import Change
from wintermute.changes.decisions import WEEK, Decision, digest_of
from wintermute.errors import AnswerUnusable, WintermuteError
from wintermute.forgetting.deeds import DecisionKind, Kinds
from wintermute.learning.harvest import Harvest, Harvests
from wintermute.learning.reconstruction import Reconstruction
from wintermute.learning.rewording import asked_for
from wintermute.night.tidying import LOOKED_BACK, PhaseWork, TidyStep
from wintermute.text import counted
from wintermute.work.data_folder import DataFolder

MOST_SETS = 10_000
"""Change sets that are looked through for those of a night."""
TOGETHER = "brought together with others (wintermute memory history shows them)"
YOURS = "it stays until you change it"
EDITED = DecisionKind(
    *("edited", "edited message that something came from"),
    many="edited messages that things came from",
    asks="",
    did="you edited the message that this came from",
)

log = logging.getLogger(__name__)


class CatchUp:
    """Reads what was said, and works the queue, as the jobs of these names do."""

    name: ClassVar = "learn"
    use: ClassVar = "look for memories in messages"
    kinds: ClassVar[Kinds] = (EDITED,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._config = own.config
        self._texts = own.texts
        self._clock = own.clock
        self._harvests = Harvests(own.stores.database, own.clock)

    async def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        """The number of facts before and after; what it made of them is no item, but told in a note."""
        before, notes, problem = await self._stores.facts.count(work.scope), list[str](), None
        try:
            notes += await self._read(work)
            notes += await self._rewrite(work)
        except WintermuteError as error:  # what was done before it is told all the same
            problem = error
        after, told = await self._stores.facts.count(work.scope), await self._told(work)
        note, edited = "; ".join(filter(None, (told, *notes))), await self._edited(work)
        yield TidyStep(told=edited, note=note, counts=(before, after))
        if problem is not None:
            raise problem

    async def _told(self, work: PhaseWork) -> str:
        """What became of memories, by what is on record: a kill may have come after some of it."""
        sets = await self._stores.changes.history(("fact",), work.scope, MOST_SETS)
        new = [each for each in sets if each.created_at >= work.night.began_at]
        changes = [(each.cause, change) for each in new for change in each.changes]
        learnt = sum(cause == "harvest" and change.before is None for cause, change in changes)
        gone = sum(cause == "reconstruction" and _is_gone(change) for cause, change in changes)
        told = [f"{_memories(learnt)} learnt"] if learnt else []
        told += [f"{gone} {TOGETHER}"] if gone else []
        return ", ".join(told)

    async def _edited(self, work: PhaseWork) -> list[Decision]:
        """Name the things that people asked for in messages that they edited since (M-089)."""
        looked = [
            each.began_at
            for each in await self._stores.nights.newest(LOOKED_BACK)
            if each.id != work.night.id
            and each.scope in ("", work.scope)
            and each.phase in ("", self.name)
        ]
        since = max([work.night.began_at - WEEK, *looked])
        found = await asked_for(self._stores, work.scope, since)
        return [Decision(EDITED.name, (text,), "", YOURS, {}, state="done") for text in found]

    async def foreseen(self, work: PhaseWork) -> str:
        """How much would be read, and brought together with what is known."""
        digests = [digest for scope, _, digest in await self._owed() if scope == work.scope]
        fresh = await self._stores.nights.unjudged(work.scope, digests)
        queued = sum(  # a list is read whole, whatever waits
            queue.facts
            for queue in await self._stores.facts.queues(self._stores.database)
            if queue.scope == work.scope and self._stores.memories.ranked
        )
        would = [f"{counted(len(fresh), 'conversation')} would be read for what to remember"]
        would = would if fresh else []
        if queued:
            would.append(
                f"{_memories(queued, 'new ')} would be brought together with the old, and until then"
                " no phase compares them"
            )
        return f"{'; '.join(would)}: not tried here" if would else ""

    async def waiting(self) -> set[str]:
        """The scopes of which something is to be read, or brought together."""
        queues = await self._stores.facts.queues(self._stores.database)
        return {scope for scope, *_ in await self._owed()} | {queue.scope for queue in queues}

    async def _read(self, work: PhaseWork) -> list[str]:
        """What to know of it. Raises: WintermuteError."""
        settings, failed = self._config.memory_harvest, 0
        reading = Harvest(*(self._stores, work.models, self._texts.harvest, settings, self._clock))
        for scope, name, digest in await self._owed():
            if scope != work.scope or not await self._stores.nights.unjudged(scope, [digest]):
                continue
            try:
                await reading.catch_up(name)
            except AnswerUnusable as problem:
                log.warning("not harvested conversation=%s reason=%s", name, problem)
                failed += 1
                async with self._stores.database.transaction() as tx:
                    await self._stores.nights.judge(tx, work.scope, [digest])
        return [f"{counted(failed, 'conversation')} could not be read"] if failed else []

    async def _owed(self) -> list[tuple[str, str, str]]:
        """The conversations with enough that is new: scope, id, and what tells that from other news."""
        reads = self._config.memory_harvest
        async with self._stores.database.transaction() as tx:
            return [
                (each.scope, each.conversation_id, digest_of("read", each.key, f"{each.newest}"))
                for each in await self._harvests.backlogs(tx)
                if reads.enabled and each.due(reads) is not None
            ]

    async def _rewrite(self, work: PhaseWork) -> list[str]:
        """As `_read`."""
        own, failed = self._config.memory, 0
        making = Reconstruction(self._stores, work.models, self._texts.reconstruction, own)
        for queue in await self._stores.facts.queues(self._stores.database):
            if queue.scope == work.scope:
                failed += (await making.work(queue.scope, taint=queue.taint)).failed
        return [f"{counted(failed, 'question')} without a usable answer"] if failed else []


def _memories(count: int, which: str = "") -> str:
    return f"{count} {which}{'memory' if count == 1 else 'memories'}"


def _is_gone(change: Change) -> bool:
    """Whether it takes a fact out, or ends it, in favour of another."""
    return change.kind == "fact" and (change.after is None or bool(change.after.get("replaced_by")))
