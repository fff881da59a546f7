"""The owner hears what became of the files that people edit; what the prompts last held is kept."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby

from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.memory.core import Places
from wintermute.memory.flat_file import KeptLine
from wintermute.prompt.edited import SKILLS, EditedLook
from wintermute.stores import Stores
from wintermute.work.deliveries import Deliveries

PAUSE = 5.0  # seconds
MOST_NAMED = 10
UNUSABLE = "{problem}. Until then I leave it alone and go on with what it last held."
NO_SKILL = "{problem}. Until then I leave it alone and do without it."
KEPT = (
    "{file} was saved without what I learnt after that text was opened, so I kept it: {ids}. What "
    "shall go for good goes with `/forget ID`; `/memory` says what is what."
)


class EditedNotices:
    """Looks now and then. The owner hears once of each file until it is good again (F-031), and
    once of each memory that stayed although a file was saved without it (F-032).
    """

    def __init__(self, stores: Stores, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._look = EditedLook(stores.places, stores.prompts)
        self._speaker = speaker
        self._clock = clock
        self._before: Mapping[str, str] = {}

    async def run(self) -> None:
        """Look, until cancelled."""
        told = await self._stores.edited.told()
        while True:
            told = await self._told(told)
            await self._clock.sleep(PAUSE)

    async def _told(self, told: set[str]) -> set[str]:
        """Say what is new; of which files the owner knows then that they cannot be used."""
        stores, owner = self._stores, self._stores.owner.scope
        problems, lasting = await self._problems()
        news = [name for name in problems if name in lasting and name not in told]
        known = told & problems.keys()
        kept = await stores.versions.untold()
        if not news and not kept and known == told:
            return told
        texts = [
            (NO_SKILL if name.startswith(SKILLS) else UNUSABLE).format(problem=problems[name])
            for name in news
        ]
        async with stores.database.transaction() as tx:
            home = await (await Deliveries.now(tx, stores, self._speaker)).home(tx, owner, None)
            if home is not None:  # else as soon as there is a chat with nobody else in it
                for text in [*texts, *_kept(kept, stores.places)]:
                    await stores.outbox.enqueue(tx, home.id, text, kind="notice", meant_for=owner)
                known |= set(news)
                await stores.versions.tell(tx, kept)
            await stores.edited.tell(tx, known)
        if home is not None:
            self._speaker.speak(home.id)
        return known

    async def _problems(self) -> tuple[Mapping[str, str], set[str]]:
        """What is wrong with which file, and which were found so twice: others may be just being saved."""
        looked = await asyncio.to_thread(self._look.look)
        if looked.prompts:
            await self._stores.edited.keep(looked.prompts.items())
        before, self._before = self._before, looked.problems
        return looked.problems, {name for name, _ in before.items() & looked.problems.items()}


def _kept(lines: Sequence[KeptLine], places: Places) -> list[str]:
    """A text for each file that was saved without these memories."""
    texts = []
    for scope, found in groupby(
        sorted(lines, key=lambda line: line.scope), lambda line: line.scope
    ):
        ids = [f"`{line.id}`" for line in found]
        more = [f"{len(ids) - MOST_NAMED} more"] if len(ids) > MOST_NAMED else []
        named = ", ".join([*ids[:MOST_NAMED], *more])
        texts.append(KEPT.format(file=places.shown_memories(scope), ids=named))
    return texts
