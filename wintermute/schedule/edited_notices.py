"""The owner hears what became of the files that people edit; what the prompts last held is kept."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby

from wintermute.changes.decisions import LINES, Decision
from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.memory.core import MEMORIES, Places
from wintermute.memory.flat_file import KeptLine
from wintermute.night.morning import SIGNS
from wintermute.night.report import item_words, quoted
from wintermute.night.rewriting import MOST_NAMED, ask_about_lines
from wintermute.prompt.edited import SKILLS, EditedLook
from wintermute.stores import Stores
from wintermute.work.deliveries import Deliveries

PAUSE = 5.0  # seconds
UNUSABLE = "{problem}. Until then I do not change it, and go on with its last good text."
NO_SKILL = "{problem}. Until then I do not change it, and go on without it."
TOO_LONG = " is too long"
SAID = {SKILLS: NO_SKILL, TOO_LONG: "{problem}.", "": UNUSABLE}
KEPT = (
    "{file} was saved from an older text, so I kept what I have learned since: {texts}. To remove one for"
    " good, {how}."
)
FORGET, FORGET_ELSEWHERE = "write `/forget` and its words", "use `wintermute memory forget`"
LOST = (
    "{asked} I still know them. ✅ removes them, ❌ writes their lines back; so do `/night yes {id}`"
    " and `/night no {id}`. Without an answer I write the lines back after 14 days."
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
        lost = [wish for wish in await stores.decisions.waiting(None, LINES) if not wish.night]
        if not news and not kept and not lost and known == told:
            return told
        texts = [
            next(said for end, said in SAID.items() if end in name).format(problem=problems[name])
            for name in news
        ]
        async with stores.database.transaction() as tx:
            home = await (await Deliveries.now(tx, stores, self._speaker)).home(tx, owner, None)
            if home is not None:  # else as soon as there is a chat with nobody else in it
                for text in [*texts, *_kept(kept, stores.places)]:
                    await stores.outbox.enqueue(
                        *(tx, home.id, text), kind="notice", meant_for=owner, unasked=True
                    )
                known |= set(news)
                await stores.versions.tell(tx, kept)
                for wish in lost:
                    await self._ask(tx, home, wish)
            await stores.edited.tell(tx, known)
        if home is not None:
            self._speaker.speak(home.id)
        return known

    async def _ask(self, tx: Transaction, home: Conversation, wish: Decision) -> None:
        """Ask once about lines that are missing: people of other chats hear of it in the morning."""
        stores = self._stores
        item = await ask_about_lines(tx, stores, wish)
        if item is None or not stores.owner.owns(wish.scope):
            return
        text = LOST.format(asked=item_words(item), id=item.id)
        outbox_id = await stores.outbox.enqueue(
            *(tx, home.id, text), kind="notice", meant_for=wish.scope, signs=SIGNS, unasked=True
        )
        await stores.nights.tell(tx, item.night, wish.scope, outbox_id, item.n)

    async def _problems(self) -> tuple[Mapping[str, str], set[str]]:
        """What is wrong with which file, and which were found so twice: others may be just being saved."""
        looked = await asyncio.to_thread(self._look.look)
        if looked.prompts:
            await self._stores.edited.keep(looked.prompts.items())
        problems = dict(looked.problems)
        for part in await self._stores.health.parts():
            if part.part.endswith(MEMORIES) and part.state == "warn":  # M-092
                problems[f"{part.part}{TOO_LONG}"] = f"{part.part}: {part.detail}"
        before, self._before = self._before, problems
        return problems, {name for name, _ in before.items() & problems.items()}


def _kept(lines: Sequence[KeptLine], places: Places) -> list[str]:
    """A text for each file that was saved without these memories."""
    texts = []
    for scope, found in groupby(
        sorted(lines, key=lambda line: line.scope), lambda line: line.scope
    ):
        kept, owns = [*found], scope == places.owner_scope
        more = f" and {len(kept) - MOST_NAMED} more" if len(kept) > MOST_NAMED else ""
        told = quoted(line.text for line in kept[:MOST_NAMED]) + more
        told, how = (told, FORGET) if owns else (f"{len(kept)} memories", FORGET_ELSEWHERE)
        texts.append(KEPT.format(file=places.shown_memories(scope), texts=told, how=how))
    return texts
