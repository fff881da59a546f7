"""Tells the owner of files that cannot be used any more, and keeps what the prompts last held."""

import asyncio
from collections.abc import Mapping

from wintermute.clock import Clock
from wintermute.commands.stores import Stores
from wintermute.conversation.speaker import Speaker
from wintermute.prompt.edited import EditedLook
from wintermute.schedule.homes import Homes

PAUSE = 5.0  # seconds
NOTICE = "{problem}. Until then I leave it alone and go on with what it last held."


class EditedNotices:
    """Looks now and then; the owner hears once of each file until it is good again (F-031)."""

    def __init__(self, stores: Stores, look: EditedLook, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._look = look
        self._speaker = speaker
        self._clock = clock
        self._before: Mapping[str, str] = {}

    async def run(self) -> None:
        """Look, until cancelled."""
        told = await self._stores.edited.told()
        while True:
            told = await self._looked(told)
            await self._clock.sleep(PAUSE)

    async def _looked(self, told: set[str]) -> set[str]:
        """Look once; which files the owner knows of then."""
        looked = await asyncio.to_thread(self._look.look)
        if looked.prompts:
            await self._stores.edited.keep(looked.prompts.items())
        # Twice the same: else it may be one that is just being saved.
        lasting = {
            name: problem
            for name, problem in looked.problems.items()
            if self._before.get(name) == problem
        }
        self._before = looked.problems
        known = told & looked.problems.keys()
        if known == told and lasting.keys() <= told:
            return told
        return await self._tell({n: p for n, p in lasting.items() if n not in told}, known)

    async def _tell(self, news: Mapping[str, str], known: set[str]) -> set[str]:
        stores, owner = self._stores, self._stores.owner_scope
        async with stores.database.transaction() as tx:
            home = None
            if news:
                homes = await Homes.now(tx, stores, self._speaker)
                home = await homes.of(tx, owner, None)
            if home is not None:  # else once there is a chat with the owner alone
                for problem in news.values():
                    text = NOTICE.format(problem=problem)
                    await stores.outbox.say(
                        tx, home.id, home.room_id, text, kind="notice", meant_for=owner
                    )
                known = known | news.keys()
            await stores.edited.tell(tx, known)
        if home is not None:
            self._speaker.speak(home.room_id)
        return known
