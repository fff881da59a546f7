"""First phase of a night: read the day's remaining messages and reconstruct memory from them.

Its changes count as the day's, not as the night's, so `/night undo` does not touch them.
"""

import logging
from collections.abc import AsyncIterator
from typing import ClassVar

from wintermute.changes.change_sets import Change
from wintermute.changes.decisions import WEEK, Decision, digest_of
from wintermute.errors import AnswerUnusable, WintermuteError
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.learning.edited_messages import asked_for
from wintermute.learning.harvest import Harvest, Harvests
from wintermute.learning.reconstruction import Reconstruction
from wintermute.night.pipeline import LOOKED_BACK, PhaseStep, PhaseWork
from wintermute.text import counted
from wintermute.work.data_folder import DataFolder

MOST_SETS = 10_000
"""Change sets that are searched for those of a night."""
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
    """Harvests the remaining messages and works off the reconstruction queue, as the daytime jobs do."""

    name: ClassVar = "learn"
    use: ClassVar = "look for memories in messages"
    kinds: ClassVar[Kinds] = (EDITED,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._config = own.config
        self._texts = own.texts
        self._clock = own.clock
        self._harvests = Harvests(own.stores.database, own.clock)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step: facts before and after, and a note about them, since they are no decisions."""
        before, notes, problem = await self._stores.facts.count(work.scope), list[str](), None
        try:
            notes += await self._harvest(work)
            notes += await self._reconstruct(work)
        except WintermuteError as error:  # earlier results are reported all the same
            problem = error
        after, summary = await self._stores.facts.count(work.scope), await self._summary(work)
        note, edited = "; ".join(filter(None, (summary, *notes))), await self._edited_sources(work)
        yield PhaseStep(results=edited, note=note, counts=(before, after))
        if problem is not None:
            raise problem

    async def _summary(self, work: PhaseWork) -> str:
        """Describe what became of memories, read from the change sets, so a kill in between loses nothing."""
        sets = await self._stores.changes.history(("fact",), work.scope, MOST_SETS)
        new = [each for each in sets if each.created_at >= work.night.began_at]
        changes = [(each.cause, change) for each in new for change in each.changes]
        learnt = sum(cause == "harvest" and change.before is None for cause, change in changes)
        gone = sum(cause == "reconstruction" and _is_gone(change) for cause, change in changes)
        parts = [f"{_memories(learnt)} learnt"] if learnt else []
        parts += [f"{gone} {TOGETHER}"] if gone else []
        return ", ".join(parts)

    async def _edited_sources(self, work: PhaseWork) -> list[Decision]:
        """Return the things that people asked for in messages that they edited since (M-089)."""
        earlier = [
            each.began_at
            for each in await self._stores.nights.newest(LOOKED_BACK)
            if each.id != work.night.id
            and each.scope in ("", work.scope)
            and each.phase in ("", self.name)
        ]
        since = max([work.night.began_at - WEEK, *earlier])
        texts = await asked_for(self._stores, work.scope, since)
        return [Decision(EDITED.name, (text,), "", YOURS, {}, state="done") for text in texts]

    async def foreseen(self, work: PhaseWork) -> str:
        """Announce how many conversations would be read and how many new facts reconstructed."""
        digests = [digest for scope, _, digest in await self._backlogs() if scope == work.scope]
        fresh = await self._stores.nights.not_yet_asked(work.scope, digests)
        queued = sum(  # an unranked list is rewritten whole, without the queue
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
        """Return the scopes with messages to read or facts to reconstruct."""
        queues = await self._stores.facts.queues(self._stores.database)
        return {scope for scope, *_ in await self._backlogs()} | {queue.scope for queue in queues}

    async def _harvest(self, work: PhaseWork) -> list[str]:
        """Harvest the conversations of a scope; return notes. Raises: WintermuteError."""
        settings, failed = self._config.memory_harvest, 0
        reading = Harvest(*(self._stores, work.models, self._texts.harvest, settings, self._clock))
        for scope, name, digest in await self._backlogs():
            if scope != work.scope or not await self._stores.nights.not_yet_asked(scope, [digest]):
                continue
            try:
                await reading.catch_up(name)
            except AnswerUnusable as problem:
                log.warning("not harvested conversation=%s reason=%s", name, problem)
                failed += 1
                async with self._stores.database.transaction() as tx:
                    await self._stores.nights.mark_asked(tx, work.scope, [digest])
        return [f"{counted(failed, 'conversation')} could not be read"] if failed else []

    async def _backlogs(self) -> list[tuple[str, str, str]]:
        """Return conversations with enough new messages: scope, id, and a digest of their state."""
        reads = self._config.memory_harvest
        async with self._stores.database.transaction() as tx:
            return [
                (each.scope, each.conversation_id, digest_of("read", each.key, f"{each.newest}"))
                for each in await self._harvests.backlogs(tx)
                if reads.enabled and each.due(reads) is not None
            ]

    async def _reconstruct(self, work: PhaseWork) -> list[str]:
        """Reconstruct the facts of a scope; return notes. Raises: WintermuteError."""
        own, failed = self._config.memory, 0
        making = Reconstruction(self._stores, work.models, self._texts.reconstruction, own)
        for queue in await self._stores.facts.queues(self._stores.database):
            if queue.scope == work.scope:
                failed += (await making.empty_queue(queue.scope, taint=queue.taint)).failed
        return [f"{counted(failed, 'question')} without a usable answer"] if failed else []


def _memories(count: int, which: str = "") -> str:
    return f"{count} {which}{'memory' if count == 1 else 'memories'}"


def _is_gone(change: Change) -> bool:
    """Decide if a change removes a fact, or ends it in favour of another."""
    return change.kind == "fact" and (change.after is None or bool(change.after.get("replaced_by")))
