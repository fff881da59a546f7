"""Fields that a provider wants back with its calls, and ids that all take: its own, and no other's."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.servers import function, tools
from tests.world.forgetting import deliver, forgotten
from tests.world.house import PROMPTS, ROOM, Gate
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use, is_for_summary
from tests.world.redacted import take_back
from tests.world.story import Story
from tests.world.strict import Strict
from tests.world.terminal import Terminal, exported, house_at, tell_at, with_prompts
from wintermute.config.schema import Backend, Context, Llm, Roles
from wintermute.config.secrets import Redaction
from wintermute.conversation.model_requests import foldable
from wintermute.conversation.view import messages, smaller
from wintermute.forgetting.forgetting import forget
from wintermute.ids import new_id
from wintermute.llm.provider_fields import PROVIDER_FIELDS, fields_for, without_fields
from wintermute.llm.wire import AnswerParser
from wintermute.loom.records import BranchView
from wintermute.matrix.relations import Relations
from wintermute.messages import Json, Request

NINE = re.compile(r"[a-zA-Z0-9]{9}")
SECRET = "deepthought"
CALL = function("echo", "{}", index=0, id="c1")
SIGNED: Json = {"extra_content": {"google": {"thought_signature": "EjQKMg=="}}}


@pytest.fixture
def terminal(terminal: Terminal) -> Terminal:
    return with_prompts(terminal)


TEXT, SUM = {"type": "reasoning.text", "index": 0}, {"type": "reasoning.summary", "index": 0}
DATA = {"type": "reasoning.encrypted", "data": "gAA", "id": "rs_1", "index": 0}
BLOCK, SIGNED_BLOCK = (
    {"type": "thinking", "thinking": "so", **more} for more in ({}, {"signature": "E"})
)
WRITTEN = '<tool_call>{"name": "echo", "arguments": {}}</tool_call>'
Row = tuple[list[Json], Json]
GATHERED: Mapping[str, Row] = {
    "DeepSeek's, empty": (
        [{"reasoning_content": ""}, {"reasoning_content": None}],
        {"reasoning_content": ""},
    ),
    "a text that grows": ([{"reasoning": "I "}, {"reasoning": "see"}], {"reasoning": "I see"}),
    "OpenRouter's of Claude: pieces, then a signature under the same number": (
        [
            {"reasoning_details": [{**TEXT, "text": "", "signature": ""}]},
            *({"reasoning_details": [{**TEXT, "text": piece}]} for piece in ("This", " is")),
            {"reasoning_details": [{**TEXT, "signature": "Et0B"}]},
            {"reasoning_details": []},
        ],
        {"reasoning_details": [{**TEXT, "text": "This is", "signature": "Et0B"}]},
    ),
    "OpenRouter's of GPT: two types under one number": (
        [
            {"reasoning_details": [{**SUM, "summary": "Gre"}]},
            {"reasoning_details": [{**SUM, "summary": "et"}, DATA]},
        ],
        {"reasoning_details": [{**SUM, "summary": "Greet"}, DATA]},
    ),
    "blocks of an Anthropic layer, without numbers": (
        [{"thinking_blocks": [each]} for each in (BLOCK, SIGNED_BLOCK, BLOCK)],
        {"thinking_blocks": [{**SIGNED_BLOCK, "thinking": "soso"}, BLOCK]},
    ),
    "an object": ([{"x": {"text": "I "}}, {"x": {"text": "see"}}], {"x": {"text": "I see"}}),
    "Gemini's of a call": ([tools({**CALL, **SIGNED})], SIGNED),
    "Gemini's in a part of its own": ([tools(CALL), tools({"index": 0, **SIGNED})], SIGNED),
    "half characters": ([{"x": "\ud83d"}, {"x": "\ude00"}], {"x": "😀"}),
    "half a character that stays half": ([{"x": "\ud83d"}], {}),
    "what many answers have": ([{"refusal": None, "annotations": [], "channel": "a"}], {}),
    "as much as is kept": ([{"x": "ä" * 32_000}], {"x": "ä" * 32_000}),
    "more than that": ([{"x": "ä" * 33_000}], {}),
    "a secret": ([{"x": ["so"]}, {"reasoning": "hun"}, {"reasoning": "ter2"}], {}),
    "no call": ([{"reasoning_content": "Hm", "content": "Hello"}], {}),
    "a call that stood in the text": ([{"reasoning": "Hm", "content": WRITTEN}], {}),
}


@pytest.mark.parametrize("row", GATHERED)
def test_what_stands_beside_text_and_calls_is_kept_as_it_was_sent(row: str) -> None:
    """F-040, L-089."""
    deltas, kept = GATHERED[row]
    has_call = any(not delta.keys().isdisjoint(("content", "tool_calls")) for delta in deltas)
    gathering = AnswerParser(Redaction(["hunter2"]), {"echo": {}})
    for delta in (*deltas, {} if has_call else tools(CALL)):
        gathering.feed(b"data: %b\n" % json.dumps({"choices": [{"delta": delta}]}).encode())
    gathering.feed(b"data: [DONE]\n")
    found = json.loads(gathering.answer(new_id).kept or '{"message": {}, "calls": [{}]}')
    assert found["message"] | found["calls"][0] == kept


def turn(by: str, name: str, *ids: str, kept: Json | None = None) -> list[Json]:
    """A turn with calls of these ids and their results, as the loom shows it."""
    calls = [
        {"id": each, "type": "function", "function": {"name": "echo", "arguments": "{}"}}
        for each in ids
    ]
    text = json.dumps(kept) if kept else ""
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": calls,
        PROVIDER_FIELDS: [by, name, text],
    }
    return [answer, *({"role": "tool", "tool_call_id": each, "content": "r"} for each in ids)]


MINE = turn("a", "t1", "c1", "c2", kept={"message": {"reasoning": "Hm"}, "calls": [SIGNED, {}]})
GIVEN: Mapping[str, tuple[list[Json], str, list[str]]] = {
    "its own": (MINE, "a", ["c1", "c2"]),
    "another's": (MINE, "b", ["9", "9"]),
    "of nobody known": (turn("", "t1", "c1"), "a", ["9"]),
    "twice in a turn": (turn("a", "t1", "c", "c"), "a", ["c", "9"]),
    "twice in a request": (turn("a", "t1", "c") + turn("a", "t2", "c"), "a", ["c", "9"]),
    "both of another's": (turn("b", "t1", "c") + turn("b", "t2", "c"), "a", ["9", "9"]),
}


@pytest.mark.parametrize("row", GIVEN)
def test_each_backend_gets_its_own_ids_and_fields_and_nobody_elses(row: str) -> None:
    """F-040, F-041: results follow their calls, and what stood before stays as it was."""
    asked, to, ids = GIVEN[row]
    found = fields_for(asked, to, Redaction([]))
    names = [call["id"] for each in found for call in each.get("tool_calls", ())]
    assert [(NINE.fullmatch(one) and "9") or one for one in names] == ids
    assert len(set(names)) == len(names)
    assert [each["tool_call_id"] for each in found if each["role"] == "tool"] == names
    assert fields_for(asked[:1], to, Redaction([])) == found[:1]
    assert PROVIDER_FIELDS not in json.dumps(found)
    own = found[0].get("reasoning"), found[0]["tool_calls"][0].get("extra_content")
    assert own == (("Hm", SIGNED["extra_content"]) if row == "its own" else (None, None))
    assert "Hm" not in json.dumps(fields_for(asked, to, Redaction(["EjQKMg"])))  # a secret since
    less = smaller(tuple(asked), len(asked))  # where nothing else can go
    assert less is None or "Hm" not in json.dumps(less)
    assert (less is None) == ("Hm" not in json.dumps(asked))


@pytest.mark.parametrize(
    "complaint",
    [
        "'messages.2' : property 'reasoning' is unsupported, did you mean 'role'?",  # Groq
        "messages.2.assistant.reasoning: property 'messages.2.assistant.reasoning' is unsupported",
        "Extra inputs are not permitted, field: 'messages[2].reasoning'",
        "`messages[3].reasoning`: reasoning is not supported with this model",
    ],
)
async def test_a_field_its_sender_refuses_goes_back_no_more(story: Story, complaint: str) -> None:
    """F-040, F-042."""

    def answer(seen: Seen) -> Step:
        if any("reasoning" in each for each in seen.messages):
            return Fail(400, {"error": {"message": complaint}})
        if seen.messages[-1]["role"] == "tool":
            return Text("so be it")
        return Calls((Use("echo", {"say": "x"}),), fields={"reasoning": "Hm"})

    story.model.keyed(answer)
    async with story.at_work(gates=[Gate()]) as house:
        for n in (1, 2):
            await house.incoming("hello")
            assert await house.said(n) == ["so be it"] * n
    assert len(story.model.requests) == 5


async def test_nothing_of_it_is_shown_or_exported(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    """F-040: nor is it in a record of questions or in a summary, for which it counts."""
    caplog.set_level(logging.DEBUG, "wintermute")
    async with ModelServer() as server:
        deep, known = Strict("deepseek", server), {"deep": Backend(base_url=server.url, model="m")}
        llm = Llm(backends=known, roles=Roles(base=("deep",)), max_retries=0, record=True)
        server.allow("fold")
        few: Any = {"context": Context(keep_recent=4, trigger_after_turns=6)}
        opened = house_at(terminal, server, Gate(), llm=llm, **few)
        async with opened as house, house.working():
            for n in range(4):
                await tell_at(house, f"message {n}")
                assert (await house.said(n + 1))[-1] == "deepseek says so"
            (branch,) = [row["id"] for row in await house.rows("SELECT id FROM branches")]
            casts = await house.casts.of_branch(branch)
            whole = [step.whole for step in foldable(casts, 0)]
            said = messages(None, BranchView(None, casts))
            shown: list[object] = [
                exported(terminal, branch),
                terminal.says("loom", "show", branch),
            ]
            shown += [terminal.says("prompt"), await house.spoken()]
            shown += [
                await house.rows(f"SELECT * FROM {name}") for name in ("model_calls", "folds")
            ]
            more, less = (
                house.models.tokens("base", Request(each)) for each in (said, without_fields(said))
            )
        assert deep.secret in json.dumps(whole)
        assert more > less
        shown += [r.body for r in server.requests if is_for_summary(r.body)]
        assert len(shown) > 6
        assert deep.secret not in json.dumps(shown) + caplog.text


@pytest.mark.breaks("redaction")
async def test_a_cast_at_work_gives_back_nothing_that_was_taken_back(story: Story) -> None:
    """F-040, F-027."""
    use = Calls((Use("echo", {"say": "x"}),), fields={"reasoning_content": SECRET})
    story.model.script(Text("hi"), use, Text("so be it"))
    gate = Gate(act=lambda *_: take_back(house, first))
    opened = story.house(gates=[gate])
    async with opened as house, house.working():
        first = await house.incoming(f"a {SECRET}")
        await house.said(1)
        await house.incoming("go")
        await house.said(2)
    assert SECRET not in json.dumps(story.model.requests[-1].messages)


@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
@pytest.mark.parametrize("way", ["a message", "a memory", "an answer"])
async def test_fields_go_with_what_was_in_view_when_they_were_made(story: Story, way: str) -> None:
    """F-040, M-030: those of turns after it in its scope, for nobody can search them; no others."""

    def answer(seen: Seen) -> Step:
        if seen.messages[-1]["role"] == "tool":
            return Text("so be it")
        wish = {"entry": "Ann has a zebrafinch", "source": "user_explicit"}
        use = Use("append_memory", wish) if "zebra" in seen.last_user else Use("echo", {"say": "x"})
        return Calls((use,), fields={"reasoning": f"{SECRET} of {seen.last_user}"})

    async def kept() -> list[str]:
        rows = await house.rows(
            "SELECT provider_fields FROM turns WHERE provider_fields <> '' ORDER BY seq"
        )
        return [json.loads(row["provider_fields"])["message"]["reasoning"] for row in rows]

    story.model.keyed(answer)
    async with story.at_work(gates=[Gate()], prompts=PROMPTS) as house:
        events = []
        for text in ("before", "I have a zebrafinch", "after", "/new", "later"):
            events.append(await house.incoming(text))
            await house.settled()
        await house.incoming("elsewhere", room="!two:test")
        await house.say("hello", room="!bob:test", sender="@bob:test", origin="other")
        await deliver(house)
        if way == "a message":
            await take_back(house, events[1])
            assert f"{SECRET} of after" not in await kept()  # at once
        elif way == "an answer":
            (mine,) = await house.rows(
                "SELECT event_id FROM outbox_parts ORDER BY outbox_id LIMIT 1 OFFSET 1"
            )
            async with house.database.transaction() as tx:
                await Relations(house.stores, house.rooms).erase_answers(
                    tx, ROOM, [mine["event_id"]]
                )
        else:
            (fact,) = await house.rows("SELECT id FROM facts")
            found = await house.stores.facts.get(fact["id"])
            assert found
            await forget(house.stores, [found])
        await forgotten(house)
        # Of an answer nobody knows any more when it was given.
        others = ["hello"] if way == "an answer" else ["before", "hello"]
        assert await kept() == [f"{SECRET} of {text}" for text in others]
