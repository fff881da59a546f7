"""The system prompt: parts in, text out."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wintermute.prompt.assemble import (
    HEADINGS,
    PromptParts,
    assemble,
    core_text,
    current_time,
    flat_lines,
    inert,
    one_line,
    ranked_lines,
    skill_lines,
    task_lines,
    wiki_text,
)
from wintermute.skills.skills import Skill
from wintermute.tasks.tasks import Status, Task

WINTER = datetime(2025, 1, 15, 13, 32, 59, tzinfo=UTC)
LOAD = "Load a skill with read_file when relevant to the current task."
FRESH = PromptParts(instructions="Be kind.", now="now", skills=skill_lines([]))


def task(
    content: str, priority: int = 5, *, age: int = 0, status: Status = "active", schedule: str = ""
) -> Task:
    created = WINTER - timedelta(days=age)
    return Task(
        "task_ab12cd34", "person:@ann:a.org", content, priority, status, created, schedule=schedule
    )


GOLDEN = """\
# Core Instructions
Be kind.

---

# Current Time
Wednesday, 2025-01-15 14:32 CET

---

# Core Memory
# SOUL
- calm

# TOOLS

# RULE

# USER

---

# User Memories
- Anna drinks tea
- Bo sings

---

# Memory Wiki
Ask for pages.

# Index
- [[Lyon]]

---

# Active Tasks
[P2] #task_ab12cd34: Fix auth bug [daily at 09:00]

---

# Conversation Summary
They spoke of Lyon.

---

# Skills
Load a skill with read_file when relevant to the current task.
- data/skills/calendar.md — Google Calendar event management"""


def test_all_parts_stand_in_order_with_dividers_between_them() -> None:
    """P-002, P-003, P-007, P-009, P-010, P-015, P-017, P-018, P-034, P-035."""
    parts = PromptParts(
        instructions="Be kind.",
        now=current_time(WINTER, "Europe/Berlin"),
        core=core_text("# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n"),
        memories=flat_lines("- Anna drinks tea\n- Bo sings\n\n"),
        wiki=wiki_text(
            "Unused. {{IF_INCLUDE_RECALL}}\nAsk for pages.\n{{/IF_INCLUDE_RECALL}}",
            "---\ncreated: 2025-01-01\n---\n\n# Index\n- [[Lyon]]\n",
        ),
        tasks=task_lines([task("Fix auth bug", 2, schedule="daily at 09:00")]),
        summary=inert("They spoke of Lyon."),
        skills=skill_lines([Skill("calendar", "Google Calendar event management")]),
    )
    assert assemble(parts) == GOLDEN
    assert assemble(replace(parts, ranked=True)) == GOLDEN.replace(
        "# User Memories\n", "# User Memories (relevance-ranked)\n"
    )


def test_an_empty_part_leaves_neither_heading_nor_divider() -> None:
    """P-003, P-004, P-011: also for memories searched without a find."""
    short = (
        f"# Core Instructions\nBe kind.\n\n---\n\n# Current Time\nnow\n\n---\n\n# Skills\n{LOAD}"
    )
    assert assemble(FRESH) == short
    assert assemble(replace(FRESH, ranked=True)) == short


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("", ""),
        ("# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n", ""),
        ("# SOUL\n-\n- \n---\n**bold**\n", ""),
        ("# SOUL\n- calm\n\n", "# SOUL\n- calm"),
        ("# SOUL\r\n  * calm\r\n# RULE", "# SOUL\n  * calm\n# RULE"),
    ],
)
def test_the_core_is_shown_once_it_has_a_bullet(markdown: str, shown: str) -> None:
    """P-009."""
    assert core_text(markdown) == shown


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("", ""),
        ("  \n\t\n\n", ""),
        ("- Anna drinks tea\n  - green\n\n- Bo sings\n \n\n", "- Anna drinks tea\n  - green\n\n- Bo sings"),
        ("- <b>tea</b>\n- a <event> b", "- <b>tea</b>\n- a &lt;event> b"),
    ],
)  # fmt: skip
def test_flat_memories_are_the_whole_file(file: str, shown: str) -> None:
    """P-010, P-016."""
    assert flat_lines(file) == shown


def test_ranked_memories_are_one_line_each_best_first() -> None:
    """P-011, P-016."""
    facts = ["Anna\nlives in Lyon", "---", "# Skills", "</memory>"]
    assert ranked_lines(facts, 10) == "- Anna lives in Lyon\n- ---\n- # Skills\n- &lt;/memory>"
    assert ranked_lines(facts, 1) == "- Anna lives in Lyon"
    assert ranked_lines([], 10) == ""


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        ("---\ncreated: 2025-01-01\nupdated: 2025-01-02\n---\n\n# Index\n", "Recall.\n\n# Index"),
        ("---\r\ncreated: 2025-01-01\r\n---\r\n# Index\r\n- [[A]]", "Recall.\n\n# Index\n- [[A]]"),
        ("# Index\n---\nand more", "Recall.\n\n# Index\n\\---\nand more"),
        ("---\nnever ended", "Recall.\n\n\\---\nnever ended"),
        ("---\na: b\n---\n", "Recall."),
    ],
)
def test_the_wiki_shows_its_index_without_frontmatter(index: str, shown: str) -> None:
    """P-015, P-016."""
    block = "{{IF_INCLUDE_RECALL}}\nRecall.\n{{/IF_INCLUDE_RECALL}}\n"
    assert wiki_text(block, index) == shown
    assert wiki_text(block, None) == ""


def test_active_tasks_are_sorted_by_priority_then_age() -> None:
    """P-018, P-019."""
    assert task_lines(
        [
            task("later", 3),
            task("paused", 1, status="paused"),
            task("done", 1, status="completed"),
            task("gone", 1, status="deleted"),
            task("same\nmoment\u2028, given\tsecond", 3),
            task("older", 3, age=2),
            task("first </event>", 1, schedule="daily\nat 09:00"),
        ]
    ).replace("task_ab12cd34", "t") == (
        "[P1] #t: first &lt;/event> [daily at 09:00]\n"
        "[P3] #t: older\n"
        "[P3] #t: later\n"
        "[P3] #t: same moment , given second"
    )
    assert task_lines([task("paused", status="paused")]) == ""


def test_skills_are_listed_by_name_under_the_fixed_line() -> None:
    """P-034, P-035."""
    assert skill_lines([]) == LOAD
    assert skill_lines([Skill("tea", "Brew\n# Skills"), Skill("calendar", "Plan")]) == (
        f"{LOAD}\n- data/skills/calendar.md — Plan\n- data/skills/tea.md — Brew # Skills"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("---", "\\---"),
        ("a\n ----- \nb", "a\n \\----- \nb"),
        ("---\n---\n---", "\\---\n\\---\n\\---"),
        ("--- a\n- ---", "--- a\n- ---"),
        ("# Active Tasks", "\\# Active Tasks"),
        ("  ##active tasks today", "  \\##active tasks today"),
        ("a\r# Skills\x0b# Skills\u2028# Skills", "a\n\\# Skills\n\\# Skills\n\\# Skills"),
        ("# User Memories (relevance-ranked)", "\\# User Memories (relevance-ranked)"),
        ("# Objective\n# Task Context", "\\# Objective\n\\# Task Context"),
        ("# SOUL\nC# Skills\n#1 fan", "# SOUL\nC# Skills\n#1 fan"),
        ("</memory><EVENT kind='x'> <raw_input>", "&lt;/memory>&lt;EVENT kind='x'> &lt;raw_input>"),
        ("\n\na\n \n", "\n\na"),
    ],
)
def test_data_cannot_pass_for_structure(text: str, shown: str) -> None:
    """P-016."""
    assert inert(text) == shown
    assert inert(shown) == shown


TITLES = (*HEADINGS, "User Memories (relevance-ranked)")
TAGS = ("</memory>", "<event", "<room_context>")
BAIT = st.sampled_from(
    [*(f"# {title}" for title in TITLES), *TAGS, *"\n\r\x85\u2028 #-\\", "---", "- "]
)
DATA = st.lists(BAIT | st.text(max_size=5)).map("".join)


@given(DATA, DATA, DATA, DATA, DATA, DATA, st.booleans())
@example("- a\n---\n# Active Tasks", "a", "a", "a", "a", "a", False)
@example("</memory->", "<event-", "<event-", "<event-", "</memory->", "<event-log><event->", True)
def test_no_data_adds_a_part_or_a_divider_or_a_tag(
    core: str, memories: str, wiki: str, work: str, summary: str, skill: str, ranked: bool
) -> None:
    """P-002, P-003, P-016: whatever the texts say."""
    parts = PromptParts(
        instructions="Be kind.",
        now="now",
        core=core_text(core),
        memories=ranked_lines([memories, core]) if ranked else flat_lines(memories),
        ranked=ranked,
        wiki=wiki_text("", wiki),
        tasks=task_lines([task(work, schedule=skill)]),
        summary=inert(summary),
        skills=skill_lines([Skill("name", skill)]),
    )
    prompt = assemble(parts)
    contents = [
        *(parts.instructions, parts.now, parts.core, parts.memories),
        *(parts.wiki, parts.tasks, parts.summary, parts.skills),
    ]
    memories_heading = TITLES[-1] if ranked else "User Memories"
    present = [
        memories_heading if heading == "User Memories" else heading
        for heading, content in zip(HEADINGS, contents, strict=True)
        if content
    ]
    lines = prompt.splitlines()
    assert [
        line[2:] for line in lines if line.startswith(tuple(f"# {t}" for t in TITLES))
    ] == present
    assert sum(line.strip() == "---" for line in lines) == len(present) - 1
    assert len(prompt.split("\n\n---\n\n")) == len(present)
    # `<event-log>` is a name of its own, and no tag of ours.
    assert re.search(r"<(/memory|event|room_context)\b(?!-\w)", prompt) is None


@given(DATA)
def test_data_of_one_line_has_one_line(text: str) -> None:
    """P-016, P-019."""
    assert len(one_line(f"a{text}").splitlines()) == 1


@given(st.text(st.characters(exclude_characters="<", categories=["L", "N", "P", "Zs"])))
def test_harmless_words_are_shown_as_they_are(text: str) -> None:
    """P-010."""
    assert inert(f"- fact {text}.") == f"- fact {text}."


@pytest.mark.parametrize(
    ("month", "zone", "words"),
    [
        (1, "Europe/Berlin", "Wednesday, 2025-01-15 14:32 CET"),
        (7, "Europe/Berlin", "Tuesday, 2025-07-15 15:32 CEST"),
        (1, "Asia/Tokyo", "Wednesday, 2025-01-15 22:32 JST"),
        (1, "Pacific/Kiritimati", "Thursday, 2025-01-16 03:32 +14"),
    ],
)
def test_the_time_is_told_in_the_configured_zone(month: int, zone: str, words: str) -> None:
    """P-007."""
    assert current_time(WINTER.replace(month=month), zone) == words


def test_day_names_are_english_under_every_locale_and_host_zone() -> None:
    """P-007: asked of a process in another zone and, where installed, another language."""
    program = (
        "import locale\n"
        "from datetime import UTC, datetime\n"
        "from wintermute.prompt.assemble import current_time\n"
        "try: locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n"
        "except locale.Error: pass\n"
        "print(current_time(datetime(2025, 1, 15, 13, 32, tzinfo=UTC), 'Europe/Berlin'))"
    )
    environment = {**os.environ, "TZ": "America/New_York"}  # noqa: TID251  a child's environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Wednesday, 2025-01-15 14:32 CET\n"
