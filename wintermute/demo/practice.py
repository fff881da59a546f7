"""The practice model: a few rules that answer in place of a model, and really use the tools.

`answer` is pure. It knows only what a model is shown: the messages and the system prompt. It
repeats results of tools as the store reports them, errors included. `wordings.toml` has the
wordings it understands, `replies.toml` its replies.
"""

import html
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib import resources
from typing import Any
from zoneinfo import ZoneInfo

from wintermute.conversation.replies import EDITED
from wintermute.demo.background import USER, background_answer, ended, statements
from wintermute.errors import ToolFailed
from wintermute.memory.lexical_overlap import beginnings
from wintermute.messages import OPENED, Json, mapping
from wintermute.prompt.assemble import DIVIDER, SKILLS, SUMMARY, TASKS, TIME, WIKI
from wintermute.prompt.context_block import last_time, lines_in, of_result, without_blocks
from wintermute.secret_shapes import secret_kind
from wintermute.tasks.due import relative_time
from wintermute.tasks.parse import find_time, spoken
from wintermute.text import one_line, shortened
from wintermute.wiki.links import links_in
from wintermute.wiki.pages import without_matter
from wintermute.wiki.recall import RECALL

BEFORE = re.compile(
    r'(?s)\A(?:<event kind="(?:scheduled_task|task_error|night_report)" id="[\w-]+">\n.*?\n</event>\n\n'
    r"|<replied_to>\n.*?\n</replied_to>\s*|\[written [^\n\]]+ ago\]\n)+"
)
"""Events of the room, a quotation and a date before the message of a person."""
FORMER = re.compile(r"\A" + re.escape(EDITED).replace(r"\{effects\}", "(.*?)"))
EVENT = re.compile(r'<event kind="(\w+)"')
TASK = re.compile(r"^\[P\d+\] #(task_\w+): (.+?)(?: \[[^\]\n]*\])?$", re.MULTILINE)
SKILL = re.compile(r"^- data/skills/(.+?)\.md — (.+)$", re.MULTILINE)
MOMENT = re.compile(r"(\w+), (\d{4}-\d\d-\d\d) (\d\d:\d\d)")

SEARCH = "search_memory"
MOST_SHOWN = 30
MOST_RAW = 4_000
MOST_NAME = 64
MOST_SUMMARY = 80
PAGE = re.compile(r'<memory name="(.*?)">\n(.*)\n</memory>', re.DOTALL)
OPENING = re.compile(
    r"(?:(?:please|kindly|(?:can|could|would|will) you|(?:hi|hey|hello|ok|okay|thanks|oops|oh)[,.!]"
    r"|(?:(?:hey|hi|hello|ok),? )?wintermute\b)[:,!]?\s+)+(?=\S)",
    re.IGNORECASE,
)
TEACH = re.compile(r"(?:learn|teach you|new skill)\b[:\s]*(?:how\s+to\s+|to\s+)?", re.IGNORECASE)
STEP = re.compile(r"^(?:(?:\d+[.)]|[-*]|and|then) )+", re.IGNORECASE)
SPAN = re.compile(r"^(?=\d+ ?(?:s|m|h))", re.IGNORECASE)
LISTED = re.compile(r",[^,]*\band\b[^,]*$", re.IGNORECASE)
ABOUT = re.compile(r"^(?:(?:to|of|about|that|for)\b ?)+|,$", re.IGNORECASE)
ASKING = re.compile(
    r"(?:(?:what|who|which|when|where|why|how)(?:['\u2019]?(?:s|re))?|is|are|am|was|were|do|does|did)\b",
    re.I,
)
WHEN = re.compile(r"When\? .*? minutes: (.+?)` or")
"""The answer to a reminder without a time; the group is its subject."""
WALL = ZoneInfo("UTC")
"""Any time zone will do: it only carries the person's wall clock time in arithmetic."""
QUOTES = "\"'“”„: "
OFTEN = {"daily": "every day", "weekly on mon, tue, wed, thu, fri": "every weekday"}
BACK = {"add": "delete", "complete": "resume", "pause": "resume"}
Utterance = str | tuple[tuple[str, Json], ...]
"""An answer in words, or tools to use first, each with its arguments."""


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

    `event`: its kind, if it is no message of a person. `pages`: the titles in the index of the
    wiki. `answers`: those of the assistant, so far. `former`: the calls for the wording before an
    edit. `changed`: somebody else changed tasks since the last call that did.
    """

    text: str
    former: Sequence[str]
    changed: bool
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
        """The person's wall clock time."""
        found = MOMENT.search(self.now)
        return datetime.fromisoformat(f"{found[2]} {found[3]}Z" if found else "1970-01-01 00:00Z")


def view_of(messages: Sequence[Json], tools: Collection[str]) -> PracticeView:
    """Read the messages; any JSON object is accepted as one."""
    system = "".join(_text(each) for each in messages if each.get("role") == "system")
    newest = max((n for n, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    text = without_blocks(_text(messages[newest])) if newest >= 0 else ""
    text = text.partition(DIVIDER)[2] if text.startswith(f"# {SUMMARY}\n") else text
    edited = FORMER.match(text)
    text = BEFORE.sub("", FORMER.sub("", text))
    event = EVENT.match(text)
    said = [_message_text(each) for each in messages if each.get("role") != "system"]
    own = max((n for n, each in enumerate(said, 1) if each.startswith(OPENED)), default=0)
    headed = (part.removeprefix("# ").partition("\n") for part in system.split(DIVIDER))
    parts = {name: "\n".join(lines) for name, lines in lines_in(said).items()}
    parts |= {name: lines for name, _, lines in headed}
    return PracticeView(
        text=text,
        former=re.split(r"; (?=\w+ \{)", edited[1]) if edited else (),
        changed=lines_in(said).get(TASKS) != lines_in(said[:own]).get(TASKS),
        event=event[1] if event else "",
        results=results_in(messages[newest + 1 :]) if newest >= 0 else (),
        earlier=results_in(messages[: max(newest, 0)]),
        tasks=dict(TASK.findall(parts.get(TASKS, ""))),
        skills=dict(SKILL.findall(parts.get(SKILLS, ""))),
        pages=links_in(parts.get(WIKI, "")),
        now=last_time(said) or parts.get(TIME, "").strip(),
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


def _message_text(message: Json) -> str:
    text = _text(message)
    is_result = message.get("role") == "tool"
    return of_result("task", {}, mapping(_parsed(without_blocks(text)))) if is_result else text


def _text(message: Json) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((resources.files("wintermute.demo") / name).read_text("utf-8"))


def phrase(reply: str, **values: str) -> str:
    """Fill a reply with its values."""
    replies = _table("replies.toml")
    return str(replies[reply]).strip().format(connect=replies["connect"], **values)


def _listed(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return "\n".join([f"- {line}" for line in lines[:MOST_SHOWN]] + more)


def words(text: str) -> frozenset[str]:
    """Return the main words of a text, the same for singular and plural."""
    return frozenset(word.rstrip("s") or word for word in beginnings(text))


def is_about(text: str, topic: str) -> bool:
    """Return True if a text has all words of a topic."""
    return words(topic) <= words(text)


def reported(now: PracticeView, result: ToolResult) -> str:
    """Return one result in words; a result without words of its own is shown as it is."""
    text = shortened(result.text, MOST_RAW).strip()
    if text.startswith(("error: ", "interrupted: ", "not run: ")):
        return phrase("failed", why=text.removeprefix("error: "))
    match result.tool, result.data:
        case "append_memory", {"text": str(fact), "stored": stored}:
            return phrase("known" if stored == "known" else "remembered", fact=_without_user(fact))
        case "search_memory", [*rows]:
            return _matching_memories(
                now, str(result.arguments.get("query") or ""), map(mapping, rows)
            )
        case "task", [*rows]:
            tasks = [_dated(now, row, "dated") for row in map(mapping, rows)]
            return phrase("tasks", tasks=_listed(tasks)) if tasks else phrase("no_tasks")
        case "task", {"content": str()}:
            action, at = result.arguments.get("action"), result.arguments.get("at")
            return _dated(now, result.data, f"task_{action}", str(at or ""))
        case "add_skill", {"path": str(path)}:
            return phrase("learnt", path=path)
        case "recall", _ if page := PAGE.fullmatch(result.text):
            lines = without_matter(html.unescape(page[2])).strip().split("\n")
            body = "\n".join(line for line in lines if not line.startswith(("# ", "Source: ")))
            return phrase("page", title=html.unescape(page[1]), text=body.strip())
        case "read_file", _ if text:
            return text
    return phrase("raw", tool=result.tool, text=text)


def _dated(now: PracticeView, row: Json, reply: str, at: str = "") -> str:
    """Return a reply about a task, with its next time in people's words."""
    due, content = MOMENT.match(str(row.get("next_due"))), str(row.get("content"))
    if due is None or reply not in ("dated", "task_add"):
        return phrase(reply.replace("dated", "undated"), content=content)
    when = relative_time(datetime.fromisoformat(f"{due[2]} {due[3]}+00:00"), now.moment, WALL)
    how = str(row.get("schedule")).partition(" at ")[0]
    often = {f"weekly on {due[1][:3].lower()}": f"every {due[1]}", **OFTEN}.get(how)
    often = often or (spoken(at)[0] if at else how.partition("rrule")[0] or "repeats")
    return phrase(reply.replace("task_add", "reminder"), content=content, when=when, often=often)


def _without_user(fact: str) -> str:
    return fact.removeprefix(f"{USER} said: ")


def _matching_memories(now: PracticeView, query: str, rows: Iterable[Json]) -> str:
    """Return the memories found; for a question those that share a word with it."""
    known = {_without_user(str(row.get("text"))): row.get("until") for row in rows}
    if query.endswith("?"):
        known = {fact: end for fact, end in known.items() if words(fact) & words(query)}
    lines = [f"{fact} (until {end})" if end else fact for fact, end in known.items()]
    if query.endswith("?"):
        return phrase("perhaps", facts=_listed(lines)) if lines else _unknown(now)
    about = phrase("about", topic=query) if query else phrase("about_you")
    return f"{about}\n{_listed(lines)}" if lines else phrase("nothing_about", topic=query or "you")


def answer(messages: Sequence[Json], tools: Collection[str]) -> Utterance:
    """Choose the next answer or calls, for these messages and the tools of these names."""
    if not tools and messages and (known := background_answer(messages[0])) is not None:
        return known
    now = view_of(messages, tools)
    if isinstance(reply := _reply(now), tuple):
        return _former_undone(now) + reply
    back = [each for each in now.results if each.arguments.get("action") in BACK.values()]
    return f"{reply}\n\n{phrase('former')}" if len(back) < len(now.former) else reply


def _reply(now: PracticeView) -> Utterance:
    if now.results:
        return "\n\n".join(reported(now, result) for result in now.results)
    if now.event:
        return phrase("seed" if now.event == "conversation_seed" else "event", kind=now.event)
    if secret_kind(now.text):
        return phrase("secret")
    opening = OPENING.match(now.text)
    line = one_line(now.text[opening.end() :] if opening else now.text).rstrip(" .!?…")
    for name, pattern in _patterns():
        if match := pattern.fullmatch(line):
            what = " ".join(part for part in match.groups() if part).strip(QUOTES)
            return RULES[name](now, what) if name in RULES else phrase(name, now=now.now)
    return _otherwise(now, line)


@cache
def _patterns() -> Sequence[tuple[str, re.Pattern[str]]]:
    """Return the wordings as patterns with the one group `{what}`."""
    table = _table("wordings.toml")

    def whole(text: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda name: whole(table["part"][name[1]]), text)

    def compiled(text: str) -> re.Pattern[str]:
        plain = re.sub(r"\((?!\?)", "(?:", whole(text)).replace("(?<what>", "(")
        return re.compile(plain, re.IGNORECASE)

    return [(name, compiled(text)) for name, each in table["wording"].items() for text in each]


def _use(now: PracticeView, tool: str, **arguments: object) -> Utterance:
    return ((tool, arguments),) if tool in now.tools else phrase("no_tool", tool=tool)


def _unknown(now: PracticeView) -> str:
    return phrase("unknown_again" if phrase("unknown") in now.answers else "unknown")


def _remember(now: PracticeView, what: str) -> Utterance:
    if what.lower() in ("", "this", "that", "it", "me", "something"):
        return phrase("remember_what")
    return _use(now, "append_memory", entry=f"{USER} said: {ended(what)}")


def _about(now: PracticeView, topic: str) -> Utterance:
    """Return a page whose title has the words of the topic, and memories."""
    if topic.lower() in ("", "me", "myself", "us", "everything", "anything", "it", "all"):
        return _use(now, SEARCH, n=MOST_SHOWN)
    titles = (title for title in now.pages if RECALL in now.tools and is_about(title, topic))
    pages = tuple((RECALL, {"title": title}) for title in titles)[:1]
    asked = _use(now, SEARCH, query=topic, n=MOST_SHOWN)
    return pages or asked if isinstance(asked, str) else pages + asked


def _add_task(now: PracticeView, what: str) -> Utterance:
    """Add a reminder if the text has a time, else a line on the list."""
    if isinstance(reminder := _remind(now, what), tuple):
        return reminder
    items = re.split(r",? and |, ", what) if LISTED.search(what) else [what]
    calls: Utterance = tuple(("task", {"action": "add", "content": each}) for each in items if each)
    return (calls if "task" in now.tools else phrase("no_tool", tool="task")) or phrase("task_what")


def _list_tasks(now: PracticeView, status: str) -> Utterance:
    return _use(now, "task", action="list", **({"status": status.lower()} if status else {}))


def _remind(now: PracticeView, what: str, *, about: str = "") -> Utterance:
    """Make a reminder for the time at the beginning or end of a sentence, with the rest as its text."""
    try:
        found = find_time(SPAN.sub("in ", ABOUT.sub("", what)), now.moment, WALL)
    except ToolFailed as problem:
        return str(problem)
    content = ABOUT.sub("", found.rest if found else what).strip(QUOTES)
    if found is None or not (content or about):
        return phrase("remind_when", what=content) if content else phrase("remind_what")
    return _use(now, "task", action="add", content=content or about, at=found.at)


def _move_task(now: PracticeView, what: str, *, action: str) -> Utterance:
    same = [each for each, content in now.tasks.items() if content.casefold() == what.casefold()]
    found = same or [each for each, content in now.tasks.items() if is_about(content, what)]
    if named := re.search(r"task_[0-9a-z]+", what.lower()):
        found = [named[0]]
    if len(found) > 1:
        return phrase("task_many", tasks=_listed([f"{now.tasks[n]} (`{n}`)" for n in found]))
    reason = {"reason": phrase("task_reason")} if action == "complete" else {}
    return _use(now, "task", action=action, id=found[0], **reason) if found else phrase("task_none")


def _undo(now: PracticeView, _: str) -> Utterance:
    """Undo the task that was added or ended last here; other changes need a command."""
    last = next((each for each in reversed(now.earlier) if isinstance(each.data, dict)), None)
    if last and not now.changed and (action := BACK.get(str(last.arguments.get("action")))):
        return _use(now, "task", action=action, id=last.data.get("id"))
    return phrase("undo")


def _former_undone(now: PracticeView) -> tuple[tuple[str, Json], ...]:
    """Return the calls that undo the wording before an edit; a memory cannot be undone."""
    named = {content: each for each, content in now.tasks.items()}
    done = [mapping(_parsed(each.removeprefix("task "))) for each in now.former]
    ids = [each.get("id") or named.get(str(each.get("content"))) for each in done]
    back = [BACK.get(str(each.get("action"))) for each in done]
    calls = ({"action": a, "id": n} for a, n in zip(back, ids, strict=True) if a and n)
    return tuple(("task", each) for each in calls)


def _learn(now: PracticeView, _: str) -> Utterance:
    """Read a skill from the original text: line ends separate title and steps."""
    begun = TEACH.search(now.text)
    title, *steps = re.split(r"[:\n]", now.text[begun.end() :] if begun else "", maxsplit=1)
    title = one_line(title).strip(QUOTES + ".!?")
    parts = [STEP.sub("", one_line(part)) for part in re.split(r"[\n;]|,\s", "".join(steps))]
    steps = [f"{n}. {line}\n" for n, line in enumerate(filter(None, parts), 1)]
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MOST_NAME].strip("-")
    if not name or not steps:
        return phrase("learn_how")
    summary = f"How to {title}"[:MOST_SUMMARY]
    text = "".join(steps)
    return _use(now, "add_skill", skill_name=name, summary=summary, documentation=text)


def _how(now: PracticeView, what: str) -> Utterance:
    for name, summary in now.skills.items():
        if is_about(f"{name} {summary}", what):
            return _use(now, "read_file", path=f"data/skills/{name}.md")
    return phrase("learn_how")


def _otherwise(now: PracticeView, line: str) -> Utterance:
    """Search the memories for a question; learning from a statement comes later."""
    topic, asked = words(line), WHEN.match((now.answers or ("",))[-1])
    if ASKING.match(line) or now.text.rstrip().endswith(("?", "？")):  # noqa: RUF001  full width
        titles = [title for title in now.pages if RECALL in now.tools and words(title) <= topic]
        if titles:
            return _use(now, RECALL, title=titles[0])
        return _use(now, SEARCH, query=f"{line}?", n=MOST_SHOWN) if topic else _unknown(now)
    if statements(now.text):
        did = re.match(r"(?:i|we)(?:['\u2019]ve| have)?(?: just)? (\w+ed)\b", line, re.I)
        over = [n for n, task in now.tasks.items() if did and words(did[1]) <= words(task) <= topic]
        if len(over) == 1:
            return _move_task(now, over[0], action="complete")
        return phrase("in_passing")
    reminder = _remind(now, line, about=asked[1] if asked else "")
    return reminder if isinstance(reminder, tuple) else _unknown(now)


RULES: Mapping[str, Callable[[PracticeView, str], Utterance]] = {
    "undo": _undo,
    "remind": partial(_remind, about="your reminder"),
    "wake": partial(_remind, about="wake up"),
    "timer": partial(_remind, about="time is up"),
    "add_task": _add_task,
    "list_tasks": _list_tasks,
    "about": _about,
    "remember": _remember,
    "learn": _learn,
    "skills": lambda now, _: phrase("skills", skills=_listed([*now.skills.values()] or ["none"])),
    "how": _how,
    **{
        each: partial(_move_task, action=each) for each in ("complete", "delete", "pause", "resume")
    },
}
"""The function for each wording; other wordings get the reply of their name."""
