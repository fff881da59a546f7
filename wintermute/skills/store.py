"""The skills: files that people and the model may write, each change with its way back."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from wintermute.changes.records import Change, Reason
from wintermute.changes.store import KEPT, ChangeSets
from wintermute.changes.undo import Undo
from wintermute.clock import stamp
from wintermute.db import Database
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.skills import folder as files
from wintermute.skills.folder import shown
from wintermute.skills.records import Skill
from wintermute.text import clean, one_line

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST_SUMMARY = 80
MOST_DOCUMENTATION = 20_000


class Skills:
    """The folder of skills.

    The record of a change holds the text from before and is durable first, then the file is
    replaced: whenever we are killed, no text is lost. Skills are shown in every room but belong to
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

    async def listed(self) -> tuple[Skill, ...]:
        """All skills by name; a file that cannot be read is left out (P-034..P-036)."""
        self._seen = await asyncio.to_thread(files.look, self._folder, self._seen)
        found = [skill for _, skill in self._seen.values() if skill is not None]
        return tuple(sorted(found, key=lambda skill: skill.name))

    async def read(self, name: str) -> str:
        """The whole text of a skill. Raises: ToolFailed."""
        text = await self._text(name)
        if text is None:
            raise ToolFailed(f"no skill {one_line(name)[:100]}")
        return text

    async def write(self, why: Reason, name: str, summary: str, documentation: str) -> bool:
        """Teach a skill, or teach it anew; True for one that was not there (P-037, P-039).

        Raises: ToolFailed, naming the rule that is broken (P-038).
        """
        text = _written(name, summary, documentation)
        async with self._writing:
            before = await self._text(name)
            if before != text:
                await self._replace(why, name, before, text)
        return before is None

    async def remove(self, why: Reason, name: str) -> None:
        """Take a skill away; `restore` brings it back. Raises: ToolFailed."""
        async with self._writing:
            before = await self.read(name)
            await self._replace(why, name, before, None)

    async def restore(self, name: str) -> str:
        """Undo the newest change of a skill; what that did, in words (P-039).

        Raises: ToolFailed when nothing is kept, or a later edit holds on to all of it.
        """
        name = one_line(name)
        newest = await self._changes.newest(("skill",), item=name)
        if newest is None:
            kept = f"changes are kept for {KEPT.days} days"
            raise ToolFailed(f"no earlier text of {name[:100]} is kept; {kept}")
        undo = Undo(self._database, self._changes, {}, {"skill": self})
        async with self._writing:
            undone = await undo.run(newest, {name})
        at = stamp(newest.created_at)[:16].replace("T", " ")
        if not undone.back:
            held = "a later edit of it stays" if undone.kept else "it already is as before"
            raise ToolFailed(f"{shown(name)}: the change of {at} UTC was not undone, {held}")
        text = undone.back[0].after
        return f"{shown(name)} is {'gone' if text is None else 'back'}: the change of {at} UTC is undone"

    async def state(self, item: str) -> Json | None:
        """What a change set holds of a skill: its whole file."""
        text = await self._text(item)
        return None if text is None else {"text": text}

    async def put(self, item: str, state: Json | None) -> None:
        """The way back of an undo."""
        if state is None:
            await asyncio.to_thread(files.remove, self._folder, item)
            return
        part = await asyncio.to_thread(files.prepare, self._folder, item, state["text"])
        await asyncio.to_thread(files.place, self._folder, item, part)

    async def _text(self, name: str) -> str | None:
        if not files.is_file_name(f"{name}{files.ENDING}"):
            return None
        return await asyncio.to_thread(files.text_of, self._folder, name)

    async def _replace(self, why: Reason, name: str, before: str | None, after: str | None) -> None:
        """A full disk is noticed before the change is recorded, not after."""
        change = Change("skill", name, _state(before), _state(after), why.evidence)
        part: Path | None = None
        if after is not None:
            part = await asyncio.to_thread(files.prepare, self._folder, name, after)
        try:
            async with self._database.transaction() as tx:
                owners = replace(why, scope=self._owner_scope)
                await self._changes.record(tx, owners, [change])
            if part:
                await asyncio.to_thread(files.place, self._folder, name, part)
            else:
                await asyncio.to_thread(files.remove, self._folder, name)
        finally:
            if part:
                part.unlink(missing_ok=True)


def _state(text: str | None) -> Json | None:
    return None if text is None else {"text": text}


def _written(name: str, summary: str, documentation: str) -> str:
    if not NAME.fullmatch(name):
        raise ToolFailed(
            "skill_name must have 1 to 64 letters A-Z a-z, digits, _ or -, the first a letter or digit"
        )
    if not one_line(summary) or summary.splitlines() != [summary]:
        raise ToolFailed("summary must be one line of text")
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
