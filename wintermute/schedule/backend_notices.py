"""The owner hears which model refuses to work, and `status` names it, until it has answered again."""

from wintermute.conversation.state import Speaker
from wintermute.llm.models import Models
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
        """Look, until cancelled."""
        known: dict[str, str] = {}
        while True:
            await self._models.news.wait()
            self._models.news.clear()
            for name, refusal in self._models.standings.items():
                part, learnt = f"{PART}{name}", self._models.learnt(name)
                if refusal is not None:  # told again each time: its owner may have had no chat
                    known.pop(name, None)
                    await self._stores.health.note(part, "warn", refusal[1])
                    await self._tell(f"{part}: {refusal[0]}", refusal[1])
                elif known.get(name) != learnt:
                    known[name] = learnt
                    await self._answered(part, learnt)

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
            if home:
                await stores.outbox.notice_once(tx, key, EVER, home.id, text, meant_for=owner)
        if home:
            self._speaker.speak(home.id)
