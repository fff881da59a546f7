"""The skills: files that people and the model may write, each change with its way back."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from wintermute.changes.merge import standing
from wintermute.changes.records import Change, ChangeSet, Kind, Reason
from wintermute.changes.store import KEPT, ChangeSets
from wintermute.changes.undo import Place, Undo, Undone
from wintermute.clock import stamp
from wintermute.db import Database
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.skills import folder as files
from wintermute.skills.folder import shown, summary_of
from wintermute.skills.records import Skill
from wintermute.text import clean, one_line

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST_SUMMARY = 80
MOST_DOCUMENTATION = 20_000


class Skills:
    """The folder of skills.

    The record of a change holds the text from before and is durable first, then the file is
    replaced: whenever we are killed, no text is lost. A record without its effect is found out by
    comparing texts, and passed over (`changes.merge.standing`). Skills are shown in every room but belong to
    the owner, so that is whose history a change stands in, wherever it was made.
    """

    def __init__(
        self, folder: Path, database: Database, changes: ChangeSets, owner_scope: str
    ) -> None:
        self._folder = folder
        self._database = database
        self._changes = changes
        self._owner_scope = owner_scope
        self._writing = asyncio.Lock()
        self._seen: files.Seen = {}
        self._problem = ""

    async def listed(self) -> tuple[Skill, ...]:
        """All skills by name; what cannot be read is left out (P-034..P-036)."""
        problem = ""
        try:
            self._seen = await asyncio.to_thread(files.look, self._folder, self._seen)
        except OSError as error:
            self._seen, problem = {}, error.strerror or str(error)
        if problem and problem != self._problem:
            log.warning("skills left out folder=%s reason=%s", self._folder, problem)
        self._problem = problem
        found = [skill for _, skill in self._seen.values() if skill is not None]
        return tuple(sorted(found, key=lambda skill: skill.name))

    async def read(self, name: str) -> str:
        """The whole text of a skill. Raises: ToolFailed."""
        text = await self._text(name)
        if text is None:
            known = "`wintermute skill list` shows the names"
            raise ToolFailed(f"no skill {one_line(name)[:100]}: {known}")
        return text

    async def write(self, why: Reason, name: str, summary: str, documentation: str) -> bool:
        """Teach a skill, or teach it anew; True for one that was not there (P-037, P-039).

        Raises: ToolFailed, naming the rule that is broken (P-038).
        """
        text = _written(name, summary, documentation)
        async with self._writing:
            before = await self._text(name)
            if before != text:
                await self._replace(why, name, before, _state(text))
        return before is None

    async def remove(self, why: Reason, name: str) -> None:
        """Take a skill away; `restore` brings it back. Raises: ToolFailed."""
        async with self._writing:
            before = await self.read(name)
            await self._replace(why, name, before, None)

    async def restore(self, name: str) -> str:
        """Undo the newest change of a skill that makes a difference; what that did, in words (P-039).

        Raises: ToolFailed when nothing is kept, or a later edit holds on to all of it.
        """
        name = one_line(name)
        undo = Undo(self._database, self._changes, {}, {"skill": self})
        async with self._writing:
            for newest in await self._undoable(name):
                undone = await undo.run(newest, {name})
                if undone.back or undone.kept:
                    return _told(name, newest, undone)
        kept = f"changes are kept for {KEPT.days} days"
        raise ToolFailed(f"no earlier text of {name[:100]} is kept; {kept}")

    async def state(self, item: str) -> Json | None:
        """What a change set holds of a skill: its whole file."""
        text = await self._text(item)
        return None if text is None else {"text": text}

    @asynccontextmanager
    async def prepared(self, item: str, state: Json | None) -> AsyncIterator[Place]:
        """A full disk is noticed before the change is recorded, not after."""
        part = files.new_part(self._folder)
        try:
            if state is None:
                yield partial(_to_its_end, partial(files.remove, self._folder, item))
            else:
                await _to_its_end(partial(files.prepare, self._folder, item, part, state["text"]))
                yield partial(_to_its_end, partial(files.place, self._folder, item, part))
        finally:
            with suppress(OSError):
                part.unlink()

    async def _text(self, name: str) -> str | None:
        if not files.is_file_name(f"{name}{files.ENDING}"):
            return None
        return await asyncio.to_thread(files.text_of, self._folder, name)

    async def _undoable(self, name: str) -> list[ChangeSet]:
        """The changes that still stand, newest first."""
        item: tuple[Kind, str] = ("skill", name)
        steps = (await self._changes.steps(self._database, [item]))[item]
        now = await self.state(name)
        ids = [step.set_id for step in standing(steps, now) if step.cause != "undo"]
        found = [await self._changes.get(set_id) for set_id in ids]
        return [change_set for change_set in found if change_set]

    async def _replace(
        self, why: Reason, name: str, before: str | None, after: Json | None
    ) -> None:
        change = Change("skill", name, _state(before), after, why.evidence)
        owners = replace(why, scope=self._owner_scope)
        async with self.prepared(name, after) as place:
            async with self._database.transaction() as tx:
                await self._changes.record(tx, owners, [change])
            await place()


async def _to_its_end(work: Callable[[], None]) -> None:
    """Run in a thread, and wait for its end even when cancelled.

    A write left behind could replace the file after a later one has.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _told(name: str, newest: ChangeSet, undone: Undone) -> str:
    at = stamp(newest.created_at)[:16].replace("T", " ")
    if not undone.back:
        raise ToolFailed(
            f"{shown(name)}: the change of {at} UTC was not undone, a later edit of it stays"
        )
    gone = "gone" if undone.back[0].after is None else "back"
    return f"{shown(name)} is {gone}: the change of {at} UTC is undone"


def _state(text: str | None) -> Json | None:
    return None if text is None else {"text": text}


def _written(name: str, summary: str, documentation: str) -> str:
    if not NAME.fullmatch(name):
        raise ToolFailed(
            "skill_name must have 1 to 64 letters A-Z a-z, digits, _ or -, the first a letter or digit"
        )
    if not summary_of(summary) or summary.splitlines() != [summary]:
        raise ToolFailed("summary must be one line of text, not of # marks alone")
    if len(summary) > MOST_SUMMARY:
        raise ToolFailed(
            f"summary has {len(summary)} characters; at most {MOST_SUMMARY} are allowed"
        )
    if not documentation.strip():
        raise ToolFailed("documentation must not be blank")
    if len(documentation) > MOST_DOCUMENTATION:
        raise ToolFailed(
            f"documentation has {len(documentation)} characters;"
            f" at most {MOST_DOCUMENTATION} are allowed"
        )
    return f"{one_line(summary)}\n\n{clean(documentation).rstrip()}\n"
