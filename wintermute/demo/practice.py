"""The practice model: a few rules that answer in place of a model, and really use the tools.

`answer` is pure. It knows no more than a model is shown: the messages and the system prompt; what
tools gave it tells as the store says it, errors included. Its words stand in `replies.toml`.
"""

import html
import json
import re
import tomllib
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from typing import Any

from wintermute.demo.dreams import dream_answer
from wintermute.demo.pages import page_answer
from wintermute.demo.unasked import statements, unasked
from wintermute.messages import Json
from wintermute.prompt.assemble import DIVIDER, MEMORIES, SUMMARY, TIME
from wintermute.prompt.block import time_told, told, without_blocks
from wintermute.text import one_line, shortened
from wintermute.wiki.links import links_in
from wintermute.wiki.pages import without_matter
from wintermute.wiki.recall import RECALL

MOST_SHOWN = 30
SEARCH = "search_memory"


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


Utterance = Say | Use


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


TOLD = re.compile(
    r'(?:<event kind="(?:scheduled_task|task_error|night_report)" id="[\w-]+">\n.*?\n</event>\n\n)+',
    re.DOTALL,
)
"""What tasks and nights have told the room, before the message of a person."""
EVENT = re.compile(r'<event kind="(\w+)"')
CONTEXT = re.compile(
    r"<(room_context|replied_to)>\n.*?\n</\1>\s*|\[written [^\n\]]+ ago\]\n", re.DOTALL
)
"""What stands before a message: lines of its room, what it replies to, when it was written."""
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
class ToolResult:
    """What one call gave. `data` is the JSON that it holds, or the text."""

    tool: str
    arguments: Json
    text: str
    data: Any


@dataclass(frozen=True, slots=True)
class ShownTask:
    """An active task as the prompt shows it."""

    id: str
    content: str


@dataclass(frozen=True, slots=True)
class ShownSkill:
    """A skill as the prompt shows it."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class PracticeView:
    """The newest message with what followed it, and the lists of the system prompt."""

    text: str = ""
    speaker: str = ""
    """Who says it, in a group; empty in a direct chat."""
    event: str = ""
    """The kind, if it is no message of a person."""
    results: tuple[ToolResult, ...] = ()
    facts: tuple[str, ...] = ()
    tasks: tuple[ShownTask, ...] = ()
    skills: tuple[ShownSkill, ...] = ()
    pages: tuple[str, ...] = ()
    """The titles that the index of the wiki links to."""
    now: str = ""
    tools: Collection[str] = field(default_factory=frozenset)


def seen(messages: Sequence[Json], tools: Collection[str]) -> PracticeView:
    """Pure, and content with any JSON object as a message."""
    system = "".join(_text(message) for message in messages if message.get("role") == "system")
    newest = max((n for n, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    text = without_blocks(_text(messages[newest])) if newest >= 0 else ""
    text = text.partition(DIVIDER)[2] if text.startswith(f"# {SUMMARY}\n") else text
    text = TOLD.sub("", text, count=1) if TOLD.match(text) else text
    event = EVENT.match(text)
    while found := CONTEXT.match(text):
        text = text[found.end() :]
    head = HEAD.match(text)
    said = [_text(message) for message in messages if message.get("role") != "system"]
    parts = {**_parts(system), **told(said)}
    core = (line for line in parts.get("Core Memory", ()) if line.startswith("- "))
    memories = (*core, *parts.get(MEMORIES, ()))
    return PracticeView(
        text=text[head.end() :].replace("\n  ", "\n") if head else text,
        speaker=head[1].strip() if head else "",
        event=event[1] if event else "",
        results=_results(messages[newest + 1 :]) if newest >= 0 else (),
        facts=tuple(fact for line in memories if (fact := line.removeprefix("- ").strip())),
        tasks=tuple(
            ShownTask(*match.groups()) for match in _all(TASK, parts.get("Active Tasks", ()))
        ),
        skills=tuple(ShownSkill(*match.groups()) for match in _all(SKILL, parts.get("Skills", ()))),
        pages=links_in("\n".join(parts.get("Memory Wiki", ()))),
        now=time_told(said) or " ".join(parts.get(TIME, ())),
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


def _parts(system: str) -> dict[str, Sequence[str]]:
    """The lines under each heading of the prompt."""
    found: dict[str, Sequence[str]] = {}
    for part in system.split(DIVIDER):
        heading, *lines = part.split("\n")
        name = heading.removeprefix("# ").removesuffix(" (relevance-ranked)")
        found[name] = lines
    return found


def _all(pattern: re.Pattern[str], lines: Sequence[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := pattern.fullmatch(line))]


def _results(after: Sequence[Json]) -> tuple[ToolResult, ...]:
    called: dict[str, tuple[str, Json]] = {}
    found = []
    for message in after:
        for call in _list(message.get("tool_calls")):
            function = _mapping(_mapping(call).get("function"))
            arguments = _mapping(_parsed(str(function.get("arguments"))))
            called[str(_mapping(call).get("id"))] = (str(function.get("name")), arguments)
        if message.get("role") == "tool":
            name, arguments = called.get(str(message.get("tool_call_id")), ("", {}))
            text = without_blocks(_text(message))
            found.append(ToolResult(name, arguments, text, _parsed(text)))
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


MOST_RAW = 4_000
PAGE = re.compile(r'<memory name="(.*?)">\n(.*)\n</memory>', re.DOTALL)
PAST = {"add": "added", "complete": "completed", "delete": "deleted", "pause": "paused"}


def reported(result: ToolResult) -> str:
    """One result in words; what has no words of its own is shown as it is."""
    why = result.text.removeprefix("error: ")
    if why != result.text:
        return phrase("failed", why=shortened(why, MOST_RAW))
    if result.text.startswith(("interrupted: ", "not run: ")):
        return phrase("open", why=result.text)
    match result.tool, result.data:
        case "append_memory", {"text": str(text), "stored": stored}:
            return phrase("known" if stored == "known" else "remembered", fact=text)
        case "task", [*rows]:
            return _task_list(result.arguments, rows)
        case "task", {"id": str(task_id), "content": str(content), **row}:
            return _changed_task(result.arguments, task_id, content, row.get("next_due"))
        case "add_skill", {"path": str(path), "created": created}:
            return phrase("learnt" if created else "relearnt", path=f"`{path}`")
        case "recall", _ if found := PAGE.fullmatch(result.text):
            return phrase("page", title=html.unescape(found[1]), text=_shown_page(found[2]))
        case "read_file", _:
            return shortened(result.text, MOST_RAW).strip() or phrase("nothing")
    text = shortened(result.text, MOST_RAW).strip() or phrase("nothing")
    return phrase("raw", tool=result.tool, text=text)


def _shown_page(text: str) -> str:
    """What a page says, without its frontmatter, title and sources."""
    body = without_matter(html.unescape(text)).strip()
    lines = [line for line in body.split("\n") if not line.startswith(("# ", "Source: "))]
    return shortened("\n".join(lines).strip(), MOST_RAW) or phrase("nothing")


def _changed_task(arguments: Json, task_id: str, content: str, due: object) -> str:
    if due:
        return phrase("task_due", id=task_id, content=content, due=str(due))
    reply = PAST.get(str(arguments.get("action")), "resumed")
    return phrase(f"task_{reply}", id=task_id, content=content)


def _task_list(arguments: Json, rows: Sequence[object]) -> str:
    lines = [
        phrase("task_line", id=str(row.get("id")), content=str(row.get("content")))
        for row in rows
        if isinstance(row, dict)
    ]
    status = str(arguments.get("status") or "active")
    if not lines:
        return phrase("no_tasks", status=status)
    return phrase("tasks", status=status, tasks=listed(lines))


SECRET = re.compile(
    r"\bpass(?:word|phrase|code|wort)\b.{0,40}?(?:\bis\b|=|:)\s*\S|\bpin\b.{0,20}?\d{4}"
    r"|\b(?:api|access|secret)[ _-]?(?:key|token)\b.{0,40}?(?:\bis\b|=|:)\s*\S"
    r"|\b(?:sk|pk|gh[opsu]|glpat|xox[abp]|syt)[-_][\w-]{16,}|\bakia\w{12,}|-----begin ",
    re.IGNORECASE,
)
MENTION = re.compile(
    r"(?:(?:hey|hi|hello|ok)\b,? )?(?:@\S+|wintermute\b)[:,!]? (?=\S)", re.IGNORECASE
)
POLITE = re.compile(
    r"(?:(?:please|kindly|can you|could you|would you|will you|(?:hi|hey|hello|ok|thanks)[,.!])[,:]? )+(?=\S)",
    re.IGNORECASE,
)
NAME = re.compile(
    r"(?:my name is|my name's|i am called|i'm called)"
    r" ([^\s,;:]{1,40}(?: (?!and\b|but\b)[^\s,;:]{1,40}){0,3})",
    re.IGNORECASE,
)
SAID = re.compile(r"(.{1,200}?) said: (.+)")
NAMED = re.compile(r"The user's name is (.+)\.")
TEACH = re.compile(r"(?:learn|teach you|new skill)\b[:\s]*(?:how\s+to\s+|to\s+)?", re.IGNORECASE)
STEP_END = re.compile(r"[\n;]|,\s")
BEFORE_STEP = re.compile(r"(?:(?:\d+[.)]|[-*]|and|then) )+", re.IGNORECASE)
HISTORY = "<history>"
MESSAGE = re.compile(r"^(?:\[message\]\n|- )(\S.*)$", re.MULTILINE)
WHEN = re.compile(
    r"\b(?:(?P<span>in \d{1,4} (?:minutes?|min|hours?|days?|weeks?)"
    r"|(?:today|tomorrow) at \d{1,2}(?![\d:]))"
    r"|(?:(?P<before>today|tomorrow) )?(?:at )?(?P<clock>\d{1,2}:\d\d)(?: (?P<after>today|tomorrow))?)\b",
    re.IGNORECASE,
)
ABOUT = re.compile(r"^(?:to|of|about|that) ", re.IGNORECASE)
ID = re.compile(r"\btask_[0-9a-z]+\b", re.IGNORECASE)
OF_TASK = re.compile(r"(?:(?:the|my|our|that|task|to-?do)\b[:# ]*)+", re.IGNORECASE)
FROM_LIST = re.compile(
    r" (?:from|on|in|off) (?:my|the) (?:tasks?|to-?dos?|list)(?: list)?$", re.IGNORECASE
)
EVERYTHING = frozenset(("", "me", "myself", "us", "everything", "anything", "it", "all", "this"))
POINTING = frozenset(("this", "that", "it", "me", "something"))
QUOTES = "\"'“”„: "
MOST_NAME = 64
MOST_SUMMARY = 80
MOST_LINES = 8
Rule = Callable[[PracticeView, str], Utterance]


def answer(messages: Sequence[Json], tools: Collection[str]) -> Utterance:
    """What the practice model does next with these messages and the tools of these names."""
    if not tools and messages and (known := _in_background(messages)) is not None:
        return Say(known)
    now = seen(messages, tools)
    if HISTORY in now.text and not tools:
        return _summed_up(now.text.rpartition(HISTORY)[2])
    if now.results:
        return Say("\n".join(_given(now, result) for result in now.results))
    if now.event:
        name = "seed" if now.event == "conversation_seed" else "event"
        return say(name, kind=now.event, name=_calling(now))
    if SECRET.search(now.text):
        return say("secret")
    line = _without(POLITE, _without(MENTION, one_line(now.text))).rstrip(" .!?…")
    for pattern, rule in RULES:
        if match := pattern.fullmatch(line):
            return rule(now, (match[1] or "").strip() if pattern.groups else "")
    return _otherwise(now, line)


def _in_background(messages: Sequence[Json]) -> str | None:
    """The answer to a question of which no person knows; None: it is another."""
    question = _text(messages[0])
    answers = (each(question) for each in (page_answer, dream_answer))
    return next((known for known in answers if known is not None), None) or unasked(messages)


def _given(now: PracticeView, result: ToolResult) -> str:
    """One result; of memories, who told them depends on who asks."""
    if result.tool != SEARCH or not isinstance(result.data, list):
        return reported(result)
    told = [_remembered(now, row) for row in result.data if isinstance(row, dict)]
    query = str(result.arguments.get("query") or "")
    if "?" in query:
        return phrase("perhaps", facts=listed(told)) if told else phrase("unknown")
    if not query:
        return phrase("about_you", facts=listed(told)) if told else phrase("nothing_at_all")
    if not told:
        return phrase("nothing_about", topic=query)
    return phrase("about", topic=query, facts=listed(told))


def _remembered(now: PracticeView, row: Json) -> str:
    line = _told(now, str(row.get("text")))
    return phrase("once", fact=line, until=str(row["until"])) if row.get("until") else line


def _summed_up(history: str) -> Utterance:
    """A summary: what people said, the newest of it, each shortened to a line (L-039)."""
    said = [one_line(text)[:MOST_SUMMARY] for text in MESSAGE.findall(history)]
    return say("summary", lines=listed(said[-MOST_LINES:]))


def _without(beginning: re.Pattern[str], text: str) -> str:
    match = beginning.match(text)
    return text[match.end() :] if match else text


def _fixed(reply: str) -> Rule:
    return lambda now, _: say(reply, name=_calling(now))


def _use(now: PracticeView, tool: str, **arguments: object) -> Utterance:
    if tool not in now.tools:
        return say("no_tool", tool=tool)
    return Use((ToolCall(tool, arguments),))


def _calling(now: PracticeView) -> str:
    name = _name(now)
    return f", {name}" if name else ""


def _name(now: PracticeView) -> str:
    """What the person wants to be called; in a group nobody's."""
    names = [match[1] for fact in now.facts if (match := NAMED.fullmatch(fact))]
    return names[-1] if names and not now.speaker else ""


def _told(now: PracticeView, fact: str) -> str:
    """A fact, with who said it."""
    if SECRET.search(fact):
        return phrase("hidden")
    if not now.speaker and (match := NAMED.fullmatch(fact)):
        return phrase("your_name", name=match[1])
    match = SAID.fullmatch(fact)
    if match is None:
        return phrase("noted", words=fact)
    by_you = match[1] == (now.speaker or phrase("user"))
    return phrase("told_by_you" if by_you else "told_by_other", who=match[1], words=match[2])


def _remember(now: PracticeView, what: str) -> Utterance:
    what = what.strip(QUOTES)
    if not what or what.lower() in POINTING:
        return say("remember_what")
    name = NAME.fullmatch(what)
    if name and not now.speaker:
        return _call_me(now, name[1])
    ending = "" if what.endswith((".", "!", "?", "…", "。")) else "."
    fact = phrase("fact", who=now.speaker or phrase("user"), words=what + ending)
    return _use(now, "append_memory", entry=fact)


def _call_me(now: PracticeView, name: str) -> Utterance:
    if now.speaker:
        return _remember(now, f"my name is {name}")
    return _use(now, "append_memory", entry=phrase("name_fact", name=name))


def _about(now: PracticeView, topic: str) -> Utterance:
    topic = topic.strip(QUOTES)
    opened = _opened(now, topic)
    if SEARCH in now.tools:
        asked = _looked_up(now, "" if topic.lower() in EVERYTHING else topic)
        return Use((*opened, *asked.calls)) if isinstance(asked, Use) else asked
    if opened:
        return Use(opened)
    told = [_told(now, fact) for fact in now.facts]
    if topic.lower() in EVERYTHING:
        return say("about_you", facts=listed(told)) if told else say("nothing_at_all")
    found = [line for line in told if is_about(line, topic)]
    if not found:
        return say("nothing_about", topic=topic)
    return say("about", topic=topic, facts=listed(found))


def _opened(now: PracticeView, topic: str) -> tuple[ToolCall, ...]:
    """The page of the wiki whose title has the words of a topic."""
    found = (title for title in now.pages if RECALL in now.tools and is_about(title, topic))
    return tuple(ToolCall(RECALL, {"title": title}) for title in found)[:1]


def _looked_up(now: PracticeView, query: str) -> Utterance:
    """What is in view may be a few memories of many: it is asked what there is."""
    return _use(now, SEARCH, n=MOST_SHOWN, **({"query": query} if query else {}))


def _my_name(now: PracticeView, _: str) -> Utterance:
    name = _name(now)
    return say("your_name", name=name) if name else say("no_name")


def _add_task(now: PracticeView, what: str) -> Utterance:
    what = what.strip(QUOTES)
    return _use(now, "task", action="add", content=what) if what else say("task_what")


def _list_tasks(now: PracticeView, status: str) -> Utterance:
    chosen = {"status": status.lower()} if status else {}
    return _use(now, "task", action="list", **chosen)


def _remind(now: PracticeView, what: str) -> Utterance:
    """With a time, as in `in 20 minutes` or `tomorrow at 18:30`, before or after what it is about."""
    when = WHEN.search(what)
    about = f"{what[: when.start()]} {what[when.end() :]}" if when else what
    about = one_line(ABOUT.sub("", about.strip()))
    if when is None or not about:
        return say("remind", what=about or phrase("remind_what"))
    day = next((each for each in (when["before"], when["after"]) if each), "")
    at = when["span"] or f"{day} {when['clock']}".strip()
    return _use(now, "task", action="add", content=about, schedule_type="once", at=at)


def _move_task(now: PracticeView, what: str, *, action: str) -> Utterance:
    found = _meant(now, what)
    if not found:
        return say("task_none")
    if len(found) > 1:
        lines = [phrase("task_line", id=task.id, content=task.content) for task in found]
        return say("task_many", tasks=listed(lines))
    reason = {"reason": phrase("task_reason")} if action == "complete" else {}
    return _use(now, "task", action=action, id=found[0].id, **reason)


def _meant(now: PracticeView, what: str) -> Sequence[ShownTask]:
    """The task that is named by its id, or those that the words fit, the exact one first."""
    if named := ID.search(what):
        return (ShownTask(named[0].lower(), ""),)
    what = FROM_LIST.sub("", _without(OF_TASK, what)).strip(QUOTES)
    same = [task for task in now.tasks if task.content.casefold() == what.casefold()]
    return same or [task for task in now.tasks if is_about(task.content, what)]


def _learn(now: PracticeView, _: str) -> Utterance:
    """From the text as it was written: line ends part the title from the steps."""
    begun = TEACH.search(now.text)
    rest = now.text[begun.end() :] if begun else ""
    title, *steps = re.split(r"[:\n]", rest, maxsplit=1)
    title = one_line(title).strip(QUOTES + ".!?")
    parts = [one_line(part) for part in STEP_END.split("".join(steps))]
    lines = [line for part in parts if (line := _without(BEFORE_STEP, part))]
    if not title or not lines:
        return say("learn_how")
    summary = phrase("skill_summary", title=title)
    if len(summary) > MOST_SUMMARY:
        summary = f"{summary[: MOST_SUMMARY - 1]}…"
    documentation = "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
    name = _skill_name(title)
    return _use(
        now, "add_skill", skill_name=name, summary=summary, documentation=f"{documentation}\n"
    )


def _skill_name(title: str) -> str:
    """The same for the same title; a number where the title has no letters that a name may have."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MOST_NAME].strip("-")
    return name or f"skill-{zlib.crc32(title.encode('utf-8', 'replace')):08x}"


def _skills(now: PracticeView, _: str) -> Utterance:
    lines = [phrase("skill_line", name=s.name, summary=s.summary) for s in now.skills]
    return say("skills", skills=listed(lines)) if lines else say("no_skills")


def _how(now: PracticeView, what: str) -> Utterance:
    found = [skill for skill in now.skills if is_about(f"{skill.name} {skill.summary}", what)]
    if not found:
        return say("not_learnt", what=what)
    if len(found) > 1 and (same := [s for s in found if s.name == _skill_name(what)]):
        found = same
    if len(found) > 1:
        lines = [phrase("skill_line", name=s.name, summary=s.summary) for s in found]
        return say("skill_many", skills=listed(lines))
    return _use(now, "read_file", path=f"data/skills/{found[0].name}.md")


def _time(now: PracticeView, _: str) -> Utterance:
    return say("time", now=now.now) if now.now else say("no_time")


def _otherwise(now: PracticeView, line: str) -> Utterance:
    """A question may be about something that is remembered; else it says what it can do."""
    topic = words(line)
    titles = [title for title in now.pages if RECALL in now.tools and words(title) <= topic]
    asked = now.text.rstrip().endswith(("?", "？"))  # noqa: RUF001  the wide one is meant
    if asked and titles:
        return Use((ToolCall(RECALL, {"title": titles[0]}),))
    if asked and topic and SEARCH in now.tools:
        return _looked_up(now, f"{line}?")
    if not asked and statements(now.text):
        return say("in_passing")
    found = [told for fact in now.facts if topic & words(told := _told(now, fact))]
    return say("perhaps", facts=listed(found)) if asked and found else say("unknown")


THEN = r"(?:,? (?:there|all|everyone|again|wintermute|very much|so much|a lot|you|then|later)){0,2}"
TASKS = r"(?:tasks?|to-?dos?)(?: list)?"
YOUR = r"(?:my |your |the |our |all )*"
SHOW = r"(?:(?:show|list|tell|give|read)(?: me)? |what(?:'s| is| are)(?: on)? )?"
WANT_FACTS = r"(?:what|do|did|show|list|tell me)"
TABLE: tuple[tuple[str, Rule], ...] = (
    (r"(?:help|help me|what can (?:you|i) do|how does this work|commands?|\?)?", _fixed("help")),
    (
        r"(?:hi|hello|hey|hiya|moin|good (?:morning|evening|afternoon|day))" + THEN,
        _fixed("hello"),
    ),
    (
        r"(?:thanks|thank you|thx|cheers|great|nice|cool|ok|okay|perfect)" + THEN,
        _fixed("thanks"),
    ),
    (r"(?:bye|goodbye|good night|see you)" + THEN, _fixed("bye")),
    (r"how are you(?: doing)?(?: today)?" + THEN, _fixed("well")),
    (r"(?:who|what) are you|are you .*", _fixed("who")),
    (
        r"why(?: (?:did|do|would) you (?:say|think|know|tell|believe|answer)\b.*| is that| that)?"
        r"|(?:how|where) (?:do|did) you (?:know|get|have|hear|learn) (?:that|this|it|so)(?: from)?",
        _fixed("why"),
    ),
    (
        r"(?:what(?:'s| is) (?:the )?(?:current )?)?(?:time|date|day)(?: is it| is today| now| today)*",
        _time,
    ),
    (r"what (?:time|date|day)(?: of the week)?(?: is it| is today)?(?: now| today)*", _time),
    (r"(?:what(?:'s| is)|do you know|tell me) my name|who am i", _my_name),
    (
        r"(?:forget|erase)\b.*|(?:delete|remove) .*\b(?:memor(?:y|ies)|facts?|you know)\b.*",
        _fixed("forget"),
    ),
    (NAME.pattern, _call_me),
    (r"(?:remember|don'?t forget|do not forget) to (.+)", _add_task),
    (r"do you remember (?:anything about |something about )?(.+)", _about),
    (
        r"(?:remember|memori[sz]e|note|keep in mind|don'?t forget|do not forget)\b"
        r"[:,]?(?: (?:that|this|the following)\b(?= ?\S)[:,]?)? ?(.*)",
        _remember,
    ),
    (r"remind me(?: to)?(?: (.+))?", _remind),
    (r"(?:set|make) (?:me )?(?:an? )?(?:reminder|alarm|timer)(?: (?:to|for) (.+))?", _remind),
    (rf"{SHOW}{YOUR}(?:(active|paused|completed|deleted|all) )?{TASKS}", _list_tasks),
    (
        r"what (?:tasks )?(?:do i have|have i|must i|should i|is there)(?: to do)?(?: today| now)?",
        _list_tasks,
    ),
    (rf"(?:add|put) (.+) (?:to|on|onto|in|into) (?:my|the|your|our) {TASKS}", _add_task),
    (
        r"(?:add|create|make|new)(?: me)?(?: an?| another| the)?(?: new)? ?(?:tasks?|to-?dos?)\b"
        r"[:,]? ?(?:to )?(.*)",
        _add_task,
    ),
    (r"(?:task|to-?do)[:,] ?(.+)", _add_task),
    (r"(?:learn|i(?: will|'ll)? teach you|new skill)\b.*", _learn),
    (
        rf"{SHOW}{YOUR}skills?(?: list)?|what (?:have you learn(?:t|ed)|skills .*|do you know how to do)",
        _skills,
    ),
    (r"(?:(?:do you know|tell me|show me) )?how (?:to|do (?:i|you|we)|can (?:i|we)) (.+)", _how),
    (r"(?:show|read|use)(?: me)? (?:the |my |your )*skill (.+)", _how),
    (
        rf"{WANT_FACTS}\b.{{0,60}}?\b(?:know|knew|remember|tell|told|said?|memor(?:y|ies)|noted)\b"
        r"(?:(?: you| me)? (?:about|of|on))? ?(.*)",
        _about,
    ),
    (r"tell me (?:something |everything |more )?about (.+)", _about),
    (r"mark (.+) as (?:done|finished|completed?)", partial(_move_task, action="complete")),
    (
        r"(.+) (?:is|are) (?:now |already )?(?:done|finished|completed?)",
        partial(_move_task, action="complete"),
    ),
    (
        r"(?:complete|finish|tick off|check off|(?:i have |i've |i )?(?:finished|completed|done))"
        r"(?: with)?[:,]? (.+)",
        partial(_move_task, action="complete"),
    ),
    (r"(?:delete|remove|cancel|drop) (.+)", partial(_move_task, action="delete")),
    (r"(?:pause|postpone) (.+)", partial(_move_task, action="pause")),
    (r"(?:resume|reopen) (.+)", partial(_move_task, action="resume")),
    (r"(?:task|to-?do) (.+)", _add_task),
)
RULES = tuple((re.compile(pattern, re.IGNORECASE), rule) for pattern, rule in TABLE)
