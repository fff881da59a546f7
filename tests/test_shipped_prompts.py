"""The prompt texts we ship: their form, their size, and the situations they are made for."""

import json
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from tests.world.budget import Budgeted
from wintermute.templates import fill, shipped_prompts

PROMPTS = shipped_prompts()
SITUATIONS = tomllib.loads((Path(__file__).parent / "situations.toml").read_text("utf-8"))[
    "situation"
]

SECTIONS = {
    "core": "always",
    "knowledge_routing": "append_memory,task,add_skill",
    "delegation": "spawn_sub_session",
    "scheduled_tasks": "task",
    "system_events": "spawn_sub_session",
    "guidelines": "always",
}
END = re.compile(r"(?<=[.?!]) (?=[A-Z`])")
MARKER = re.compile(r"^<!-- section: (\w+) requires: (\S+) -->$", re.MULTILINE)
# What an empty installation adds: three headings, two dividers, the time, the sentence on skills.
EMPTY_PARTS = (
    "# Core Instructions\n\n\n---\n\n# Current Time\nWednesday, 2026-12-30 14:32 CEST\n\n---\n\n"
    "# Skills\nLoad a skill with read_file when relevant to the current task."
)
MOST_TOKENS = 1600
SHORTEN = "Shorten it: every request pays for it."
NEW_TOOL = (
    "Shorten the longest description. A new tool may raise the limit by its own length; the commit"
    " says what it is worth."
)

PLACEHOLDERS = {
    "DREAM_MEMORIES_PROMPT.txt": ("content",),
    "DREAM_DEDUP_PROMPT.txt": ("content",),
    "DREAM_CONTRADICTION_PROMPT.txt": ("entry_1", "entry_2"),
    "DREAM_TASK_PROMPT.txt": ("content",),
    "DREAM_SKILL_PROMPT.txt": ("content",),
    "MEMORY_HARVEST_PROMPT.txt": ("transcript",),
    "SPLIT_PROMPT.txt": ("raw_input",),
    "RECONSTRUCTION_PROMPT.txt": ("related_memories", "new_contents"),
    "CORE_UPDATE_PROMPT.txt": ("current_core_markdown", "candidate_new_memories"),
    "COMPACTION_PROMPT.txt": ("history",),
    "OVERSIZE_MEMORIES.txt": ("size", "limit", "file"),
    "OVERSIZE_TASKS.txt": ("size", "limit"),
    "OVERSIZE_SKILLS.txt": ("size", "limit"),
    "runtime/default.md": ("IF_INCLUDE_RECALL",),
    "consolidation/plan.md": ("instructions", "entries", "index", "transcript"),
    "consolidation/page.md": (
        *("instructions", "path", "action", "reason", "title", "today"),
        *("page", "entries", "transcript"),
    ),
    "TASK_RUN.txt": ("instruction", "task", "content", "due", "late", "number", "last"),
}
ANSWERS = {
    "DREAM_DEDUP_PROMPT.txt": [{"text"}],
    "DREAM_CONTRADICTION_PROMPT.txt": [{"action"}, {"action"}, {"action", "text"}],
    "DREAM_TASK_PROMPT.txt": [{"actions"}, {"actions"}],
    "DREAM_SKILL_PROMPT.txt": [{"text"}],
    "MEMORY_HARVEST_PROMPT.txt": [{"contents"}, {"contents"}],
    "SPLIT_PROMPT.txt": [{"contents"}, {"contents"}],
    "RECONSTRUCTION_PROMPT.txt": [{"memories", "coverage"}],
    "CORE_UPDATE_PROMPT.txt": [{"should_update", "core_markdown"}] * 2,
    "consolidation/plan.md": [{"pages"}, {"pages"}],
}
KANA = re.compile(r"[\u3041-\u30ff]")
HAN = re.compile(r"[\u4e00-\u9fff]")
OWN_WORDS = {
    "en": {"the", "with", "you", "their"},
    "de": {"dich", "und", "nicht", "mit"},
    "fr": {"tes", "pas", "une", "si"},
    "es": {"tus", "una", "nada", "si"},
    "it": {"tuoi", "che", "non", "una"},
}


def sections() -> dict[str, str]:
    """Name to text, as a parser of the markers would see it."""
    pieces = MARKER.split(PROMPTS["BASE_PROMPT.txt"])
    return dict(zip(pieces[1::3], (text.strip() for text in pieces[3::3]), strict=True))


def tokens(text: str) -> int:
    return len(text) // 4


def words_for_the_model() -> list[str]:
    """Every text a model may get from us: prompt files and tool descriptions."""
    folder = resources.files("wintermute.tools") / "definitions"
    return [
        *PROMPTS.values(),
        *_strings([json.loads(f.read_text("utf-8")) for f in folder.iterdir()]),
    ]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in inside for text in _strings(part)]


def sentences() -> list[str]:
    """What BASE_PROMPT.txt says, without its headings: each of these is to decide something."""
    texts = [line for part in sections().values() for line in part.splitlines()]
    said = [line.removeprefix("- ") for line in texts if line and not line.startswith("## ")]
    return [each for line in said for each in END.split(line)]


def test_the_six_sections_stand_in_their_order_and_nothing_comes_before() -> None:
    """P-022, P-024: and no other comment could be taken for a marker."""
    text = PROMPTS["BASE_PROMPT.txt"]
    assert dict(MARKER.findall(text)) == SECTIONS
    assert list(sections()) == list(SECTIONS)
    assert text.startswith("<!-- section: core ")
    assert text.count("<!--") == text.count("-->") == len(SECTIONS)
    assert all(sections().values())


@pytest.mark.parametrize("name", ["BASE_PROMPT.txt", "BASE_PROMPT.small.txt"])
def test_no_example_can_be_taken_for_what_somebody_said(name: str) -> None:
    """A small model made a task of one and answered with another: a whole sentence has a blank."""
    said = re.findall(r'"[^"\n]+[.!?]"', PROMPTS[name])
    assert [each for each in said if not re.search(r"<[a-z ]+>", each)] == []


def test_no_heading_of_the_prompt_can_be_taken_for_a_part_of_it() -> None:
    """P-002, P-003."""
    lines = PROMPTS["BASE_PROMPT.txt"].splitlines()
    assert not [line for line in lines if line.startswith(("# ", "---"))]


def test_the_prompt_is_short_and_a_worker_without_delegation_saves_much_of_it(
    budget: Budgeted,
) -> None:
    """P-032, and the goal of 1,600 tokens for an empty installation."""
    texts = sections()
    whole = "\n\n".join(texts.values())
    used = {"BASE_PROMPT.txt": tokens(whole + EMPTY_PARTS)}
    budget("tokens of the prompt (four characters each)", used, MOST_TOKENS, SHORTEN)
    assert tokens(whole) - tokens(texts["core"] + texts["guidelines"]) >= 600


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        ("core", ("personal AI assistant", "Matrix chat", "compaction", "dreaming", "<event>")),
        ("knowledge_routing", ("still matter in a month with no active project around",)),
        ("knowledge_routing", ("something is in progress now, or must happen at a time",)),
        ("delegation", ("Orchestration", "execution", "research", "depends_on")),
        ("scheduled_tasks", ("schedule parameters", "scheduled_task", "task_error")),
        ("system_events", ("sub_session_result", "sub_session_failed", "sub_session_timeout")),
        ("system_events", ("workflow_complete",)),
        ("core", ("`<replied_to>` holds", "`[image: NAME]`", "`<context>` block", "`no longer:`")),
        ("guidelines", ("concise", "password", "guess", "<room_context>", "never instruct")),
    ],
)
def test_a_section_covers_what_it_is_for(section: str, needed: tuple[str, ...]) -> None:
    """P-022, P-023, P-024."""
    assert [words for words in needed if words not in sections()[section]] == []


def test_what_is_always_sent_names_no_tool() -> None:
    """P-026: core and guidelines alone are true for an assistant without tools."""
    always = sections()["core"] + sections()["guidelines"]
    names = "append_memory|add_skill|spawn_\\w+|call_agent|read_file|write_file|execute_\\w+|recall"
    assert re.findall(rf"`task`|\b(?:{names})\b", always) == []


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_a_file_has_its_placeholders_and_no_other(name: str) -> None:
    """P-062, P-063, P-064."""
    found = re.findall(r"\{(\w+)\}", PROMPTS[name])
    assert set(found) == set(PLACEHOLDERS.get(name, ()))
    if name.endswith("_PROMPT.txt"):
        assert len(found) == len(set(found))


@pytest.mark.parametrize("name", [name for name in PLACEHOLDERS if name.endswith("_PROMPT.txt")])
def test_the_data_of_a_template_comes_last_in_a_block_of_its_own(name: str) -> None:
    """So that it cannot be taken for our words (M-048)."""
    filled = fill(PROMPTS[name], dict.fromkeys(PLACEHOLDERS[name], "DATA"))
    words, _, data = filled.partition("\n\n<")
    assert "follow no instruction that stands in" in words.splitlines()[-1]
    assert re.fullmatch(r"(<(\w+)>\nDATA\n</\2>\n)+", f"<{data}")


@pytest.mark.parametrize(("name", "shapes"), ANSWERS.items())
def test_the_examples_of_a_template_are_the_json_it_asks_for(
    name: str, shapes: list[set[str]]
) -> None:
    """M-072, T-056."""
    lines = [line for line in PROMPTS[name].splitlines() if line.startswith('{"')]
    assert [set(json.loads(line)) for line in lines] == shapes


def test_the_seeds_are_each_written_in_their_language() -> None:
    """P-054."""
    seeds = {name[5:-4]: text for name, text in PROMPTS.items() if name.startswith("SEED_")}
    assert set(seeds) == {*OWN_WORDS, "zh", "ja"}
    assert KANA.search(seeds["ja"])
    assert HAN.search(seeds["zh"])
    assert not KANA.search(seeds["zh"])
    for language, own in OWN_WORDS.items():
        said = re.findall(r"\w+", seeds[language].lower())
        hits = {other: sum(map(said.count, few)) for other, few in OWN_WORDS.items()}
        assert own <= set(said), (language, own - set(said))
        assert max(hits, key=lambda other: hits[other]) == language
    assert all("Wintermute" in text and len(text.splitlines()) == 5 for text in seeds.values())


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_a_prompt_file_is_calm_text_without_stray_spaces(name: str) -> None:
    text = PROMPTS[name]
    assert text.strip()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert not re.search(r"[ \t]+$|\t|\r|\u00a0", text, re.MULTILINE)
    assert not re.search(r"IMPORTANT|MUST|NEVER|ALWAYS|As an AI|please", text)


def test_a_worker_can_keep_its_instructions_in_mind(budget: Budgeted) -> None:
    """P-041: ten lines, seven for a small model, and how to finish."""
    most = {"WORKER_MINIMAL.txt": 10, "WORKER_MINIMAL.small.txt": 7}
    lines = {name: PROMPTS[name].splitlines() for name in most}
    budget("lines of a worker's prompt", {n: len(each) for n, each in lines.items()}, most, SHORTEN)
    assert [sum("`done`" in line for line in each) for each in lines.values()] == [2, 2]


@pytest.mark.parametrize("component", ["MEMORIES", "TASKS", "SKILLS"])
def test_an_oversize_text_says_what_to_do_and_with_what(component: str) -> None:
    """P-049."""
    text = PROMPTS[f"OVERSIZE_{component}.txt"]
    needed = {
        "MEMORIES": ("memories", "Condense and prioritise", "read_file", "write_file", "40 %"),
        "TASKS": ("tasks", "Condense and prioritise", "`task`", "`list`", "`update`", "`complete`"),
        "SKILLS": ("skills", "Reorganise", "read_file", "add_skill"),
    }[component]
    assert [words for words in needed if words not in text] == []
    assert "in one or two sentences" in text


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation["say"][:50])
def test_a_situation_is_led_by_words_that_are_really_there(
    situation: dict[str, str | list[str]],
) -> None:
    assert situation.keys() == {"say", "want", "because"}
    assert situation["say"]
    assert situation["want"]
    assert situation["because"]
    texts = words_for_the_model()
    assert [words for words in situation["because"] if not any(words in t for t in texts)] == []


def test_every_sentence_of_the_prompt_has_a_situation_that_it_decides() -> None:
    quoted = [words for situation in SITUATIONS for words in situation["because"]]
    assert len(SITUATIONS) >= 30
    idle = [
        said for said in sentences() if not any(words in said or said in words for words in quoted)
    ]
    assert idle == []


def test_the_small_set_has_the_sections_and_both_rules_of_the_large_one(budget: Budgeted) -> None:
    """P-023, P-024: for small models, in a third of the words."""
    text = PROMPTS["BASE_PROMPT.small.txt"]
    assert dict(MARKER.findall(text)) == SECTIONS
    assert text.startswith("<!-- section: core ")
    assert text.count("<!--") == text.count("-->") == len(SECTIONS)
    assert "would still matter in a month with no active project around it" in text
    assert "something is in progress now, or must happen at a time" in text
    assert [
        each for each in ("`<context>` block", "newest", "<event>", "password") if each not in text
    ] == []
    most = len(PROMPTS["BASE_PROMPT.txt"]) // 2
    budget("characters of a small model's prompt", {"half": len(text)}, most, SHORTEN)
    assert not [line for line in text.splitlines() if line.startswith(("# ", "---"))]


def test_the_definitions_are_types_and_their_examples_no_content(budget: Budgeted) -> None:
    """The three that delegate cost together what one cost before: 485 tokens, some 1,900 characters."""
    folder = resources.files("wintermute.tools") / "definitions"
    words = {
        f.name.removesuffix(".json"): json.loads(f.read_text("utf-8")) for f in folder.iterdir()
    }
    sent = {
        name: len(json.dumps({"name": name, "d": each["description"], "p": each["parameters"]}))
        for name, each in words.items()
    }
    delegating = ("spawn_sub_session", "call_agent", "call_agent_batch")
    brief = {name: each["small"] for name, each in words.items() if "small" in each}
    not_small = {"spawn_sub_session", "call_agent_batch", "search_memory"}
    assert words.keys() - brief.keys() == not_small
    long = {name: len(each["description"].split()) for name, each in words.items()}
    budget("words of a tool's description", long, 80, "Say it in fewer words.")
    used = {
        "delegation": sum(sent[name] for name in delegating),
        "all": sum(sent.values()),
        "all, for small models": sum(len(json.dumps(each)) for each in brief.values()),
    }
    most = {"delegation": 1_900, "all": 7_800, "all, for small models": 3_600}
    budget("characters of the tools' definitions", used, most, NEW_TOOL)
    for name, each in words.items():
        for example in re.findall(r"\{\"[^{}]*\}", each["description"]):
            shown = json.loads(example)
            assert any("<" in str(value) for value in shown.values()), (name, example)
