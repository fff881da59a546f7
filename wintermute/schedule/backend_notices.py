"""The owner hears which model refuses to work, and `status` names it, until it has answered again."""

from wintermute.conversation.state import Speaker
from wintermute.health.health import HealthState
from wintermute.llm.models import Models
from wintermute.llm.windows import CUTS
from wintermute.mailbox.notices import EVER
from wintermute.stores import Stores
from wintermute.work.deliveries import Deliveries

NOTICE = "{problem}. Until that is fixed, I ask the other models of the list; `/status` shows it."


class BackendNotices:
    """Looks whenever a question was answered. Tells once for each backend and cause (F-039)."""

    def __init__(self, stores: Stores, models: Models, speaker: Speaker) -> None:
        self._stores = stores
        self._models = models
        self._speaker = speaker

    async def run(self) -> None:
        """Look, until cancelled."""
        answered: dict[str, str] = {}
        for each in await self._stores.health.parts():
            if each.part.removeprefix("backend ") not in (*self._models.names, each.part):
                await self._stores.health.note(each.part, "ok", "no longer in config.yaml")
        while True:
            await self._models.news.wait()
            self._models.news.clear()
            for name, (cause, told) in [*self._models.standings.items()]:
                if cause:  # again each time: its owner may have had no chat
                    answered.pop(name, None)
                    await self._stores.health.note(f"backend {name}", "warn", told)
                    await self._tell(f"backend {name}: {cause}", told)
                elif answered.get(name) != told:
                    answered[name] = told
                    await self._answered(f"backend {name}", told)

    async def _answered(self, part: str, learnt: str) -> None:
        if learnt or await self._stores.health.part(part):
            told = f"answers, asked {learnt}" if learnt else "answers"
            state: HealthState = "warn" if CUTS in learnt else "ok"
            await self._stores.health.note(part, state, told)
            async with self._stores.database.transaction() as tx:
                await self._stores.notices.notice_again(tx, f"{part}: ")

    async def _tell(self, key: str, problem: str) -> None:
        stores, owner = self._stores, self._stores.owner.scope
        text = NOTICE.format(problem=problem)
        async with stores.database.transaction() as tx:
            home = await (await Deliveries.now(tx, stores, self._speaker)).home(tx, owner, None)
            if home:
                await stores.notices.notice_once(
                    *(tx, key, EVER, home.id, text), meant_for=owner, unasked=True
                )
        if home:
            self._speaker.speak(home.id)
