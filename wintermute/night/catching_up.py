"""What the day left to be learnt, before a night looks at what is known: it counts as the day's."""

import logging

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.errors import AnswerUnusable
from wintermute.night.harvest import Backlog, Harvest, Harvests, due
from wintermute.night.nights import Nights, digest_of
from wintermute.night.quiet import Quiet
from wintermute.night.reconstruction import BatchTally, Reconstruction
from wintermute.night.tidying import ChoreDone, PhaseWork
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores
from wintermute.text import counted

log = logging.getLogger(__name__)


class CatchUp:
    """Reads what was said, and works the queue, as the jobs of these names do."""

    name = "learn"

    def __init__(
        self,
        stores: Stores,
        nights: Nights,
        config: Config,
        texts: Texts,
        quiet: Quiet,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._nights = nights
        self._config = config
        self._texts = texts
        self._quiet = quiet
        self._clock = clock
        self._harvests = Harvests(stores.database, clock)

    async def do(self, work: PhaseWork) -> ChoreDone:
        """The number of facts before and after. Raises: ModelError."""
        before = await self._stores.facts.count(work.scope)
        failed = await self._read(work) if self._config.memory_harvest.enabled else 0
        done = await self._rewrite(work)
        after = await self._stores.facts.count(work.scope)
        notes = [f"{counted(failed, 'conversation')} could not be read"] if failed else []
        notes += (
            [f"{counted(done.failed, 'question')} without a usable answer"] if done.failed else []
        )
        return ChoreDone(before, after, "; ".join(notes))

    async def foreseen(self, work: PhaseWork) -> str:
        """How much would be read, and brought together with what is known."""
        owed = await self._owed(work.scope) if self._config.memory_harvest.enabled else []
        fresh = await self._nights.unjudged(work.scope, [digest for _, digest in owed])
        queued = sum(
            queue.facts
            for queue in await self._stores.facts.queues(self._stores.database)
            if queue.scope == work.scope
        )
        would = [f"{counted(len(fresh), 'conversation')} would be read for what to remember"]
        would = would if fresh else []
        if queued:
            would.append(f"{queued} new memories would be compared with the old")
        return f"{'; '.join(would)}: not tried here" if would else ""

    async def _read(self, work: PhaseWork) -> int:
        """Of how many conversations no use could be made."""
        settings, failed = self._config.memory_harvest, 0
        reading = Harvest(
            *(self._stores, work.models, self._texts.harvest, settings, self._quiet, self._clock)
        )
        for name, digest in await self._owed(work.scope):
            if not await self._nights.unjudged(work.scope, [digest]):
                continue
            try:
                await reading.catch_up(name)
            except AnswerUnusable as problem:
                log.warning("not harvested conversation=%s reason=%s", name, problem)
                failed += 1
                async with self._stores.database.transaction() as tx:
                    await self._nights.judge(tx, work.scope, [digest])
        return failed

    async def _owed(self, scope: str) -> list[tuple[str, str]]:
        """The conversations of a scope with enough that is new, and what tells that from other news."""
        async with self._stores.database.transaction() as tx:
            found = [
                (each.conversation_id, _digest(each))
                for each in await self._harvests.backlogs(tx)
                if each.scope == scope and due(each, self._config.memory_harvest) is not None
            ]
            again = [
                (each.conversation_id, digest_of("again", each.conversation_id, str(each.again)))
                for each in await self._harvests.owed_again(tx)
                if each.scope == scope
            ]
        return [*found, *again]

    async def _rewrite(self, work: PhaseWork) -> BatchTally:
        own, done = self._config.memory, BatchTally()
        making = Reconstruction(self._stores, work.models, self._texts.reconstruction, own)
        for queue in await self._stores.facts.queues(self._stores.database):
            if queue.scope == work.scope:
                done += await making.work(queue.scope, taint=queue.taint)
        return done


def _digest(backlog: Backlog) -> str:
    newest = backlog.newest.isoformat()
    return digest_of("harvest", backlog.conversation_id, str(backlog.upto), newest)
