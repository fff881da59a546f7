"""A request as the practice model reads it: the newest message, and the lists of the prompt."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from wintermute.messages import Json
from wintermute.prompt.assemble import DIVIDER, SKILLS, SUMMARY, TASKS, TIME, WIKI
from wintermute.prompt.block import time_told, told, without_blocks
from wintermute.wiki.links import links_in

BEFORE = re.compile(
    r'(?s)\A(?:<event kind="(?:scheduled_task|task_error|night_report)" id="[\w-]+">\n.*?\n</event>\n\n'
    r"|<replied_to>\n.*?\n</replied_to>\s*|\[written [^\n\]]+ ago\]\n)+"
)
"""Events that the room was told, a quotation and a date before the message of a person."""
EVENT = re.compile(r'<event kind="(\w+)"')
TASK = re.compile(r"^\[P\d+\] #(task_\w+): (.+?)(?: \[[^\]\n]*\])?$", re.MULTILINE)
SKILL = re.compile(r"^- data/skills/(.+?)\.md — (.+)$", re.MULTILINE)
MOMENT = re.compile(r"(\w+), (\d{4}-\d\d-\d\d) (\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call. `data` is the JSON that it holds, or the text."""

    tool: str
    arguments: Json
    text: str
    data: Any


@dataclass(frozen=True, slots=True)
class PracticeView:
    """The newest message with what followed it, and the lists of the prompt.

    `event`: the kind, if it is no message of a person. `pages`: the titles that the index of the
    wiki links to. `answers`: of the assistant, so far.
    """

    text: str
    event: str
    results: tuple[ToolResult, ...]
    earlier: tuple[ToolResult, ...]
    tasks: Mapping[str, str]
    skills: Mapping[str, str]
    pages: tuple[str, ...]
    now: str
    tools: Collection[str]
    answers: tuple[str, ...]

    @property
    def moment(self) -> datetime:
        """The time on the person's wall, in whatever zone that is."""
        found = MOMENT.search(self.now)
        return datetime.fromisoformat(f"{found[2]} {found[3]}Z" if found else "1970-01-01 00:00Z")


def seen(messages: Sequence[Json], tools: Collection[str]) -> PracticeView:
    """Pure, and content with any JSON object as a message."""
    system = "".join(_text(each) for each in messages if each.get("role") == "system")
    newest = max((n for n, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    text = without_blocks(_text(messages[newest])) if newest >= 0 else ""
    text = text.partition(DIVIDER)[2] if text.startswith(f"# {SUMMARY}\n") else text
    text = BEFORE.sub("", text)
    event = EVENT.match(text)
    said = [_text(each) for each in messages if each.get("role") != "system"]
    headed = (part.removeprefix("# ").partition("\n") for part in system.split(DIVIDER))
    parts = {name: lines for name, _, lines in headed}
    parts |= {name: "\n".join(lines) for name, lines in told(said).items()}
    return PracticeView(
        text=text,
        event=event[1] if event else "",
        results=results_in(messages[newest + 1 :]) if newest >= 0 else (),
        earlier=results_in(messages[: max(newest, 0)]),
        tasks=dict(TASK.findall(parts.get(TASKS, ""))),
        skills=dict(SKILL.findall(parts.get(SKILLS, ""))),
        pages=links_in(parts.get(WIKI, "")),
        now=time_told(said) or parts.get(TIME, "").strip(),
        tools=tools,
        answers=tuple(_text(each) for each in messages if each.get("role") == "assistant"),
    )


def results_in(messages: Sequence[Json]) -> tuple[ToolResult, ...]:
    called: dict[str, tuple[str, Json]] = {}
    found = []
    for message in messages:
        calls = message.get("tool_calls")
        for call in map(mapping, calls if isinstance(calls, list) else ()):
            function = mapping(call.get("function"))
            arguments = mapping(_parsed(str(function.get("arguments"))))
            called[str(call.get("id"))] = (str(function.get("name")), arguments)
        if message.get("role") == "tool":
            name, arguments = called.get(str(message.get("tool_call_id")), ("", {}))
            text = without_blocks(_text(message))
            found.append(ToolResult(name, arguments, text, _parsed(text)))
    return tuple(found)


def _text(message: Json) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
