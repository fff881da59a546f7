"""Answers that grow in Matrix rooms: one message whatever happens, which rings once."""

import asyncio
from collections.abc import Callable

import pytest

from tests.tiers import tiered
from tests.world.chats import come_in
from tests.world.drafts import LIVE, WORDS, GrowingTalk, only_edits, went_out
from tests.world.model import Calls, Drip, Fail, Hang, ModelServer, Slow, Text, Use
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import JS, Scene
from wintermute.conversation import replies
from wintermute.mailbox.streaming import REFUSED_EDIT
from wintermute.matrix.content import GROWS_MOST, json_size, parts, streamed_part
from wintermute.matrix.drafts import MOST_EDITS
from wintermute.matrix.outbox import BURST, PER_SECOND, RateLimiter


@pytest.mark.parametrize("encrypted", tiered({"plain": False, "encrypted": True}, ["plain"]))
async def test_an_answer_grows_and_is_one_message_that_rings_once(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-023, X-024, X-036, X-052, X-053: with a tool between two texts, whose arguments nobody sees."""
    done = asyncio.Event()
    talk = await GrowingTalk.of(scene, model, JS, encrypted=encrypted)
    before = await talk.rings()
    first = await talk.grow(Drip(WORDS, calls=(Use("call_agent", {"intent": "a secret errand"}),)))
    found = Calls((Use("done", {"answer": "found"}),))
    model.script(Slow(done, found), Drip(f"{WORDS} And more.", talk.gate))
    talk.say(13)
    await talk.until(lambda: "\N{GEAR} working on a part of it …" in talk.texts()[-1])
    done.set()
    await model.request_arrived(3)
    talk.say(20)
    events = await talk.ends(f"* {WORDS} And more.")
    shown = only_edits(events, first)
    assert all(content["body"].strip() for content in shown)
    assert [LIVE in content for content in shown] == [True] * (len(shown) - 1) + [False]
    assert not any("m.relates_to" in content or "secret" in content["body"] for content in shown)
    assert LIVE not in events[-1].content
    assert await talk.rings() - before == {first.event_id}
    rows = talk.daemon.rows("SELECT body, kind, grows, continues FROM outbox ORDER BY seq")
    assert [(row["body"] == "", row["kind"]) for row in rows] == [(True, "event"), (False, "reply")]
    await talk.person.react(talk.chat, first.event_id, "\N{THUMBS UP SIGN}")  # it is the answer
    await talk.daemon.until(lambda: bool(talk.daemon.rows("SELECT 1 FROM rewards WHERE value = 1")))


async def test_without_streaming_there_is_only_the_answer(scene: Scene, model: ModelServer) -> None:
    """X-023."""
    talk = await GrowingTalk.of(scene, model, matrix={"streaming": False})
    model.script(Drip(WORDS, interval=0.06))
    await talk.person.send(talk.chat, "hello")
    assert len(await talk.ends(WORDS)) == 1


async def test_what_was_seen_of_an_answer_that_is_stopped_stays_and_the_model_knows_it(
    scene: Scene, model: ModelServer
) -> None:
    """X-062, X-041: marked, and nothing else is said; after a restart no more of it is known."""
    talk = await GrowingTalk.of(scene, model)
    ann, daemon, chat = talk.person, talk.daemon, talk.chat
    for how in ("stopped", "marked", "restarted"):
        first = await talk.grow(Drip(f"{how}: {WORDS}"), 6)
        if how == "restarted":
            begun = len(model.requests)
            await daemon.kill()
            model.script(Hang())
            await daemon.start()
            await model.request_arrived(begun + 1)
        if how == "marked":
            await ann.react(chat, first.event_id, "\N{OCTAGONAL SIGN}")
        else:
            await ann.send(chat, "/stop")
        text = first.body + " " * (how != "restarted")
        only_edits((await talk.ends(f"* {text}\n\n{replies.STOPPED_HERE}"))[-2:], first)
        talk.say(20)
        await ann.send(chat, f"next after {how}")
        await talk.ends(f"echo: next after {how}")
        said = [m["content"] for m in model.requests[-1].messages if m["role"] == "assistant"]
        assert f"{text}\n\n{replies.STOPPED_HERE}" in said
    assert "Stopped." not in talk.texts()


@pytest.mark.parametrize("encrypted", tiered({"plain": False, "encrypted": True}, ["plain"]))
async def test_a_former_answer_gives_way_to_a_new_one_and_to_no_other_words(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-062, X-037: the new one is an edit, of which nobody who comes in sees more; an error is none."""
    talk = await GrowingTalk.of(scene, model, encrypted=encrypted, llm={"max_retries": 0})
    first = await talk.grow()
    talk.say(30)
    await talk.ends(f"* {WORDS}")
    talk.daemon.pass_time(61)  # counted from the new text
    model.script(Text("Another answer, to another question."))
    await talk.person.edit(talk.chat, talk.asked, "hello again")
    only_edits(await talk.ends("* Another answer, to another question."), first)
    model.script(Fail(400, {"error": {"message": "no"}}))
    known = len(talk.ours())
    await talk.person.edit(talk.chat, talk.asked, "hello once more")
    await talk.person.until(lambda: len(talk.ours()) > known)
    *_, former, told = await talk.ends(talk.texts()[-1])
    assert former.body == "* Another answer, to another question."
    assert "m.relates_to" not in told.content
    second = await talk.grow(Drip(f"Again: {WORDS}"))
    talk.say(30)
    known = len(await talk.ends(f"* Again: {WORDS}"))
    talk.begin(Drip(f"Anew: {WORDS}"), 6)
    await talk.person.edit(talk.chat, talk.asked, "hello anew")
    await talk.grown("* Anew: These words come one by")
    await come_in(await scene.person("eve"), talk.person, talk.chat)
    only_edits((await talk.ends(f"* {replies.JOINED}"))[known:], second)


async def test_a_late_answer_is_a_message_of_its_own_and_a_long_one_goes_on_in_more(
    scene: Scene, model: ModelServer
) -> None:
    """X-038, X-052, X-053: what a model began that then was away stays, and says where it goes on."""
    talk = await GrowingTalk.of(scene, model, JS, llm={"max_retries": 0})
    before = await talk.rings()
    first = await talk.grow(Drip(WORDS, breaks=True))
    assert await talk.rings() - before == {first.event_id}
    talk.say(20)
    later = "SELECT 1 FROM inbox WHERE not_before > 0"
    await talk.daemon.until(lambda: bool(talk.daemon.rows(later)))
    model.script(Text("It is there again."))
    talk.daemon.pass_time(90)
    events = await talk.ends("It is there again.", f"* {replies.BELOW}")
    assert events[0].event_id == first.event_id
    assert events[-2].event_id in await talk.rings()
    assert all(event.body.strip(" *") for event in events)
    long = "\n\n".join(f"Long: {WORDS} Number {n}." for n in range(200))
    second = await talk.grow(Drip(long), 6)
    talk.say(5_000)
    await talk.person.wait_for(talk.chat, lambda m: "Number 199" in m.body)
    whole = (await talk.ends(talk.texts()[-1]))[len(events) :]
    answer = [e for e in whole if e.event_id != second.event_id and LIVE not in e.content]
    bodies = [answer[0].content["m.new_content"]["body"], *(e.body for e in answer[1:])]
    assert answer[0].content["m.relates_to"]["event_id"] == second.event_id
    assert "\n\n".join(bodies).split() == long.split()


@pytest.mark.parametrize("last_only", tiered({"each": False, "last": True}, ["each"]))
async def test_no_answer_is_lost_with_edits_that_are_refused(
    scene: Scene, proxy: Proxy, model: ModelServer, last_only: bool
) -> None:
    """X-039: it is a message of its own then."""

    def refuse(request: Request) -> Action:
        is_edit = request.method == "PUT" and b'"m.replace"' in request.body
        is_refused = is_edit and not (last_only and LIVE.encode() in request.body)
        return Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"}) if is_refused else None

    proxy.before = refuse
    talk = await GrowingTalk.of(scene, model, via=proxy.url)
    first = await talk.grow()
    talk.say(6)
    refused = "SELECT 1 FROM outbox WHERE problem = ?"
    await talk.until(
        lambda: (
            len(talk.ours()) == 2 if last_only else bool(talk.daemon.rows(refused, REFUSED_EDIT))
        )
    )
    talk.say(30)
    events = await talk.ends(WORDS)
    assert events[0].event_id == first.event_id
    assert len(events) == 2 + last_only
    assert not talk.daemon.rows("SELECT 1 FROM outbox WHERE state <> 'sent'")


async def test_an_edit_that_may_come_late_goes_again_before_the_answer(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """X-036, X-037: by the same transaction id, so that it cannot undo the answer."""
    is_whole = asyncio.Event()

    def fail(request: Request) -> Action:
        is_edit = request.method == "PUT" and b'"m.replace"' in request.body
        return Answer(504, b"<html>") if is_edit and not is_whole.is_set() else None

    proxy.before = fail
    talk = await GrowingTalk.of(scene, model, via=proxy.url)
    await talk.grow()
    talk.say(6)
    edits: Callable[[], list[str]] = lambda: [  # noqa: E731
        r.path for r in proxy.seen("PUT", "/send/") if b'"m.replace"' in r.body
    ]
    await talk.daemon.until(lambda: bool(edits()))
    talk.say(30)
    reply = "SELECT 1 FROM outbox WHERE kind = 'reply'"
    await talk.daemon.until(lambda: bool(talk.daemon.rows(reply)))
    is_whole.set()
    await talk.ends(f"* {WORDS}")
    *before, last = edits()
    assert len(before) >= 2
    assert {*before} == {before[0]} - {last}


@pytest.mark.slow
async def test_an_answer_that_was_kept_back_rings_when_the_room_is_private_again(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """X-052, F-002: Eve comes in between the end of the answer and its last edit, and leaves."""
    eve_is_there = asyncio.Event()

    def fail(request: Request) -> Action:
        is_last = b'"m.replace"' in request.body and b"until all" in request.body
        refuses = request.method == "PUT" and is_last and not eve_is_there.is_set()
        return Answer(502, {"errcode": "M_UNKNOWN", "error": "away"}) if refuses else None

    proxy.before = fail
    talk, eve = await GrowingTalk.of(scene, model, via=proxy.url), await scene.person("eve")
    await talk.grow()
    talk.say(30)
    answered = "SELECT 1 FROM outbox WHERE continues <> ''"
    await talk.daemon.until(lambda: bool(talk.daemon.rows(answered)))
    await come_in(eve, talk.person, talk.chat)
    eve_is_there.set()
    await talk.person.wait_for(talk.chat, lambda m: m.body == f"* {replies.WITHHELD}")
    await eve.leave(talk.chat)
    await talk.person.send(talk.chat, "alone again?")
    whole = await talk.person.wait_for(talk.chat, lambda m: m.body.strip() == WORDS)
    assert "m.relates_to" not in whole.content
    assert not any("until all" in m.body for m in eve.messages(talk.chat))


STEADY = [0.8, 1.8, 2.8, 4.8, 6.8, 9.8, 13.8, 18.8, 25.8, 35.8, 45.8, 55.8]


def steadily(characters: int, seconds: int) -> dict[float, str]:
    """So many characters each tenth of a second."""
    return {tick / 10: "x" * (characters - 1) + " " for tick in range(seconds * 10)}


@pytest.mark.parametrize(
    ("pieces", "times"),
    [
        (steadily(3, 50), STEADY),
        (dict.fromkeys(range(60), "y "), [10.0, 20.0, 30.0, 40.0, 50.0]),
        ({0: "x" * 19, 1: "⚙"}, []),
        ({0: "⚙", 1: " \n" * 40}, []),
        ({0: "x" * 30_000, 2: "more " * 20}, [0.8]),
        ({0: "x" * 25}, [0.8]),
    ],
    ids=["steady", "slow", "short", "blank", "large", "one"],
)
def test_the_edits_of_an_answer_slow_down(pieces: dict[float, str], times: list[float]) -> None:
    """X-023: the first event says something, and there are a second and 20 characters in between."""
    found = went_out(pieces, 60)
    assert [at for at, _ in found] == pytest.approx(times, abs=1)
    assert all(text.strip() and len(text.encode()) <= GROWS_MOST for _, text in found)
    assert len(went_out(steadily(1, 1_000), 1_000)) <= MOST_EDITS
    assert len(went_out({1.0 * n: "z" * 21 for n in range(300)}, 400)) <= MOST_EDITS


def test_an_answer_is_never_blank_while_it_is_tried_again_and_names_what_is_done() -> None:
    """X-024, X-053."""
    one, other = "The first attempt at it.", "Another one, and it differs."
    pieces = {0: one, 1.0: "new", 2.0: "Another one", 4.0: other[11:], 6.0: "⚙", 12.0: "new"}
    shown = [text for _, text in went_out(pieces, 30)]
    assert shown == [one, other, f"{other}\n\n\N{GEAR} reading a file …"]


def test_an_edit_has_room_for_saying_it_twice() -> None:
    """X-038: the first part alone is smaller, whatever is in it, and nothing is lost."""
    for text in (
        "plain words " * 3_000,
        "| a | b |\n|---|---|\n" + "| & | < |\n" * 2_000,
        "\u1234" * 20_000,
    ):
        first, *_ = pieces = parts(text, edits=True)
        assert json_size({"body": first}) <= GROWS_MOST * 6
        assert len(first.encode()) <= GROWS_MOST
        assert streamed_part(text) == (first, True)
        assert len("".join("".join(pieces).split())) >= len("".join(text.split()))


def test_answers_that_grow_leave_something_over_for_those_that_end() -> None:
    """X-039: once the homeserver limits, and signs leave more."""
    pace = RateLimiter()
    for _ in range(3 * BURST):
        assert pace.edit_delay(0.0) == 0
        pace.count(0.0)
    pace.note_limit(0.0)
    wait = pace.edit_delay(0.0)
    assert 1 / PER_SECOND <= wait < pace.reaction_delay(0.0)
    assert pace.edit_delay(wait) == 0
    assert pace.reaction_delay(wait) > 0
