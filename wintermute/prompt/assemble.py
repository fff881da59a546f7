"""The system prompt, assembled from its parts. Pure.

BASE_PROMPT.txt has sections, chosen by the available tools. Data stays data, whatever it contains
(P-016). A recorded prompt can be assembled again with the present instructions.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import in_words
from wintermute.errors import ConfigurationError
from wintermute.prompt.tool_names import TOOLS
from wintermute.skills.skills import Skill
from wintermute.tasks.tasks import Task
from wintermute.text import untagged
from wintermute.wiki.pages import MOST_INDEX_LINES, without_matter

FORM = "write `<!-- section: NAME requires: always -->`, or tools with commas for `always`"
ALONE = "a section marker is a comment on a line of its own"
MARKER = re.compile(r"\s*<!--(.*)-->\s*")
# Broad, because a mistyped marker must not become text that is always sent (P-030).
LIKE_A_COMMENT = re.compile(r"\s*<\s*[!-]|.*<!--\s*section\b", re.IGNORECASE)
SECTION = re.compile(r"\bsection\s*:", re.IGNORECASE)
REQUIRES = re.compile(r"\brequires\s*:", re.IGNORECASE)
ATTRIBUTE = re.compile(r"(\w+)\s*:")
TOOL = re.compile(r"[\w.-]+")
DIVIDER = "\n\n---\n\n"
INSTRUCTIONS, TIME, CORE = "Core Instructions", "Current Time", "Core Memory"
MEMORIES, WIKI, TASKS = "User Memories", "Memory Wiki", "Active Tasks"
SUMMARY, SKILLS = "Conversation Summary", "Skills"
RANKED = f"{MEMORIES} (relevance-ranked)"
HEADINGS = (INSTRUCTIONS, TIME, CORE, MEMORIES, WIKI, TASKS, SUMMARY, SKILLS)
WORKER_HEADINGS = ("Task Context", "Objective")
OURS = "|".join((*HEADINGS, *WORKER_HEADINGS))
# A line that looks like one of our headings or a divider. It starts with the newline instead of
# `^`, which makes the search several times faster.
STRUCTURE = re.compile(
    rf"\n([^\S\n]*)(?=#+[^\S\n]*(?:{OURS})|-{{3,}}[^\S\n]*(?:\n|\Z))", re.IGNORECASE
)
BULLET = re.compile(r"^[ \t]*[-*][ \t]+\S", re.MULTILINE)
LOAD = "Load a skill with read_file when relevant to the current task."
MEMORY_ROOT = "__MEMORY_ROOT__"
OPEN, CLOSE = r"\{\{IF_INCLUDE_RECALL\}\}", r"\{\{/IF_INCLUDE_RECALL\}\}"
RECALL_BLOCK = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
INDEX_CHARACTERS = 20_000
"""The most characters of the index that are shown, apart from the limit of lines."""
SHORTENED = "[truncated: {} of {} {} of the index shown]"
OUR_HEADINGS = {*HEADINGS, RANKED, *WORKER_HEADINGS}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the instructions. `line` is its first line in the file."""

    name: str
    requires: frozenset[str] | None
    """The tools of which any one includes it (P-025); None: it is always included."""
    body: str
    line: int


def parse(text: str, file: str) -> tuple[Section, ...]:
    """Return the sections in file order; text before the first marker is always sent (P-028, P-029).

    Raises: ConfigurationError with `file:line: ` for a malformed marker (P-030).
    """
    heads: list[tuple[str, frozenset[str] | None, int]] = [("", None, 1)]
    bodies: list[list[str]] = [[]]
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if LIKE_A_COMMENT.match(line) or (SECTION.search(line) and REQUIRES.search(line)):
            name, requires = _marker(line, f"{file}:{number}")
            heads.append((name, requires, number))
            bodies.append([])
        else:
            bodies[-1].append(line)
    sections = tuple(
        Section(name, requires, "\n".join(body).rstrip().lstrip("\n"), line)
        for (name, requires, line), body in zip(heads, bodies, strict=True)
    )
    if not any(section.body for section in sections):
        raise ConfigurationError(f"{file}:1: no section has a text: write some instructions")
    return sections if sections[0].body else sections[1:]


def chosen(
    sections: Collection[Section],
    tools: Collection[str] | None,
    index: str | None = None,
) -> str:
    """Return the instructions for these tools; None: all sections (P-025..P-027).

    Placeholders of the wiki are filled as by `runtime_text` (W-023). `index`: that of a wiki with
    pages.
    """
    bodies = (
        runtime_text(section.body, index, has_pages=index is not None)
        for section in sections
        if section.requires is None or tools is None or not section.requires.isdisjoint(tools)
    )
    return "\n\n".join(filter(None, bodies))


def unknown_tools(sections: Collection[Section]) -> tuple[tuple[int, str], ...]:
    """Return line and name of each required tool that does not exist and so includes nothing (P-031)."""
    return tuple(
        (section.line, tool)
        for section in sections
        for tool in sorted((section.requires or frozenset()) - TOOLS)
    )


def _marker(line: str, where: str) -> tuple[str, frozenset[str] | None]:
    match = MARKER.fullmatch(line)
    if match is None:
        unended = "<!--" in line and "-->" not in line
        reason = "the comment does not end on its line" if unended else ALONE
        raise ConfigurationError(f"{where}: {reason}: {FORM}")
    before, *pairs = (part.strip() for part in ATTRIBUTE.split(match[1]))
    keys = [key.lower() for key in pairs[::2]]
    if before or keys != ["section", "requires"]:
        raise ConfigurationError(f"{where}: {_complaint(before, keys)}: {FORM}")
    name, needs = pairs[1::2]
    if not TOOL.fullmatch(name):
        raise ConfigurationError(f"{where}: a section's name is one word, not '{name}': {FORM}")
    return name, _requires(needs, where)


def _complaint(before: str, keys: list[str]) -> str:
    unknown = [key for key in keys if key not in {"section", "requires"}]
    if before or "section" not in keys:
        return "only section markers may stand in comments"
    if unknown:
        return f"unknown attribute '{unknown[0]}'"
    if "requires" not in keys:
        return "the section marker has no requires"
    return "section and requires stand once each, in this order"


def _requires(needs: str, where: str) -> frozenset[str] | None:
    if needs.lower() == "always":
        return None
    tools = [tool.strip() for tool in needs.split(",")]
    for tool in tools:
        if not TOOL.fullmatch(tool) or tool.lower() == "always":
            raise ConfigurationError(f"{where}: requires cannot be '{needs}': {FORM}")
    return frozenset(tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptParts:
    """The content of each part, in their order, data as rendered here; "" for no part."""

    instructions: str
    now: str = ""
    core: str = ""
    memories: str = ""
    ranked: bool = False
    """True if the memories were found for a query (P-011)."""
    wiki: str = ""
    tasks: str = ""
    summary: str = ""
    skills: str = ""


def assemble(parts: PromptParts) -> str:
    """Return the prompt: heading and content of each part that has some (P-002, P-004)."""
    headings = (RANKED if each == MEMORIES and parts.ranked else each for each in HEADINGS)
    contents = (
        *(parts.instructions, parts.now, parts.core, parts.memories),
        *(parts.wiki, parts.tasks, parts.summary, parts.skills),
    )
    return joined(zip(headings, contents, strict=True))


def joined(parts: Iterable[tuple[str, str]]) -> str:
    """Join headings and contents with dividers, without empty parts (P-003)."""
    return DIVIDER.join(f"# {heading}\n{content}" for heading, content in parts if content)


def pieces(prompt: str) -> tuple[tuple[str, str], ...]:
    """Split a prompt at its dividers: names and texts, which joined are the prompt.

    The name is that of the heading, "" if there is none.
    """
    first, *others = prompt.split(DIVIDER)
    texts = [first, *(DIVIDER + text for text in others)]
    lines = (text.removeprefix(DIVIDER).partition("\n")[0] for text in texts)
    names = (line.removeprefix("# ") if line.startswith("# ") else "" for line in lines)
    return tuple(zip(names, texts, strict=True))


def current_time(now: datetime, timezone: str) -> str:
    """Return the present minute in words (P-007)."""
    return in_words(now.replace(second=0), ZoneInfo(timezone))


def one_line(text: str) -> str:
    """Render data in one line."""
    return untagged(" ".join(text.split()))


def inert(text: str) -> str:
    """Render data of several lines.

    A line that looks like a heading or divider gets a backslash.
    """
    # splitlines, because any of Unicode's line ends may look like the start of a line.
    lines = "\n" + "\n".join(text.splitlines()).rstrip()
    return untagged(STRUCTURE.sub(r"\n\1\\", lines))[1:]


def core_text(markdown: str) -> str:
    """Return `core.md`, or nothing while it has no bullet (P-009)."""
    return inert(markdown) if BULLET.search(markdown) else ""


def flat_lines(text: str) -> str:
    """Render the whole memories file (P-010)."""
    return inert(text)


def ranked_lines(facts: Sequence[str], top_k: int | None = None) -> str:
    """Render the facts found, best first, at most `top_k`; None: all of them (P-011)."""
    return "\n".join(f"- {one_line(fact)}" for fact in facts[:top_k])


def runtime_text(template: str, index: str | None, *, has_pages: bool) -> str:
    """Fill a text with placeholders for the wiki: none of them is left (W-022, W-023).

    `index` as in its file; None: there is no wiki here. `has_pages`: it has one besides the index,
    so that the block on recalling stays.
    """
    shown = "" if index is None else index_text(index)
    text = template if has_pages and index is not None else _without(RECALL_BLOCK.pattern, template)
    text = _without(f"{OPEN}|{CLOSE}", text, lines=1)
    if not shown:
        text = _without(MEMORY_ROOT, text)
    # The index is filled in last, so that nothing in it is taken for a marker.
    return text.replace(MEMORY_ROOT, shown).strip("\n")


def wiki_text(template: str, index: str | None) -> str:
    """Return the template's block on recalling pages, and the index; "" if there is no page (P-015)."""
    if index is None:
        return ""
    blocks = "\n\n".join(block.strip() for block in RECALL_BLOCK.findall(template))
    whole = blocks if MEMORY_ROOT in blocks else f"{blocks}\n\n{MEMORY_ROOT}"
    return runtime_text(whole, index, has_pages=True)


def _without(pattern: str, text: str, lines: int = 2) -> str:
    """Remove the matches; at the beginning of a line also up to `lines` line ends behind them."""
    at_start = rf"^[ \t]*(?:{pattern})[ \t]*\n{{0,{lines}}}"
    return re.sub(f"{at_start}|{pattern}", "", text, flags=re.MULTILINE | re.DOTALL)


def index_text(index: str) -> str:
    """Return the index without frontmatter; the beginning of a long one, with a note (W-023, W-024)."""
    text = without_matter(index.replace("\r\n", "\n"))
    lines = text.rstrip().lstrip("\n").splitlines()
    whole = inert("\n".join(lines[:MOST_INDEX_LINES]))
    shown = inert(whole[:INDEX_CHARACTERS])  # again: a cut line may be a divider now
    if shown != whole:
        note = SHORTENED.format(len(shown), len(whole), "characters")
    elif len(lines) > MOST_INDEX_LINES:
        note = SHORTENED.format(MOST_INDEX_LINES, len(lines), "lines")
    else:
        return shown
    return f"{shown}\n{note}"


def task_lines(tasks: Iterable[Task]) -> str:
    """Render the active tasks, urgent and old ones first (P-018, P-019)."""
    active = (task for task in tasks if task.status == "active")
    return "\n".join(map(_task_line, sorted(active, key=lambda t: (t.priority, t.created_at))))


def skill_lines(skills: Iterable[Skill]) -> str:
    """Render the table of contents of the skills (P-034, P-035)."""
    ordered = sorted(skills, key=lambda skill: skill.name)
    lines = (one_line(f"- data/skills/{skill.name}.md — {skill.summary}") for skill in ordered)
    return "\n".join((LOAD, *lines))


def _task_line(task: Task) -> str:
    when = f" [{task.schedule}]" if task.schedule else ""
    return one_line(f"[P{task.priority}] #{task.id}: {task.content}{when}")
