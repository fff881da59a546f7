"""The practice model: a few rules that answer in place of a model, and really use the tools.

`answer` is pure. It knows no more than a model is shown: the messages and the system prompt.
What it says stands in `replies.toml`.
"""

import re
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import partial

from wintermute.demo.replies import Answer, Say, ToolCall, Use, listed, phrase, say
from wintermute.demo.results import reported
from wintermute.demo.seen import Seen, Task, is_about, seen, words
from wintermute.messages import Json
from wintermute.text import one_line

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
    r"\b(?:(?P<span>in \d{1,4} (?:minutes?|min|hours?|days?|weeks?))"
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


Rule = Callable[[Seen, str], Answer]


def answer(messages: Sequence[Json], tools: Collection[str]) -> Answer:
    """What the practice model does next with these messages and the tools of these names."""
    now = seen(messages, tools)
    if HISTORY in now.text and not tools:
        return _summed_up(now.text.rpartition(HISTORY)[2])
    if now.results:
        return Say("\n".join(reported(result) for result in now.results))
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


def _summed_up(history: str) -> Answer:
    """A summary: what people said, the newest of it, each shortened to a line (L-039)."""
    said = [one_line(text)[:MOST_SUMMARY] for text in MESSAGE.findall(history)]
    return say("summary", lines=listed(said[-MOST_LINES:]))


def _without(beginning: re.Pattern[str], text: str) -> str:
    match = beginning.match(text)
    return text[match.end() :] if match else text


def _fixed(reply: str) -> Rule:
    return lambda now, _: say(reply, name=_calling(now))


def _use(now: Seen, tool: str, **arguments: object) -> Answer:
    if tool not in now.tools:
        return say("no_tool", tool=tool)
    return Use((ToolCall(tool, arguments),))


# Memory


def _calling(now: Seen) -> str:
    name = _name(now)
    return f", {name}" if name else ""


def _name(now: Seen) -> str:
    """What the person wants to be called; in a group nobody's."""
    names = [match[1] for fact in now.facts if (match := NAMED.fullmatch(fact))]
    return names[-1] if names and not now.speaker else ""


def _told(now: Seen, fact: str) -> str:
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


def _remember(now: Seen, what: str) -> Answer:
    what = what.strip(QUOTES)
    if not what or what.lower() in POINTING:
        return say("remember_what")
    name = NAME.fullmatch(what)
    if name and not now.speaker:
        return _call_me(now, name[1])
    ending = "" if what.endswith((".", "!", "?", "…", "。")) else "."
    fact = phrase("fact", who=now.speaker or phrase("user"), words=what + ending)
    return _use(now, "append_memory", entry=fact)


def _call_me(now: Seen, name: str) -> Answer:
    if now.speaker:
        return _remember(now, f"my name is {name}")
    return _use(now, "append_memory", entry=phrase("name_fact", name=name))


def _about(now: Seen, topic: str) -> Answer:
    topic = topic.strip(QUOTES)
    told = [_told(now, fact) for fact in now.facts]
    if topic.lower() in EVERYTHING:
        return say("about_you", facts=listed(told)) if told else say("nothing_at_all")
    found = [line for line in told if is_about(line, topic)]
    if not found:
        return say("nothing_about", topic=topic)
    return say("about", topic=topic, facts=listed(found))


def _my_name(now: Seen, _: str) -> Answer:
    name = _name(now)
    return say("your_name", name=name) if name else say("no_name")


# Tasks


def _add_task(now: Seen, what: str) -> Answer:
    what = what.strip(QUOTES)
    return _use(now, "task", action="add", content=what) if what else say("task_what")


def _list_tasks(now: Seen, status: str) -> Answer:
    chosen = {"status": status.lower()} if status else {}
    return _use(now, "task", action="list", **chosen)


def _remind(now: Seen, what: str) -> Answer:
    """With a time, as in `in 20 minutes` or `tomorrow at 18:30`, before or after what it is about."""
    when = WHEN.search(what)
    about = f"{what[: when.start()]} {what[when.end() :]}" if when else what
    about = one_line(ABOUT.sub("", about.strip()))
    if when is None or not about:
        return say("remind", what=about or phrase("remind_what"))
    day = next((each for each in (when["before"], when["after"]) if each), "")
    at = when["span"] or f"{day} {when['clock']}".strip()
    return _use(now, "task", action="add", content=about, schedule_type="once", at=at)


def _move_task(now: Seen, what: str, *, action: str) -> Answer:
    found = _meant(now, what)
    if not found:
        return say("task_none")
    if len(found) > 1:
        lines = [phrase("task_line", id=task.id, content=task.content) for task in found]
        return say("task_many", tasks=listed(lines))
    reason = {"reason": phrase("task_reason")} if action == "complete" else {}
    return _use(now, "task", action=action, id=found[0].id, **reason)


def _meant(now: Seen, what: str) -> Sequence[Task]:
    """The task that is named by its id, or those that the words fit, the exact one first."""
    if named := ID.search(what):
        return (Task(named[0].lower(), ""),)
    what = FROM_LIST.sub("", _without(OF_TASK, what)).strip(QUOTES)
    same = [task for task in now.tasks if task.content.casefold() == what.casefold()]
    return same or [task for task in now.tasks if is_about(task.content, what)]


# Skills


def _learn(now: Seen, _: str) -> Answer:
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


def _skills(now: Seen, _: str) -> Answer:
    lines = [phrase("skill_line", name=s.name, summary=s.summary) for s in now.skills]
    return say("skills", skills=listed(lines)) if lines else say("no_skills")


def _how(now: Seen, what: str) -> Answer:
    found = [skill for skill in now.skills if is_about(f"{skill.name} {skill.summary}", what)]
    if not found:
        return say("not_learnt", what=what)
    if len(found) > 1 and (same := [s for s in found if s.name == _skill_name(what)]):
        found = same
    if len(found) > 1:
        lines = [phrase("skill_line", name=s.name, summary=s.summary) for s in found]
        return say("skill_many", skills=listed(lines))
    return _use(now, "read_file", path=f"data/skills/{found[0].name}.md")


# The rest


def _time(now: Seen, _: str) -> Answer:
    return say("time", now=now.now) if now.now else say("no_time")


def _otherwise(now: Seen, line: str) -> Answer:
    """A question may be about something that is remembered; else it says what it can do."""
    topic = words(line)
    asked = now.text.rstrip().endswith(("?", "？"))  # noqa: RUF001  the wide one is meant
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
