"""Answers that are nothing but the JSON of a call (issue 17)."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.world.bot import write_settings
from tests.world.clock import SYSTEM
from tests.world.homeserver import Login
from tests.world.house import Gate, House
from tests.world.model import Calls, Drip, ModelServer, Text, Use
from tests.world.story import Story
from tests.world.warm import Interpreter
from wintermute.db import open_database
from wintermute.llm.text_tool_calls import ModelQuirk, json_calls, may_be_calls
from wintermute.messages import Json

NOWHERE = "http://127.0.0.1:9"
ARGUMENTS = {"say": "it's {here}"}
BARE = json.dumps({"name": "echo", "arguments": ARGUMENTS})
TWO = BARE.replace("here", "there")
OFFERED: dict[str, Json] = {"echo": {}, "done": {}}
FOUND = ("echo", json.dumps(ARGUMENTS))

CALLS = [
    BARE,
    f"  \n{BARE}\n\n",
    BARE.replace("arguments", "parameters"),
    json.dumps({"name": "echo", "arguments": json.dumps(ARGUMENTS)}),
    json.dumps({"function": {"name": "echo", "arguments": ARGUMENTS}}),
    json.dumps({"type": "function", "function": {"name": "echo", "arguments": ARGUMENTS}}),
    json.dumps({"function": "echo", "arguments": ARGUMENTS}),
    json.dumps({"tool_calls": [{"function": {"name": "echo", "arguments": ARGUMENTS}}]}),
    f"[{BARE}]",
    f"```json\n{BARE}\n```",
    f"```\n{BARE}```",
    f"<tools>\n{BARE}\n</tools>",
    f"<tools>{BARE}",
    f"```xml\n<tool_call>\n{BARE}\n</tool_call>\n```",
    f"{{{BARE}}}",
    f"{{{BARE}",
    """<tools>
  <echo say="it's {here}" />
</tools>""",
    "<tools><function name='echo' arguments='{\"say\": \"it&#39;s {here}\"}'></function></tools>",
]


@pytest.mark.parametrize("text", CALLS)
def test_a_call_in_each_of_its_spellings_is_read(text: str) -> None:
    assert json_calls(text, OFFERED) == [FOUND]
    assert all(may_be_calls(text[:n]) for n in range(len(text)))


@pytest.mark.parametrize(
    "text",
    [
        f"{BARE}\n{TWO}",
        f"[{BARE}, {TWO}]",
        f"{BARE},{TWO}",
        f"```json\n{BARE}\n```\n```json\n{TWO}\n```",
        f"<tools>{BARE}\n{TWO}</tools>",
        json.dumps({"tool_calls": [json.loads(BARE), json.loads(TWO)]}),
    ],
)
def test_several_calls_one_after_another_are_several(text: str) -> None:
    names = [name for name, _ in json_calls(text, OFFERED)]
    assert names == ["echo", "echo"]


def test_doubled_braces_all_through_are_single_ones() -> None:
    assert json_calls('{{"name": "echo", "arguments": {{"say": "x"}}}}', OFFERED) == [
        ("echo", '{"say": "x"}')
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello.",
        "<tools><echo say='x'>and more</echo></tools>",
        "<tools><p class='x'></p></tools>",
        "<tools><echo say='x' say='y'/></tools>",
        "<tools><echo say='x' /><![x[ ]]></tools>",
        "<echo say='x' />",
        f"Here it is: {BARE}",
        f"{BARE} Shall I?",
        f"```json\n{BARE}\n```\nThat is the JSON of a task call.",
        BARE.replace("echo", "unknown"),
        f"{BARE}\n{BARE.replace('echo', 'unknown')}",
        json.dumps({"name": "echo"}),
        json.dumps({"name": "echo", "arguments": ["x"]}),
        json.dumps({"name": "echo", "arguments": ARGUMENTS, "note": "for you"}),
        json.dumps({"name": {"first": "Ann"}, "arguments": ARGUMENTS}),
        json.dumps({"tool_calls": [json.loads(BARE)], "content": "and more"}),
        BARE[:-3],
        "{" * 5_000,
        "[" * 5_000,
        "[]",
        "3",
        "null",
        f"<tools></tools>{BARE}</tools>",
        f"{BARE}" + " " * 200_001,
    ],
)
def test_anything_else_stays_text(text: str) -> None:
    assert json_calls(text, OFFERED) == []


@pytest.mark.parametrize(
    "text",
    [
        "Hi",
        "[a link](https://x)",
        "{curly} words",
        "`code`",
        "```python\nprint()",
        "<b>",
        "<toolbox>",
    ],
)
def test_what_can_be_no_call_is_not_held_back(text: str) -> None:
    assert not may_be_calls(text)


async def drafted(house: House) -> str:
    return "".join(house.speaker.drafts)


async def test_such_an_answer_is_the_call_for_a_backend_that_needs_it(story: Story) -> None:
    """F-020: never shown, not even as a draft; the record says that it stood in the text."""
    gate = Gate()
    story.model.script(Text(f"```json\n{BARE}\n```"), Text("{curly} said"))
    house = story.house(gates=[gate], calls_as_text=True)
    async with house as at, at.working():
        await at.incoming("go")
        assert await at.said(1) == ["{curly} said"]
        assert await drafted(at) == "{curly} said"
        seen = await at.one("SELECT gate, via FROM observations")
        turns = await at.rows("SELECT utterance FROM turns ORDER BY seq")
    assert gate.taken == [ARGUMENTS]
    assert seen == {"gate": "echo", "via": "tag"}
    assert [turn["utterance"] for turn in turns] == ["", "{curly} said"]


@pytest.mark.parametrize("configured", [None, False])
async def test_elsewhere_json_of_a_call_stays_text(story: Story, configured: bool | None) -> None:
    """A person may ask to see it."""
    gate = Gate()
    story.model.script(Text(BARE))
    house = story.house(gates=[gate], calls_as_text=configured)
    async with house as at, at.working():
        await at.incoming("show me the JSON of a call")
        assert await at.said(1) == [BARE]
        assert await drafted(at) == BARE
    assert not gate.taken


@pytest.mark.parametrize(("configured", "taken"), [(None, 1), (False, 0)])
async def test_what_check_found_counts_unless_the_configuration_says_else(
    story: Story, configured: bool | None, taken: int
) -> None:
    gate = Gate()
    story.model.script(Text(BARE), Text("done"))
    house = story.house(gates=[gate], calls_as_text=configured)
    async with house as at, at.working():
        habit = ModelQuirk(at.database, at.clock, "text_tool_calls", "scripted", story.model.url)
        await habit.found(has=True)
        await at.incoming("go")
        await at.said(1)
        assert len(gate.taken) == taken
        await habit.found(has=False)
        assert not await habit.known()


async def test_what_looks_like_a_call_and_is_none_is_shown_at_its_end(story: Story) -> None:
    text = f"{BARE} is how it looks."
    story.model.script(Text(text))
    async with story.at_work(calls_as_text=True) as house:
        await house.incoming("show me")
        assert await house.said(1) == [text]
        assert await drafted(house) == text


async def test_a_model_that_thinks_aloud_is_seen_to_do_so_once(story: Story) -> None:
    """F-020, X-040: two lives of one data folder."""
    said = "Let me see.</think> Seven"
    story.model.script(*(Drip(said, interval=0.01),) * 3)
    shown = list[str]()
    for questions in (2, 1):
        async with story.at_work() as house:
            for _ in range(questions):
                await house.say("how many?")
                last = "SELECT body FROM outbox WHERE kind = 'reply' ORDER BY seq DESC LIMIT 1"
                assert (await house.one(last))["body"].strip() == "Seven"
                shown.append(await drafted(house))
                house.speaker.drafts.clear()
    assert [text.strip() for text in shown] == ["Let me Seven", "Seven", "Seven"]


async def test_a_model_that_thinks_aloud_no_more_is_shown_growing_again(story: Story) -> None:
    """X-024: one thought is not for ever; five texts in a row are without any."""
    story.model.script(
        Drip("Hm.</think> Seven", interval=0.01), *(Drip("it is seven now", interval=0.01),) * 7
    )
    pieces: list[int] = []
    async with story.at_work() as house:
        for _ in range(8):
            house.speaker.drafts.clear()
            await house.say("how many?")
            pieces.append(len(list(filter(None, house.speaker.drafts))))
    assert [count > 1 for count in pieces[1:]] == [False] * 5 + [True] * 2


@pytest.mark.slow
async def test_check_keeps_for_the_daemon_what_it_found(
    tmp_path: Path, python: Interpreter
) -> None:
    """Once it calls as others do, that is forgotten again; X-040: so with thoughts without beginning."""
    login = Login("@bot:test", "token", "DEVICE", "secret")
    written, called = Text(BARE.replace("echo", "done")), Calls((Use("done", {"answer": "ok"}),))
    async with ModelServer() as server:
        config = write_settings(tmp_path / "bot", NOWHERE, login, server.url, "@ann:test")
        path = tmp_path / "bot" / "data" / "wintermute.db"
        found: list[tuple[str, bool, bool]] = []
        thinks = called, called, Text("so </think>done")
        for steps in ((written,), thinks, (called, called, Text("done"))):
            server.script(*steps)
            async with open_database(path):
                pass
            done = await asyncio.to_thread(
                python.run, "check", "--config", str(config), cwd=tmp_path, env={"PATH": os.defpath}
            )
            assert done.returncode == 1, done.stderr  # the homeserver is away
            [line] = [each for each in done.stdout.decode().splitlines() if "  model " in each]
            async with open_database(path, read_only=True) as database:
                model = server.requests[-1].body["model"]
                known = await ModelQuirk(
                    database, SYSTEM, "text_tool_calls", model, server.url
                ).known()
                aloud = await ModelQuirk(
                    database, SYSTEM, "thinks_aloud", model, server.url
                ).known()
            found.append((line[:4], known, aloud))
            told = "calls_as_text: true" in line
            assert told is known
            assert ("it thinks before it answers" in line) is aloud
    assert found == [("warn", True, False), ("ok  ", False, True), ("ok  ", False, False)]


async def test_check_before_the_first_start_says_what_to_write_for_it_is_kept_nowhere(
    story: Story, python: Interpreter
) -> None:
    """In a fresh installation there is no database yet: `init`, `check`, `chat` is the usual order."""
    login = Login("@bot:test", "token", "DEVICE", "secret")
    config = write_settings(story.folder / "bot", NOWHERE, login, story.model.url, "@ann:test")
    story.model.script(Text(BARE.replace("echo", "done")))
    done = await python.command(
        "check", "--config", str(config), cwd=story.folder, env={"PATH": os.defpath}
    )
    [line] = [each for each in done.stdout.decode().splitlines() if "  model " in each]
    assert line.startswith("warn  model scripted: ")
    assert line.endswith(
        "it writes its calls as text -> set llm.backends.scripted.calls_as_text: true"
    )
    assert not (story.folder / "bot/data/wintermute.db").exists()
