"""Skills: files that people and the model may write; each change can be undone.

Plain files are read, replaced in one step and removed; no link is followed.
"""

import asyncio
import logging
import os
import re
import stat
import textwrap
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from wintermute.changes.change_sets import KEPT, Change, ChangeSet, ChangeSets, ItemKind, Reason
from wintermute.changes.placing import Placing
from wintermute.changes.texts import TextItems, files_prepared, state_of
from wintermute.changes.undo import Undo, Undone, effective_steps
from wintermute.clock import stamp
from wintermute.db import Database
from wintermute.errors import FileUnusable, ToolFailed
from wintermute.files import READ, TextFile
from wintermute.secret_shapes import without_secrets
from wintermute.text import clean, is_blank, one_line

ENDING = ".md"
HEAD = 16_384  # characters that must contain the front matter, and the first line of text
OPENING = re.compile(r"[\[{]|[-?:](?=[ \t])")
MOST_OPENINGS = 1_000  # of lists and mappings: to read deep ones takes the square of their depth
TEXT = "tag:yaml.org,2002:str"
FRONT_MATTER = re.compile(
    r"\s*---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
PLAIN = re.compile(  # description in front matter that is no valid YAML
    r"^[ \t]*description[ \t]*:[ \t]*(?:[|>][-+]?[ \t]*$)?"
    r"(.*(?:\n[ \t]+(?![\w-]+[ \t]*:[ \t])\S.*)*)",
    re.MULTILINE,
)
IN_FOLDER = "/SKILL"  # ends the name of one that is a folder (agentskills.io)
MOST_SHOWN = 200
MOST_SUMMARY = 80
MOST_BYTES = 1_000_000
SkillStamp = tuple[int, int, int]
log = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
WORDS = re.compile(r"[A-Za-z0-9]+")
MOST_DOCUMENTATION = 20_000


@dataclass(frozen=True, slots=True)
class Skill:
    """Skill. `name`: the file's name without `.md`, also of one in a folder; `summary`: its first line without `#`."""

    name: str
    summary: str


SkillCache = dict[str, tuple[SkillStamp, Skill | None]]
"""Stamp of each file when it was read, and the skill in it."""


def scan(folder: Path, seen: SkillCache) -> SkillCache:
    """Scan the folder; return its files by name and open only those that changed since `seen`.

    Raises: OSError for a folder that cannot be read.
    """
    now: SkillCache = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                is_folder = entry.is_dir(follow_symlinks=False)
                name = entry.name + f"{IN_FOLDER}{ENDING}" * is_folder
                if not is_skill_file(name):
                    continue
                state = (folder / name).lstat()
                if stat.S_ISREG(state.st_mode):
                    file_stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
                    known = seen.get(name)
                    fresh = (
                        known
                        if known and known[0] == file_stamp
                        else (file_stamp, _skill(folder, name))
                    )
                    now[name] = fresh
    return now


def is_skill_file(name: str) -> bool:
    """Decide if a file is a skill, by its name or that of the folder which holds it."""
    return is_file_name(name.replace(f"{IN_FOLDER}{ENDING}", ENDING))


def is_file_name(name: str) -> bool:
    """Decide if a file of this name may be a skill: one clean line, and not hidden."""
    return (
        name.endswith(ENDING)
        and not name.startswith(".")
        and name.isprintable()
        and one_line(name) == name
        and "/" not in name
    )


def _skill(folder: Path, name: str) -> Skill | None:
    """Read a skill; None for a file without text (P-036)."""
    with (
        suppress(UnicodeDecodeError),
        open(folder / name, encoding="utf-8-sig", opener=_open_unfollowed) as file,
    ):
        if summary := summary_in(file.read(HEAD)):
            fits = len(summary) <= MOST_SHOWN
            summary = summary if fits else f"{summary[: MOST_SHOWN - 1]}…"
            return Skill(name.removesuffix(ENDING), summary)
    return None


def summary_in(head: str) -> str:
    """Return the summary from the beginning of a skill; "" if it has no text.

    This is the `description` of YAML front matter (F-033), or the first line of text. Front matter must be a
    mapping and end within the head.
    """
    matter = FRONT_MATTER.match(head)
    description = _description(matter[1]) if matter else None
    if matter and description is not None:
        head = head[matter.end() :]
    lines = (summary_of(line) for line in head.splitlines())
    return description or next((line for line in lines if line.strip("-. ")), "")


def _description(matter: str) -> str | None:
    """Return the description in front matter; None if it is no front matter, "" if it has none."""
    if len(OPENING.findall(matter)) > MOST_OPENINGS:
        return None
    try:
        # Nodes only, no values: so repeated aliases or merges cannot use up memory.
        fields = yaml.compose(matter, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return _plain_description(matter)
    if not isinstance(fields, yaml.MappingNode):
        return None if fields else ""
    values = (value for key, value in fields.value if key.value == "description")
    description = next(values, None)
    is_text = isinstance(description, yaml.ScalarNode) and description.tag == TEXT
    return one_line(description.value) if description and is_text else ""


def _plain_description(matter: str) -> str | None:
    """Return the text after `description:`, cut at a word (F-056); None: there is none."""
    match = PLAIN.search(matter)
    description = one_line(match[1]).strip("\"' ") if match else ""
    return textwrap.shorten(description, MOST_SUMMARY, placeholder="…").strip() or None


def summary_of(line: str) -> str:
    """Return the summary in a first line: the text after its `#` marks (P-036)."""
    return one_line(line.strip().lstrip("#"))


def _open_unfollowed(path: str, _flags: int) -> int:
    return os.open(path, READ)


def text_of(folder: Path, name: str) -> str | None:
    """Return the whole text of a skill; None: there is none.

    Raises: ToolFailed if it is not a plain text file.
    """
    # If the parent is a file, there is no such skill.
    return _file(folder, name).text() if (folder / name).parent.is_dir() else None


def skill_items(folder: Path) -> TextItems:
    """Return the skills as undoable items."""

    def text(item: str) -> str | None:
        return text_of(folder, item) if is_file_name(f"{item}{ENDING}") else None

    def file_of(item: str) -> TextFile:
        if not is_file_name(f"{item}{ENDING}"):
            raise ToolFailed(f"{item[:100]} is not the name of a skill")
        return _file(folder, item)

    return TextItems(text, partial(files_prepared, file_of))


def _file(folder: Path, name: str) -> TextFile:
    path = folder / f"{name}{ENDING}"
    return TextFile(path, skill_path(name), MOST_BYTES, mode=0, refusal=ToolFailed, read=_decoded)


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileUnusable("is not a text file in UTF-8") from error


def skill_path(name: str) -> str:
    """Return the file's name in the prompt (P-035)."""
    return f"data/skills/{name}{ENDING}"


class Skills:
    """Folder of skills.

    Skills are shown in every room but belong to the owner, so each change is recorded in the owner's scope.
    """

    def __init__(
        self, folder: Path, database: Database, changes: ChangeSets, placing: Placing, scope: str
    ) -> None:
        self._folder = folder
        self._placing = placing
        self._database = database
        self._changes = changes
        self._scope = scope
        self._writing = asyncio.Lock()
        self._seen: SkillCache = {}
        self._problem = ""

    async def listed(self) -> tuple[Skill, ...]:
        """Return all readable skills by name (P-034..P-036)."""
        problem = ""
        try:
            self._seen = await asyncio.to_thread(scan, self._folder, self._seen)
        except OSError as error:
            self._seen, problem = {}, error.strerror or str(error)
        if problem and problem != self._problem:
            log.warning("skills left out folder=%s reason=%s", self._folder, problem)
        self._problem = problem
        skills = [skill for _, skill in self._seen.values() if skill is not None]
        return tuple(sorted(skills, key=lambda skill: skill.name))

    async def read(self, name: str) -> str:
        """Return the whole text of a skill. Raises: ToolFailed."""
        text = await self._text(name)
        if text is None:
            text = await self._text(f"{name}{IN_FOLDER}")
        if text is None:
            known = "`wintermute skill list` shows the names"
            raise ToolFailed(f"no skill {one_line(name)[:100]}: {known}")
        return text

    async def write(self, why: Reason, name: str, summary: str, documentation: str) -> bool:
        """Write a skill; True if it is new (P-037, P-039).

        A person may write a secret into it, a model may not (M-083). Raises: ToolFailed, naming the broken rule
        (P-038).
        """
        text = _skill_text(name, summary, documentation)
        async with self._writing:
            before = await self._text(name)
            if why.cause != "command":
                text = without_secrets(text, before or "")
            if before != text:
                await self._replace(why, name, before, text)
        return before is None

    async def remove(self, why: Reason, name: str) -> None:
        """Remove a skill; `restore` brings it back. Raises: ToolFailed."""
        async with self._writing:
            before = await self.read(name)
            if await self._text(name) is None or not is_file_name(f"{name}{ENDING}"):
                raise ToolFailed(f"{name[:100]} is a folder: remove it by hand")
            await self._replace(why, name, before, None)

    async def restore(self, name: str) -> str:
        """Undo the newest change of a skill that makes a difference; return a message about it (P-039).

        Raises: ToolFailed if no change is kept, or a later edit covers all of it.
        """
        name = one_line(name)
        undo = Undo(self._database, self._changes, {}, self._placing)
        async with self._writing:
            before = await self._placing.files["skill"].state(name)
            await self._placing.finish()
            if await self._placing.files["skill"].state(name) != before:
                return f"{skill_path(name)} was changed: an interrupted change is finished now"
            for newest in await self._undoable(name):
                undone = await undo.apply(newest, {name})
                if undone.back or undone.kept:
                    return _restored(name, newest, undone)
        kept = f"changes are kept for {KEPT.days} days"
        raise ToolFailed(f"no earlier text of {name[:100]} is kept; {kept}")

    async def _text(self, name: str) -> str | None:
        parent = (self._folder / name).parent
        if not is_skill_file(f"{name}{ENDING}") or (parent != self._folder and parent.is_symlink()):
            return None
        return await asyncio.to_thread(text_of, self._folder, name)

    async def _undoable(self, name: str) -> list[ChangeSet]:
        """Return the changes that are not undone, newest first."""
        item: tuple[ItemKind, str] = ("skill", name)
        steps = (await self._changes.steps(self._database, [item]))[item]
        now = await self._placing.files["skill"].state(name)
        ids = [step.set_id for step in effective_steps(steps, now) if step.cause != "undo"]
        change_sets = [await self._changes.get(set_id) for set_id in ids]
        return [change_set for change_set in change_sets if change_set]

    async def _replace(self, why: Reason, name: str, before: str | None, after: str | None) -> None:
        change = Change("skill", name, state_of(before), state_of(after), why.evidence)
        await self._placing.write(replace(why, scope=self._scope), [change])


def _restored(name: str, newest: ChangeSet, undone: Undone) -> str:
    at = stamp(newest.created_at)[:16].replace("T", " ")
    if not undone.back:
        raise ToolFailed(
            f"{skill_path(name)}: the change of {at} UTC was not undone, because of a later edit"
        )
    gone = "gone" if undone.back[0].after is None else "back"
    return f"{skill_path(name)} is {gone}: the change of {at} UTC is undone"


def _skill_text(name: str, summary: str, documentation: str) -> str:
    if not NAME.fullmatch(name):
        other = "-".join(WORDS.findall(name))[:64]
        raise ToolFailed(
            "skill_name must have 1 to 64 letters A-Z a-z, digits, _ or -, the first a letter or digit"
            + (f": write {other}" if other else "")
        )
    if is_blank(summary_of(summary)) or summary.splitlines() != [summary]:
        raise ToolFailed("summary must be one line of text, not of # marks alone")
    if len(summary) > MOST_SUMMARY:
        raise ToolFailed(
            f"summary has {len(summary)} characters; at most {MOST_SUMMARY} are allowed"
        )
    if is_blank(documentation):
        raise ToolFailed("documentation must not be blank")
    if len(documentation) > MOST_DOCUMENTATION:
        raise ToolFailed(
            f"documentation has {len(documentation)} characters;"
            f" at most {MOST_DOCUMENTATION} are allowed"
        )
    return f"{one_line(summary)}\n\n{clean(documentation).rstrip()}\n"
