"""How the practice model answers: in words, which stand in `replies.toml`, or by using tools."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from wintermute.messages import Json

MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Say:
    """An answer in words."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One wish to use a tool."""

    tool: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Use:
    """An answer that uses tools first."""

    calls: tuple[ToolCall, ...]


Answer = Say | Use


@cache
def _replies() -> dict[str, str]:
    text = (resources.files("wintermute.demo") / "replies.toml").read_text("utf-8")
    return {name: reply.strip() for name, reply in tomllib.loads(text).items()}


def phrase(reply: str, **values: str) -> str:
    """A sentence with its values."""
    return _replies()[reply].format(connect=_replies()["connect"], **values)


def say(reply: str, **values: str) -> Say:
    """A sentence as the answer."""
    return Say(phrase(reply, **values))


def listed(lines: Sequence[str]) -> str:
    """A list of bounded length."""
    unseen = len(lines) - MOST_SHOWN
    more = [phrase("more", n=str(unseen))] if unseen > 0 else []
    return "\n".join([f"- {line}" for line in lines[:MOST_SHOWN]] + more)
