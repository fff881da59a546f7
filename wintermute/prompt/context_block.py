"""Context blocks: the changing parts of the prompt, at the end of a message. Pure.

The first block of a branch has them in full. A later one has the time and, of the rest, only the
lines that were added, changed or removed, so that the server's prompt cache stays valid. The lines
in view are read from the blocks themselves, and from the results of calls; blanked ones do not
count.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from wintermute.messages import CLOSED, OPENED, Json
from wintermute.prompt.assemble import (
    DIVIDER,
    MEMORIES,
    RANKED,
    SKILLS,
    TASKS,
    TIME,
    flat_lines,
    joined,
    one_line,
    pieces,
)
from wintermute.skills.skills import summary_in, summary_of

ONLY_TIME = f"{OPENED}# {TIME}\n"
BLOCK = re.compile(f"{OPENED}(.*?){CLOSED}", re.DOTALL)
GONE = "no longer: "
UNTRUE, INSTEAD = "no longer true: ", "; now: "
"""Marks of a memory in view that is no longer true; one that was merely not found again stays true."""
FOUND = "- "
"""Prefix of a memory that was found for a message (P-011)."""
NOTHING = "nothing any more"
OURS = re.compile(rf"^(?={GONE.strip()}|{UNTRUE.strip()}|{NOTHING}$)", re.MULTILINE)
NAMES: Mapping[str, re.Pattern[str]] = {
    TASKS: re.compile(r"(#\S+):"),
    SKILLS: re.compile(r"(data/skills/\S+\.md) "),
}
"""Patterns of the name that identifies a line of a part after changes; lines without one are ignored."""
LATE = timedelta(minutes=10)
"""The age of the newest time in view after which a cast gets the time again (F-015)."""
LEFT_OUT = "[… {count} memories left out to fit the model's window …]"
LEFT_OUT_BEFORE = re.compile(re.escape(LEFT_OUT).replace(r"\{count\}", "([0-9]{1,9})"))

Layout = Literal["append", "system"]
"""The place of the changing parts: behind messages as blocks, or in the system message."""
KnownLines = Mapping[str, tuple[str, ...]]
"""The lines of each part that are known from blocks, by its heading."""


@dataclass(frozen=True, slots=True)
class ChangingParts:
    """The parts that change, as rendered. `memories` None: no search was made (P-013).

    `untrue`: lines of ranked memories in view that are no longer true, each with its replacement,
    if known. `true`: lines of memories in view that are still true, even if not shown now.
    """

    now: str
    memories: str | None
    ranked: bool
    tasks: str
    skills: str
    untrue: tuple[tuple[str, str], ...] = ()
    true: Collection[str] = ()

    @property
    def lines(self) -> KnownLines:
        """The lines of each part; ranked and listed memories are one part."""
        known = {TASKS: _lines(self.tasks), SKILLS: _lines(self.skills)}
        return known if self.memories is None else {MEMORIES: _lines(self.memories), **known}


def without_blocks(message: str) -> str:
    """Return a message without its context block."""
    return BLOCK.sub("", message).rstrip("\n") if OPENED in message else message


def last_time(blocks: Iterable[str]) -> str:
    """Return the newest time in blocks; "" if there is none."""
    return ([_content(text) for name, text in _parts_in(blocks) if name == TIME] or [""])[-1]


def is_late(parts: ChangingParts, blocks: Iterable[str]) -> bool:
    """Return True if the newest time in blocks is outdated."""
    before = last_time(blocks)
    return before != "" and abs(_minute(parts.now) - _minute(before)) >= LATE


def lines_in(blocks: Iterable[str]) -> KnownLines:
    """Return the lines known after these blocks, in their order."""
    lines_by_part: dict[str, dict[str, str]] = {}
    for name, text in _parts_in(block for block in blocks if not _is_of_time(block)):
        part = MEMORIES if name == RANKED else name
        if part == TIME:
            continue
        lines = lines_by_part.setdefault(part, {})
        for line in _content(text).split("\n"):
            _apply_line(part, line, lines)
    return {part: tuple(lines.values()) for part, lines in lines_by_part.items()}


def next_block(
    parts: ChangingParts,
    so_far: KnownLines,
    *,
    shown: KnownLines | None = None,
    timed: bool = True,
) -> str:
    """Return the next block; "" if nothing changed.

    `so_far`: lines in earlier blocks; they are not repeated while they are `shown`, which is all
    that is in view, also in results of calls. Shown lines that no longer hold are retracted.
    """
    shown, now = so_far if shown is None else shown, parts.lines
    contents = [(TIME, parts.now if timed else "")]
    for part, text in ((MEMORIES, parts.memories), (TASKS, parts.tasks), (SKILLS, parts.skills)):
        untrue = [*map(_correction, parts.untrue)] if part == MEMORIES else []
        ranked = part == MEMORIES and (parts.ranked or bool(untrue))
        before = so_far.get(part)
        known = shown.get(part, ())
        came = _new_lines(part, before, known, now.get(part, ())) if before else _all(text or "")
        if ranked:
            listed = {_name(part, line) for line in known}
            lines = came if before else now.get(part, ())
            came = [line for line in lines if _name(part, line) not in listed]
        went = untrue if ranked or text is None else _removed(part, known, now[part], parts.true)
        contents.append((RANKED if ranked else part, "\n".join([*came, *went])))
    body = joined(contents)
    return f"{OPENED}{body}{CLOSED}" if body else ""


def of_result(gate: str, args: Json, result: Any) -> str:
    """Return the result of a call in the form of a block; "" if it concerns no part."""
    try:
        part, line = _of_result(gate, args, result)
    except (KeyError, TypeError):  # erased, or written by an earlier version
        return ""
    return f"{OPENED}# {part}\n{line}{CLOSED}" if part else ""


def _of_result(gate: str, args: Json, result: Any) -> tuple[str, str]:
    if gate == "append_memory":
        return MEMORIES, _escaped(flat_lines(result["text"]))
    if gate == "add_skill":
        return SKILLS, _skill(result["path"], args["summary"])
    if gate == "write_file" and "retired" in result:  # only the list of memories has this key
        return MEMORIES, f"{NOTHING}\n{_escaped(flat_lines(args['content']))}"
    if gate == "write_file" and NAMES[SKILLS].match(f"{result['path']} "):
        return SKILLS, _skill(result["path"], summary_in(args["content"]))
    if gate == "task":
        rows = result if isinstance(result, list) else [result]
        return TASKS, "\n".join(map(_row, rows))
    return "", ""


def merged_block(blocks: Iterable[str]) -> str:
    """Merge blocks into one, without the time; "" if nothing remains."""
    parts = lines_in(blocks)
    body = joined((part, "\n".join(parts.get(part, ()))) for part in (MEMORIES, TASKS, SKILLS))
    return f"{OPENED}{body}{CLOSED}" if body else ""


def fewer_memories(prompt: str) -> str | None:
    """Return a prompt or the inside of a block with half of its memories (F-023).

    The newest are kept, which come last; of memories found for a query the best, which come first.
    """
    parts = list(pieces(prompt))
    place = next((n for n, (name, _) in enumerate(parts) if name in (MEMORIES, RANKED)), None)
    if place is None:
        return None
    name, text = parts[place]
    heading, _, body = text.removeprefix(DIVIDER).partition("\n")
    lines = body.split("\n")
    before = LEFT_OUT_BEFORE.fullmatch(lines[0])
    lines = lines[1:] if before else lines
    half = len(lines) // 2
    if half == 0:
        return None
    kept_lines = lines[: len(lines) - half] if name == RANKED else lines[half:]
    mark = LEFT_OUT.format(count=half + int(before[1] if before else 0))
    new = "\n".join([heading, mark, *kept_lines])
    parts[place] = (name, DIVIDER + new if text.startswith(DIVIDER) else new)
    return "".join(text for _, text in parts)


def parts_of(message: str) -> tuple[tuple[str, str], ...]:
    """Return names and texts of the parts in a message's block; nothing if it has none."""
    _, opened, rest = message.rpartition(OPENED)
    return pieces(rest.removesuffix(CLOSED)) if opened and rest.endswith(CLOSED) else ()


def _minute(shown: str) -> datetime:
    _, day, minute, *_ = shown.split(" ")
    return datetime.fromisoformat(f"{day}T{minute}:00+00:00")


def _parts_in(blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    for block in BLOCK.findall("\n".join(blocks)):
        yield from pieces(block)


def _is_of_time(block: str) -> bool:
    """Return True if a block has only the time, as most blocks of a long conversation."""
    return block.startswith(ONLY_TIME) and DIVIDER not in block


def _content(part: str) -> str:
    return part.removeprefix(DIVIDER).partition("\n")[2]


def _all(text: str) -> list[str]:
    return [_escaped(text)] if text else []


def _removed(
    part: str, before: Sequence[str], now: Sequence[str], true: Collection[str]
) -> list[str]:
    """Return lines that retract removed ones; lines without a name are ignored."""
    about = {line: _name(part, line) for line in before if not LEFT_OUT_BEFORE.fullmatch(line)}
    stays = {_name(part, line) for line in now}.union(_name(part, line) for line in true)
    removed = [line for line, name in about.items() if name and name not in stays]
    over = removed and not now and not stays.intersection(about.values())
    return [NOTHING] if over else [GONE + line for line in removed]


def _correction(memory: tuple[str, str]) -> str:
    line, instead = memory
    return f"{UNTRUE}{line}{INSTEAD if instead else ''}{one_line(instead)}"


def _skill(path: str, summary: str) -> str:
    return one_line(f"- {path} — {summary_of(summary)}")


def _row(task: Json) -> str:
    when = f" [{task['schedule']}]" if task["schedule"] else ""
    line = one_line(f"[P{task['priority']}] #{task['id']}: {task['content']}{when}")
    return line if task["status"] == "active" else GONE + line


def _escaped(text: str) -> str:
    """Escape lines of data that look like a retraction."""
    return OURS.sub(r"\\", text)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in _escaped(text).split("\n") if line.strip()))


def _name(part: str, line: str) -> str:
    """Return the name of a line's subject: a memory is the same with and without a mark before it (M-088)."""
    match = NAMES[part].search(line) if part in NAMES else None
    if match is None:
        return "" if part in NAMES else line.removeprefix(FOUND)
    return match[1]


def _apply_line(part: str, line: str, lines: dict[str, str]) -> None:
    if line == NOTHING:
        lines.clear()
    elif line.startswith(UNTRUE):
        rest = line.removeprefix(UNTRUE).removeprefix(FOUND)
        for name in [each for each in lines if _is_retracted(each, rest)]:
            del lines[name]
    elif line.startswith(GONE):
        rest = line.removeprefix(GONE)
        lines.pop(_name(part, rest) or rest, None)
    elif line.strip():
        lines[_name(part, line) or line] = line


def _is_retracted(line: str, untrue: str) -> bool:
    return untrue == line or untrue.startswith(line + INSTEAD)


def _new_lines(
    part: str, before: Sequence[str], shown: Sequence[str], now: Sequence[str]
) -> Sequence[str]:
    """Return the lines that were added or changed; lines that were left out stay so."""

    def alike(line: str) -> str:
        return line if part in NAMES else _name(part, line)

    earlier = {*map(alike, before)}
    if any(map(LEFT_OUT_BEFORE.fullmatch, before)):
        now = now[next((n for n, line in enumerate(now) if alike(line) in earlier), len(now)) :]
    known = earlier & {*map(alike, shown)}
    return [line for line in now if alike(line) not in known]
