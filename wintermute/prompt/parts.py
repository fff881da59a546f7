"""What stands under each heading of the prompt. Data stays data, whatever it contains (P-016)."""

import re
from collections.abc import Iterable, Sequence

from wintermute.prompt.assemble import HEADINGS
from wintermute.skills.records import Skill
from wintermute.tasks.records import Task
from wintermute.text import untagged

WORKER_HEADINGS = ("Task Context", "Objective")
OURS = "|".join((*HEADINGS, *WORKER_HEADINGS))
# A line that begins like a heading of ours, or is a divider. Begun with the newline instead of
# `^`, which makes the search several times faster.
STRUCTURE = re.compile(
    rf"\n([^\S\n]*)(?=#+[^\S\n]*(?:{OURS})|-{{3,}}[^\S\n]*(?:\n|\Z))", re.IGNORECASE
)
BULLET = re.compile(r"^[ \t]*[-*][ \t]+\S", re.MULTILINE)
FRONTMATTER = re.compile(r"\A---[ \t]*\n(?:.*\n)*?---[ \t]*(?:\n|\Z)")
LOAD = "Load a skill with read_file when relevant to the current task."


def one_line(text: str) -> str:
    """Data that is shown in one line."""
    return untagged(" ".join(text.split()))


def inert(text: str) -> str:
    """Data of several lines. A line that could pass for a heading or divider gets a backslash."""
    # splitlines, because a reader may see a line's start behind any of Unicode's line ends.
    lines = "\n" + "\n".join(text.splitlines()).rstrip()
    return untagged(STRUCTURE.sub(r"\n\1\\", lines))[1:]


def core_text(markdown: str) -> str:
    """`core.md`, or nothing while it has no bullet (P-009)."""
    return inert(markdown) if BULLET.search(markdown) else ""


def flat_lines(text: str) -> str:
    """The whole memories file (P-010)."""
    return inert(text)


def ranked_lines(facts: Sequence[str], top_k: int | None = None) -> str:
    """The facts found, best first, at most `top_k`; None: all of them (P-011)."""
    return "\n".join(f"- {one_line(fact)}" for fact in facts[:top_k])


def wiki_text(instruction: str, index: str) -> str:
    """How to recall pages, and the index without its frontmatter (P-015)."""
    pages = inert(FRONTMATTER.sub("", index.replace("\r\n", "\n"))).lstrip("\n")
    return "\n\n".join(text for text in (instruction.strip(), pages) if text)


def task_lines(tasks: Iterable[Task]) -> str:
    """The active tasks, urgent and old ones first (P-018, P-019)."""
    active = (task for task in tasks if task.status == "active")
    return "\n".join(map(_task_line, sorted(active, key=lambda t: (t.priority, t.created_at))))


def skill_lines(skills: Iterable[Skill]) -> str:
    """The table of contents of the skills (P-034, P-035)."""
    named = sorted(skills, key=lambda skill: skill.name)
    lines = (one_line(f"- data/skills/{skill.name}.md — {skill.summary}") for skill in named)
    return "\n".join((LOAD, *lines))


def _task_line(task: Task) -> str:
    when = f" [{task.schedule}]" if task.schedule else ""
    return one_line(f"[P{task.priority}] #{task.id}: {task.content}{when}")
