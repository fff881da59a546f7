"""Ends of answers: in doubt, without a last word, or not at all (F-045, F-062, F-063, F-071)."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import backend
from tests.world.clock import FakeClock
from tests.world.house import ROOM, WARDS, Gate, House, house_at_work, open_house
from tests.world.model import Calls, Cut, Events, Hang, ModelServer, Step, Text, Use
from tests.world.redacted import take_back
from wintermute.config.schema import Llm, Roles
from wintermute.conversation import replies
from wintermute.conversation.view import CUT_OFF
from wintermute.llm.backend import patience
from wintermute.llm.wire import AnswerParser
from wintermute.messages import BROKEN_OFF, CUT, ENDLESS, Json, Usage

MOST = 50
USE: Json = {"index": 0, "id": "a", "function": {"name": "echo", "arguments": '{"say": "x"}'}}


def delta(finish: str | None = None, **said: Any) -> Json:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


def fed(*events: Json | str) -> AnswerParser:
    gathering = AnswerParser(offered={"echo": {}})
    for event in events:
        line = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        gathering.feed(f"{line}\n\n".encode())
    return gathering


DONE, HERE = "data: [DONE]", ": here"
SAID, CALL, ENDED = delta(content="so"), delta(tool_calls=[USE]), delta("stop")
EMPTY = (delta(), delta(content=""), delta(tool_calls=[{"index": 0}]), HERE)
REASONS = (None, "stop", "tool_calls", "length", "content_filter", "SAFETY")
NO_YES, COUNTS = (False, True), (0, MOST - 1, MOST, MOST + 1)


def test_what_puts_the_end_of_an_answer_in_doubt() -> None:
    """F-071, F-045, L-018: its reason, [DONE], its tokens, calls, and an earlier answer that ended."""
    for finish, done, used, calls, before in product(REASONS, NO_YES, COUNTS, NO_YES, NO_YES):
        last = delta(finish) | {"usage": {"completion_tokens": used}}
        answer = fed(SAID, *[CALL] * calls, last, *[DONE] * done).answer(str, MOST, named=before)
        is_open = finish is None and not done
        doubt = finish in ("length", "content_filter", "SAFETY") or used == MOST
        assert (answer.finish_reason in BROKEN_OFF) == (doubt or (is_open and before))
        assert (answer.finish_reason in (CUT, ENDLESS)) == (is_open and used != MOST)
        assert (answer.text, len(answer.calls)) == ("so", calls)


def test_how_long_is_waited_for_more() -> None:
    """F-017, F-062, F-063: `since` something was said, but for comments and empty events."""
    rows: list[tuple[tuple[Json | str, ...], float, float]] = [
        ((SAID,), 0, 300),
        ((SAID, *EMPTY), 1000, 200),
        ((SAID, ENDED), 0, 5),
        ((SAID, ENDED, {"usage": {"completion_tokens": 9}}), 4, 1),
        ((SAID, ENDED, DONE, HERE), 0, 0.3),
    ]
    for events, since, left in rows:
        assert patience(fed(*events), backend(""), since, 0) == pytest.approx(since + left), events
        assert fed(*events, *EMPTY).heard == fed(*events).heard


BOTH = Calls((Use("echo"), Use("echo", {"say": "y"})), "Let me.")
CALLED = delta(content="Let me.", tool_calls=[USE, {**USE, "index": 1, "id": "b"}])
DOUBTS: list[tuple[Step, str]] = [
    (replace(BOTH, finish="length"), "length"),
    (replace(BOTH, finish="content_filter"), "content_filter"),
    (replace(BOTH, usage=Usage(9, MOST)), "length"),
    (Events((CALLED,)), CUT),
    (Events((CALLED, ENDED), stay=b": here\n\n"), ""),
]


@pytest.mark.parametrize("again", NO_YES)
@pytest.mark.parametrize(("step", "reason"), DOUBTS)
async def test_calls_of_an_answer_in_doubt_are_not_carried_out(
    tmp_path: Path, model: ModelServer, step: Step, reason: str, again: bool
) -> None:
    """F-071, F-062, F-045: the model is told once; cut off once more, the person reads what there is."""
    gate, cut = Gate(), Events((SAID,))
    model.script(cut, Text("hi"), step, step if again and reason else Text("so"), cut)
    opened = open_house(tmp_path, model.url, gates=[gate], max_output_tokens=MOST, timeout_s=1)
    async with opened as house, house.working():
        for n in range(4):
            await house.incoming(f"{n}")
            said = await house.said(n + 1)
    what = f"Let me.\n\n{replies.BROKEN_OFF[reason]}" if again and reason else "so"
    assert said == ["so", "hi", what, f"so\n\n{replies.BROKEN_OFF[CUT]}"]
    assert len(gate.taken) == (0 if reason else 2)
    assert json.dumps(model.requests[3].messages).count(CUT_OFF) == bool(reason)


def silent(text: str) -> Events:
    return Events((delta(content=text),), stay=True)


async def is_said(house: House, text: str) -> None:
    async def there() -> bool:
        return text in [*await house.spoken(), *house.speaker.drafts]

    await house.until(there)


LAST = f"The last\n\n{replies.BROKEN_OFF['silent']}"
WARD = f"{replies.LIMITS['max_seconds']}\n\nWhat I had so far:\n\nSo far"


@pytest.mark.parametrize(("last", "said"), [(silent("The last"), LAST), (Cut("Never"), "fine")])
async def test_the_last_attempt_that_falls_silent_is_all_there_is(
    tmp_path: Path, model: ModelServer, last: Step, said: str
) -> None:
    """F-063, L-033: nothing of attempts before it, nor of one that breaks off (L-035)."""
    model.script(*[silent("Never")] * 3, last, *[silent("Never")] * 2, Text("fine"), Text("fine"))
    both = {name: backend(model.url, timeout_s=0.4) for name in "ab"}
    llm = Llm(backends=both, roles=Roles(base=("a", "b")), max_retries=1)
    async with house_at_work(tmp_path, None, llm=llm, clock=FakeClock()) as house:
        await house.incoming("go")
        await is_said(house, said)
        await house.incoming("and?")
        await is_said(house, "fine")
        assert "Never" not in str(await house.spoken())
    asked = json.dumps([seen.messages for seen in model.requests])
    assert ("The last" in asked, "Never" in asked) == (said == LAST, False)


async def test_what_one_said_before_it_refused_is_not_said_as_the_silence_of_another(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-063, L-033: an account may be found empty in the middle of an answer."""
    spent = delta(content="Never"), {"error": {"code": "insufficient_quota"}}
    model.script(Events(spent), Hang(), Text("fine"))
    both = {"a": backend(model.url), "b": backend(model.url, first_token_s=0.4)}
    llm = Llm(backends=both, roles=Roles(base=("a", "b")), max_retries=0)
    async with house_at_work(tmp_path, None, llm=llm, clock=FakeClock()) as house:
        await house.incoming("go")
        assert (await house.said(1))[-1] == "fine"


@pytest.mark.parametrize("end", ["ward", "redact", "edit", "/stop", "join"])
async def test_a_ward_leaves_what_there_is_and_who_does_not_want_it_nothing(
    tmp_path: Path, model: ModelServer, end: str
) -> None:
    """F-063, F-027, L-054, L-023, F-004: what was said is known later, what was not is not."""
    model.script(silent("So far"))
    wards = replace(WARDS, max_seconds=1.5 if end == "ward" else 60)
    async with house_at_work(tmp_path, model.url, wards=wards) as house:
        event = await house.incoming("go")
        await is_said(house, "So far")
        if end == "redact":
            await take_back(house, event)
        elif end == "join":
            async with house.database.transaction() as tx:
                [left] = await house.conversations.rescope(tx, ROOM, f"room:{ROOM}")
            house.rooms.wake(left)
        elif end != "ward":
            await house.incoming(end, edits=event if end == "edit" else None)
        await house.settled()
        said = {"ward": WARD, "edit": "echo: edit", "/stop": "Stopped.", "join": replies.JOINED}
        assert await house.spoken() == [text for how, text in said.items() if how == end]
        turns = await house.rows("SELECT utterance FROM turns")
        assert ({"utterance": "So far"} in turns) == (end == "ward")
