"""A cast goes on where a kill left it. Each stage is built as the stores would have left it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

import pytest

from tests.world.delegating import results
from tests.world.house import ROOM, WARDS, Gate
from tests.world.model import Calls, Hang, Slow, Text, Use
from tests.world.resumed import answered_once, began, casting, completed, reply, took_turn
from tests.world.story import Story
from wintermute.conversation.toolbox import Caller
from wintermute.mailbox.inbox import Inbox, InboxRow
from wintermute.messages import Call, Json

DURABLE, FLEETING = Gate("note", durable=True), Gate("mail", durable=False)
Seen = Sequence[tuple[int, object]]


def call(n: int, name: str, arguments: str = '{"say": "x"}') -> Call:
    return Call(f"c{n}", name, arguments)


async def test_a_cast_without_a_turn_asks_the_model(story: Story) -> None:
    """L-051."""
    async with story.house() as house:
        await casting(house)
        assert await answered_once(house) == "echo: go"
        assert len(await house.rows("SELECT 1 FROM casts")) == 1


UNKNOWN = "error: interrupted: outcome unknown"
NONE_SUCH = "error: unknown tool: fly. Available: done, mail"
STAGES = {
    # its calls and if they are harmless; how many ended, if one more began; what runs, what is seen
    "none began": ("mail mail", False, 0, False, ["0", "1"], ["0", "1"]),
    "one began": ("mail", False, 0, True, [], [UNKNOWN]),
    "one that is harmless began": ("mail", True, 0, True, ["0"], ["0"]),
    "the second of three began": ("mail mail mail", False, 1, True, ["2"], ["sent", UNKNOWN, "2"]),
    "all ended": ("mail", False, 1, False, [], ["sent"]),
    "one that may not run began": ("fly", False, 0, True, [], [NONE_SUCH]),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_each_call_runs_once_unless_it_is_harmless(story: Story, stage: str) -> None:
    """L-029, L-051: what ended never again, what began if that is harmless, the rest as usual."""
    names, durable, ended, begun, run, seen = STAGES[stage]
    gate = Gate("mail", durable=durable)
    async with story.house(gates=[gate]) as house:
        calls = [call(n, name, f'{{"say": "{n}"}}') for n, name in enumerate(names.split())]
        turn = await took_turn(house, await casting(house), reply("", *calls))
        for n in range(ended):
            await completed(house, turn, n, "sent")
        if begun:
            await began(house, turn, ended)
        assert await answered_once(house) == "echo: go"
        rows = await house.rows("SELECT state, is_error FROM observations ORDER BY n")
    assert [row["state"] for row in rows] == ["completed"] * len(calls)
    assert [bool(row["is_error"]) for row in rows] == [text.startswith("error") for text in seen]
    assert [taken["say"] for taken in gate.taken] == run
    assert results(story.model.requests[-1]) == seen


@pytest.mark.parametrize("done", [False, True], ids=["text", "done"])
async def test_a_stored_answer_is_said_without_the_model(story: Story, done: bool) -> None:
    """L-051: killed between the last turn and the outbox."""
    last = reply("", call(0, "done", '{"answer": "four"}')) if done else reply("four")
    async with story.house() as house:
        turn = await took_turn(house, await casting(house), last)
        if done:
            await completed(house, turn, 0, "four")
        assert await answered_once(house) == "four"
    assert story.model.requests == []


async def test_a_failure_that_was_stored_is_tried_again(story: Story) -> None:
    """L-034: killed between the record of an outage and the end of its cast."""
    async with story.house() as house:
        await took_turn(house, await casting(house), reply(), "the model is away")
        assert await answered_once(house) == "echo: go"
    assert [m["role"] for m in story.model.requests[0].messages] == ["system", "user"]


async def test_a_resumed_cast_keeps_its_own_wards(story: Story) -> None:
    """L-020, L-051: what was used up before the kill counts."""
    async with story.house(gates=[Gate("mail")]) as house:
        cast = await casting(house)
        for _ in range(WARDS.max_turns):
            turn = await took_turn(house, cast, reply("", call(0, "mail")))
            await completed(house, turn, 0, "x")
        assert "max_turns" in await answered_once(house)
    assert story.model.requests == []


async def test_a_resumed_cast_has_used_the_time_of_its_turns(story: Story) -> None:
    """L-022, L-051: a cast cannot live for ever by being killed again and again."""
    async with story.house(gates=[Gate("mail")]) as house:
        slow = replace(reply("", call(0, "mail")), ms=int(WARDS.max_seconds * 1000))
        await took_turn(house, await casting(house), slow)
        assert "max_seconds" in await answered_once(house)
    assert story.model.requests == []


async def test_an_answered_message_is_not_answered_again(story: Story) -> None:
    """L-051, L-073: nor when its event is delivered once more."""
    async with story.at_work() as house:
        await house.ask("go", event_id="$1")
    async with story.at_work() as house:
        await house.incoming("go", event_id="$1")
        await house.incoming("next")
        assert await house.said(2) == ["echo: go", "echo: next"]
    assert len(story.model.requests) == 2


async def test_a_shutdown_leaves_the_cast_for_the_next_start(story: Story) -> None:
    """L-023, L-051: SIGTERM in a gate, with more messages waiting in order behind it."""
    begun = asyncio.Event()

    async def hang(_caller: Caller, _args: Json) -> object:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    story.model.script(Calls((Use("mail", {"say": "x"}),)), Text("hello again"))
    hanging = Gate("mail", hang, durable=False)
    async with story.at_work(gates=[hanging]) as house:
        await house.incoming("go")
        await house.incoming("next")
        await begun.wait()
    gate = Gate("mail", durable=False)
    async with story.at_work(gates=[gate]) as house:
        assert await house.said(2) == ["hello again", "echo: next"]
    assert gate.taken == []
    assert results(story.model.requests[-1]) == ["error: interrupted: outcome unknown"]


async def test_a_shutdown_while_the_model_thinks_asks_again(story: Story) -> None:
    """L-051: with the same request."""
    story.model.script(Hang())
    async with story.at_work() as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
    async with story.at_work() as house:
        assert await house.said(1) == ["echo: go"]
        assert len(await house.rows("SELECT 1 FROM casts")) == 1
    assert story.model.requests[0].body == story.model.requests[1].body


async def test_a_stop_sent_while_we_were_down_stops_what_was_interrupted(story: Story) -> None:
    """L-023, L-047: it does not begin again; the cast has its end in the loom."""
    async with story.house() as house:
        await casting(house)
        await house.incoming("/stop")
        await house.incoming("next")
        async with house.working():
            await house.settled()
        assert await house.spoken() == ["Stopped.", "echo: next"]
        casts = await house.rows("SELECT state, reason FROM casts ORDER BY seq")
    assert [cast["reason"] for cast in casts] == ["stopped", "text"]
    assert len(story.model.requests) == 1


async def test_what_was_stopped_before_it_began_stays_so(story: Story) -> None:
    """L-023, L-051: it waited for four others of its person when it was stopped, then the kill."""
    go_on = asyncio.Event()
    story.model.keyed(lambda s: Slow(go_on, Text("done")) if s.last_user == "wait" else None)
    async with story.at_work() as house:
        for n in range(4):
            await house.incoming("wait", room=f"!room{n}:test")
        await story.model.request_arrived(4)
        await house.incoming("delete it all")

        async def taken() -> bool:
            return ("attend", ROOM) in house.speaker.noted

        await house.until(taken)
        await house.incoming("/stop")
        assert await house.said(1) == ["Stopped."]
    go_on.set()
    async with story.at_work() as house:
        await house.settled()
        assert await house.spoken() == ["Stopped."]
    assert "delete it all" not in [request.last_user for request in story.model.requests]


@pytest.mark.breaks("tools")
async def test_what_was_stopped_at_work_stays_so(story: Story) -> None:
    """L-023, L-047, L-051: killed before the cast noticed; its gate is slow to let go."""
    begun = asyncio.Event()

    async def slow(_caller: Caller, _args: Json) -> object:
        begun.set()
        try:
            return await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    story.model.script(Calls((Use("mail", {"say": "x"}),), "so far"))
    async with story.at_work(gates=[Gate("mail", slow, durable=False)]) as house:
        await house.incoming("go")
        await begun.wait()
        await house.incoming("/stop")
        assert await house.said(1) == ["Stopped."]
        cast = await house.one("SELECT state, reason, result FROM casts")
        states = await house.rows("SELECT state FROM inbox")
    assert cast == {"state": "truncated", "reason": "stopped", "result": "so far"}
    assert states == [{"state": "answered"}] * 2
    async with story.at_work() as house:
        await house.incoming("next")
        assert await house.said(2) == ["Stopped.", "echo: next"]
        assert len(await house.rows("SELECT 1 FROM casts")) == 2


class StoppedInbox(Inbox):
    """A stop comes and is answered after the worker has read what is next."""

    stop: Callable[[], Awaitable[object]] | None = None

    async def open_rows(self, conversation_id: str, aside: Collection[str] = ()) -> list[InboxRow]:
        rows = await super().open_rows(conversation_id, aside)
        if rows and self.stop is not None:
            stop, self.stop = self.stop, None
            await stop()
        return rows


async def test_what_was_stopped_while_it_was_taken_up_does_not_begin_anew(story: Story) -> None:
    """L-023, L-047: the worker knows it as interrupted, but it has been given up since."""
    async with story.house(inbox_type=StoppedInbox) as house:
        assert isinstance(house.inbox, StoppedInbox)

        async def stop() -> None:
            await house.ask("/stop")

        await casting(house)
        house.inbox.stop = stop
        async with house.working():
            assert await house.said(1) == ["Stopped."]
            await house.incoming("next")
            assert await house.said(2) == ["Stopped.", "echo: next"]
        casts = await house.rows("SELECT reason FROM casts ORDER BY seq")
    assert [cast["reason"] for cast in casts] == ["stopped", "text"]
    assert len(story.model.requests) == 1


async def test_two_interrupted_casts_of_a_room_are_not_mixed_up(story: Story) -> None:
    """L-047, L-051: the older message could be read later than the newer one (X-021)."""
    async with story.house() as house:
        first = await house.incoming("first")
        await took_turn(house, await casting(house, "second"), reply("two"))
        await casting(house, "first", first)
        async with house.working():
            await house.settled()
        assert await house.spoken() == ["echo: first", "two"]
        casts = await house.rows("SELECT state FROM casts")
    assert [cast["state"] for cast in casts] == ["terminated"] * 2


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.breaks("interrupted", perhaps=True)
async def test_a_stop_ends_every_interrupted_cast_of_its_room(story: Story, stopped: bool) -> None:
    """L-023, L-047: and only those."""
    async with story.house() as house:
        await casting(house, "first")
        await casting(house, "second")
        if stopped:
            await house.incoming("/stop")
        await house.incoming("other", room="!other:test")
        async with house.working():
            await house.settled()
        left = "Stopped. I leave 2 messages unanswered."
        said = [left] if stopped else ["echo: first", "echo: second"]
        assert await house.spoken() == said
        assert await house.spoken("!other:test") == ["echo: other"]
        assert await house.rows("SELECT 1 FROM casts WHERE state = 'running'") == []
