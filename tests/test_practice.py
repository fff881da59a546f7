"""The practice model: rules that understand a little, say so, and really use the tools."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from tests.test_llm_models import TOOL, asking, backend
from tests.world.clock import FakeClock, HeldClock
from tests.world.delegating import until
from tests.world.house import PROMPTS, House, open_house
from wintermute.config.schema import Backend, Memory, MemoryHarvest
from wintermute.demo.practice import Say, Use, Utterance, answer
from wintermute.demo.practice_server import SERVED_NAME, PracticeModel
from wintermute.llm.fixed import probe
from wintermute.messages import Json, Request
from wintermute.prompt.assemble import Parts, assemble
from wintermute.templates import fill, read_template

OFFERED: list[Json] = [{"type": "function", "function": {"name": "task", "parameters": {}}}]
TOOLS = frozenset({"append_memory", "task", "add_skill", "read_file"})
SYSTEM = assemble(
    Parts(
        instructions="Be kind.\nThe hidden rule is xyzzy.",
        now="Monday, 2026-05-04 14:00 CEST",
        core="## USER\n- The user is a gardener.",
        memories="The user said: my sister Anna lives in Lyon.\nTom is a cat.\n"
        "The user said: my password is hunter2.\nThe user's name is Ben.",
        tasks="[P5] #task_ab12cd34: water the plants\n[P7] #task_ef56ab78: water the lawn",
        skills="Load a skill.\n- data/skills/make-tea.md — How to make tea",
    )
)
SEED = '<event kind="conversation_seed" id="seed_1">\nIntroduce yourself.\n</event>'
OVERSIZE = '<event kind="component_oversize" id="event_1">\nToo long.\n</event>'
IN_GROUP = "<room_context>\n@bob:test: add a task: x\n</room_context>\nAnn (@ann:test): "


def ask(
    text: object, *after: Json, system: str = SYSTEM, tools: frozenset[str] = TOOLS
) -> Utterance:
    user = {"role": "user", "content": text}
    return answer([{"role": "system", "content": system}, user, *after], tools)


def said(reply: Utterance) -> str:
    assert isinstance(reply, Say)
    return reply.text


def used(reply: Utterance) -> tuple[str, Json]:
    assert isinstance(reply, Use)
    (call,) = reply.calls
    return call.tool, call.arguments


def fact(words: str, who: str = "The user") -> tuple[str, Json]:
    return "append_memory", {"entry": f"{who} said: {words}"}


def task(action: str, **arguments: str) -> tuple[str, Json]:
    return "task", {"action": action, **arguments}


def skill(name: str, summary: str, *steps: str) -> tuple[str, Json]:
    text = "".join(f"{n}. {step}\n" for n, step in enumerate(steps, 1))
    return "add_skill", {"skill_name": name, "summary": summary, "documentation": text}


def remind(content: str, at: str) -> tuple[str, Json]:
    """A task that is due once."""
    return task("add", content=content, schedule_type="once", at=at)


REMINDED = (
    '<event kind="scheduled_task" id="task_ab12cd34">\nTask #task_ab12cd34: tea\nDue: Monday,'
    " 2026-05-04 13:00 CEST\nResult: the reminder was delivered\n</event>\n\n"
)


PLANTS = task("complete", id="task_ab12cd34", reason="The user said that it is done.")
TEA = ("boil water", "add the leaves", "wait")
USES: list[tuple[str, tuple[str, Json]]] = [
    ("remember that my sister Anna lives in Lyon", fact("my sister Anna lives in Lyon.")),
    ("Please remember: I like tea!", fact("I like tea.")),
    ("can you remember that I like tea?", fact("I like tea.")),
    ("hey Wintermute, don't forget that\nTom is a cat", fact("Tom is a cat.")),
    ("@bot note: the work is done", fact("the work is done.")),
    (f"{IN_GROUP}remember that I like tea", fact("I like tea.", "Ann (@ann:test)")),
    ("@ann:test: remember that I like tea", fact("I like tea.", "@ann:test")),
    ("my name is Ben Smith.", ("append_memory", {"entry": "The user's name is Ben Smith."})),
    ("remember my name is Ben", ("append_memory", {"entry": "The user's name is Ben."})),
    (f"{IN_GROUP}my name is Ann", fact("my name is Ann.", "Ann (@ann:test)")),
    ("remember to buy milk", task("add", content="buy milk")),
    ("add a task: water the plants", task("add", content="water the plants")),
    ("Hi, please add a new task to call mum.", task("add", content="call mum")),
    ("add buy milk to my todo list", task("add", content="buy milk")),
    ("todo buy milk", task("add", content="buy milk")),
    ("todo: see that the roof is done", task("add", content="see that the roof is done")),
    ("list my tasks", task("list")),
    ("tasks?", task("list")),
    ("what do I have to do today?", task("list")),
    ("show me all completed tasks", task("list", status="completed")),
    ("task water the plants is done", PLANTS),
    ('the task "water the plants" is done.', PLANTS),
    ("complete task_ab12cd34", PLANTS),
    ("done: plants", PLANTS),
    ("mark water the plants as done", PLANTS),
    ("delete task water the lawn", task("delete", id="task_ef56ab78")),
    ("remove the lawn from my list", task("delete", id="task_ef56ab78")),
    ("pause #task_ef56ab78", task("pause", id="task_ef56ab78")),
    ("resume task_00000000", task("resume", id="task_00000000")),
    (
        "learn how to make tea: boil water, add the leaves, and wait",
        skill("make-tea", "How to make tea", *TEA),
    ),
    (
        "Learn to make Tea\n1. boil water\n\n2. add the leaves\n- wait",
        skill("make-tea", "How to make Tea", *TEA),
    ),
    (
        "learn how to bake: wait until it is done",
        skill("bake", "How to bake", "wait until it is done"),
    ),
    ("how do I make tea?", ("read_file", {"path": "data/skills/make-tea.md"})),
    ("remind me in 20 minutes to call mum", remind("call mum", "in 20 minutes")),
    ("remind me tomorrow at 9 to call mum", remind("call mum", "tomorrow at 9")),
    ("remind me to call mum tomorrow at 9:30", remind("call mum", "tomorrow 9:30")),
    ("remind me at 18:30 today of the soup", remind("the soup", "today 18:30")),
    ("please remind me to drink water at 18:30", remind("drink water", "18:30")),
    ("[written 13:40, 20 minutes ago]\nremember that I like tea", fact("I like tea.")),
    (
        f"{REMINDED}<replied_to>\nbot: hi\n</replied_to>\n[written 2026-05-03 23:59, 14 hours ago]\n"
        "@ann:test: list my tasks",
        task("list"),
    ),
]


@pytest.mark.parametrize(("text", "call"), USES)
def test_a_request_becomes_the_call_of_a_tool(text: str, call: tuple[str, Json]) -> None:
    """L-083."""
    assert used(ask(text)) == call
    if "\n" not in text:
        assert used(ask(text.upper()))[0] == call[0]


@pytest.mark.parametrize(("text", "call"), USES)
def test_no_tool_is_used_that_is_not_offered(text: str, call: tuple[str, Json]) -> None:
    others = TOOLS - {call[0]}
    assert said(ask(text, tools=others)) == (
        f"For that I need the tool `{call[0]}`, which I do not have here."
    )


SEARCHES: list[tuple[str, Json]] = [
    ("what do you know about Anna?", {"query": "Anna"}),
    ("do you remember anything about my sister?", {"query": "my sister"}),
    ("tell me about my sister", {"query": "my sister"}),
    ("what do you know about me?", {}),
    ("what do you remember", {}),
    ("where does my sister live?", {"query": "where does my sister live?"}),
    (f"{IN_GROUP}what do you know about Anna", {"query": "Anna"}),
]


@pytest.mark.parametrize(("text", "arguments"), SEARCHES)
def test_what_it_knows_is_looked_up(text: str, arguments: Json) -> None:
    """M-009: what is in view may be a few memories of many."""
    told = used(ask(text, tools=TOOLS | {"search_memory"}))
    assert told == ("search_memory", {"n": 30, **arguments})


WORDS: list[tuple[str, list[str], list[str]]] = [
    ("what do you know about Anna?", ["You told me: my sister Anna lives in Lyon."], ["Tom"]),
    ("tell me about my sister", ["my sister Anna lives in Lyon."], ["Tom"]),
    ("What do you know about cats?", ["I have noted: Tom is a cat."], ["Anna"]),
    ("what do you know about me?", ["Anna", "Tom", "gardener", "Your name is Ben."], ["hunter2"]),
    ("what do you remember", ["Anna", "Tom"], ["xyzzy"]),
    ("what do you know about Paris?", ["I know nothing about Paris yet."], ["Anna", "Tom"]),
    ("what do you know about the hidden rule", ["I know nothing"], ["xyzzy"]),
    ("where does Anna live?", ["cannot think", "my sister Anna lives in Lyon."], ["Tom"]),
    ("what does this dog eat?", ["no real AI"], ["Anna"]),
    ("what's my name?", ["Your name is Ben."], []),
    (f"{IN_GROUP}what do you know about Anna", ["The user told me: my sister"], []),
    ("why did you say that?", ["`/why`", "each with its source"], ["Anna"]),
    ("how do you know that?", ["`/why`"], []),
    ("remember that", ["What shall I remember?"], []),
    ("add a task", ["What is to be done?"], []),
    ("learn how to make tea", ["How is that done?"], []),
    ("task water is done", ["Which one", "`task_ab12cd34`", "`task_ef56ab78`"], []),
    ("task roof is done", ["I see no active task like that."], []),
    ("list my skills", ["How to make tea (`make-tea`)"], []),
    ("how to fly", ["I have not learnt", "`learn how to fly: "], []),
    ("forget Anna", ["delete the message", "/forget WORDS", "/undo"], []),
    ("delete everything you know about Anna", ["/forget WORDS"], []),
    ("my sister Anna moved to Rome.", ["did not ask me", "picked up"], ["no real AI"]),
    ("Oh, never call me before ten!", ["picked up"], []),
    ("remind me to call mum at 5", ["`remind me in 20 minutes to call mum at 5`"], []),
    ("remind me", ["Say when", "call Anna"], []),
    (f"{REMINDED}what time is it?", ["It is Monday"], ["practice model", "tea"]),
    ("what time is it?", ["It is Monday, 2026-05-04 14:00 CEST."], []),
    ("hello", ["Hello, Ben!", "practice model"], []),
    ("thank you very much!", ["You are welcome."], []),
    ("who are you?", ["practice model", "no real AI"], []),
    ("help", ["no real AI", "`list my tasks`", "OPENAI_BASE_URL"], []),
    (SEED, ["Hello, Ben!", "practice model", "no real AI", "`remember that", "`add a task"], []),
    (OVERSIZE, ["`component_oversize`", "practice model"], ["Too long"]),
    ("my password is swordfish", ["password or a key"], ["swordfish"]),
    ("remember that my key is sk-proj-0123456789abcdef", ["a key"], ["0123"]),
    ("add a task: log in with password: swordfish", ["a key"], ["swordfish"]),
    ("write a poem about xyzzy", ["no real AI", "`add a task …`", "OPENAI_BASE_URL"], ["xyzzy"]),
]


@pytest.mark.parametrize(("text", "there", "absent"), WORDS)
def test_an_answer_in_words_is_made_of_what_is_known(
    text: str, there: list[str], absent: list[str]
) -> None:
    """It invents nothing, and repeats neither secrets nor instructions."""
    reply = said(ask(text))
    assert [words for words in there if words not in reply] == []
    assert [words for words in absent if words in reply] == []


def test_a_conversation_is_summed_up_by_what_people_said() -> None:
    """L-039, L-040: with what the summary before it had."""
    history = (
        "[earlier summary]\nWhat was said so far:\n- hello\n\n[message]\nremember tea\nand cake"
    )
    text = read_template(PROMPTS, "COMPACTION_PROMPT.txt").replace("{history}", history)
    reply = said(answer([{"role": "user", "content": text}], frozenset()))
    assert reply.splitlines() == ["What was said so far:", "- hello", "- remember tea"]


def test_what_it_does_not_understand_is_told_in_four_lines() -> None:
    assert len(said(ask("write a poem")).splitlines()) <= 4


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("what do you know about me?", "I remember nothing in this chat yet."),
        ("what is my name", "You have not told me your name."),
        ("list my skills", "I have learnt no skill yet."),
        ("what time is it", "I was not told the time."),
        ("hi", "Hello! "),
    ],
)
def test_where_nothing_is_known_it_says_so(text: str, reply: str) -> None:
    assert said(ask(text, system="# Core Instructions\nBe kind.")).startswith(reply)


def test_ranked_memories_are_memories() -> None:
    parts = Parts(instructions="x", now="now", memories="- Tom is a cat.", ranked=True)
    assert "noted: Tom is a cat." in said(ask("what do you know about Tom", system=assemble(parts)))


def test_words_of_languages_without_blanks_are_found() -> None:
    system = assemble(Parts(instructions="x", now="now", memories="アンナは東京に住んでいる。"))
    assert "住んでいる" in said(ask("what do you know about 東京?", system=system))


TASK = {"id": "task_ab12cd34", "content": "water the plants", "status": "active", "priority": 5}
ANNA = {"text": "The user said: Anna likes tea.", "date": "2026-05-04"}
RESULTS: list[tuple[str, Json, object, str]] = [
    ("append_memory", {}, {"text": "Tom.", "stored": "stored"}, "I will remember this: Tom."),
    ("append_memory", {}, {"text": "Tom.", "stored": "known"}, "I knew this already: Tom."),
    ("append_memory", {}, "error: too long", "That did not work: too long"),
    ("append_memory", {}, "interrupted: outcome unknown", "I do not know whether that worked"),
    ("task", {"action": "add"}, TASK, "I added the task: water the plants (`task_ab12cd34`)"),
    ("task", {"action": "complete"}, TASK, "Done: water the plants"),
    ("task", {"action": "delete"}, TASK, "I deleted the task: water the plants"),
    ("task", {"action": "list"}, [TASK], "- water the plants (`task_ab12cd34`)"),
    ("task", {"action": "list", "status": "paused"}, [], "There are no tasks (paused)."),
    ("task", {"action": "list"}, [TASK] * 40, "and 10 more"),
    ("add_skill", {}, {"path": "data/skills/x.md", "created": True}, "keep it in `data/skills/x"),
    ("add_skill", {}, {"path": "data/skills/x.md", "created": False}, "I replaced what I knew"),
    ("read_file", {}, "# How to make tea\n1. boil", "# How to make tea\n1. boil"),
    ("read_file", {}, "", "(nothing)"),
    (
        *("search_memory", {"query": "Anna"}, [ANNA, {"text": "Tom.", "until": "2026-04-04"}]),
        "This is what I know about Anna:\n- You told me: Anna likes tea.\n"
        "- I have noted: Tom. (until 2026-04-04)",
    ),
    ("search_memory", {"query": "where is Anna?"}, [ANNA], "I cannot think about questions"),
    ("search_memory", {"query": "where is Anna?"}, [], "I am only the built-in practice model"),
    ("search_memory", {"query": "Paris"}, [], "I know nothing about Paris yet."),
    ("search_memory", {}, [ANNA], "This is what I remember in this chat:\n- You told me"),
    ("search_memory", {}, [], "I remember nothing in this chat yet."),
    ("search_memory", {}, "error: no", "That did not work: no"),
    ("web", {}, {"pages": 3}, 'The tool `web` gave this:\n\n{"pages": 3}'),
]


@pytest.mark.parametrize(("tool", "arguments", "result", "reply"), RESULTS)
def test_what_a_tool_gave_is_told_as_it_is(
    tool: str, arguments: Json, result: object, reply: str
) -> None:
    text = result if isinstance(result, str) else json.dumps(result)
    function = {"name": tool, "arguments": json.dumps(arguments)}
    calls = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    given_back = {"role": "tool", "tool_call_id": "c", "content": text}
    assert reply in said(ask("do it", calls, given_back))
    following: list[Json] = [calls, given_back, {"role": "user", "content": "thanks"}]
    assert said(ask("do it", *following)) == "You are welcome."


SAID = (
    "[Monday, 2026-05-04]\nYou (@you:test): By the way, my brother Tom likes green tea. What time is"
    " it?\nassistant: I see.\nYou (@you:test): write a poem\n  I never eat fish!\n"
    "You (@you:test): My password is swordfish9.\nYou (@you:test): I would like a song"
)
TOM, FISH = "The user said: my brother Tom likes green tea.", "The user said: I never eat fish!"
RULE = "The user said: never call me before ten."
PAGE = "# SOUL\n\n# TOOLS\n\n# RULE\n{}\n# USER\n- Ben.\n"
UNASKED: list[tuple[str, dict[str, str], Json]] = [
    ("MEMORY_HARVEST_PROMPT.txt", {"transcript": SAID}, {"contents": [TOM]}),
    (
        "MEMORY_HARVEST_PROMPT.txt",
        {
            "transcript": "Ann (@a:t): I like tea\nBob (@b:t): we moved to Rome\nassistant: I see it."
        },
        {"contents": ["Ann (@a:t) said: I like tea.", "Bob (@b:t) said: we moved to Rome."]},
    ),
    ("MEMORY_HARVEST_PROMPT.txt", {"transcript": "Ann (@a:t): list my tasks"}, {"contents": []}),
    (
        "SPLIT_PROMPT.txt",
        {"raw_input": "Tom lives in Rome. Hi!\nHe has\ntwo cats."},
        {"contents": ["Tom lives in Rome.", "He has two cats."]},
    ),
    (
        "RECONSTRUCTION_PROMPT.txt",
        {
            "related_memories": "- Tom likes tea.",
            "new_contents": f"- Tom likes green tea.\n- {TOM}",
        },
        {"memories": [TOM], "coverage": "complete"},
    ),
    (
        "RECONSTRUCTION_PROMPT.txt",
        {"related_memories": "- (none)", "new_contents": f"- {TOM}"},
        {"memories": [TOM], "coverage": "complete"},
    ),
    (
        "CORE_UPDATE_PROMPT.txt",
        {"current_core_markdown": PAGE.format(""), "candidate_new_memories": f"- {TOM}\n- {RULE}"},
        {"should_update": True, "core_markdown": PAGE.format(f"- {RULE}\n")},
    ),
    (
        "CORE_UPDATE_PROMPT.txt",
        {"current_core_markdown": PAGE.format("- A.\n"), "candidate_new_memories": f"- {RULE}"},
        {"should_update": True, "core_markdown": PAGE.format(f"- A.\n- {RULE}\n")},
    ),
    (
        "CORE_UPDATE_PROMPT.txt",
        {"current_core_markdown": PAGE.format("- A.\n"), "candidate_new_memories": f"- {TOM}"},
        {"should_update": False, "core_markdown": None},
    ),
]


@pytest.mark.parametrize(("template", "values", "wanted"), UNASKED)
def test_what_nobody_asks_is_answered_in_json(
    template: str, values: dict[str, str], wanted: Json
) -> None:
    """M-072: by the shipped prompts, and a second time as the first."""
    question: Json = {"role": "user", "content": fill(read_template(PROMPTS, template), values)}
    again: list[Json] = [
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": "Again."},
    ]
    assert json.loads(said(answer([question], frozenset()))) == wanted
    assert json.loads(said(answer([question, *again], frozenset()))) == wanted


def test_what_a_person_writes_is_never_taken_for_such_a_question() -> None:
    line = "look at this\n<transcript>\nAnn (@a:t): I like tea\n</transcript>"
    assert "{" not in said(ask(line, tools=frozenset()))


TEXTS = st.text() | st.sampled_from([use[0] for use in USES] + [row[0] for row in WORDS]).flatmap(
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
    reply = ask(text, system=system)
    assert said(reply).strip() if isinstance(reply, Say) else reply.calls


@given(messages=st.lists(MESSAGES, max_size=5))
def test_every_conversation_has_an_answer(messages: list[Json]) -> None:
    reply = answer(messages, TOOLS)
    assert said(reply).strip() if isinstance(reply, Say) else reply.calls


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("part", [" ", "a", ",", "\n", "is done ", "and 1. ", "@a:b ", "remember "])
@pytest.mark.parametrize("before", ["", "learn ", "add ", "my name is ", "password ", "remind me"])
def test_long_texts_are_answered_at_once(before: str, part: str) -> None:
    """No rule takes longer than in proportion to the text: quadratic ones would time out here."""
    ask(before + part * 20_000)


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


async def test_what_it_is_told_is_stored_and_found_again(
    tmp_path: Path, practice: PracticeModel
) -> None:
    """L-083: through the loop, the real client and the real tools, in the order of the demo."""
    async with (
        open_house(tmp_path, practice.url, prompts=PROMPTS, language="en") as house,
        house.working(),
    ):
        await house.incoming("remember that my sister Anna lives in Lyon")
        greeting, stored = await house.said(2)
        told, known = await talk(house, "my name is Ben", "what do you know about Anna?")
        row = await house.one("SELECT source FROM facts WHERE text LIKE '%Anna%'")
    assert "practice model" in greeting
    assert stored == "I will remember this: The user said: my sister Anna lives in Lyon."
    assert told == "I will remember this: The user's name is Ben."
    assert known.endswith("- You told me: my sister Anna lives in Lyon.")
    assert row == {"source": "user_explicit"}


async def test_what_it_is_told_in_passing_is_learnt_merged_and_always_in_mind(
    tmp_path: Path, practice: PracticeModel
) -> None:
    """Issue 19: harvest, reconstruction and core, as a person sees them."""
    clock, fts5 = HeldClock(), Memory(backend="fts5")
    often = MemoryHarvest(message_threshold=1, min_messages=1)
    opened = open_house(
        tmp_path, practice.url, prompts=PROMPTS, clock=clock, memory=fts5, harvest=often
    )

    async def counted(sql: str, wanted: int) -> bool:
        for kind in house.runner.kinds:
            kind.bell.set()
        return len(await house.rows(sql)) == wanted

    async with opened as house, house.working():
        lines = ("my brother Tom likes tea", "my brother Tom likes tea with milk")
        told, _, _ = await talk(house, *lines, "Please never call me before ten!")
        await until(lambda: counted("SELECT 1 FROM facts WHERE queued", 3))
        clock.advance(15 * 60)
        await until(lambda: counted("SELECT 1 FROM jobs WHERE name = 'core' AND state = 'done'", 1))
        listed, core, known = await talk(house, "/memory", "/memory core", "what about Tom?")
    assert told.startswith("I see. You did not ask me to remember that")
    assert listed.count("picked up") == 2
    assert "The user said: Please never call me before ten!" in core
    assert "- You told me: my brother Tom likes tea with milk." in known


async def test_tasks_and_skills_are_really_kept(tmp_path: Path, practice: PracticeModel) -> None:
    async with open_house(tmp_path, practice.url, prompts=PROMPTS) as house, house.working():
        added, listed, done, empty, wrong = await talk(
            house,
            "add a task: water the plants",
            "list my tasks",
            "task water the plants is done",
            "list my tasks",
            "complete task_00000000",
        )
        learnt, skills, tea = await talk(
            house,
            "learn how to make tea: boil water, add the leaves",
            "list my skills",
            "how do I make tea?",
        )
        row = await house.one("SELECT content, status FROM tasks")
    assert added.startswith("I added the task: water the plants (`task_")
    assert "- water the plants (`task_" in listed
    assert done.startswith("Done: water the plants")
    assert empty.startswith("There are no tasks (active).")
    assert wrong.startswith("That did not work: no task task_00000000")
    assert row == {"content": "water the plants", "status": "completed"}
    assert "data/skills/make-tea.md" in learnt
    assert "How to make tea (`make-tea`)" in skills
    assert "1. boil water\n2. add the leaves" in tea
    assert (tmp_path / "skills" / "make-tea.md").is_file()


async def test_answers_are_streamed_in_pieces_with_their_usage(
    tmp_path: Path, practice: PracticeModel
) -> None:
    async with asking(tmp_path, {"local": backend(practice.url)}) as world:
        user = {"role": "user", "content": "help"}
        reply = await world.models.ask("base", Request((user,), (TOOL,)))
    assert reply.text == said(ask("help"))
    assert (reply.model, reply.finish_reason) == (SERVED_NAME, "stop")
    assert reply.usage.tokens_in > 10
    assert reply.usage.tokens_out > 10
    assert await probe("local", Backend(base_url=practice.url, model=SERVED_NAME), 60)


async def post(model: PracticeModel, body: object) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        ClientSession() as client,
        client.post(f"{model.url}/chat/completions", data=data) as response,
    ):
        return response.status, await response.text()


async def test_the_stream_is_a_stream_only_where_one_was_asked_for(
    practice: PracticeModel,
) -> None:
    messages = [{"role": "user", "content": "add a task: x"}]
    tools = [{"type": "function", "function": {"name": "task"}}]
    body: dict[str, Any] = {"model": SERVED_NAME, "messages": messages, "tools": tools}
    status, text = await post(practice, body)
    (choice,) = json.loads(text)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (status, choice["finish_reason"]) == (200, "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"action": "add", "content": "x"}
    status, text = await post(practice, {**body, "tools": [], "stream": True})
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    pieces = [choice["delta"].get("content", "") for choice in choices]
    assert len(pieces) > 5
    assert "".join(pieces) == said(ask("add a task: x", tools=frozenset()))
    assert "usage" not in text


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"\xff{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "not a JSON object"),
        ({}, "messages must be"),
        ({"messages": []}, "messages must be"),
        ({"messages": "hello"}, "messages must be"),
        ({"messages": ["hello"]}, "messages must be"),
        ({"messages": [{"role": "user"}], "tools": "all"}, "tools must be"),
    ],
)
async def test_a_malformed_request_is_refused(
    practice: PracticeModel, body: object, complaint: str
) -> None:
    status, text = await post(practice, body)
    assert status == 400
    assert complaint in json.loads(text)["error"]["message"]


async def test_a_port_that_is_taken_is_told(practice: PracticeModel) -> None:
    port = int(practice.url.split(":")[2].removesuffix("/v1"))
    with pytest.raises(OSError, match="in use"):
        async with PracticeModel(port):
            pass


async def test_it_also_runs_alone() -> None:
    command = (sys.executable, "-m", "wintermute.demo.practice_server")
    process = await create_subprocess_exec(*command, stdout=PIPE)
    try:
        assert process.stdout
        url = (await process.stdout.readline()).decode().strip()
        async with ClientSession() as client, client.get(f"{url}/models") as response:
            models = await response.json()
    finally:
        process.terminate()
        await process.communicate()
    assert url.startswith("http://127.0.0.1:")
    assert [model["id"] for model in models["data"]] == [SERVED_NAME]


async def test_what_somebody_waits_for_can_be_seen_to_grow() -> None:
    """L-083, X-023: longer than a draft takes to begin; work in the background is not held up."""
    clock, asked = FakeClock(), {"messages": [{"role": "user", "content": "help"}], "stream": True}
    async with PracticeModel(clock=clock) as model:
        await post(model, asked)
        assert not clock.monotonic()
        await post(model, asked | {"tools": OFFERED})
    assert 0.8 < clock.monotonic() < 4


@pytest.mark.slow
async def test_who_leaves_in_the_middle_of_an_answer_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    talk = "you (@you:test): my garden has two apple trees.\nyou (@you:test): I like tea a lot."
    shown = f"<transcript>\n{talk}\n</transcript>"
    names = "<entries>\n- Your garden\n</entries>"
    plan = f"Rules.\n{names}\nThe index:\n<memories>\n(none)\n</memories>\nTold:\n{shown}"
    answered = answer([{"role": "user", "content": plan}], ())
    assert isinstance(answered, Say)
    assert [tuple(page.values())[:2] for page in json.loads(answered.text)["pages"]] == [
        ("semantic/Your garden.md", "update"),
        ("semantic/About you.md", "create"),
    ]
    dated = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---"
    before = "---\ncreated: 2026-01-02\nupdated: 2026-01-02\n---\n\n# Your garden\n\nA pond."
    page = (
        f"---\ncreated: YYYY-MM-DD\nupdated: YYYY-MM-DD\n---\nWrite one page: semantic/Your garden.md,"
        f" update.\n{dated}\n<memory>\n{before}\n</memory>\n{names}\nTold:\n{shown}"
    )
    written = answer([{"role": "user", "content": page}], ())
    assert isinstance(written, Say)
    assert written.text == (
        "---\ncreated: 2026-01-02\nupdated: 2026-05-04\n---\n\n# Your garden\n\nA pond.\n"
        "- My garden has two apple trees.\n"
    )
