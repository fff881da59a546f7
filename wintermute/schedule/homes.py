"""Where tasks and notices of a scope may be said.

The owner hears what became of the files that people edit, and what the prompts last held is kept.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby

from wintermute.clock import Clock
from wintermute.conversation.speaker import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.memory.core import Places
from wintermute.memory.flat_file import KeptLine
from wintermute.messages import PERSON
from wintermute.prompt.edited import SKILLS, EditedLook
from wintermute.stores import Stores
from wintermute.tasks.tasks import EVERYWHERE


class Deliveries:
    """The conversations in which tasks may be said, looked up once per transaction (T-013, T-014)."""

    def __init__(
        self,
        stores: Stores,
        gone: frozenset[str],
        barred: frozenset[str],
        encrypted: frozenset[str],
        speaker: Speaker,
    ) -> None:
        """`gone`: rooms that we have left or that are over; `barred`: just for what was made there.

        What was made in one of the `encrypted` ones is said in such a one only.
        """
        self._conversations = stores.conversations
        self._owner = stores.owner
        self._gone = gone
        self._barred = barred
        self._encrypted = encrypted
        self._speaker = speaker
        self._known: dict[tuple[str, str | None], Conversation | None] = {}

    @classmethod
    async def now(cls, tx: Transaction, stores: Stores, speaker: Speaker) -> "Deliveries":
        """As things are in this transaction."""
        barred = (await stores.known.moves(tx)).barred
        encrypted = await stores.known.encrypted()
        return cls(stores, await stores.known.gone(tx), barred, encrypted, speaker)

    async def of(self, tx: Transaction, scope: str, made_in: str | None) -> Conversation | None:
        """The conversation in which a task is said now; None: there is none."""
        key = (scope, made_in)
        if key not in self._known:
            self._known[key] = await self._found(tx, scope, made_in)
        return self._known[key]

    async def _found(self, tx: Transaction, scope: str, made_in: str | None) -> Conversation | None:
        if scope == EVERYWHERE and made_in is not None:
            found = [await self._conversations.get(made_in)]
        else:
            scope = self._owner.scope if scope == EVERYWHERE else scope
            found = await self._conversations.homes(tx, scope, made_in)
        secret = await self._is_secret(made_in)
        home = next((each for each in found if self._may(each, made_in, secret)), None)
        return home or await self._opened(tx, scope, secret)

    async def _is_secret(self, made_in: str | None) -> bool:
        if made_in is None:
            return False
        return (await self._conversations.get(made_in)).room_id in self._encrypted

    def _may(self, each: Conversation, made_in: str | None, secret: bool) -> bool:
        if each.room_id in self._gone or (each.room_id in self._barred and each.id != made_in):
            return False
        if secret and each.room_id not in self._encrypted:
            return False
        return self._speaker.fits(each)

    async def _opened(self, tx: Transaction, scope: str, secret: bool) -> Conversation | None:
        """A conversation that begins with this: its person has not spoken there yet."""
        room_id = self._speaker.room_for(scope, encrypted=secret)
        if room_id is None or room_id in self._gone:
            return None
        if not scope.startswith(PERSON) and (
            held := await self._conversations.of_room(tx, room_id)
        ):
            return held  # a group of two by now: what they talk about is not begun anew by this
        conversation_id = await self._conversations.in_room(tx, room_id, scope)
        return Conversation(conversation_id, room_id, scope)


PAUSE = 5.0  # seconds
MOST_NAMED = 10
UNUSABLE = "{problem}. Until then I leave it alone and go on with what it last held."
NO_SKILL = "{problem}. Until then I leave it alone and do without it."
KEPT = (
    "{file} was saved without what I learnt after that text was opened, so I kept it: {ids}. What "
    "shall go for good goes with `wintermute memory forget ID`; `/memory` says what is what."
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
            home = await (await Deliveries.now(tx, stores, self._speaker)).of(tx, owner, None)
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
