"""Answers that grow in Matrix rooms: one message whatever happens, which rings once."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.test_scopes_at_the_door import come_in
from tests.world.bot import Bot
from tests.world.clock import HeldClock
from tests.world.desk import ROOM
from tests.world.model import Calls, Drip, Fail, Hang, ModelServer, Slow, Text, Use
from tests.world.person import Person
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import NewBot, NewCurrent, NewPerson, NewRoom
from tests.world.user import Json, Message
from wintermute.conversation import words
from wintermute.mailbox.growing import REFUSED_EDIT
from wintermute.mailbox.inbox import Waiting
from wintermute.matrix.content import GROWS_MOST, grown, json_size, parts
from wintermute.matrix.drafts import MOST_EDITS, DraftRow, Drafts
from wintermute.matrix.outbox import BURST, PER_SECOND, Pace

WORDS = "These words come one by one, and a person sees them as they come, until all are there."
LIVE = "org.matrix.msc4357.live"
ASKED = Waiting(
    *(1, "$asked", "talk", ROOM, "@ann:here", "ann", "owner", "message", "why?", True, "casting"),
    *(None, HeldClock().now(), HeldClock().now()),
)


@dataclass(frozen=True, slots=True)
class GrowingTalk:
    """A person who has asked something in a chat, and a model that says a word for each release."""

    person: Person
    daemon: Bot
    chat: str
    gate: asyncio.Semaphore

    async def first(self, text: str = "These words come one by") -> Message:
        """The draft, once it is there."""
        wanted: Callable[[Message], bool] = lambda m: m.sender == self.daemon.user_id  # noqa: E731
        found = await self.person.wait_for(self.chat, lambda m: wanted(m) and m.body == text)
        assert found.content[LIVE] == {}
        return found

    async def say(self, count: int) -> None:
        """Let the model say so many words more."""
        for _ in range(count):
            self.gate.release()

    def texts(self) -> list[str]:
        """Texts of the bot's events in order, edits marked by `* `."""
        return [m.body.strip() for m in self.person.messages(self.chat, self.daemon.user_id)]

    async def ends(self, *wanted: str) -> Sequence[Message]:
        """Wait until these are the last texts of the bot, in this order; the homeserver's events."""
        await self.person.until(
            lambda: self.texts()[-len(wanted) :] == [*wanted], what=f"{wanted}, not {self.texts()}"
        )
        await self.daemon.said_all()
        history = await self.person.history(self.chat)
        return [event for event in history if event.sender == self.daemon.user_id]


async def asked(
    person: Person,
    daemon: Bot,
    chat: str,
    model: ModelServer,
    drip: Drip = Drip(WORDS),  # noqa: B008
    begun: int = 5,
) -> GrowingTalk:
    """Ask, and let the model begin."""
    gate = asyncio.Semaphore(begun)
    model.script(replace(drip, gate=gate))
    await person.send(chat, "hello")
    return GrowingTalk(person, daemon, chat, gate)


def only_edits(events: Sequence[Message], of: Message) -> list[Json]:
    """The contents that were given an event, where all other events are edits of it."""
    relations = [e.content.get("m.relates_to") for e in events if e.event_id != of.event_id]
    assert relations == [{"rel_type": "m.replace", "event_id": of.event_id}] * len(relations)
    return [e.content["m.new_content"] for e in events if "m.new_content" in e.content]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_an_answer_grows_and_is_one_message_that_rings_once(
    current: NewCurrent, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool
) -> None:
    """X-023, X-024, X-036, X-052, X-053: with a tool between two texts, whose arguments nobody sees."""
    done = asyncio.Event()
    ann = await current("ann", strict=True)
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    before = await ann.rings(chat)
    calls = (Use("call_agent", {"intent": "a secret errand"}),)
    talk = await asked(ann, daemon, chat, model, Drip(WORDS, calls=calls))
    first = await talk.first()
    found = Calls((Use("done", {"answer": "found"}),))
    model.script(Slow(done, found), Drip(f"{WORDS} And more.", talk.gate))
    await talk.say(13)
    await ann.until(lambda: "\N{GEAR} working on a part of it …" in talk.texts()[-1])
    done.set()
    await model.request_arrived(3)
    await talk.say(20)
    events = await talk.ends(f"* {WORDS} And more.")
    shown = only_edits(events, first)
    assert all(content["body"].strip() for content in shown)
    assert [LIVE in content for content in shown] == [True] * (len(shown) - 1) + [False]
    assert not any("m.relates_to" in content or "secret" in content["body"] for content in shown)
    assert LIVE not in events[-1].content
    assert {*await ann.rings(chat)} - {*before} == {first.event_id}
    rows = daemon.rows("SELECT body, kind, grows, continues FROM outbox ORDER BY seq")
    assert [(row["body"] == "", row["kind"]) for row in rows] == [(True, "event"), (False, "reply")]
    await ann.react(chat, first.event_id, "\N{THUMBS UP SIGN}")  # it stands for the answer
    await daemon.until(lambda: len(daemon.rows("SELECT * FROM rewards WHERE value = 1")) == 1)


async def test_without_streaming_there_is_nothing_but_the_answer(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-023."""
    ann = await person("ann")
    daemon = await bot(ann, matrix={"streaming": False})
    chat = await room(ann, daemon)
    model.script(Drip(WORDS, interval=0.1))
    await ann.send(chat, "hello")
    await ann.wait_for(chat, lambda m: m.body.strip() == WORDS)
    assert len(await ann.history(chat)) == 2


async def test_what_was_seen_of_an_answer_that_is_stopped_stays_and_the_model_knows_it(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-062, X-041: marked, and `/stop` says nothing of its own; so does a sign on the draft."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    for stop in ("/stop", ""):
        talk = await asked(ann, daemon, chat, model, Drip(f"Here{stop}: {WORDS}"), 6)
        first = await talk.first(f"Here{stop}: These words come one by")
        await (
            ann.send(chat, stop) if stop else ann.react(chat, first.event_id, "\N{OCTAGONAL SIGN}")
        )
        events = await talk.ends(f"* {first.body} \n\n{words.STOPPED_HERE}")
        only_edits(events[-2:], first)
        await talk.say(20)
        await ann.send(chat, f"next{stop}")
        await ann.wait_for(chat, lambda m, stop=stop: m.body == f"echo: next{stop}")  # type: ignore[misc]
        said = [m["content"] for m in model.requests[-1].messages if m["role"] == "assistant"]
        assert f"{first.body} \n\n{words.STOPPED_HERE}" in said
    assert "Stopped." not in talk.texts()


async def test_what_an_answer_began_with_stays_when_it_is_stopped_after_a_restart(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-062: more of the text is not known then, and the end of it takes nothing away."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    await daemon.kill()
    model.script(Hang())
    await daemon.start()
    await model.request_arrived(2)
    await ann.send(chat, "/stop")
    events = await talk.ends(f"* {first.body}\n\n{words.STOPPED_HERE}")
    only_edits(events, first)
    await ann.send(chat, "next")
    await ann.wait_for(chat, lambda m: m.body == "echo: next")
    said = [m["content"] for m in model.requests[-1].messages if m["role"] == "assistant"]
    assert said[-1].startswith(first.body)


async def test_a_former_answer_gives_way_to_a_new_one_and_to_no_other_words(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-062: an edited question's new answer is an edit; what is said in place of one is none."""
    ann = await person("ann")
    daemon = await bot(ann, llm={"max_retries": 0})
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    await talk.say(30)
    await talk.ends(f"* {WORDS}")
    question = next(m for m in ann.messages(chat) if m.body == "hello")
    daemon.pass_time(61)  # counted from the new text
    model.script(Text("Another answer, to another question."))
    await ann.edit(chat, question.event_id, "hello again")
    events = await talk.ends("* Another answer, to another question.")
    only_edits(events, first)
    model.script(Fail(400, {"error": {"message": "no"}}))
    await ann.edit(chat, question.event_id, "hello once more")
    await ann.until(lambda: len(talk.texts()) > len(events))
    events = await talk.ends(talk.texts()[-1])
    assert events[-2].body == "* Another answer, to another question."
    assert "m.relates_to" not in events[-1].content


async def test_an_answer_that_fails_keeps_its_text_and_the_words_follow_it(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-053, X-038: also when the model is away for longer; then the answer rings of its own."""
    ann = await person("ann")
    daemon = await bot(ann, llm={"max_retries": 0})
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model, Drip(WORDS, breaks=True))
    first = await talk.first()
    await talk.say(20)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before > 0")))
    model.script(Text("It is there again."))
    daemon.pass_time(90)
    await ann.wait_for(chat, lambda m: m.body == "It is there again.")
    events = await talk.ends("It is there again.", f"* {words.BELOW}")
    assert events[0].event_id == first.event_id
    assert all(event.body.strip(" *") for event in events)


async def test_nobody_who_comes_in_sees_more_of_an_answer_that_grows(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-037, F-002 to F-004."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    await come_in(eve, ann, chat)
    await talk.say(30)
    events = await talk.ends(f"* {words.JOINED}")
    assert [content["body"] for content in only_edits(events, first)][-1] == words.JOINED
    assert not any("until all" in event.body for event in events)


async def test_nobody_who_comes_in_sees_what_took_the_place_of_a_former_answer(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-037, X-062: it does not stay as it was when they came."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model, begun=30)
    first = await ann.wait_for(chat, lambda m: m.body.strip() == WORDS)
    question = next(m for m in ann.messages(chat) if m.body == "hello")
    gate = asyncio.Semaphore(6)
    model.script(Drip(f"Anew: {WORDS}", gate))
    await ann.edit(chat, question.event_id, "hello again")
    await ann.until(lambda: talk.texts()[-1] == "* Anew: These words come one by")
    await come_in(eve, ann, chat)
    only_edits(await talk.ends(f"* {words.JOINED}"), first)


async def test_a_late_answer_is_a_message_of_its_own_and_a_long_one_goes_on_in_more(
    current: NewCurrent, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-038, X-052: the draft of the late one says so; both ring."""
    ann = await current("ann", strict=True)
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    before = {*await ann.rings(chat)}
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    assert {*await ann.rings(chat)} - before == {first.event_id}
    daemon.pass_time(61)
    await talk.say(30)
    events = await talk.ends(WORDS, f"* {words.BELOW}")
    assert events[-2].event_id in await ann.rings(chat)
    long = "\n\n".join(f"Long: {WORDS} Number {n}." for n in range(200))
    talk = await asked(ann, daemon, chat, model, Drip(long), 6)
    second = await talk.first("Long: These words come one by")
    await talk.say(5_000)
    await ann.wait_for(chat, lambda m: "Number 199" in m.body)
    await daemon.said_all()
    whole = [e for e in await ann.history(chat) if e.sender == daemon.user_id][len(events) :]
    answer = [e for e in whole if e.event_id != second.event_id and LIVE not in e.content]
    bodies = [answer[0].content["m.new_content"]["body"], *(e.body for e in answer[1:])]
    assert answer[0].content["m.relates_to"]["event_id"] == second.event_id
    assert "\n\n".join(bodies).split() == long.split()


@pytest.mark.parametrize("last_only", [False, True], ids=["each", "last"])
async def test_no_answer_is_lost_with_edits_that_are_refused(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy, model: ModelServer, last_only: bool
) -> None:
    """X-039: it is a message of its own then."""

    def refuse(request: Request) -> Action:
        is_edit = request.method == "PUT" and b'"m.replace"' in request.body
        is_refused = is_edit and not (last_only and LIVE.encode() in request.body)
        return Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"}) if is_refused else None

    proxy.before = refuse
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    await talk.say(6)
    if last_only:
        await ann.until(lambda: len(talk.texts()) == 2)
    else:
        refused = "SELECT 1 FROM outbox WHERE problem = ?"
        await daemon.until(lambda: bool(daemon.rows(refused, REFUSED_EDIT)))
    await talk.say(30)
    events = await talk.ends(WORDS)
    assert events[0].event_id == first.event_id
    assert len(events) == 2 + last_only
    assert not daemon.rows("SELECT 1 FROM outbox WHERE state <> 'sent'")


async def test_an_edit_that_may_come_late_goes_again_before_the_answer(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy, model: ModelServer
) -> None:
    """X-036, X-037: by the same transaction id, so that it cannot undo the answer."""
    is_whole = asyncio.Event()

    def fail(request: Request) -> Action:
        is_edit = request.method == "PUT" and b'"m.replace"' in request.body
        return Answer(504, b"<html>") if is_edit and not is_whole.is_set() else None

    proxy.before = fail
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    await talk.first()
    await talk.say(6)
    edits: Callable[[], list[Request]] = lambda: [  # noqa: E731
        r for r in proxy.seen("PUT", "/send/") if b'"m.replace"' in r.body
    ]
    await daemon.until(lambda: bool(edits()))
    await talk.say(30)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE kind = 'reply'")))
    is_whole.set()
    await talk.ends(f"* {WORDS}")
    paths = [r.path for r in edits()]
    assert len(paths) >= 3
    assert paths == [paths[0]] * (len(paths) - 1) + [paths[-1]]


async def test_an_answer_that_was_kept_back_rings_when_the_room_is_private_again(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy, model: ModelServer
) -> None:
    """X-052, F-002: Eve comes in between the end of the answer and its last edit, and leaves."""
    eve_is_there = asyncio.Event()

    def fail(request: Request) -> Action:
        is_last = b'"m.replace"' in request.body and b"until all" in request.body
        refuses = request.method == "PUT" and is_last and not eve_is_there.is_set()
        return Answer(502, {"errcode": "M_UNKNOWN", "error": "away"}) if refuses else None

    proxy.before = fail
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    talk = await asked(ann, daemon, chat, model)
    first = await talk.first()
    await talk.say(30)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE continues <> ''")))
    await come_in(eve, ann, chat)
    eve_is_there.set()
    await ann.wait_for(chat, lambda m: m.body == f"* {words.WITHHELD}")
    await eve.leave(chat)
    await ann.send(chat, "alone again?")
    await ann.wait_for(chat, lambda m: m.body.strip() == WORDS)
    assert "m.relates_to" not in next(
        m.content for m in ann.messages(chat) if m.body.strip() == WORDS
    )
    assert not any("until all" in m.body for m in eve.messages(chat))
    assert first.event_id != ann.messages(chat)[-1].event_id


STEADY = [0.8, 1.8, 2.8, 4.8, 6.8, 9.8, 13.8, 18.8, 25.8, 35.8, 45.8, 55.8]


def went_out(pieces: dict[float, str], seconds: float) -> list[tuple[float, str]]:
    """Times and texts of what goes out, of pieces that come at these seconds; "⚙" is a tool."""
    clock, found = HeldClock(), list[tuple[float, str]]()
    drafts, begun = Drafts(clock, shows=True), clock.monotonic()
    drafts.attend(ASKED)
    for tick in range(int(seconds * 10) + 1):
        for piece in filter(None, [pieces.get(tick / 10)]):
            rings = drafts.use("talk", "reading a file") if piece == "⚙" else None
            rings = drafts.say("talk", "" if piece == "new" else piece) if rings is None else rings
            assert not rings or (rings == ROOM and drafts.growing() == [("talk", ROOM)])
        if drafts.due_in(("talk", ROOM)) == 0:
            growth = drafts.at(("talk", ROOM))
            assert growth is not None
            found.append((round(clock.monotonic() - begun, 1), drafts.text(growth)))
            drafts.show_in("talk", DraftRow("out_1", "cast_1", ""))
            drafts.went_out("talk", growth)
        clock.advance(0.1)
    assert drafts.shown(ASKED) or not found
    return found


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
        assert grown(text) == (first, True)
        assert len("".join("".join(pieces).split())) >= len("".join(text.split()))


def test_answers_that_grow_leave_something_over_for_those_that_end() -> None:
    """X-039: once the homeserver limits, and signs leave more."""
    pace = Pace()
    for _ in range(3 * BURST):
        assert pace.edit(0.0) == 0
        pace.sent(0.0)
    pace.slowed(0.0)
    wait = pace.edit(0.0)
    assert 1 / PER_SECOND <= wait < pace.sign(0.0)
    assert pace.edit(wait) == 0
    assert pace.sign(wait) > 0
