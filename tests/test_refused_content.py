"""A message whose content a provider refuses: what is asked then, what is said, and what never is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_changes import WHY
from tests.test_harvest import harvested, is_harvest, talking
from tests.world.clock import NOON, HeldClock
from tests.world.house import ANN, PROMPTS, ROOM, Gate, open_house
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use, is_for_summary
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.config.schema import Context, MemoryHarvest
from wintermute.conversation.toolbox import Caller
from wintermute.conversation.view import bared, shown_casts
from wintermute.loom.records import Cast, Turn
from wintermute.messages import Json
from wintermute.prompt.gather import event

BAD = "forbidden"
BEN = "@ben:test"
FILTERED = Fail(400, {"error": {"message": "filtered", "code": "content_filter"}})


def filtering(seen: Seen) -> Step | None:
    """Refuses whatever shows the word."""
    return FILTERED if BAD in json.dumps(seen.body) else None


@pytest.mark.breaks("edit")
async def test_a_refused_message_is_named_by_a_reply_and_asked_with_nothing_after_a_kill(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-038: killed at once, started again and talked to; the room goes on, and so does its fork."""
    model.keyed(filtering)
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    sent = await ann.send(chat, f"a {BAD} word")
    told = (await ann.wait_for_count(chat, daemon.user_id, 2))[1]
    await daemon.kill()
    asked = len(model.requests)
    assert BAD not in told.body
    assert "refuses your message of " in told.body
    assert "/new" in told.body
    assert told.content["m.relates_to"] == {"m.in_reply_to": {"event_id": sent}}
    await daemon.start()
    later = await ann.send(chat, "and now?")
    assert (await ann.wait_for_count(chat, daemon.user_id, 3))[2].body == "echo: and now?"
    await ann.edit(chat, later, "or now?")
    await ann.wait_for_count(chat, daemon.user_id, 4)
    assert len(model.requests) == asked + 2
    assert all(BAD not in json.dumps(each.body) for each in model.requests[asked:])


def shows(seen: Seen) -> bool:
    return BAD in json.dumps(seen.body)


@pytest.mark.parametrize("where", ["line", "memory", "nothing before"])
async def test_what_came_between_the_last_answer_and_the_message_is_left_out_first(
    tmp_path: Path, model: ModelServer, where: str
) -> None:
    """F-038, L-006: at once, for good, and once for each message; where there is none, nothing else is."""
    model.keyed(filtering)
    told: dict[str, Any] = {"prompts": PROMPTS} if where == "memory" else {}
    group: dict[str, Any] = {"scope": f"room:{ROOM}"} if where == "line" else {}
    async with open_house(tmp_path, model.url, **told) as house, house.working():
        await house.incoming("hello", **group)
        await house.said(1)
        if where == "line":
            await house.incoming(f"a {BAD} line", kind="context", sender=BEN, **group)
        elif where == "memory":
            async with house.database.transaction() as tx:
                add = house.stores.facts.add
                await add(tx, WHY, f"a {BAD} fact", "user_explicit", scope=f"person:{ANN}")
        await house.incoming("and this?" if group or told else BAD, **group)
        said = (await house.said(2))[1]
        asked = [shows(seen) for seen in model.requests]
        await house.incoming("next", **group)
        assert (await house.said(3))[2].endswith("next")
        bare = [cast["bare"] for cast in await house.rows("SELECT bare FROM casts ORDER BY seq")]
    if where == "nothing before":
        assert "refuses your message of" in said
        assert BAD not in said
    else:
        assert said.endswith("and this?")
    assert asked == [False, True, False]
    # A memory is told with the next message as well, a line never again.
    assert [shows(seen) for seen in model.requests[3:]] == [*[True] * bool(told), False]
    assert bare == [0, int(where != "nothing before"), int(bool(told))]


async def test_what_is_in_view_besides_is_named_and_nothing_older_is_left_out(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-038: a provider that grew stricter; `/new` is the way out."""
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house, house.working():
        async with house.database.transaction() as tx:
            add = house.stores.facts.add
            await add(tx, WHY, "likes tea", "user_explicit", scope=f"person:{ANN}")
        await house.incoming(f"a {BAD} word")
        await house.said(1)
        model.keyed(filtering)
        await house.incoming("and this?")
        said = (await house.said(2))[1]
        assert all(map(shows, model.requests[1:]))
        await house.incoming("/new")
        await house.incoming("and now?")
        assert (await house.said(4))[3] == "echo: and now?"
        reasons = await house.rows("SELECT reason FROM casts ORDER BY seq")
    assert "user memories, skills, what was said before" in said
    assert "`/new`" in said
    assert [each["reason"] for each in reasons] == ["text", "context_refused", "text"]


@pytest.mark.breaks("fold", perhaps=True)
async def test_a_refused_message_is_in_no_summary_no_quote_and_no_harvest(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-038: wherever else its words would go out."""

    def choose(seen: Seen) -> Step | None:
        if is_harvest(seen):
            return Text('{"contents": []}')
        return filtering(seen) or (Text("brief") if is_for_summary(seen.body) else None)

    model.keyed(choose)
    settings = {"harvest": MemoryHarvest(message_threshold=4), "context": Context(keep_recent=1)}
    async with talking(tmp_path, model, HeldClock(), **settings) as house:
        await house.incoming("a long story " * 20)
        refused = await house.incoming(f"a {BAD} word")
        await house.said(2)
        asked = len(model.requests)
        await house.incoming("why?", replies_to=refused)
        await house.incoming("/compact")
        await house.incoming("and now?")
        assert (await house.said(5))[2].endswith("why?")
        await harvested(house)
    assert not any(map(shows, model.requests[asked:]))
    assert any(is_for_summary(seen.body) for seen in model.requests)
    assert any(map(is_harvest, model.requests))


@pytest.mark.breaks("refusal", perhaps=True)
@pytest.mark.parametrize("calls", [0, 1])
async def test_what_its_own_calls_brought_is_refused_with_the_message(
    tmp_path: Path, model: ModelServer, calls: int
) -> None:
    """F-038, L-017: and is no part of what is asked after it."""

    async def page(_caller: Caller, _args: Json) -> object:
        return f"a {BAD} page"

    model.script(*[Calls((Use("page"),))] * calls)
    model.keyed(filtering)
    async with (
        open_house(tmp_path, model.url, gates=[Gate("page", page)]) as house,
        house.working(),
    ):
        await house.incoming("look" if calls else BAD)
        assert "refuses your message" in (await house.said(1))[0]
        await house.incoming("next")
        assert (await house.said(2))[1] == "echo: next"
    assert not shows(model.requests[-1])
    assert [message["role"] for message in model.requests[-1].messages] == ["system", "user"]


DUE = event("scheduled_task", "task_1", f"a {BAD} task")


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("hello", "hello"),
        (f"{DUE}\n\n{DUE}\n\nhello", "hello"),
        (DUE, DUE),
        ("<room_context>\nBen (@b:x): a\n</room_context>\nAnn (@a:x): b", "Ann (@a:x): b"),
        (
            f"{DUE}\n\n<replied_to>\nyou: a\n</replied_to>\nb",
            "<replied_to>\nyou: a\n</replied_to>\nb",
        ),
    ],
)
def test_of_a_bare_message_stays_what_its_author_said(said: str, left: str) -> None:
    """F-038: with what they reply to."""
    cast = Cast("c", "b", "$1", "e", said, "owner", {}, "running", None, None, NOON, (), "block")
    assert bared(cast) == cast
    shown = bared(replace(cast, bare=True))
    assert (shown.intent, shown.block) == (left, "")


def test_what_failed_or_was_refused_stands_where_it_was_tried_again_or_nowhere() -> None:
    """F-038, F-060, L-017: whatever was begun and ended between."""
    rows: list[tuple[str | None, str | None]]
    rows = [("$1", "model_unavailable"), ("$2", "text"), ("$1", None), ("$3", "content_refused")]
    rows += [("$4", "given_up"), ("$5", "stopped"), ("$6", "model_unavailable"), (None, "text")]
    base = Cast("", "b", None, "e", "", "owner", {}, "running", None, None, NOON)
    casts = [replace(base, id=f"{n}", event_id=e, reason=r) for n, (e, r) in enumerate(rows)]
    assert [cast.id for cast in shown_casts(casts)] == ["1", "2", "5", "7"]
    turn = Turn("t", None, "half", (), "stop", 1, 1)
    casts[0] = replace(casts[0], turns=(turn,))
    assert [cast.id for cast in shown_casts(casts)] == ["1", "0", "2", "5", "7"]
