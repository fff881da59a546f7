"""Messages that are taken back: nothing of them goes to a model again, and nothing is said (F-027)."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import NOON
from tests.world.delegating import all_over, call, done, objective, reports, spawn, states
from tests.world.house import ANN, CONTEXT, PROMPTS, ROOM, Gate, House, house_at_work, open_house
from tests.world.model import (
    Calls,
    Fail,
    Hang,
    ModelServer,
    Seen,
    Slow,
    Step,
    Text,
    Use,
    is_for_summary,
    own_words,
)
from tests.world.redacted import EVE, GROUP_SCOPE, PASSWORD_WORD, SECRET, is_told, take_back
from wintermute.config.schema import SubSessionSettings
from wintermute.conversation.dispatcher import AT_ONCE, intent, without
from wintermute.mailbox.inbox import InboxRow
from wintermute.matrix.relations import redacted

Json = dict[str, Any]
RAW = {"event_id": "$raw", "sender": ANN, "type": "m.room.encrypted"}


def redaction(**more: Any) -> Json:
    return {"event_id": "$r", "type": "m.room.redaction", "content": {}} | more


@pytest.fixture
def house(working_house: House) -> House:
    return working_house


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (redaction(redacts="$a"), {"$a"}),
        (redaction(content={"redacts": "$a"}), {"$a"}),
        (redaction(redacts="$a", content={"redacts": "$a", "reason": "no"}), {"$a"}),
        (redaction(redacts="$a", content={"redacts": "$b"}), set()),
        (redaction(redacts=["$a"], content={"redacts": {"$a": 1}}), set()),
        (redaction(redacts=["$a"], content={"redacts": "$a"}), {"$a"}),
        (redaction(redacts="", content=None), set()),
        (redaction(redacts="$a" * 200), set()),
        (redaction(redacts="$a\n"), set()),
        (redaction(), set()),
        (redaction(redacts="$a", type="m.room.message"), set()),
        (redaction(type="m.room.message", unsigned={"redacted_because": {}}), {"$r"}),
        (redaction(type="m.room.encrypted", unsigned={"redacted_because": None}), {"$r"}),
        (redaction(redacts="$a", unsigned={"redacted_because": {}}), {"$r"}),
        (redaction(redacts="$a", unsigned="redacted_because"), {"$a"}),
        ({}, set()),
    ],
)
def test_what_an_event_takes_back(event: Json, found: set[str]) -> None:
    """F-027: at the top up to room version 10, in the content since then; or the event itself."""
    assert redacted([event]) == found
    assert redacted([{"type": 5}, event, redaction(redacts="$c")]) == found | {"$c"}


async def test_what_is_taken_back_just_before_it_is_asked_is_not_spoken_of(
    house: House, model: ModelServer
) -> None:
    """F-027: also where others have come since, who are told that the answer was not for them."""
    gate = asyncio.Event()
    model.keyed(lambda _: Slow(gate, Text("ok")))

    async def is_in_line() -> bool:
        return ("attend", ROOM) in house.speaker.noted

    async def is_done() -> bool:
        return ("rest", ROOM) in house.speaker.noted

    for n in range(AT_ONCE):
        await house.incoming("go", room=f"!other{n}")
    await model.request_arrived(AT_ONCE)
    gone = await house.incoming(SECRET)
    await house.until(is_in_line)
    async with house.database.transaction() as tx:
        await house.conversations.in_room(tx, ROOM, GROUP_SCOPE)
    await take_back(house, gone)
    gate.set()
    await house.until(is_done)
    row = await house.one("SELECT state FROM inbox WHERE event_id = ?", gone)
    assert (await house.spoken(), row["state"]) == ([], "ignored")


async def test_what_waits_for_its_turn_is_never_asked(tmp_path: Path, model: ModelServer) -> None:
    """F-027: a message and a command; what was said after them is answered."""
    gate = asyncio.Event()
    model.script(Slow(gate, Text("first")))
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await house.incoming("think")
        await model.request_arrived(1)
        gone = [
            await house.incoming(SECRET),
            await house.incoming(f"/remind tomorrow 9:00 {PASSWORD_WORD}"),
        ]
        await house.incoming("last")
        await take_back(house, *gone)
        gate.set()
        assert await house.said(2) == ["first", "echo: last"]
        assert not any(map(is_told, model.requests))
        assert await house.stores.tasks.listed(f"person:{ANN}") == ()
        rows = await house.rows("SELECT state, body, raw FROM inbox WHERE event_id <> ''")
        assert [row for row in rows if row["state"] == "ignored"] == [
            {"state": "ignored", "body": "", "raw": ""}
        ] * 2


async def test_what_waits_for_a_model_that_is_away_is_not_asked_again(
    house: House, model: ModelServer
) -> None:
    """F-027, L-034: its failed attempts are in no later request."""
    model.script(Fail(503))
    gone = await house.incoming(SECRET)
    await house.until(lambda: _waits(house))
    await take_back(house, gone)
    await house.incoming("hello")
    assert await house.said(1) == ["echo: hello"]
    assert [is_told(seen) for seen in model.requests] == [True, False]


async def _waits(house: House) -> bool:
    return bool(await house.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL"))


@pytest.mark.breaks("redaction")
async def test_an_answer_that_is_being_made_is_broken_off(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027: also what it has handed out, waited for or not; that of others goes on."""
    answer = asyncio.Event()

    def choose(seen: Seen) -> Step | None:
        if asked := objective(seen):
            return Slow(answer, done("found it")) if "kept" in asked else Hang()
        if "<event" in seen.last_user:
            return Text("They found it.")
        if seen.messages[-1]["role"] == "tool":
            return Text("begun")
        if seen.last_user == "go":
            return Calls((spawn("kept"),))
        if PASSWORD_WORD in seen.last_user:
            return Calls((spawn(f"{PASSWORD_WORD} one"), call(f"{PASSWORD_WORD} two")))
        return None

    model.keyed(choose)
    async with house_at_work(tmp_path, model.url, sub_sessions=SubSessionSettings()) as house:
        await house.incoming("go")
        assert await house.said(1) == ["begun"]
        gone = await house.incoming(SECRET)
        sent = 6
        await model.request_arrived(sent)
        await take_back(house, gone)
        await house.incoming("hello")
        assert await house.said(2) == ["begun", "echo: hello"]
        answer.set()
        assert (await house.said(3))[2] == "They found it."
        await all_over(house)
        assert not any(map(is_told, model.requests[sent:]))
        assert await states(house) == {"kept": "done", "": "ended"}
        assert not await house.rows("SELECT 1 FROM casts WHERE state = 'running'")
        for table, columns in KEPT.items():
            assert not [
                row
                for row in await house.rows(f"SELECT {columns} FROM {table}")
                if PASSWORD_WORD in str(row)
            ]


KEPT = {
    "inbox": "body, raw",
    "casts": "intent, result",
    "turns": "utterance, calls",
    "observations": "args, result",
    "sub_sessions": "name, objective, context, result",
    "outbox": "body",
    "edits": "text",
    "folds": "summary",
}


async def test_a_cast_that_is_over_takes_no_further_step_before_its_stop_is_pressed(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027: what a sync has stored counts at once."""
    gate, tool = asyncio.Event(), Gate()
    model.script(Slow(gate, Calls((Use("echo", {"say": PASSWORD_WORD}),))))
    async with house_at_work(tmp_path, model.url, gates=[tool]) as house:
        event_id = await house.incoming(SECRET)
        await model.request_arrived(1)
        cast = await house.casts.running(event_id)
        assert cast is not None
        async with house.database.transaction() as tx:
            await house.casts.end(tx, cast.id, "truncated", "redacted", "")
            await house.inbox.erase_events(tx, [event_id])
        gate.set()
        await house.incoming("hello")
        assert await house.said(1) == ["echo: hello"]
        assert tool.taken == []
        assert len(model.requests) == 2
        assert await house.health.part("casts") is None  # no internal error


@pytest.mark.breaks("redaction")
async def test_what_was_answered_is_shown_as_erased_and_the_answer_stays(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027: also in what is being asked at that moment, which would be asked again; recordings too."""
    model.script(Text("noted"), Text("hello"))
    gate = asyncio.Event()
    model.keyed(lambda s: Slow(gate, Hang()) if s.last_user == "think" and is_told(s) else None)
    async with house_at_work(tmp_path, model.url, record=True, prompts=PROMPTS) as house:
        gone = await house.incoming(SECRET)
        assert await house.said(1) == ["noted"]
        await house.deliver()
        await house.incoming("think")
        await model.request_arrived(2)
        await take_back(house, gone)
        seen = await model.request_arrived(3)
        assert [own_words(m["content"]) for m in seen.messages[1:]] == [
            "[this message was erased]",
            "noted",
            "think",
        ]
        gate.set()
        await house.said(2)
        assert [is_told(each) for each in model.requests] == [True, True, False]
        assert await house.spoken() == ["noted", "hello"]
        kept = await house.rows("SELECT request, answer, detail FROM model_calls")
        assert not [row for row in kept if PASSWORD_WORD in str(row)]
        assert len([row for row in kept if row["request"]]) == 1


@pytest.mark.breaks("fold", "redaction")
async def test_a_summary_of_it_gives_way_to_what_it_summed_up(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027: which is then shown without it; also of what was stopped before a word was said."""
    summary = Text(f"Ann talked of {PASSWORD_WORD} and of the weather, and of nothing else.")
    long = "It was a long day. " * 20
    async with house_at_work(tmp_path, model.url, context=replace(CONTEXT, keep_recent=2)) as house:
        model.script(Hang())
        gone = await house.incoming(SECRET)
        await model.request_arrived(1)
        await house.incoming("/stop")
        await house.said(1)
        for n in range(3):
            await house.incoming(f"{n} {long}")
        await house.said(4)
        model.script(summary)
        await house.incoming("/compact")
        await house.said(5)
        await house.incoming("before")
        await house.said(6)
        assert is_told(model.requests[-1])
        await take_back(house, gone)
        await house.incoming("after")
        await house.said(7)
        assert not is_told(model.requests[-1])
        assert long in str(model.requests[-1].messages)


@pytest.mark.breaks("fold", "redaction")
async def test_a_summary_of_what_only_stood_beside_a_message_gives_way_too(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027: of a line of a group before it; what was asked itself is kept."""
    summary = Text(f"Eve has a {PASSWORD_WORD}.")
    model.keyed(lambda seen: None if is_for_summary(seen.body) else Text("I see."))
    long = "It was a long day. " * 20
    async with house_at_work(tmp_path, model.url, context=replace(CONTEXT, keep_recent=2)) as house:
        about: dict[str, Any] = {
            "sender": EVE,
            "name": "Eve",
            "origin": "other",
            "scope": GROUP_SCOPE,
        }
        gone = await house.incoming(f"my {PASSWORD_WORD}", kind="context", **about)
        for n in range(4):
            await house.incoming(f"{n} {long}", scope=GROUP_SCOPE)
        await house.said(4)
        model.script(summary)
        await house.incoming("/compact", scope=GROUP_SCOPE)
        await house.said(5)
        await house.incoming("before", scope=GROUP_SCOPE)
        await house.said(6)
        assert is_told(model.requests[-1])
        await take_back(house, gone)
        await house.incoming("after", scope=GROUP_SCOPE)
        await house.said(7)
        assert not is_told(model.requests[-1])
        assert f"0 {long.strip()}" in str(model.requests[-1].messages)


@pytest.mark.breaks("redaction")
async def test_a_line_of_a_group_is_in_no_context_any_more(
    house: House, model: ModelServer
) -> None:
    """F-027: before the next message, while that is asked, and afterwards; the other lines stay."""
    gate = asyncio.Event()

    async def line(text: str) -> str:
        return await house.incoming(
            text, sender=EVE, name="Eve", origin="other", kind="context", scope=GROUP_SCOPE
        )

    early = await line(f"{PASSWORD_WORD} early")
    kept = [await line(f"fine\n{PASSWORD_WORD.upper()}"), await line("fine")]
    late = [
        await line(f"{PASSWORD_WORD} late\nand more"),
        await line("fine"),
        await line("so fine"),
    ]
    await take_back(house, early)
    model.script(Slow(gate, Text("never")), Text("now"))
    await house.incoming("ben: tell", scope=GROUP_SCOPE)
    first = await model.request_arrived(1)
    assert first.last_user.count("fine") == 4
    assert "late" in first.last_user
    assert "early" not in first.last_user
    await take_back(house, *late[:2])
    second = await model.request_arrived(2)
    lines = [
        "<room_context>",
        f"Eve ({EVE}): fine",
        f"  {PASSWORD_WORD.upper()}",
        f"Eve ({EVE}): fine",
    ]
    lines += [f"Eve ({EVE}): so fine", "</room_context>", f"Ann ({ANN}): ben: tell"]
    assert second.last_user.splitlines() == lines
    assert await house.said(1) == ["now"]
    await take_back(house, *kept, late[2])
    await house.incoming("again", scope=GROUP_SCOPE)
    await house.said(2)
    shown = model.requests[-1].messages[1]["content"]
    assert shown == f"<room_context>\n</room_context>\nAnn ({ANN}): ben: tell"
    gate.set()


@pytest.mark.breaks("redaction")
async def test_a_reply_does_not_quote_what_was_taken_back(house: House, model: ModelServer) -> None:
    """F-027, F-026: before it is asked, while it is, and afterwards."""
    gate = asyncio.Event()
    model.script(Text("noted"), Text("so"), Slow(gate, Text("never")), Text("now"))
    gone = await house.incoming(SECRET)
    await house.said(1)
    await house.incoming("what of that?", replies_to=gone)
    await house.said(2)
    await house.incoming("and of that?", replies_to=gone)
    assert str((await model.request_arrived(3)).messages).count(PASSWORD_WORD) == 3
    await take_back(house, gone)
    seen = await model.request_arrived(4)
    assert not is_told(seen)
    quote = "<replied_to>\n[deleted]\n</replied_to>\n"
    asked = [m["content"] for m in seen.messages[1:] if m["role"] == "user"]
    assert asked[1:] == [f"{quote}what of that?", f"{quote}and of that?"]
    await house.said(3)
    await house.incoming("once more?", replies_to=gone)
    await house.said(4)
    assert f"Ann ({ANN}): [deleted]" in model.requests[-1].last_user
    assert not is_told(model.requests[-1])
    gate.set()


@pytest.mark.parametrize("which", ["message", "edit"])
async def test_edits_are_versions_of_what_is_taken_back(
    house: House, model: ModelServer, which: str
) -> None:
    """F-027, L-054: with a message all its edits go, noted ones too; an edit is taken back alone."""
    first = await house.incoming("what is the weather?")
    await house.said(1)
    model.script(Hang())
    edit = await house.incoming(f"what is {PASSWORD_WORD}?", edits=first)
    await model.request_arrived(2)
    async with house.database.transaction() as tx:
        conversation = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
        await house.stores.edits.note(
            tx, "$noted", first, conversation, ANN, f"{PASSWORD_WORD} noted"
        )
    await take_back(house, *([first] if which == "message" else [edit, "$noted"]))
    await house.incoming("hello")
    assert (await house.said(2))[1] == "echo: hello"
    assert not is_told(model.requests[-1])
    rows = await house.rows("SELECT body FROM inbox UNION ALL SELECT text FROM edits")
    texts = {row["body"] for row in rows}
    assert texts == {"", "hello"} | ({"what is the weather?"} if which == "edit" else set())


@pytest.mark.breaks("redaction")
async def test_an_answer_that_is_not_sent_yet_is_not_sent_unless_it_has_begun(
    house: House, model: ModelServer
) -> None:
    """F-027: its homeserver was away; with the question it is in no later request."""
    gone = [await house.incoming(f"{SECRET} {n}") for n in range(3)]
    await house.said(3)
    one = await house.next_outgoing()
    assert one is not None
    parts = [(f"wm-{one.id}-{n}", {"body": PASSWORD_WORD}) for n in range(2)]
    [begun, _] = await house.outbox.store_parts(one.id, parts, "DEVICE")
    await house.outbox.mark_sent(begun, "$there")
    await take_back(house, *gone)
    assert await house.next_outgoing() == one
    states = await house.rows("SELECT state, body <> '' AS said FROM outbox ORDER BY seq")
    assert [(row["state"], row["said"]) for row in states] == [
        ("waiting", 1),
        ("sent", 0),
        ("sent", 0),
    ]
    await house.incoming("hello")
    await house.said(4)
    shown = [m["content"] for m in model.requests[-1].messages[1:] if m["role"] == "user"]
    assert shown == ["[this message was erased]"] * 3 + ["hello"]
    assert str(model.requests[-1].messages).count(PASSWORD_WORD) == 1


async def test_a_stop_or_a_sign_that_is_taken_back_counts_all_the_same(tmp_path: Path) -> None:
    """F-027, X-026: and what is not known, or of another room, is nothing."""
    async with open_house(tmp_path, None) as house:
        stop = await house.incoming(f"/stop {PASSWORD_WORD}")
        sign = await house.incoming("/stop", raw={"type": "m.reaction"})
        other = await house.incoming("hello", room="!other:test")
        before = await house.rows("SELECT * FROM inbox")
        await take_back(house, stop, sign, other, "$unknown")
        assert await house.rows("SELECT * FROM inbox") == before
        async with house.working():
            await house.said(1)
            await house.settled()
        await take_back(house, stop)
        assert PASSWORD_WORD not in str(await house.rows("SELECT body, raw FROM inbox"))


async def test_the_first_message_may_be_taken_back_while_its_chat_is_opened(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, P-055: the seed is answered, the message is not."""
    gate = asyncio.Event()
    model.script(Slow(gate, Text("welcome")))
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS, language="en") as house:
        gone = await house.incoming(SECRET)
        await model.request_arrived(1)
        await take_back(house, gone)
        gate.set()
        assert await house.said(1) == ["welcome"]
        await house.incoming("hello")
        assert (await house.said(2))[1] == "echo: hello"
        assert not any(map(is_told, model.requests))


async def test_what_cannot_be_decrypted_yet_goes_with_its_place(tmp_path: Path) -> None:
    """F-027, X-021: when its key comes it is nothing."""
    async with open_house(tmp_path, None) as house:
        async with house.database.transaction() as tx:
            conversation = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
            await house.inbox.store_locked(tx, conversation, ROOM, "$locked", RAW)
        await take_back(house, "$locked")
        assert await house.inbox.locked() == []
        async with house.database.transaction() as tx:
            await house.inbox.store_locked(tx, conversation, ROOM, "$locked", RAW)
        assert await house.inbox.locked() == []


@pytest.mark.breaks("redaction")
async def test_who_depends_on_what_is_taken_back_is_told_only_that_it_failed(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-027, L-064: nothing that the message asked for is in it."""
    model.keyed(_dependent)
    async with house_at_work(tmp_path, model.url, sub_sessions=SubSessionSettings()) as house:
        gone = await house.incoming(SECRET)
        assert await house.said(1) == ["begun"]
        await house.incoming("go")
        await house.said(2)
        sent = len(model.requests)
        await take_back(house, gone)
        assert (await house.said(3))[2] == "told"
        [told] = await reports(house)
        assert "dependency failed: sub_" in told
        assert PASSWORD_WORD not in told
        assert not any(map(is_told, model.requests[sent:]))


def _dependent(seen: Seen) -> Step | None:
    """The first message spawns what hangs, the second what builds on it."""
    if objective(seen):
        return Hang()
    if "<event" in seen.last_user:
        return Text("told")
    results = [m["content"] for m in seen.messages if m["role"] == "tool"]
    if seen.messages[-1]["role"] == "tool":
        return Text("begun")
    if seen.last_user == "go":
        return Calls((spawn("build", depends_on=[re.findall("sub_[0-9a-f]{8}", results[0])[0]]),))
    return Calls((spawn("look", name=PASSWORD_WORD),)) if PASSWORD_WORD in seen.last_user else None


def line_of_eve(body: str, name: str = "Eve") -> InboxRow:
    """A line that Eve said in a group."""
    where = (1, "$1", "c", ROOM, EVE, name, "other", "context", body, False, "ignored")
    return InboxRow(*where, None, NOON, NOON)  # type: ignore[arg-type]  # the literals


LINES = ["one", "two\n\nof two", "one", "one\nmore", "<room_context>", "[a] (@b:c): one"]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", ["Eve", "", "E (v) e"])
def test_a_line_is_taken_out_of_what_was_said_before(line: str, name: str) -> None:
    """F-027: once, whole, and nothing that only looks like it."""
    asked = replace(line_of_eve("one", "Ann"), sender=ANN)
    lines = [line_of_eve(each, name) for each in LINES]
    whole = intent(asked, lines, "[written]")
    at = LINES.index(line)
    left = intent(asked, lines[:at] + lines[at + 1 :], "[written]")
    assert without(whole, line_of_eve(line, name)) == left
    assert without(whole, line_of_eve("on", name)) is None
    assert (without(left, line_of_eve(line, name)) is None) == (
        line != "one"
    )  # which was said twice
    assert without(intent(asked, ()), line_of_eve("one")) is None


def test_a_line_that_is_not_kept_takes_all_of_its_sender_along() -> None:
    """F-027, F-030: it is not known any more what it was."""
    asked = replace(line_of_eve("one", "Ann"), sender=ANN)
    others = [
        replace(line_of_eve(f"to {EVE}: (she)\n{EVE}: hi", "Ben"), sender=who)
        for who in (ANN, "@b")
    ]
    mixed = [
        line_of_eve("one"),
        others[0],
        line_of_eve("two\nof two", ""),
        line_of_eve("three"),
        others[1],
    ]
    assert without(intent(asked, mixed), line_of_eve("", "")) == intent(asked, others)
