"""A message whose content a provider refuses: what is asked then, what is said, and what never is."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.world.clock import NOON, HeldClock
from tests.world.harvested import harvested, is_harvest, talking
from tests.world.house import ANN, PROMPTS, ROOM, WARDS, Gate, house_at_work
from tests.world.memory import because
from tests.world.model import Calls, Fail, Hang, ModelServer, Seen, Step, Text, Use, is_for_summary
from tests.world.scene import Scene
from tests.world.story import Story
from wintermute.config.schema import Backend, Context, Llm, MemoryHarvest, Roles
from wintermute.conversation.model_requests import HARMLESS, foldable
from wintermute.conversation.view import NOT_SHOWN, shown_casts
from wintermute.loom.records import Cast, Turn
from wintermute.prompt.context_builder import event

BAD = "forbidden"
CONTENT = Fail(400, {"error": {"message": "filtered", "code": "content_filter"}})


def shows(seen: Seen) -> bool:
    return BAD in json.dumps(seen.body)


def filtering(seen: Seen) -> Step | None:
    if shows(seen):
        return CONTENT
    aside = is_harvest(seen) or is_for_summary(seen.body)
    return Text('{"contents": []}') if aside else None


async def test_a_refused_message_is_named_by_a_reply_and_never_asked_again_after_a_kill(
    scene: Scene, model: ModelServer
) -> None:
    """F-038: nor in a fork; the room goes on."""
    model.keyed(filtering)
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon)
    sent = await ann.send(chat, f"a {BAD} word")
    told = (await ann.wait_for_count(chat, daemon.user_id, 1))[0]
    await daemon.kill()
    asked = len(model.requests)
    assert all(words in told.body for words in ("refuses your message of ", "/new"))
    assert BAD not in told.body
    assert told.content["m.relates_to"] == {"m.in_reply_to": {"event_id": sent}}
    await daemon.start()
    later = await ann.send(chat, "and now?")
    await ann.wait_for_count(chat, daemon.user_id, 2)
    await ann.edit(chat, later, "or now?")
    await ann.wait_for_count(chat, daemon.user_id, 3)
    assert [*map(shows, model.requests[asked:])] == [False, False]


@pytest.mark.parametrize(
    ("where", "requests", "told"),
    [
        ("line", "0100", "and this?"),
        ("memory", "01010", "and this?"),
        ("message", "0100", "refuses your message of Monday, 2026-05-04 14:00"),
        ("event", "0100", "refuses this because of its content"),
        ("silence", "0100", "refuses your message of Monday"),
        ("before", "11110", "whatever I am asked: what was said before, skills"),
    ],
)
async def test_what_came_between_the_last_answer_and_the_message_is_left_out_first(
    story: Story, where: str, requests: str, told: str
) -> None:
    """F-038, L-006: for good; a memory is told anew with the next one, and nothing older is left out."""
    home: dict[str, Any] = {"prompts": PROMPTS} if where in ("memory", "before") else {}
    group: dict[str, Any] = {"scope": f"room:{ROOM}"} if where == "line" else {}
    clock, silent = HeldClock(), where == "silence"  # when it is asked what else is in view
    home |= {"wards": replace(WARDS, max_seconds=2)} if silent else {}
    async with story.at_work(clock=clock, **home) as house:
        await house.ask(f"a {BAD} word" if where == "before" else "hello", **group)
        hangs = {HARMLESS: Hang()} if silent else {}
        story.model.keyed(lambda seen: hangs.get(seen.last_user) or filtering(seen))
        await clock.move(1)
        if group:
            await house.incoming(f"a {BAD} line", kind="context", sender="@ben:test", **group)
        async with house.database.transaction() as tx:
            fact = f"a {BAD} fact" if where == "memory" else "likes tea"
            await house.stores.facts.add(
                tx, because(), fact, "user_explicit", scope=f"person:{ANN}"
            )
        said = BAD if where in ("message", "event", "silence") else "and this?"
        await house.incoming(said, kind="event" if where == "event" else None, **group)
        assert told in (await house.said(2))[1]
        for text in ["/new", "next"][where != "before" :]:
            await house.incoming(text, **group)
        await house.settled()
        assert (await house.spoken())[-1].endswith("next")
    assert "".join(str(int(shows(seen))) for seen in story.model.requests) == requests


@pytest.mark.parametrize("again", [Fail(503), Fail(401), Hang()])
async def test_nobody_else_is_asked_with_what_was_refused(story: Story, again: Step) -> None:
    """F-038: nor where it does not answer to less."""
    steps = [CONTENT, again]
    story.model.keyed(lambda seen: steps.pop(0) if steps and shows(seen) else None)
    group: dict[str, Any] = {"scope": f"room:{ROOM}"}
    async with ModelServer() as other:
        each = Backend(base_url=story.model.url, model="x", first_token_s=0.5)
        known = {"a": each, "b": replace(each, base_url=other.url)}
        llm = Llm(backends=known, roles=Roles(base=("a", "b")), max_retries=0)
        async with house_at_work(story.folder, None, llm=llm) as house:
            await house.incoming("a line", kind="context", sender="@ben:test", **group)
            await house.incoming(f"a {BAD} word", **group)
            assert "refuses your message" in (await house.said(1))[0]
    assert (len(story.model.requests), len(other.requests)) == (2, 0)


@pytest.mark.parametrize(("refusal", "end"), [(CONTENT, ""), (Fail(500), "/stop")])
async def test_what_was_done_is_known_later_without_what_was_refused_of_it(
    story: Story, refusal: Step, end: str
) -> None:
    """F-038, F-060: nobody does it twice; the message was answered with a call, and is not blamed."""

    def answer(seen: Seen) -> Step | None:
        if any(each["role"] == "tool" and each["content"] == "tea" for each in seen.messages):
            return refusal
        begins = seen.messages[-1] == {"role": "user", "content": "go"}
        return Calls((Use("echo", {"say": "tea"}),)) if begins else None

    story.model.keyed(answer)
    clock = HeldClock()
    opened = story.house(gates=[Gate()], clock=clock)
    async with opened as house, house.working():
        await house.incoming("go")
        if end:
            await clock.asleep()
            await house.incoming(end)
        await house.incoming("and now?")
        told, _ = await house.said(2)
        (branch,) = [row["id"] for row in await house.rows("SELECT id FROM branches")]
        summed = "".join(step.whole for step in foldable(await house.casts.of_branch(branch), 0))
    refused = "refuses what a tool gave me for your message of " in told and "Done: echo" in told
    assert told == "Stopped." if end else refused
    for text in (json.dumps(story.model.requests[-1].messages), summed):
        assert (text.count("tea"), NOT_SHOWN in text) == (1, True)


@pytest.mark.breaks("fold", perhaps=True)
async def test_a_refused_message_is_in_no_summary_no_quote_and_no_harvest(story: Story) -> None:
    """F-038: wherever else its words would go out."""
    story.model.keyed(filtering)
    settings = {"harvest": MemoryHarvest(message_threshold=4), "context": Context(keep_recent=1)}
    async with talking(story.folder, story.model, HeldClock(), **settings) as house:
        await house.incoming("a long story " * 20)
        refused = await house.incoming(f"a {BAD} word")
        await house.said(2)
        story.model.requests.clear()
        await house.incoming("why?", replies_to=refused)
        await house.incoming("/compact")
        await house.incoming("and now?")
        await harvested(house)
    assert not any(map(shows, story.model.requests))
    assert any(is_for_summary(seen.body) for seen in story.model.requests)
    assert any(map(is_harvest, story.model.requests))


def test_what_is_shown_is_where_it_was_tried_last_and_bare_if_it_had_to_be() -> None:
    """F-038, F-060: in no request is what failed or was refused, but for what was answered once."""
    ends = ["1 model_unavailable", "2 text", "1 text", "3 content_refused", "4 given_up"]
    rows = [each.split() for each in [*ends, "5 stopped", "6 context_refused"]]
    due, quote = event("scheduled_task", "task_1", "due"), "<replied_to>\nyou: a\n</replied_to>\nb"
    intent = f"{due}\n\n{due}\n\n<room_context>\nBen (@b:x): a\n</room_context>\n{quote}"
    base = Cast("", "b", None, "e", intent, "owner", {}, "running", None, None, NOON, (), "block")
    casts = [replace(base, id=f"{n}", event_id=e, reason=r) for n, (e, r) in enumerate(rows)]
    assert [cast.id for cast in shown_casts(casts)] == ["1", "2", "5"]
    turn = Turn("t", None, "half", (), "stop", 1, 1, context_block="news")
    shown = shown_casts([replace(cast, turns=(turn,), bare=True) for cast in casts])
    assert [cast.id for cast in shown] == ["1", "0", "2", "3", "4", "5", "6"]
    assert [bool(cast.turns[0].context_block) for cast in shown] == [True] * 3 + [False] * 2 + [
        True,
        False,
    ]
    assert {(cast.intent, cast.context_block) for cast in shown} == {(quote, "")}
