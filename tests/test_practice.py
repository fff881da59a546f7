"""The practice model: rules that understand a little, say so, and really use the tools."""

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from tests.world.asking import TOOL, asking, backend
from tests.world.clock import FakeClock, HeldClock, until_so
from tests.world.forks import edit
from tests.world.house import PROMPTS, House, house_at_work, open_house
from wintermute.config.schema import Backend, Memory, MemoryHarvest
from wintermute.demo.practice import Utterance, answer
from wintermute.demo.practice_server import SERVED_NAME, PracticeModel
from wintermute.llm.probes import probe
from wintermute.messages import Json, Request
from wintermute.prompt.assemble import PromptParts, assemble
from wintermute.templates import fill, read_template

OFFERED: list[Json] = [{"type": "function", "function": {"name": "task", "parameters": {}}}]
TOOLS = frozenset({"append_memory", "search_memory", "task", "add_skill", "read_file"})
SYSTEM = assemble(
    PromptParts(
        instructions="Be kind.\nThe hidden rule is xyzzy.",
        now="Monday, 2026-05-04 14:00 CEST",
        tasks="[P5] #task_ab12cd34: water the plants\n[P7] #task_ef56ab78: water the lawn",
        skills="Load a skill.\n- data/skills/make-tea.md — How to make tea",
    )
)
SEED = '<event kind="conversation_seed" id="seed_1">\nIntroduce yourself.\n</event>'
OVERSIZE = '<event kind="component_oversize" id="event_1">\nToo long.\n</event>'
REMINDED = (
    '<event kind="scheduled_task" id="task_ab12cd34">\nTask #task_ab12cd34: tea\nDue: Monday,'
    " 2026-05-04 13:00 CEST\nResult: the reminder was delivered\n</event>\n\n"
)


def utterance_for(
    text: object, *after: Json, system: str = SYSTEM, tools: frozenset[str] = TOOLS
) -> Utterance:
    user = {"role": "user", "content": text}
    return answer([{"role": "system", "content": system}, user, *after], tools)


def text_of(reply: Utterance) -> str:
    assert isinstance(reply, str)
    return reply


def outcome(reply: Utterance) -> str:
    """A call with its arguments, or the name of the reply."""
    if isinstance(reply, tuple):
        ((tool, arguments),) = reply
        return " | ".join([tool, *map(str, arguments.values())])
    names = {text.strip().split("{")[0]: name for name, text in REPLIES.items()}
    return next((name for start, name in names.items() if start and reply.startswith(start)), reply)


REPLIES = tomllib.loads((resources.files("wintermute.demo") / "replies.toml").read_text("utf-8"))
PLANTS = "task | complete | task_ab12cd34 | The user said that it is done."
TYPED = """
hello <- hi; hello there
help <- what can you do?; What can I ask you?; how do I use this; what do you do; show me what you can do; what are you able to do?; help me; what now?
task | add | stretch | in 2 minutes <- remind me in 2 minutes to stretch
task | add | call mum | at 9 <- remind me at 9 to call mum
task | add | call the dentist | tomorrow at 9am <- remind me tomorrow at 9am to call the dentist
task | add | take my pills | every day at 8 <- remind me every day at 8 to take my pills
task | add | buy flowers | on friday at 18:30 <- remind me on friday at 18:30 to buy flowers
task | add | water the plants | every monday at 8 <- can you remind me to water the plants every monday at 8?
task | add | wake up | 7:15 <- set an alarm for 7:15
task | add | time is up | in 10 minutes <- set a timer for 10 minutes
task | add | wake up | at 7 <- wake me up at 7
task | add | put the bins out | every friday at 9 <- every friday at 9 remind me to put the bins out
task | add | check the oven | in half an hour <- in half an hour remind me to check the oven
remind_when <- remind me to call mum
task | add | call mum | tomorrow at 9 <- call mum tomorrow at 9
task | list <- what are my reminders?; do I have any reminders?; what's on my list?; show my to-do list; todo list; what's left to do?
task | delete | task_ef56ab78 <- cancel the lawn reminder; delete the lawn from the list
task | complete | task_ab12cd34 | The user said that it is done. <- I watered the plants; bought plants; plants done; I'm done with the plants; tick off plants
task | add | milk <- add milk to my shopping list
task | add | eggs and bread <- put eggs and bread on the shopping list; add eggs and bread
task | add | call mum | every friday at 9 <- remind me every friday at 9: call mum
remind_what <- set a reminder; remind me
task | add | call the bank <- I need to call the bank
task | add | buy milk <- buy milk
task | complete | task_ef56ab78 | The user said that it is done. <- done with the lawn; mark the lawn as done
undo <- undo; undo that; cancel that; oops, take that back
append_memory | The user said: my wife's birthday is on 3 June. <- remember my wife's birthday is on 3 June
search_memory | when is my wife's birthday? | 30 <- when is my wife's birthday?
search_memory | 30 <- what do you remember about me?; what have I told you?
in_passing <- I live in Graz
search_memory | where do I live? | 30 <- where do I live?
append_memory | The user said: my name is Sam. <- my name is Sam
search_memory | what's my name? | 30 <- what's my name?
append_memory | The user said: the spare key is at Tom's. <- please note that the spare key is at Tom's
append_memory | The user said: the dentist is on Tuesday. <- don't forget the dentist is on Tuesday
forget <- forget my wife's birthday; delete everything
time <- what time is it?; what day is it today?
who <- who are you?; are you ChatGPT?; are you an AI?
unknown <- write me a poem about autumn; translate hello into French; tell me a joke; summarize our conversation; search the web for news
search_memory | what's the weather tomorrow? | 30 <- what's the weather tomorrow?; what's the weather tomorrow
search_memory | am I allergic? | 30 <- am I allergic
search_memory | whats my brothers name? | 30 <- whats my brothers name
connect <- how do I connect a real model?; how can I make you smarter
private <- is this encrypted?
read_file | data/skills/make-tea.md <- how do I make tea?
why <- how do you know that?
thanks <- thanks!
bye <- bye
"""
"""76 things that three people typed into a demo, with the coffee below: its first rules understood 40."""
NEWCOMERS = [
    (text, wanted)
    for wanted, texts in (line.split(" <- ") for line in TYPED.strip().splitlines())
    for text in texts.split("; ")
]
OTHERS = [
    (
        "learn how to make coffee: boil water, pour it over, wait",
        "add_skill | make-coffee | How to make coffee | 1. boil water\n2. pour it over\n3. wait\n",
    ),
    ("note: the work is done", "append_memory | The user said: the work is done."),
    ("can you remember that I like tea?", "append_memory | The user said: I like tea."),
    (
        f"{REMINDED}<replied_to>\nbot: hi\n</replied_to>\n[written 2026-05-03 23:59, 14 hours ago]\n"
        "list my tasks",
        "task | list",
    ),
    (
        "Learn to make Tea\n1. boil water\n\n2. add the leaves\n- wait",
        "add_skill | make-tea | How to make Tea | 1. boil water\n2. add the leaves\n3. wait\n",
    ),
    ("what do you know about Anna?", "search_memory | Anna | 30"),
    ("could you set a reminder for 3pm to call Joe", "task | add | call Joe | 3pm"),
    ("remind me in an hour", "task | add | your reminder | in an hour"),
    ('put "clean the car" on my to do list', "task | add | clean the car"),
    ("don't let me forget to buy bread", "task | add | buy bread"),
    ("what's on the agenda today", "task | list"),
    ("todo: see that the roof is done", "task | add | see that the roof is done"),
    ("complete task_00000000", PLANTS.replace("ab12cd34", "00000000")),
    ("pause #task_ef56ab78", "task | pause | task_ef56ab78"),
    ("water is done", "task_many"),
    ("roof is done", "task_none"),
    ("never mind", "never_mind"),
    ("my brother Tom waters the plants", "in_passing"),
    ("we like to water the plants", "in_passing"),
    ("remember that", "remember_what"),
    ("learn how to make tea", "learn_how"),
    ("how to fly", "learn_how"),
    ("list my skills", "skills"),
    (SEED, "seed"),
    (OVERSIZE, "event"),
    ("my password is swordfish9", "secret"),
    ("remember that my key is sk-proj-0123456789abcdef", "secret"),
]


@pytest.mark.parametrize(("text", "wanted"), NEWCOMERS + OTHERS)
def test_what_newcomers_type_is_understood(text: str, wanted: str) -> None:
    """U-020, L-083, M-009; without its tool it says which one it needs."""
    assert outcome(utterance_for(text)) == wanted
    if " | " in wanted:
        tool = wanted.split(" | ")[0]
        assert outcome(utterance_for(text, tools=TOOLS - {tool})) == "no_tool"
        assert "\n" in text or outcome(utterance_for(text.upper())).split(" | ")[0] == tool


def test_it_says_once_why_it_cannot_do_something_and_greets_in_three_lines() -> None:
    """U-020."""
    poem, poet = {"role": "user", "content": "write a poem"}, text_of(utterance_for("write a poem"))
    again = text_of(utterance_for("x", {"role": "assistant", "content": poet}, poem))
    assert "docs/models.md" in poet
    assert (len(poet.splitlines()), again) == (2, REPLIES["unknown_again"])
    assert len(text_of(utterance_for(SEED)).splitlines()) == 3
    when = {"role": "assistant", "content": text_of(utterance_for("remind me to call mum"))}
    later = utterance_for("x", when, {"role": "user", "content": "15 min"})
    assert outcome(later) == "task | add | call mum | in 15 min"
    items = [(("task", {"action": "add", "content": each}),) for each in ("milk", "eggs", "bread")]
    assert utterance_for("add milk, eggs and bread") == sum(items, ())
    assert "1 December" in text_of(utterance_for("remind me of the dentist on 1/12 at 9"))


TASK = {"id": "task_ab12cd34", "content": "water the plants", "status": "active", "priority": 5}
DUE = {"next_due": "Tuesday, 2026-05-05 09:00 CEST", "schedule": "once at 2026-05-05 09:00"}
WEEKLY = {"next_due": "Friday, 2026-05-08 18:30 CEST", "schedule": "weekly on fri at 18:30"}
WEEKDAYS = WEEKLY | {"schedule": "weekly on mon, tue, wed, thu, fri at 18:30"}
OTHER = WEEKLY | {"schedule": "rrule FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"}
ANNA = {"text": "The user said: Anna likes tea.", "date": "2026-05-04"}
RESULTS: list[tuple[str, Json, object, str]] = [
    ("append_memory", {}, {"text": "Tom.", "stored": "stored"}, "I'll remember that: Tom."),
    ("append_memory", {}, {"text": "Tom.", "stored": "known"}, "I knew that already: Tom."),
    ("append_memory", {}, "error: too long", "That did not work: too long"),
    ("append_memory", {}, "interrupted: outcome unknown", "That did not work: interrupted"),
    ("task", {"action": "add"}, TASK, "On your list: water the plants"),
    (
        *("task", {"action": "add"}, TASK | WEEKDAYS),
        "I'll remind you on Friday at 18:30, every weekday: water the plants",
    ),
    (
        *("task", {"action": "add", "at": "every other friday at 9"}, TASK | OTHER),
        "I'll remind you on Friday at 18:30, every other Friday: water the plants",
    ),
    (
        "task",
        {"action": "list"},
        [TASK | OTHER],
        "- water the plants (on Friday at 18:30, repeats)",
    ),
    (
        *("task", {"action": "add"}, TASK | DUE),
        "I'll remind you tomorrow at 09:00, once: water the plants",
    ),
    ("task", {"action": "complete"}, TASK, "Done: water the plants"),
    ("task", {"action": "delete"}, TASK, "Deleted: water the plants"),
    (
        "task",
        {"action": "list"},
        [TASK | WEEKLY],
        "- water the plants (on Friday at 18:30, every Friday)",
    ),
    ("task", {"action": "list"}, [], "Your list is empty."),
    ("task", {"action": "list"}, [TASK] * 40, "and 10 more"),
    ("add_skill", {}, {"path": "data/skills/x.md", "created": True}, "keep it in `data/skills/x"),
    ("read_file", {}, "# How to make tea\n1. boil", "# How to make tea\n1. boil"),
    (
        *("search_memory", {"query": "Anna"}, [ANNA, {"text": "Tom.", "until": "2026-04-04"}]),
        "This is what I know about Anna:\n- Anna likes tea.\n- Tom. (until 2026-04-04)",
    ),
    ("search_memory", {"query": "where is Anna?"}, [ANNA], "You told me:\n- Anna likes tea."),
    ("search_memory", {"query": "where is Paris?"}, [ANNA], "I don't understand that."),
    ("search_memory", {"query": "Paris"}, [], "I know nothing about Paris yet."),
    ("web", {}, {"pages": 3}, 'The tool `web` returned:\n\n{"pages": 3}'),
]


def called(tool: str, arguments: Json, result: object) -> list[Json]:
    text = result if isinstance(result, str) else json.dumps(result)
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return [
        {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]


@pytest.mark.parametrize(("tool", "arguments", "result", "reply"), RESULTS)
def test_what_a_tool_gave_is_told(tool: str, arguments: Json, result: object, reply: str) -> None:
    after = called(tool, arguments, result)
    assert reply in text_of(utterance_for("do it", *after))
    assert (
        outcome(utterance_for("do it", *after, {"role": "user", "content": "thanks"})) == "thanks"
    )


def test_undo_takes_back_the_last_task_or_names_the_command() -> None:
    """U-020."""
    undo = {"role": "user", "content": "undo that"}
    added, done = (called("task", {"action": each}, TASK) for each in ("add", "complete"))
    assert outcome(utterance_for("x", *added, undo)) == "task | delete | task_ab12cd34"
    assert outcome(utterance_for("x", *added, *done, undo)) == "task | resume | task_ab12cd34"
    assert outcome(utterance_for("x", *added, *called("append_memory", {}, {}), undo)) == "undo"


def test_a_conversation_is_summed_up_by_what_people_said() -> None:
    """L-039, L-040: with what the summary before it had."""
    history = (
        "[earlier summary]\nWhat was said so far:\n- hello\n\n[message]\nremember tea\nand cake"
    )
    text = read_template(PROMPTS, "COMPACTION_PROMPT.txt").replace("{history}", history)
    reply = text_of(answer([{"role": "user", "content": text}], frozenset()))
    assert reply.splitlines() == ["What was said so far:", "- hello", "- remember tea"]


SAID = (
    "[Monday, 2026-05-04]\nYou (@you:test): By the way, my brother Tom likes green tea. What time is"
    " it?\nassistant: I see.\nYou (@you:test): write a poem\n  I never eat fish!\n"
    "You (@you:test): My password is swordfish9.\nYou (@you:test): I would like a song"
)
TOM = "The user said: my brother Tom likes green tea."
UNASKED: list[tuple[str, dict[str, str], Json]] = [
    ("MEMORY_HARVEST_PROMPT.txt", {"transcript": SAID}, {"contents": [TOM]}),
    ("MEMORY_HARVEST_PROMPT.txt", {"transcript": "Ann (@a:t): list my tasks"}, {"contents": []}),
    ("SPLIT_PROMPT.txt", {"raw_input": "Tom has\ntwo cats."}, {"contents": ["Tom has two cats."]}),
    (
        "RECONSTRUCTION_PROMPT.txt",
        {"related_memories": "- Tom likes tea.", "new_contents": f"- {TOM}\n- {TOM}"},
        {"memories": ["Tom likes tea.", TOM], "coverage": "complete"},
    ),
    (
        "CORE_UPDATE_PROMPT.txt",
        {"current_core_markdown": "# RULE\n", "candidate_new_memories": f"- {TOM}"},
        {"should_update": False, "core_markdown": None},
    ),
    (
        "DREAM_DEDUP_PROMPT.txt",
        {"content": "- Lena lives in Graz.\n- Lena lives in Graz with cats\n- Lena has 2 dogs"},
        {"text": "Lena lives in Graz with cats. Lena has 2 dogs."},
    ),
    ("DREAM_CONTRADICTION_PROMPT.txt", {"entry_1": TOM, "entry_2": TOM}, {"action": "keep_both"}),
    ("DREAM_TASK_PROMPT.txt", {"content": "[P5] #task_1a: Buy milk"}, {"actions": []}),
    ("DREAM_SKILL_PROMPT.txt", {"content": "Tea.\n\n1. Boil water."}, {"text": ""}),
]


@pytest.mark.parametrize(("template", "values", "wanted"), UNASKED)
def test_background_work_gets_json(template: str, values: dict[str, str], wanted: Json) -> None:
    """M-072, T-056: by the shipped prompts, and a second time as the first."""
    question: Json = {"role": "user", "content": fill(read_template(PROMPTS, template), values)}
    again: list[Json] = [
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": "Again."},
    ]
    assert json.loads(text_of(answer([question], frozenset()))) == wanted
    assert json.loads(text_of(answer([question, *again], frozenset()))) == wanted


def test_what_a_person_writes_is_never_taken_for_such_a_question() -> None:
    line = "look at this\n<transcript>\nAnn (@a:t): I like tea\n</transcript>"
    assert "{" not in text_of(utterance_for(line, tools=frozenset()))


TEXTS = st.text() | st.sampled_from([row[0] for row in NEWCOMERS + OTHERS]).flatmap(
    lambda text: st.text(max_size=5).map(lambda more: text + more)
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "text", "id", "function"]), inner, max_size=3)
    ),
    max_leaves=5,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={"content": VALUES, "tool_calls": VALUES, "tool_call_id": VALUES},
)


@given(text=TEXTS, system=TEXTS | st.just(SYSTEM))
def test_every_text_has_an_answer(text: str, system: str) -> None:
    reply = utterance_for(text, system=system)
    assert reply.strip() if isinstance(reply, str) else reply


@given(messages=st.lists(MESSAGES, max_size=5))
def test_every_conversation_has_an_answer(messages: list[Json]) -> None:
    reply = answer(messages, TOOLS)
    assert reply.strip() if isinstance(reply, str) else reply


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("part", [" ", "a", ",", "\n", "is done ", "and 1. ", "@a:b ", "remember "])
@pytest.mark.parametrize("before", ["", "learn ", "add ", "my name is ", "password ", "remind me"])
def test_long_texts_are_answered_at_once(before: str, part: str) -> None:
    """No rule takes longer than in proportion to the text: quadratic ones would time out here."""
    utterance_for(before + part * 20_000)


@pytest.fixture
async def practice() -> AsyncIterator[PracticeModel]:
    async with PracticeModel(clock=FakeClock()) as model:
        yield model


async def talk(house: House, *lines: str) -> list[str]:
    """The answers to these lines, each said when the one before is answered."""
    for line in lines:
        before = len(await house.spoken())
        await house.incoming(line)
        await house.said(before + 1)
        await house.settled()
    return (await house.spoken())[-len(lines) :]


async def test_what_it_is_told_is_found_again(tmp_path: Path, practice: PracticeModel) -> None:
    """L-083: through the loop, the real client and the real tools, in the order of the demo."""
    async with house_at_work(tmp_path, practice.url, prompts=PROMPTS, language="en") as house:
        await house.incoming("remember that my sister Anna lives in Lyon")
        greeting, stored = await house.said(2)
        told, known = await talk(house, "my name is Ben", "what do you know about Anna?")
        row = await house.one("SELECT source FROM facts WHERE text LIKE '%Anna%'")
    assert "practice model" in greeting
    assert stored == "I'll remember that: my sister Anna lives in Lyon."
    assert told == "I'll remember that: my name is Ben."
    assert known.endswith("- my sister Anna lives in Lyon.")
    assert row == {"source": "user_explicit"}


async def test_what_is_told_in_passing_is_learnt(tmp_path: Path, practice: PracticeModel) -> None:
    """Issue 19: harvest and reconstruction, as a person sees them."""
    clock, fts5 = HeldClock(), Memory(backend="fts5")
    often = MemoryHarvest(message_threshold=1, min_messages=1)
    opened = open_house(
        tmp_path, practice.url, prompts=PROMPTS, clock=clock, memory=fts5, harvest=often
    )

    async def counted(sql: str, wanted: int) -> bool:
        for kind in house.runner.job_types:
            kind.wakeup.set()
        return len(await house.rows(sql)) == wanted

    async with opened as house, house.working():
        told, _ = await talk(house, "my brother Tom likes tea", "Please never call me before ten!")
        await until_so(lambda: counted("SELECT 1 FROM facts WHERE queued", 2))
        clock.advance(15 * 60)
        await until_so(
            lambda: counted("SELECT 1 FROM jobs WHERE name = 'core' AND state = 'done'", 1)
        )
        listed, known = await talk(house, "/memory", "what about Tom?")
    assert told.startswith("I see. In a few seconds")
    assert listed.count("picked up") == 2
    assert "- my brother Tom likes tea." in known


async def test_a_night_is_asked_for_and_taken_back(tmp_path: Path, practice: PracticeModel) -> None:
    """M-054, M-056: two memories that say the same, `/dream`, `/night`, `/night undo`."""
    opened = open_house(
        tmp_path, practice.url, prompts=PROMPTS, clock=HeldClock(), memory=Memory(backend="fts5")
    )
    async with opened as house, house.working():
        short = "my sister Lena lives in Graz with two cats"
        long = "my sister Lena has two cats in Graz, and lives there"
        await talk(house, f"remember that {short}", f"remember that {long}")
        (begun,) = await talk(house, "/dream")
        said = len(await house.spoken())
        house.runner.wake("night")
        over = (await house.said(said + 1))[-1]
        asked, shown, undone, known = await talk(
            house, "what time is it?", "/night", "/night undo", "/memory"
        )
    assert begun.startswith("I'm tidying up what I know.")
    assert over == "Done: 2 memories merged. `/night` shows all, `/night undo` takes it back."
    assert asked.startswith("It is ")
    assert f"→ “The user said: {long}.” (they say the same" in shown
    assert short in shown
    assert undone == f"- the memory is back: The user said: {short}."
    assert (known.count(short), known.count(long)) == (1, 1)


async def test_tasks_and_skills_are_really_kept(tmp_path: Path, practice: PracticeModel) -> None:
    """U-020."""
    async with house_at_work(tmp_path, practice.url, prompts=PROMPTS) as house:
        added, listed, done, empty, wrong = await talk(
            house,
            "add a task: water the plants",
            "list my tasks",
            "task water the plants is done",
            "list my tasks",
            "complete task_00000000",
        )
        weekly, undone, why, short = await talk(
            house, "every monday at 8 remind me to mow", "undo that", "write a poem", "sing a song"
        )
        learnt, skills, tea = await talk(
            house,
            "learn how to make tea: boil water, add the leaves",
            "list my skills",
            "how do I make tea?",
        )
        row = await house.one("SELECT content, status FROM tasks WHERE content LIKE '%plants'")
    assert added == "On your list: water the plants"
    assert "- water the plants" in listed
    assert done.startswith("Done: water the plants")
    assert empty.startswith("Your list is empty.")
    assert wrong.startswith("That did not work: no task task_00000000")
    assert weekly.startswith("I'll remind you ")
    assert weekly.endswith(" at 08:00, every Monday: mow")
    assert (undone[:13], short) == ("Deleted: mow.", REPLIES["unknown_again"])
    assert REPLIES["connect"] in why
    assert row == {"content": "water the plants", "status": "completed"}
    assert "data/skills/make-tea.md" in learnt
    assert "- How to make tea" in skills
    assert "1. boil water\n2. add the leaves" in tea
    assert (tmp_path / "skills" / "make-tea.md").is_file()


async def test_only_its_own_last_change_is_undone(tmp_path: Path, practice: PracticeModel) -> None:
    """U-020, L-054: an edit undoes tasks and tells what stays; `undo` is only for its own last change."""
    async with house_at_work(tmp_path, practice.url, prompts=PROMPTS) as house:

        async def edited(line: str, new: str) -> str:
            n = len(await house.spoken())
            event = await house.incoming(line)
            await house.said(n + 1)
            await house.settled()
            await edit(house, event, new)
            return (await house.said(n + 2))[-1]

        boat = await edited("remember that my boat is Luna", "remember that my boat is Sol")
        when = await edited("remind me in 9 minutes to swim", "remind me to swim")
        swim = await edited("add a, b and swim far", "tomorrow at 11 to swim far")
        done = await edited("swim is done", "swim far is done")
        await talk(house, "add milk", "add bread", "/tasks done milk", "thanks")
        others, _, own = await talk(house, "undo", "add flour", "undo")
    stays = REPLIES["former"]
    assert boat == f"I'll remember that: my boat is Sol.\n\n{stays}"
    assert when.startswith("When? For example: `remind me in 20 minutes: swim`")
    assert when.endswith(stays)
    assert swim.count("Deleted: ") == 3
    assert swim.endswith("I'll remind you tomorrow at 11:00, once: swim far")
    assert done == "Back on your list: swim\n\nDone: swim far. `undo` takes that back."
    assert (others, own[:15]) == (REPLIES["undo"], "Deleted: flour.")


async def test_answers_come_in_pieces_with_usage(tmp_path: Path, practice: PracticeModel) -> None:
    async with asking(tmp_path, {"local": backend(practice.url)}) as world:
        user = {"role": "user", "content": "help"}
        reply = await world.models.ask("base", Request((user,), (TOOL,)))
    assert reply.text == text_of(utterance_for("help"))
    assert (reply.model, reply.finish_reason) == (SERVED_NAME, "stop")
    assert await probe("local", Backend(base_url=practice.url, model=SERVED_NAME), 60)


async def post(model: PracticeModel, body: object) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        ClientSession() as client,
        client.post(f"{model.url}/chat/completions", data=data) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize(
    "body",
    [b"\xff{", b"[" * 100_000, [], {}, {"messages": ["hello"]}, {"messages": [], "tools": "x"}],
)
async def test_a_malformed_request_is_refused(practice: PracticeModel, body: object) -> None:
    status, text = await post(practice, body)
    assert status == 400
    assert "no request" in json.loads(text)["error"]["message"]


async def test_what_somebody_waits_for_can_be_seen_to_grow() -> None:
    """L-083, X-023: longer than a draft takes to begin; work in the background is not held up."""
    clock, asked = FakeClock(), {"messages": [{"role": "user", "content": "help"}], "stream": True}
    async with PracticeModel(clock=clock) as model:
        await post(model, asked)
        assert not clock.monotonic()
        await post(model, asked | {"tools": OFFERED})
    assert 0.8 < clock.monotonic() < 4


@pytest.mark.slow
async def test_who_leaves_within_an_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that ends while it learns does so; whoever runs the demo would see a traceback."""
    said = {"role": "user", "content": "help"}
    asked_of: Json = {"model": SERVED_NAME, "messages": [said], "stream": True}
    body = json.dumps(asked_of | {"tools": OFFERED}).encode()
    async with PracticeModel() as model:
        url = urlsplit(model.url)
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
        asked = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(asked)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(asked)
        await reader.readuntil(b"[DONE]")  # as long as the first would have taken
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_it_plans_pages_and_writes_them_by_rules() -> None:
    """W-078: with what the templates ask for, and so that what stands there stays."""
    talk = "[1]\nyou (@you:test): my garden has two apple trees.\n[2]\nyou (@you:test): I like tea a lot."
    shown = f"<transcript>\n{talk}\n</transcript>"
    names = "<entries>\n- Your garden\n</entries>"
    answered = text_of(
        answer([{"role": "user", "content": f"Rules.\n{names}\nTold:\n{shown}"}], ())
    )
    (planned,) = json.loads(answered)["pages"]
    assert (planned["path"], planned["action"]) == ("semantic/Your garden.md", "update")
    dated = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---"
    before = (
        "---\ncreated: 2026-01-02\nupdated: 2026-01-02\n---\n\n# Your garden\n\n- I like tea a lot."
    )
    page = f"Write.\n{dated}\n<memory>\n{before}\n</memory>\n{names}\nTold:\n{shown}"
    written = text_of(answer([{"role": "user", "content": page}], ()))
    wanted = "# Your garden\n\n- I like tea a lot.\n- My garden has two apple trees. [1]\n"
    assert written == f"{dated}\n\n{wanted}"
