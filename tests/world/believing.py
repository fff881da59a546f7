"""What a model can believe after reading a request, held against what the stores have.

The reading here is a model's, and knows nothing of how blocks are made: messages in order, of the
blocks in them the newest counts, what follows `no longer:` is over, `nothing any more` empties a
part. It also believes the results of its own calls.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from wintermute.db import driver
from wintermute.messages import Json

MEMORIES, TASKS, SKILLS = "User Memories", "Active Tasks", "Skills"
BLOCK = re.compile(r"<context>\n(.*?)\n</context>", re.DOTALL)
TASK = re.compile(r"\[P(\d+)\] #(\S+): (.*?)( \[[^]]*\])?")
SKILL = re.compile(r"- data/skills/(\S+)\.md — (.*)")
ESCAPED = re.compile(r"^(\s*)\\")
Items = Mapping[str, frozenset[str]]
"""What is so, part by part."""


@dataclass(slots=True)
class Belief:
    """Memories, tasks and skills by what they are known by."""

    parts: dict[str, dict[str, str]] = field(
        default_factory=lambda: {MEMORIES: {}, TASKS: {}, SKILLS: {}}
    )

    @property
    def items(self) -> Items:
        return {part: frozenset(items.values()) for part, items in self.parts.items()}

    def read(self, block: str) -> None:
        """A block tells something newer."""
        part = ""
        for line in block.split("\n"):
            if line.startswith("# ") or line == "---":
                part = line.removeprefix("# ")
            elif part in self.parts:
                self._line(part, line)

    def _line(self, part: str, line: str) -> None:
        if line == "nothing any more":
            self.parts[part].clear()
        elif line.startswith("no longer: "):
            for name in dict(_named(part, line.removeprefix("no longer: "))):
                self.parts[part].pop(name, None)
        else:
            self.parts[part].update(_named(part, line))

    def did(self, name: str, arguments: Json, result: str) -> None:
        """A call of its own had this result."""
        try:
            told = json.loads(result)
        except ValueError:  # it went wrong
            return
        if name == "append_memory":
            self.parts[MEMORIES].update(_named(MEMORIES, told["text"]))
        elif name == "task":
            for row in told if isinstance(told, list) else [told]:
                self._task(row)
        elif name == "add_skill":
            self.parts[SKILLS][arguments["skill_name"]] = _skill(
                arguments["skill_name"], arguments["summary"]
            )
        elif name == "write_file" and told["path"].endswith("MEMORIES.txt"):
            self.parts[MEMORIES] = dict(_lines(arguments["content"]))

    def _task(self, row: Json) -> None:
        if row["status"] == "active":
            self.parts[TASKS][row["id"]] = _task(row["id"], row["priority"], row["content"])
        else:
            self.parts[TASKS].pop(row["id"], None)


def believed(messages: Sequence[Json]) -> Items:
    """What is so, as far as a model can tell from these messages."""
    now = Belief()
    calls: dict[str, Json] = {}
    for message in messages[1:]:
        content = str(message.get("content") or "")
        said = BLOCK.sub("", content).strip()
        for call in message.get("tool_calls") or ():
            calls[call["id"]] = call["function"]
        if message["role"] == "tool":
            call = calls[message["tool_call_id"]]
            now.did(call["name"], json.loads(call["arguments"]), said)
        for block in BLOCK.findall(content):
            now.read(block)
    return now.items


def held(folder: Path, memories: Path, scope: str) -> Items:
    """What the stores of a data folder have for a scope, whose memories are in that file."""
    with closing(driver.connect(folder / "wintermute.db", read_only=True)) as connection:
        tasks = connection.execute(
            "SELECT id, priority, content FROM tasks WHERE status = 'active'"
            " AND scope IN (?, 'global')",
            (scope,),
        ).fetchall()
    skills = [
        _skill(path.stem, path.read_text().split("\n", maxsplit=1)[0])
        for path in (folder / "skills").glob("*.md")
    ]
    text = memories.read_text() if memories.exists() else ""
    return {
        MEMORIES: frozenset(dict(_lines(text)).values()),
        TASKS: frozenset(_task(*row) for row in tasks),
        SKILLS: frozenset(skills),
    }


def differences(found: Items, true: Items) -> list[str]:
    """What is believed and not so, and the other way round."""
    return [
        *(
            f"believed, not so: {part}: {item}"
            for part in found
            for item in found[part] - true[part]
        ),
        *(
            f"so, not believed: {part}: {item}"
            for part in found
            for item in true[part] - found[part]
        ),
    ]


def _named(part: str, line: str) -> Iterator[tuple[str, str]]:
    """What a line of a part is known by, and what it says; nothing where it tells nothing."""
    if part == MEMORIES:
        yield from _lines(line)
    elif part == TASKS and (task := TASK.fullmatch(line)):
        yield task[2], _task(task[2], int(task[1]), task[3])
    elif part == SKILLS and (skill := SKILL.fullmatch(line)):
        yield skill[1], _skill(skill[1], skill[2])


def _lines(text: str) -> Iterable[tuple[str, str]]:
    for line in text.split("\n"):
        if plain := ESCAPED.sub(r"\1", line).replace("&lt;", "<").strip():
            yield plain, plain


def _task(name: str, priority: int, content: str) -> str:
    return f"[P{priority}] #{name}: {content}"


def _skill(name: str, summary: str) -> str:
    return f"{name}: {summary.strip().lstrip('# ')}"
