"""Notices to the owner about a model that refuses to work; `status` shows it until it answers again."""

from wintermute.conversation.state import Speaker
from wintermute.health.health import HealthState
from wintermute.llm.context_windows import CUTS
from wintermute.llm.models import Models
from wintermute.mailbox.notices import EVER
from wintermute.stores import Stores
from wintermute.work.routing import TargetRooms

NOTICE = "{problem}. Until that is fixed, I ask the other models of the list; `/status` shows it."


class BackendNotices:
    """Writes a notice once for each backend and cause (F-039). It checks after every model call."""

    def __init__(self, stores: Stores, models: Models, speaker: Speaker) -> None:
        self._stores = stores
        self._models = models
        self._speaker = speaker

    async def run(self) -> None:
        """Update notices and health after each model call, until cancelled."""
        answered: dict[str, str] = {}
        for entry in await self._stores.health.parts():
            if entry.part.removeprefix("backend ") not in (*self._models.names, entry.part):
                await self._stores.health.note(entry.part, "ok", "no longer in config.yaml")
        while True:
            await self._models.news.wait()
            self._models.news.clear()
            for name, (cause, detail) in [*self._models.standings.items()]:
                if cause:  # tried each time: the owner may not have had a chat before
                    answered.pop(name, None)
                    await self._stores.health.note(f"backend {name}", "warn", detail)
                    await self._notify(f"backend {name}: {cause}", detail)
                elif answered.get(name) != detail:
                    answered[name] = detail
                    await self._note_answer(f"backend {name}", detail)

    async def _note_answer(self, part: str, options: str) -> None:
        if options or await self._stores.health.part(part):
            detail = f"answers, asked {options}" if options else "answers"
            state: HealthState = "warn" if CUTS in options else "ok"
            await self._stores.health.note(part, state, detail)
            async with self._stores.database.transaction() as tx:
                await self._stores.notices.notice_again(tx, f"{part}: ")

    async def _notify(self, key: str, problem: str) -> None:
        stores, owner = self._stores, self._stores.owner.scope
        text = NOTICE.format(problem=problem)
        async with stores.database.transaction() as tx:
            target = await (await TargetRooms.current(tx, stores, self._speaker)).target_room(
                tx, owner, None
            )
            if target:
                await stores.notices.notice_once(
                    *(tx, key, EVER, target.id, text), meant_for=owner, unasked=True
                )
        if target:
            self._speaker.speak(target.id)
