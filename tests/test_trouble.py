"""What people hear of a model that does not answer (F-019, F-021, F-035, F-036)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.world.asking import DEAD, gone
from tests.world.clock import SYSTEM, WITHIN, FakeClock, HeldClock, promptly
from tests.world.histories import waiting_row
from tests.world.house import ROOM, Gate, House, house_at_work, open_house
from tests.world.model import (
    Calls,
    Cut,
    Drip,
    Events,
    Fail,
    Hang,
    ModelServer,
    Plain,
    Seen,
    Slow,
    Step,
    Text,
    Use,
)
from tests.world.story import Story
from tests.world.trouble import LONG, POISON, poisoned, seconds_pass
from wintermute.conversation.model_failures import FailingMessage, next_step
from wintermute.conversation.model_failures import FailureStep as Next
from wintermute.conversation.replies import BACK, BROKEN_OFF
from wintermute.conversation.state import Stop
from wintermute.loom.records import Wards


async def test_a_server_that_is_away_is_told_within_five_seconds(tmp_path: Path) -> None:
    """F-036: with its address and what to do, though each attempt is tried again; once."""
    async with house_at_work(tmp_path, DEAD, clock=SYSTEM, retries=3) as house:
        async with promptly(5):
            await house.incoming("hello")
            (told,) = await house.said(1)
        assert "(nothing answers at 127.0.0.1:9)" in told
        assert "Is its server running" in told
        await house.incoming("/help")
        assert len(await house.said(2)) == 2


@asynccontextmanager
async def outage(folder: Path) -> AsyncIterator[tuple[House, HeldClock, int]]:
    """Open a house in which somebody said hello to a server that is away; the port it had."""
    clock = HeldClock()
    port, url = await gone()
    async with house_at_work(folder, url, clock=clock) as house:
        await house.incoming("hello")
        await clock.asleep()
        yield house, clock, port


@pytest.mark.slow
async def test_that_it_is_back_is_told_where_it_was_long_away(tmp_path: Path) -> None:
    """F-036: and before the answer that waited."""
    async with outage(tmp_path) as (house, clock, port):
        await house.incoming("and here", room="!other")
        await seconds_pass(house, clock, 180)
        assert len(await house.said(1)) == len(await house.said(1, "!other")) == 1
        async with ModelServer(port=port):
            await seconds_pass(house, clock, 120)
            for room, text in ((ROOM, "hello"), ("!other", "and here")):
                _, back, answer = await house.said(3, room)
                assert (back, answer.splitlines()[-1]) == (BACK, text)


async def test_a_model_that_refuses_is_back_as_well(tmp_path: Path) -> None:
    """F-036, F-019: it is there, whatever it says."""
    async with outage(tmp_path) as (house, clock, port):
        await seconds_pass(house, clock, 90)
        async with ModelServer(port=port, default=lambda seen: refusal()):
            await seconds_pass(house, clock, 15)
            _, back, refused = await house.said(3)
    assert (back, refused.splitlines()[-1]) == (BACK, BROKEN_OFF["refusal"])


async def test_a_short_absence_is_told_once_and_never_taken_back(tmp_path: Path) -> None:
    """F-036."""
    async with outage(tmp_path) as (house, clock, port):
        await clock.move(3)
        await house.said(1)
        async with ModelServer(port=port):
            await seconds_pass(house, clock, 15)
            assert (await house.said(2))[1:] == ["echo: hello"]


async def test_once_one_room_is_answered_the_others_wait_no_longer(tmp_path: Path) -> None:
    """F-036: told that it is back, nobody waits for the end of their own minute."""
    async with outage(tmp_path) as (house, clock, port):
        await seconds_pass(house, clock, 30)
        await house.incoming("and here", room="!other")
        await seconds_pass(house, clock, 5)

        async def other_is_answered() -> bool:
            return "echo: and here" in await house.spoken("!other")

        async with ModelServer(port=port):
            while "echo: hello" not in await house.spoken():
                assert not await other_is_answered()
                await seconds_pass(house, clock, 5)
            await house.until(other_is_answered)


@pytest.mark.slow
async def test_a_message_that_fails_alone_is_answered_with_the_reason(story: Story) -> None:
    """F-021, F-060: told within a minute, given up after three casts; what is behind it goes first."""
    clock = HeldClock()
    story.model.keyed(poisoned)
    async with story.at_work(clock=clock) as house:
        await house.incoming(POISON)
        await house.incoming("behind")
        await clock.asleep()
        began = clock.monotonic()
        async with asyncio.timeout(WITHIN):
            while len(said := await house.spoken()) < 2:
                await seconds_pass(house, clock, 5)
        assert clock.monotonic() - began <= 60
        assert said[0].endswith("behind")
        assert "answers other messages, but not this one" in said[1]
        await seconds_pass(house, clock, 180)
        given_up = (await house.said(3))[2]
        casts = await house.rows("SELECT reason, bare FROM casts ORDER BY seq")
    assert "I could not answer your message of Monday, 2026-05-04 14:00" in given_up
    assert "scripted 500" in given_up
    reasons = ["model_unavailable", "text", "model_unavailable", "given_up"]
    assert [tuple(cast.values()) for cast in casts] == [*zip(reasons, (0, 0, 0, 1), strict=True)]


@pytest.mark.slow
async def test_a_message_that_brings_its_server_down_is_given_up(tmp_path: Path) -> None:
    """F-021: it is asked three times, each time when the server is there again, and never more."""
    clock, asked = HeldClock(), 0

    def crash(seen: Seen) -> Step | None:
        nonlocal asked
        asked += POISON in seen.last_user
        return Cut(after_chunks=0) if POISON in seen.last_user else None

    port, url = await gone()
    async with open_house(tmp_path, url, clock=clock) as house:
        await house.incoming(POISON)
        await house.incoming("behind")
        async with house.working():
            for n in range(1, 4):
                async with ModelServer(port=port) as server, asyncio.timeout(WITHIN):
                    server.keyed(crash)
                    while asked < n:
                        await seconds_pass(house, clock, 5)
                await seconds_pass(house, clock, 120)
            async with ModelServer(port=port) as server:
                server.keyed(crash)
                await seconds_pass(house, clock, 60)
                told, back, behind, given_up = await house.spoken()
    assert asked == 3
    assert "cannot be reached" in told
    assert "I could not answer your message" in given_up
    assert (back, behind.splitlines()[-1]) == (BACK, "behind")


def failing(**known: object) -> FailingMessage:
    base = FailingMessage(waiting_row(seq=1), Stop(), 0.0, "why", unreachable=False)
    return FailingMessage(**{**{name: getattr(base, name) for name in base.__slots__}, **known})


@pytest.mark.parametrize(
    ("known", "step"),
    [
        ({}, ("look", 8)),
        ({"unreachable": True}, ("unreachable", 2)),
        ({"unreachable": True, "notified": True}, None),
        ({"unreachable": True, "notified": True, "at_work": False}, ("knock", 10)),
        (
            {"unreachable": True, "notified": True, "at_work": False, "connection_tried": 30.0},
            ("knock", 40),
        ),
        ({"alone": False}, ("outage", 60)),
        ({"alone": False, "notified": True}, None),
        ({"alone": True}, ("alone", 30)),
        ({"alone": True, "notified": True}, ("look", 1800)),
        ({"alone": True, "notified": True, "probed": 1800.0}, ("give up", 1800)),
        ({"alone": True, "notified": True, "given_up": True}, None),
        ({"alone": None, "notified": True}, ("look", 8)),
    ],
)
def test_a_failing_message_has_its_next_step(
    known: dict[str, object], step: tuple[Next, float] | None
) -> None:
    """F-021, F-036, L-034."""
    assert next_step(failing(**known)) == step


@pytest.mark.parametrize("command", ["/help", "/status", "/tasks", "/memory", "/sessions"])
async def test_a_reading_command_passes_a_silent_model(story: Story, command: str) -> None:
    """F-035: it has been asked five seconds ago, and nothing has come."""
    clock = HeldClock()
    story.model.script(Hang())
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await clock.move(5)
        await house.incoming(command)
        assert len(await house.said(1)) == 1
        states = await house.rows("SELECT body, state FROM inbox ORDER BY seq")
        assert [tuple(each.values()) for each in states] == [
            ("go", "casting"),
            (command, "answered"),
        ]


async def test_a_reading_command_passes_a_model_that_fell_silent(story: Story) -> None:
    """F-035: five seconds after its last word; before, the answer may be about to come."""
    clock = HeldClock()
    story.model.script(Events(({"choices": [{"delta": {"content": "half"}}]},), stay=True))
    async with story.at_work(clock=clock) as house:

        async def has_begun() -> bool:
            return "half" in house.speaker.drafts

        await house.incoming("go")
        await story.model.request_arrived(1)
        await clock.move(4)
        await house.until(has_begun)
        await clock.move(4)
        await house.incoming("/tasks")
        await house.incoming("/help", room="!other")
        await house.said(1, "!other")
        assert await house.spoken() == []
        await clock.move(1)
        await house.incoming("/help")
        assert len(await house.said(2)) == 2


async def test_a_reading_command_is_answered_during_a_look(story: Story) -> None:
    """F-035, F-021: a server that hangs takes ten seconds to be found so."""
    clock = HeldClock()
    story.model.script(Fail(500), Hang())
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        await clock.move(45)
        await story.model.probe_arrived()
        async with promptly(8):
            await house.incoming("/help")
            assert len(await house.said(1)) == 1


async def test_nobody_waits_for_a_look_and_one_is_enough_for_all(story: Story) -> None:
    """F-035, F-021: whether others are answered is seen beside everything else."""
    clock, gate = HeldClock(), asyncio.Event()

    def choose(seen: Seen) -> Step:
        failing = Slow(gate, Fail(500)) if seen.is_probe else Fail(500)
        return Hang() if seen.last_user == "silent" else failing

    story.model.keyed(choose)
    opened = story.house(clock=clock, retries=99, wards=LONG)
    async with opened as house, house.working():
        await house.incoming("hello")
        await house.incoming("hello", room="!other")
        await clock.asleep(2)
        await clock.move(41)
        await house.incoming("silent", room="!silent")
        await story.model.request_arrived(5)  # the others are tried again
        await clock.asleep(2)
        await clock.move(4)
        await story.model.probe_arrived()
        await house.incoming("/help", room="!silent")
        await clock.move(1)
        assert len(await house.said(1, "!silent")) == 1
        gate.set()
        await clock.move(14)
        for room in (ROOM, "!other"):
            (told,) = await house.said(1, room)
            assert "does not answer" in told
    assert story.model.probes == 1


async def test_a_message_that_was_stopped_troubles_nobody(story: Story) -> None:
    """F-021: neither its people nor the model."""
    clock = HeldClock()
    story.model.keyed(poisoned)
    async with story.at_work(clock=clock) as house:
        await house.incoming(POISON)
        await clock.asleep()
        await house.incoming("/stop")
        await house.said(1)
        await clock.move(300)
        await house.incoming("next")
        assert await house.said(2) == ["Stopped.", "echo: next"]
    assert story.model.probes == 0


@pytest.mark.slow
async def test_a_reminder_can_be_set_while_the_model_is_silent(story: Story) -> None:
    """F-035: and that it does is told."""
    clock = HeldClock()
    story.model.script(Fail(500))
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        await house.incoming("/new")
        await house.incoming("/remind in 20 minutes drink")
        said = await house.said(2)
        assert any("I'll remind" in text for text in said)
        assert any("`/new` waits until I have answered" in text for text in said)
        await seconds_pass(house, clock, 120)
        assert (await house.said(4))[2:] == [
            "echo: go",
            "A new conversation: I no longer see the earlier messages.",
        ]


async def test_what_keeps_its_place_behind_a_model_that_is_silent_is_told_so(story: Story) -> None:
    """F-035: after five seconds, and once."""
    clock, begins = HeldClock(), asyncio.Event()
    story.model.script(Slow(begins, Text("first")))
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await clock.move(5)
        await house.incoming("/new")
        assert "`/new` waits until I have answered" in (await house.said(1))[0]
        await house.incoming("/help")
        await house.said(2)
        begins.set()
        assert (await house.said(4))[2:] == [
            "first",
            "A new conversation: I no longer see the earlier messages.",
        ]


async def test_a_quick_model_keeps_the_strict_order(story: Story) -> None:
    """L-072: nothing passes a message that is being answered."""
    gate = asyncio.Event()
    story.model.script(Slow(gate, Text("first")))
    async with story.at_work(clock=HeldClock()) as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await house.incoming("/help")
        gate.set()
        first, _ = await house.said(2)
    assert first == "first"


def refusal() -> Events:
    said = {"choices": [{"delta": {"refusal": "I will not."}}]}
    return Events((said, {"choices": [{"delta": {}, "finish_reason": "stop"}]}, "[DONE]"))


@pytest.mark.parametrize(
    ("step", "what", "reason"),
    [
        (Text("half a sen", finish="length"), "half a sen", "length"),
        (Text("half", finish="content_filter"), "half", "content_filter"),
        (Text("", finish="length"), "", "length"),
        (Plain(Text("", finish="content_filter")), "", "content_filter"),
        (refusal(), "I will not.", "refusal"),
    ],
)
async def test_a_broken_off_answer_says_so(
    story: Story, step: Step, what: str, reason: str
) -> None:
    """F-019: what there is, one line, and nothing is paid again."""
    story.model.script(step)
    async with story.at_work(clock=FakeClock()) as house:
        await house.incoming("go")
        (said,) = await house.said(1)
        (cast,) = await house.rows("SELECT state, reason FROM casts")
    assert said == f"{what}\n\n{BROKEN_OFF[reason]}".strip()
    assert (cast["state"], cast["reason"]) == ("truncated", reason)
    assert len(story.model.requests) == 1


async def test_a_call_written_as_text_is_that_call(story: Story) -> None:
    """F-020: `via: tag`, and neither its markup nor what was thought before is shown or kept."""
    call = (
        '<think>hm</think>\n<tool_call>\n{"name": "echo", "arguments": {"say": "x"}}\n</tool_call>'
    )
    story.model.script(Text(call), Text("<think>so</think>done"))
    async with story.at_work(clock=FakeClock(), gates=[Gate()]) as house:
        await house.incoming("go")
        assert await house.said(1) == ["done"]
        (seen,) = await house.rows("SELECT gate, args, via, is_error FROM observations")
        kept = await house.rows("SELECT utterance, calls FROM turns")
    assert tuple(seen.values()) == ("echo", '{"say": "x"}', "tag", 0)
    assert "think" not in str(kept)
    assert "tool_call>" not in str(kept)


async def limited(house: House) -> tuple[str, str]:
    await house.incoming("go")
    (said,) = await house.said(1)
    cast = await house.one("SELECT reason FROM casts")
    return said, cast["reason"]


WARDS = Wards(10, 1.5, 10_000, require_done=False)


@pytest.mark.slow
async def test_waiting_for_a_first_token_is_not_the_casts_time(story: Story) -> None:
    """F-017: and it is known as such after a restart."""
    gate = asyncio.Event()
    story.model.script(Slow(gate, Text("slowly")))
    async with story.at_work(clock=SYSTEM, wards=WARDS) as house:
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(limited(house))
            await story.model.request_arrived(1)
            asyncio.get_running_loop().call_later(2.0, gate.set)
        assert ended.result() == ("slowly", "text")
        turn = await house.one("SELECT ms, waited_ms FROM turns")
    assert turn["ms"] >= turn["waited_ms"] >= 1900
    assert turn["ms"] - turn["waited_ms"] < 1500


@pytest.mark.slow
async def test_an_answer_that_goes_on_is_ended_by_the_ward_alone(story: Story) -> None:
    """F-017, L-022."""
    story.model.keyed(lambda _: Drip("and so on " * 100, interval=0.05))
    async with story.at_work(clock=SYSTEM, wards=WARDS) as house:
        _, reason = await limited(house)
    assert reason == "max_seconds"


async def test_who_was_answered_meanwhile_does_not_hear_that_no_answer_comes(story: Story) -> None:
    """F-021: one attempt failed, and the work it was for has gone on since."""
    clock, gate = HeldClock(), asyncio.Event()
    story.model.script(Fail(500), Calls((Use("echo", {"say": "x"}),)), Slow(gate, Text("done")))
    async with story.at_work(clock=clock, retries=1, wards=LONG, gates=[Gate()]) as house:
        await house.incoming("go")
        await clock.asleep()
        await clock.move(100)
        await story.model.request_arrived(3)
        story.model.keyed(lambda _: Fail(500))
        await nobody_is_told(house, story.model)
        gate.set()
        assert await house.said(1) == ["done"]


async def nobody_is_told(house: House, model: ModelServer) -> None:
    """What fails elsewhere lets it be looked at what is to be told here."""
    asked = len(model.requests)
    await house.incoming(POISON, room="!other")
    await model.request_arrived(asked + 1)
    await asyncio.sleep(0.5)
    assert await house.spoken() == []


@pytest.mark.slow
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
async def test_who_is_being_answered_hears_of_no_trouble(story: Story, field: str) -> None:
    """F-021: another attempt has begun to speak, or to think; a server may do one thing at a time."""
    clock = HeldClock()
    begun = Events(({"choices": [{"delta": {field: "so"}}]},), stay=True)
    steps: Iterator[Step] = iter([Fail(500), begun])
    story.model.keyed(lambda seen: Fail(500) if "go" not in seen.last_user else next(steps))
    async with story.at_work(clock=clock, retries=1, wards=LONG) as house:
        await house.incoming("go")
        await clock.asleep()
        await clock.move(100)
        await story.model.request_arrived(2)
        await asyncio.sleep(0.3)
        await nobody_is_told(house, story.model)


@pytest.mark.slow
async def test_what_fails_beside_a_message_does_not_keep_it_for_ever(story: Story) -> None:
    """F-021: both fail for what is in view of both, and take turns at it."""
    clock = HeldClock()
    story.model.keyed(lambda seen: None if seen.is_probe else Fail(500))
    async with story.at_work(clock=clock) as house:
        await house.incoming("go")
        await house.incoming('<event type="result">x</event>', kind="event")
        await clock.asleep()
        for _ in range(80):
            if any("I could not answer your message" in text for text in await house.spoken()):
                break
            await seconds_pass(house, clock, 5)
        assert any("I could not answer your message" in text for text in await house.spoken())
