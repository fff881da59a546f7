"""The owner hears which model refuses to work, and `status` names it, until it has answered again."""

from wintermute.conversation.state import Speaker
from wintermute.llm.models import BackendStanding, Models
from wintermute.mailbox.outbox import EVER
from wintermute.stores import Stores
from wintermute.work.deliveries import Deliveries

PART = "backend "
ANSWERS = "answers"
NOTICE = "{problem}. Until that is mended I ask the next model of the list; `/status` shows it."


class BackendNotices:
    """Looks whenever a question was answered. Tells once for each backend and cause (F-039)."""

    def __init__(self, stores: Stores, models: Models, speaker: Speaker) -> None:
        self._stores = stores
        self._models = models
        self._speaker = speaker

    async def run(self) -> None:
        """Look, until cancelled. What an earlier run learnt of how to ask is not known any more."""
        health, seen = self._stores.health, dict[str, BackendStanding]()
        for each in await health.parts():
            if each.part.startswith(PART) and each.state == "ok":
                await health.note(each.part, "ok", ANSWERS)
        while True:
            await self._models.news.wait()
            self._models.news.clear()
            for name, standing in self._models.standings.items():
                if standing.problem:  # again each time: its owner may have had no chat
                    await health.note(f"{PART}{name}", "warn", standing.problem)
                    await self._tell(f"{PART}{name}: {standing.cause}", standing.problem)
                elif seen.get(name) != standing:
                    await self._answered(f"{PART}{name}", standing.learnt)
                seen[name] = standing

    async def _answered(self, part: str, learnt: str) -> None:
        health, outbox = self._stores.health, self._stores.outbox
        if learnt or await health.part(part):
            await health.note(part, "ok", f"{ANSWERS}, asked {learnt}" if learnt else ANSWERS)
            async with self._stores.database.transaction() as tx:
                await outbox.notice_again(tx, f"{part}: ")

    async def _tell(self, key: str, problem: str) -> None:
        stores, owner = self._stores, self._stores.owner.scope
        text = NOTICE.format(problem=problem)
        async with stores.database.transaction() as tx:
            home = await (await Deliveries.now(tx, stores, self._speaker)).home(tx, owner, None)
            if home and await stores.outbox.notice_once(
                tx, key, EVER, home.id, text, meant_for=owner
            ):
                self._speaker.speak(home.id)
