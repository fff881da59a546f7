"""Notices to the owner about files that people edit: errors in them, and memories that were not removed."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby

from wintermute.changes.decisions import LINES, Decision
from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.memory.core import MEMORIES, Places
from wintermute.memory.flat_file import RetainedLine
from wintermute.night.daily_report import YES_NO_REACTIONS
from wintermute.night.report import item_words, quoted
from wintermute.night.rewriting import MOST_NAMED, ask_about_lines
from wintermute.prompt.file_checks import SKILLS, FileChecks
from wintermute.stores import Stores
from wintermute.work.routing import TargetRooms

PAUSE = 5.0  # seconds
UNUSABLE = "{problem}. Until that is fixed, I do not change it and use its last good text."
NO_SKILL = "{problem}. Until that is fixed, I do not change it and go on without it."
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
    """Checks the edited files every few seconds.

    The owner gets one notice for each unusable file until it is good again (F-031), and one for
    each memory that was kept although its file was saved without it (F-032).
    """

    def __init__(self, stores: Stores, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._files = FileChecks(stores.places, stores.prompts)
        self._speaker = speaker
        self._clock = clock
        self._last_problems: Mapping[str, str] = {}

    async def run(self) -> None:
        """Check the files, until cancelled."""
        reported = await self._stores.edited.notified()
        while True:
            reported = await self._notify(reported)
            await self._clock.sleep(PAUSE)

    async def _notify(self, reported: set[str]) -> set[str]:
        """Send the new notices. Returns the unusable files that the owner knows of by now."""
        stores, owner = self._stores, self._stores.owner.scope
        problems, lasting = await self._problems()
        new_problems = [name for name in problems if name in lasting and name not in reported]
        known = reported & problems.keys()
        kept = await stores.versions.unreported()
        lost = [each for each in await stores.decisions.waiting(None, LINES) if not each.night]
        if not new_problems and not kept and not lost and known == reported:
            return reported
        texts = [
            next(said for end, said in SAID.items() if end in name).format(problem=problems[name])
            for name in new_problems
        ]
        async with stores.database.transaction() as tx:
            target = await (await TargetRooms.current(tx, stores, self._speaker)).target_room(
                tx, owner, None
            )
            if target is not None:  # otherwise later, when the owner has a direct chat
                for text in [*texts, *_kept_notices(kept, stores.places)]:
                    await stores.outbox.enqueue(
                        *(tx, target.id, text), kind="notice", meant_for=owner, unasked=True
                    )
                known |= set(new_problems)
                await stores.versions.mark_reported(tx, kept)
                for question in lost:
                    await self._ask(tx, target, question)
            await stores.edited.note_notified(tx, known)
        if target is not None:
            self._speaker.speak(target.id)
        return known

    async def _ask(self, tx: Transaction, target: Conversation, question: Decision) -> None:
        """Ask once about missing lines; people of other chats are asked in the daily report."""
        stores = self._stores
        item = await ask_about_lines(tx, stores, question)
        if item is None or not stores.owner.owns(question.scope):
            return
        text = LOST.format(asked=item_words(item), id=item.id)
        outbox_id = await stores.outbox.enqueue(
            *(tx, target.id, text),
            kind="notice",
            meant_for=question.scope,
            signs=YES_NO_REACTIONS,
            unasked=True,
        )
        await stores.nights.record_report(tx, item.night, question.scope, outbox_id, item.n)

    async def _problems(self) -> tuple[Mapping[str, str], set[str]]:
        """Return the problem of each file, and the files whose problem was there at the last check, too.

        A problem that is found only once may come from a file that is just being saved.
        """
        checked = await asyncio.to_thread(self._files.check)
        if checked.prompts:
            await self._stores.edited.keep(checked.prompts.items())
        problems = dict(checked.problems)
        for part in await self._stores.health.parts():
            if part.part.endswith(MEMORIES) and part.state == "warn":  # M-092
                problems[f"{part.part}{TOO_LONG}"] = f"{part.part}: {part.detail}"
        before, self._last_problems = self._last_problems, problems
        return problems, {name for name, _ in before.items() & problems.items()}


def _kept_notices(lines: Sequence[RetainedLine], places: Places) -> list[str]:
    """Return a notice for each file that was saved without these memories."""
    texts = []
    for scope, found in groupby(
        sorted(lines, key=lambda line: line.scope), lambda line: line.scope
    ):
        kept, owns = [*found], scope == places.owner_scope
        more = f" and {len(kept) - MOST_NAMED} more" if len(kept) > MOST_NAMED else ""
        named = quoted(line.text for line in kept[:MOST_NAMED]) + more
        named, how = (named, FORGET) if owns else (f"{len(kept)} memories", FORGET_ELSEWHERE)
        texts.append(KEPT.format(file=places.shown_memories(scope), texts=named, how=how))
    return texts
