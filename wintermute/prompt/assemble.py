"""The system prompt, put together from its parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import spoken

DIVIDER = "\n\n---\n\n"
INSTRUCTIONS = "Core Instructions"
MEMORIES = "User Memories"
RANKED = f"{MEMORIES} (relevance-ranked)"
HEADINGS = (
    *(INSTRUCTIONS, "Current Time", "Core Memory", MEMORIES),
    *("Memory Wiki", "Active Tasks", "Conversation Summary", "Skills"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The content of each part, in their order, data as rendered by `parts.py`; empty: no part."""

    instructions: str
    now: str
    core: str = ""
    memories: str = ""
    ranked: bool = False
    """The memories are those found for a query (P-011)."""
    wiki: str = ""
    tasks: str = ""
    summary: str = ""
    skills: str = ""


def assemble(parts: Parts) -> str:
    """The prompt: heading and content of each part that has some (P-002, P-004)."""
    headings = (RANKED if each == MEMORIES and parts.ranked else each for each in HEADINGS)
    contents = (
        *(parts.instructions, parts.now, parts.core, parts.memories),
        *(parts.wiki, parts.tasks, parts.summary, parts.skills),
    )
    return joined(zip(headings, contents, strict=True))


def joined(parts: Iterable[tuple[str, str]]) -> str:
    """Headings and contents with dividers between them, without what has no content (P-003)."""
    return DIVIDER.join(f"# {heading}\n{content}" for heading, content in parts if content)


def pieces(prompt: str) -> tuple[tuple[str, str], ...]:
    """A prompt taken apart at its dividers: names and texts, which joined are the prompt.

    The name is that of the heading, "" where there is none.
    """
    first, *others = prompt.split(DIVIDER)
    texts = [first, *(DIVIDER + text for text in others)]
    return tuple((_heading(text), text) for text in texts)


def _heading(piece: str) -> str:
    line = piece.removeprefix(DIVIDER).partition("\n")[0]
    return line.removeprefix("# ") if line.startswith("# ") else ""


def current_time(now: datetime, timezone: str) -> str:
    """The present minute in words (P-007)."""
    return spoken(now.replace(second=0), ZoneInfo(timezone))
