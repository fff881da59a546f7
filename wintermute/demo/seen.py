"""What a chat request shows the practice model: who says what, what tools gave, what is known."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from wintermute.messages import Json
from wintermute.prompt.assemble import DIVIDER, MEMORIES

TOLD = re.compile(
    r'(?:<event kind="(?:scheduled_task|task_error)" id="\w+">\n.*?\n</event>\n\n)+', re.DOTALL
)
"""What tasks have told the room, before the message of a person."""
EVENT = re.compile(r'<event kind="(\w+)"')
CONTEXT = re.compile(r"<(room_context|replied_to)>\n.*?\n</\1>\s*", re.DOTALL)
"""What stands before a message: lines of its room, and what it replies to."""
HEAD = re.compile(r"([^\n:@()<>]{1,200} \(@[^\s:]+:\S+\)|@[^\s:]+:\S+): ")
TASK = re.compile(r"\[P\d+\] #(task_\w+): (.+)")
SKILL = re.compile(r"- data/skills/(.+?)\.md — (.+)")
WORD = re.compile(r"[^\W_]+")
SMALL_WORDS = (
    "a an the my your our his her its their to of in on at for with from by and or is are was be do"
    " does did me i you we it that this what where when who how which why about have has can will"
    " please tell know"
)
SMALL = frozenset(SMALL_WORDS.split())


@dataclass(frozen=True, slots=True)
class Result:
    """What one call gave. `data` is the JSON that it holds, or the text."""

    tool: str
    arguments: Json
    text: str
    data: Any


@dataclass(frozen=True, slots=True)
class Task:
    """An active task as the prompt shows it."""

    id: str
    content: str


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as the prompt shows it."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest message with what followed it, and the lists of the system prompt."""

    text: str = ""
    speaker: str = ""
    """Who says it, in a group; empty in a direct chat."""
    event: str = ""
    """The kind, if it is no message of a person."""
    results: tuple[Result, ...] = ()
    facts: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    skills: tuple[Skill, ...] = ()
    now: str = ""
    tools: Collection[str] = field(default_factory=frozenset)


def seen(messages: Sequence[Json], tools: Collection[str]) -> Seen:
    """Pure, and content with any JSON object as a message."""
    system = "".join(_text(message) for message in messages if message.get("role") == "system")
    newest = max((n for n, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    text = _text(messages[newest]) if newest >= 0 else ""
    text = TOLD.sub("", text, count=1) if TOLD.match(text) else text
    event = EVENT.match(text)
    while found := CONTEXT.match(text):
        text = text[found.end() :]
    head = HEAD.match(text)
    parts = _parts(system)
    core = (line for line in parts.get("Core Memory", ()) if line.startswith("- "))
    memories = (*core, *parts.get(MEMORIES, ()))
    return Seen(
        text=text[head.end() :].replace("\n  ", "\n") if head else text,
        speaker=head[1].strip() if head else "",
        event=event[1] if event else "",
        results=_results(messages[newest + 1 :]) if newest >= 0 else (),
        facts=tuple(fact for line in memories if (fact := line.removeprefix("- ").strip())),
        tasks=tuple(Task(*match.groups()) for match in _all(TASK, parts.get("Active Tasks", ()))),
        skills=tuple(Skill(*match.groups()) for match in _all(SKILL, parts.get("Skills", ()))),
        now=" ".join(parts.get("Current Time", ())),
        tools=tools,
    )


def words(text: str) -> frozenset[str]:
    """What a text is about: its words without small ones, one and many alike."""
    found = WORD.findall(text.casefold())
    main = (word for word in found if len(word) > 1 and word not in SMALL)
    return frozenset(word.rstrip("s") or word for word in main)


def is_about(text: str, topic: str) -> bool:
    """Whether a text has all words of a topic; beyond ASCII, where words may not be cut, as it is."""
    wanted = words(topic)
    whole = not topic.isascii() and topic.casefold() in text.casefold()
    return whole or (bool(wanted) and wanted <= words(text))


def _parts(system: str) -> dict[str, list[str]]:
    """The lines under each heading of the prompt."""
    found: dict[str, list[str]] = {}
    for part in system.split(DIVIDER):
        heading, *lines = part.split("\n")
        name = heading.removeprefix("# ").removesuffix(" (relevance-ranked)")
        found[name] = lines
    return found


def _all(pattern: re.Pattern[str], lines: Sequence[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := pattern.fullmatch(line))]


def _results(after: Sequence[Json]) -> tuple[Result, ...]:
    called: dict[str, tuple[str, Json]] = {}
    found = []
    for message in after:
        for call in _list(message.get("tool_calls")):
            function = _mapping(_mapping(call).get("function"))
            arguments = _mapping(_parsed(str(function.get("arguments"))))
            called[str(_mapping(call).get("id"))] = (str(function.get("name")), arguments)
        if message.get("role") == "tool":
            name, arguments = called.get(str(message.get("tool_call_id")), ("", {}))
            text = _text(message)
            found.append(Result(name, arguments, text, _parsed(text)))
    return tuple(found)


def _text(message: Json) -> str:
    """The text of a message, also of one that is made of parts."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else _list(content)
    texts = (part if isinstance(part, str) else _mapping(part).get("text") for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
