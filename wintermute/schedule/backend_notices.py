"""The owner hears which model refuses to work, and `status` names it, until it has answered again."""

from wintermute.conversation.state import Speaker
from wintermute.llm.models import Models, BackendStanding
from wintermute.mailbox.outbox import EVER
from wintermute.stores import Stores
from wintermute.work.deliveries import Deliveries

PART = "backend "
ANSWERS = "answers"
NOTICE = "{problem}. Until that is mended I ask the next model of the list; `/status` shows it."


class BackendNotices:
    """Looks whenever a question was answered or refused. Once for each backend and cause (F-039)."""

    def __init__(self, stores: Stores, models: Models, speaker: Speaker) -> None:
        self._stores = stores
        self._models = models
        self._speaker = speaker
        self._seen: dict[str, BackendStanding] = {}

    async def run(self) -> None:
        """Look, until cancelled. What an earlier run learnt of how to ask is not known any more."""
        health = self._stores.health
        for part in await health.parts():
            if part.part.startswith(PART) and part.state == "ok":
                await health.note(part.part, "ok", ANSWERS)
        while True:
            await self._models.news.wait()
            self._models.news.clear()
            for name, standing in self._models.standings.items():
                if self._seen.get(name) != standing and await self._told(name, standing):
                    self._seen[name] = standing

    async def _told(self, name: str, standing: BackendStanding) -> bool:
        """Note how a backend stands; False: its owner has no chat yet to hear of it in."""
        part, health = f"{PART}{name}", self._stores.health
        if standing.problem:
            await health.note(part, "warn", standing.problem)
            return await self._tell(f"{part}: {standing.cause}", standing.problem)
        if standing.learnt or await health.part(part):
            learnt = f", asked {standing.learnt}" if standing.learnt else ""
            await health.note(part, "ok", f"{ANSWERS}{learnt}")
            async with self._stores.database.transaction() as tx:
                await self._stores.outbox.notice_again(tx, f"{part}: ")
        return True

    async def _tell(self, key: str, problem: str) -> bool:
        stores, owner = self._stores, self._stores.owner.scope
        async with stores.database.transaction() as tx:
            home = await (await Deliveries.now(tx, stores, self._speaker)).home(tx, owner, None)
            if home is not None:
                text = NOTICE.format(problem=problem)
                await stores.outbox.notice_once(tx, key, EVER, home.id, text, meant_for=owner)
        if home is not None:
            self._speaker.speak(home.id)
        return home is not None
