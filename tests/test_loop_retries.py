"""The model away, empty, or too small for what it is asked."""

import itertools
import json
from dataclasses import replace

import pytest

from tests.world.clock import FakeClock, promptly
from tests.world.house import WARDS, Gate, HeldClock
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Fail,
    Garbage,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    is_for_summary,
    own_words,
)
from tests.world.story import Story
from wintermute.conversation.replies import BACK
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ConfigurationError
from wintermute.messages import Json, Usage


async def test_an_outage_keeps_the_message_and_tries_every_minute(story: Story) -> None:
    """L-034, F-029: one notice per outage, after a minute of it; the model hears how old it is."""
    clock = HeldClock()
    story.model.script(*[Fail(500)] * 4, Text("back"))
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        for n in range(1, 5):
            await clock.asleep()
            assert len(story.model.requests) == n
            row = await house.one("SELECT state, not_before FROM inbox")
            assert row["state"] == "waiting"
            assert float(row["not_before"]) == house.clock.monotonic() + 60
            assert len(await house.spoken()) == (0 if n == 1 else 1)
            await clock.move(44)
            assert len(story.model.requests) == n
            await clock.move(16)
            await story.model.request_arrived(n + 1)
        notice, back, answer = await house.said(3)
        casts = await house.rows("SELECT id, state, reason FROM casts ORDER BY seq")
        turns = await house.rows("SELECT cast_id, error FROM turns ORDER BY seq")
        part = await house.health.part("model")
    assert answer == "back"
    assert "does not answer" in notice
    assert back == BACK
    assert [cast["reason"] for cast in casts] == ["model_unavailable"] * 4 + ["text"]
    assert [turn["cast_id"] for turn in turns] == [cast["id"] for cast in casts]
    assert [turn["error"] is None for turn in turns] == [False] * 4 + [True]
    [asked] = [m["content"] for m in story.model.requests[4].messages[1:]]
    assert asked.endswith(" 4 minutes ago]\ngo")  # F-029
    assert part is not None
    assert part.state == "ok"


async def test_each_outage_is_told_anew(story: Story) -> None:
    """L-034: also when between them the model used up its limits instead of answering."""
    use = Calls((Use("echo", {"say": "x"}),))
    story.model.script(*[Fail(500)] * 2, *[use] * 30, *[Fail(500)] * 2, Text("back"))
    async with story.at_work(clock=FakeClock(), gates=[Gate()]) as house:
        await house.incoming("one")
        assert (await house.said(3))[1] == BACK
        await house.incoming("two")
        await house.said(6)
        kinds = await house.rows("SELECT kind FROM outbox ORDER BY seq")
    assert [row["kind"] for row in kinds] == ["notice", "notice", "reply"] * 2


async def test_every_attempt_of_a_cast_is_counted(story: Story) -> None:
    """L-034: exactly max_retries + 1 requests."""
    story.model.script(*[Fail(503)] * 3, Text("back"))
    async with story.at_work(clock=FakeClock(), retries=2) as house:
        await house.incoming("go")
        assert await house.said(1) == ["back"]
        calls = await house.rows("SELECT c.reason, m.attempt, m.outcome FROM model_calls m"
                                 " JOIN casts c ON c.id = m.cast_id ORDER BY m.rowid")  # fmt: skip
    assert [tuple(call.values()) for call in calls] == [
        ("model_unavailable", 1, "status_503"),
        ("model_unavailable", 2, "status_503"),
        ("model_unavailable", 3, "status_503"),
        ("text", 1, "ok"),
    ]


async def test_stop_says_how_many_messages_it_leaves_unanswered(story: Story) -> None:
    """L-072."""
    async with story.house() as house:
        for line in ("one", "two", "/stop"):
            await house.incoming(line)
        async with house.working():
            assert await house.said(1) == ["Stopped. I leave 2 messages unanswered."]


async def test_commands_pass_a_message_that_waits_for_the_model(story: Story) -> None:
    """L-034, L-072: commands and events pass, messages wait, and `/stop` gives up."""
    clock = HeldClock()
    story.model.keyed(lambda seen: Fail(500) if seen.last_user == "go" else None)
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        await house.incoming("me too")
        await house.incoming("/help")
        assert "/status" in (await house.said(1))[0]
        await house.incoming("reminder", kind="event", origin="timer")
        assert (await house.said(2))[1] == "echo: reminder"
        await house.incoming("/stop")
        assert (await house.said(4))[2:] == ["Stopped.", "echo: me too"]
        await house.settled()
        states = await house.rows("SELECT body, state FROM inbox")
    assert {row["state"] for row in states} == {"answered"}
    asked = [request.last_user for request in story.model.requests]
    assert (asked[0], asked[-1]) == ("go", "me too")
    assert asked.count("reminder") == asked.count("me too") == 1


async def test_a_command_passes_however_many_messages_wait(story: Story) -> None:
    """L-034, L-072: a night without the model."""
    clock = HeldClock()
    story.model.script(Fail(500))
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        for n in range(250):
            await house.incoming(f"message {n}")
        await house.incoming("/help")
        assert "/status" in (await house.said(1))[0]
        await house.incoming("reminder", kind="event", origin="timer")
        assert (await house.said(2))[1] == "echo: reminder"


async def test_an_event_that_finds_the_model_away_waits_as_well(story: Story) -> None:
    """L-034: what passes is not asked again at once and for ever."""
    clock = HeldClock()
    story.model.script(*[Fail(500)] * 2)
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        await house.incoming("reminder", kind="event", origin="timer")
        await story.model.request_arrived(2)

        async def both_wait() -> bool:
            return len(await house.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")) == 2

        await house.until(both_wait)
        await house.incoming("/help")
        await house.said(1)
        assert len(story.model.requests) == 2


@pytest.mark.parametrize(
    "absurd",
    [
        Usage(10**30, 10**30, 10**30),
        Usage(200_000, 300_000, 100_000),  # more than the window holds
        Usage(0, 50_000, 0),
        Usage(-1, -1, -1),
    ],
)
async def test_absurd_numbers_of_a_server_harm_nobody(story: Story, absurd: Usage) -> None:
    """L-031: an estimate stands in the record instead."""
    story.model.script(Text("hi", usage=absurd))
    async with story.at_work() as house:
        await house.incoming("go")
        assert await house.said(1) == ["hi"]
        turn = await house.one("SELECT tokens_in, tokens_out, tokens_cached FROM turns")
    assert 0 < turn["tokens_in"] < 1000
    assert 0 < turn["tokens_out"] < 1000
    assert turn["tokens_cached"] == 0


async def test_the_prompt_is_read_once_for_each_question(story: Story) -> None:
    """L-034: a failure is recorded with the prompt that was sent, whatever happened to it since."""
    prompts = iter(["Be kind."])

    def prompt() -> str:
        try:
            return next(prompts)
        except StopIteration:
            raise ConfigurationError("the prompt is gone") from None

    story.model.script(Fail(400))
    async with story.at_work(prompt=prompt) as house:
        assert "refuses" in await house.ask("go")
        found = await house.one("SELECT prompt_hash FROM casts")
        assert await house.casts.prompt(found["prompt_hash"]) == (("", "Be kind."),)


@pytest.mark.parametrize(
    ("status", "told"),
    [(400, "refuses"), (401, "api_key"), (402, "billing"), (403, "api_key"), (404, "base_url")],
)
async def test_a_refusal_is_told_and_not_tried_again(story: Story, status: int, told: str) -> None:
    """L-035, F-060: within two seconds, and no time passes before; `status` shows it."""
    story.model.script(Fail(status, {"error": {"message": "no"}}))
    opened = story.house(retries=2, clock=HeldClock())
    async with opened as house, house.working():
        async with promptly(2):
            assert told in await house.ask("go")
        assert house.clock.monotonic() == 0
        assert len(story.model.requests) == 1
        part = await house.health.part("model")
        assert part is not None
        assert part.state == "fail"
        assert (await house.one("SELECT reason FROM casts"))["reason"] == "model_refused"
        await house.incoming("again")
        assert (await house.said(2))[1] == "echo: again"
        asked = [m["content"] for m in story.model.requests[1].messages if m["role"] == "user"]
        assert asked == ["go", "again"]


def sizes(model: ModelServer) -> list[int]:
    return [len(json.dumps(request.messages)) for request in chats(model)]


def chats(model: ModelServer) -> list[Seen]:
    """The requests that are not for a summary."""
    return [request for request in model.requests if not is_for_summary(request.body)]


async def long(_caller: Caller, args: Json) -> object:
    return "x" * 40_000


@pytest.mark.breaks("cutting")
async def test_a_request_too_large_shrinks_until_it_fits(story: Story) -> None:
    """L-036: the result is cut, the intent and the system prompt are not."""
    story.model.script(*[Text("a long story " * 40)] * 6)

    def choose(seen: Seen) -> Step | None:
        if seen.last_user != "look":
            return None
        if seen.messages[-1]["role"] == "user":
            return Calls((Use("echo", {"say": "x"}),))
        return ContextTooLarge() if len(json.dumps(seen.messages)) > 5_000 else Text("fits")

    story.model.keyed(choose)
    gates = [Gate(act=long)]
    async with story.at_work(gates=gates) as house:
        for n in range(6):
            await house.incoming(f"tell {n}")
        await house.incoming("look")
        assert (await house.said(7))[6] == "fits"
        turns = await house.rows("SELECT error FROM turns WHERE error IS NOT NULL")
        (row,) = await house.rows("SELECT result FROM observations")
    tried = sizes(story.model)[7:]
    assert all(later < earlier for earlier, later in itertools.pairwise(tried))
    assert len(tried) > 3
    assert all(
        request.messages[0] == story.model.requests[0].messages[0] for request in chats(story.model)
    )
    asked = [
        [own_words(str(m["content"])) for m in each.messages] for each in chats(story.model)[6:]
    ]
    assert all("look" in each for each in asked)
    assert turns == []
    assert len(row["result"]) == 40_002


@pytest.mark.breaks("cutting", perhaps=True)
async def test_shrinking_ends_when_nothing_can_shrink(story: Story) -> None:
    """L-036: never two identical requests, and the person is told which number is wrong."""
    story.model.script(Text("a long story " * 400))
    async with story.at_work() as house:
        await house.ask("tell")
        story.model.keyed(lambda _: ContextTooLarge())
        await house.incoming("look " * 2000)
        said = (await house.said(2))[1]
    wrong = "its server takes 4096 tokens, config.yaml says context_tokens: 32768: set"
    assert f"{wrong} llm.backends.scripted.context_tokens to 4096" in said
    assert "`/new`" not in said
    async with story.house() as house:
        cast = await house.one("SELECT reason FROM casts ORDER BY seq DESC LIMIT 1")
    tried = sizes(story.model)[1:]
    assert all(later < earlier for earlier, later in itertools.pairwise(tried))
    assert len(tried) > 3
    assert cast["reason"] == "context_too_large"


@pytest.mark.breaks("cutting")
async def test_a_history_larger_than_the_window_is_fitted_before_it_is_sent(story: Story) -> None:
    """L-036: tokens are estimated; no request is wasted on a refusal."""
    window: Json = {"context_tokens": 4096, "max_output_tokens": 1024}
    story.model.keyed(lambda _: Text("noted", usage=None))
    async with story.at_work(**window) as house:
        for n in range(8):
            await house.incoming(f"{n} " + "word " * 500)
        await house.said(8)
    assert max(sizes(story.model)) / 3 < 4096 - 1024
    assert len(chats(story.model)) == 8
    assert all(m.last_user.startswith(f"{n} ") for n, m in enumerate(chats(story.model)))


async def test_the_intent_stays_while_done_is_asked_for(story: Story) -> None:
    """L-006, L-012, L-036: our own reminder does not push the question out of the window."""
    wards = replace(WARDS, require_done=True)
    story.model.script(Text("thinking " * 600), Calls((Use("done", {"answer": "yes"}),)))
    window: Json = {"context_tokens": 2048, "max_output_tokens": 512}
    async with story.at_work(wards=wards, **window) as house:
        await house.incoming("the question")
        assert await house.said(1) == ["yes"]
    asked = [m["content"] for m in story.model.requests[1].messages if m["role"] == "user"]
    assert asked[0] == "the question"
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        (
            {"message": "request (900 tokens) exceeds the available context size (256 tokens)"},
            "its server takes 256 tokens, config.yaml says context_tokens: 4096: set",
        ),
        (
            {"message": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512},
            "its server takes 512 tokens, config.yaml says context_tokens: 4096: set",
        ),
        (
            {"message": "maximum context length is 4,096 tokens. However, you requested 9000"},
            "its server takes 4096 tokens, config.yaml says context_tokens: 4096 and leaves 3072",
        ),
        (
            {"message": "the prompt is too long"},
            "config.yaml says context_tokens: 4096, and its server takes less: `wintermute check`",
        ),
    ],
)
async def test_a_window_that_nothing_fits_into_is_named_with_its_numbers(
    story: Story, complaint: Json, told: str
) -> None:
    """L-036: a new conversation would not be shorter, so it is no advice."""
    story.model.keyed(lambda _: Fail(400, {"error": complaint}))
    window: Json = {"context_tokens": 4096}
    async with story.at_work(**window) as house:
        await house.incoming("hello")
        (said,) = await house.said(1)
    assert told in said
    assert "`/new`" not in said


async def test_an_error_nested_without_end_is_an_outage_and_no_bug_of_ours(story: Story) -> None:
    """L-031, L-035: deeper than anybody can walk."""
    deep = "[" * 900 + "]" * 900
    story.model.script(Garbage(f'{{"error": {deep}}}'.encode()), Text("fine"))
    async with story.at_work(retries=1, clock=FakeClock()) as house:
        await house.incoming("a")
        assert await house.said(1) == ["fine"]
