"""The mark in what we say: only we can make it, for one room, and a person's words are a person's (F-006)."""

import json
import logging
from itertools import permutations
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.bot import Bot
from tests.world.chats import planning
from tests.world.malformed import ODD
from tests.world.person import Person
from tests.world.reading import BOT, EVE
from tests.world.scene import Scene
from tests.world.user import CLIENT
from wintermute.clock import moment
from wintermute.errors import ConfigurationError
from wintermute.mailbox.outbox import Outgoing
from wintermute.matrix.inbox import OUTBOX_KEY
from wintermute.matrix.message_tags import (
    MessageTag,
    MessageTags,
    OpenRequest,
    answered_requests,
    load_message_tags,
    secret_tag_key,
)
from wintermute.matrix.signing import MARKS, open_to_others
from wintermute.messages import Json
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.occurrences import cause

ROOM, OTHER = "!room", "!other"
OURS = MessageTags(b"k" * 32, BOT)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MARK = MessageTag("wm-out_1-0", OURS.cause_hash(ROOM, "answer", "$one"), 0, 2)


def event(mark: object, sender: object = BOT) -> Json:
    return {"sender": sender, "content": {"body": "hello", OUTBOX_KEY: mark}}


def test_we_know_our_own_mark_again_in_its_room() -> None:
    """F-006: also from the key alone, as another device or a restored copy has it."""
    made = OURS.make(ROOM, MARK)
    assert MessageTags(b"k" * 32, BOT).read(ROOM, event(made)) == MARK
    assert OURS.read(OTHER, event(made)) is None
    assert OURS.read(ROOM, event(made, EVE)) is None
    assert MessageTags(b"x" * 32, BOT).read(ROOM, event(made)) is None
    assert MessageTags(b"k" * 32, EVE).read(ROOM, event(made, EVE)) is None
    assert MessageTags(b"k" * 32, EVE).read(ROOM, event({**made, "by": EVE}, EVE)) is None


@pytest.mark.parametrize("field", ["by", "id", "tag", "n", "m", "final", "mac"])
def test_a_mark_with_anything_changed_is_nobodys(field: str) -> None:
    """F-006: whatever stands there instead, or nothing."""
    made = OURS.make(ROOM, MARK)
    for odd in (*ODD, 1, 2, False, "wm-out_1-1", OURS.cause_hash(ROOM, "answer", "$two")):
        if odd != made[field] or type(odd) is not type(made[field]):
            assert OURS.read(ROOM, event({**made, field: odd})) is None
    assert OURS.read(ROOM, event({k: v for k, v in made.items() if k != field})) is None


@given(ANYTHING)
def test_whatever_somebody_writes_there_is_no_mark_of_ours(odd: object) -> None:
    """F-006."""
    assert OURS.read(ROOM, event(odd)) is None
    assert OURS.read(ROOM, {"sender": BOT, "content": odd}) is None
    assert OURS.read(ROOM, event(OURS.make(ROOM, MARK), odd)) is None


def test_a_mark_reveals_nothing_but_how_many_parts_there_are() -> None:
    """F-006: what it names is hashed with the key, and with the room."""
    made = OURS.make(ROOM, MARK)
    assert "$one" not in json.dumps(made)
    assert {made["n"], made["m"], made["final"]} == {0, 2, True}
    tags = {
        OURS.cause_hash(ROOM, "answer", "$one"),
        OURS.cause_hash(ROOM, "answer", "$two"),
        OURS.cause_hash(OTHER, "answer", "$one"),
        OURS.cause_hash(ROOM, "occurrence", "$one"),
        MessageTags(b"x" * 32, BOT).cause_hash(ROOM, "answer", "$one"),
    }
    assert len(tags) == 5


@pytest.mark.parametrize(
    ("row", "made_for"),
    [
        (Outgoing(1, "out_1", ROOM, "reply", "x", answers="$one"), ("answer", "$one")),
        (
            Outgoing(1, "out_1", ROOM, "event", "x", cause="task_1 noon"),
            ("occurrence", "task_1 noon"),
        ),
        (
            Outgoing(1, "out_1", ROOM, "reply", "x", cause="task_1 noon"),
            ("occurrence", "task_1 noon"),
        ),
        (Outgoing(1, "out_1", ROOM, "notice", "x"), ("notice", "out_1")),
        (Outgoing(1, "out_1", ROOM, "event", "x"), ("other", "out_1")),
    ],
)
def test_what_is_said_again_after_a_restore_has_the_same_name(
    row: Outgoing, made_for: tuple[str, str]
) -> None:
    """F-006: an event, or a task and its due time; other things have only their own id."""
    assert row.made_for == made_for


A, B, C = OpenRequest(10, "a"), OpenRequest(20, "b"), OpenRequest(30, "c")


def mark_of(tag: str, n: int = 0, of: int = 1, *, final: bool = True) -> MessageTag:
    return MessageTag("wm", tag, n, of, final)


@pytest.mark.parametrize(
    ("owed", "events", "expected"),
    [
        ((A, B), [], ""),
        ((A, B), [(15, mark_of("a"))], "a"),
        ((A, B), [(15, mark_of("z"))], ""),
        ((A, B), [(15, mark_of("a", final=False)), (25, mark_of("b"))], "b"),  # a draft
        ((A, B), [(15, mark_of("a", 0, 3))], "a"),  # the other parts are missing
        ((A, B), [(15, mark_of("a")), (25, None)], "ab"),
        ((A, B), [(25, None)], "b"),  # the newest before it
        ((A, B), [(25, None), (26, None)], "ab"),
        ((A, B), [(25, None), (26, mark_of("b"))], "ab"),  # something else of ours answers it
        ((A, B), [(15, None)], "a"),
        ((A, B), [(5, None)], ""),  # nothing was owed yet
        ((A, B, C), [(15, None), (25, None), (26, None), (35, mark_of("c"))], "abc"),
        ((A, B), [(40, None), (41, None), (42, None)], "ab"),
        ((), [(25, None), (26, mark_of("a"))], ""),
    ],
)
def test_what_was_redacted_counts_as_the_newest_thing_owed_before_it(
    owed: tuple[OpenRequest, ...], events: list[tuple[int, MessageTag | None]], expected: str
) -> None:
    """F-006: that nothing else of ours settles, in whatever order the events are given."""
    for order in list(permutations(events))[:24]:
        assert answered_requests(owed, order) == set(expected)


def test_the_key_is_made_once_and_for_us_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F-006: outlives devices; is in no log, and `check` names it when others may read it."""
    caplog.set_level(logging.DEBUG)
    assert secret_tag_key(tmp_path) == ()
    made = load_message_tags(tmp_path / "matrix", BOT).make(ROOM, MARK)
    assert load_message_tags(tmp_path / "matrix", BOT).make(ROOM, MARK) == made
    file = tmp_path / "matrix" / MARKS
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret_tag_key(file.parent) == (load_message_tags(file.parent, BOT).secret,)
    assert load_message_tags(file.parent, BOT).secret == file.read_text()
    assert file.read_text() not in caplog.text
    assert list(file.parent.iterdir()) == [file]
    assert not open_to_others(file.parent)
    file.chmod(0o644)
    assert open_to_others(file.parent) == [file]
    assert load_message_tags(tmp_path / "elsewhere", BOT).make(ROOM, MARK) != made


@pytest.mark.parametrize("text", ["", "no key", "AAAA", "ü" * 43, "A" * 44, "!" * 43])
def test_a_spoilt_key_is_no_new_one(text: str, tmp_path: Path) -> None:
    """F-006: the line says what to do, and the file stays."""
    (tmp_path / MARKS).write_text(text)
    with pytest.raises(ConfigurationError, match="restore it from a backup; or move it aside"):
        load_message_tags(tmp_path, BOT)
    assert (tmp_path / MARKS).read_text() == text
    assert secret_tag_key(tmp_path) == ()


async def raw(person: Person, room: str, event_id: str) -> Json:
    """An event as the homeserver has it."""
    path = f"{CLIENT}/rooms/{quote(room)}/event/{quote(event_id)}"
    status, event = await person.api("GET", path)
    assert status == 200, event
    return event


def marks_of(daemon: Bot) -> MessageTags:
    return load_message_tags(daemon.data / "matrix", daemon.user_id)


async def test_what_a_person_forwards_from_a_bot_is_that_persons_message(scene: Scene) -> None:
    """F-006: six in a row are answered, forwarded with every key of ours, edited, or typed."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chat, other = await scene.room(ann, daemon, encrypted=True), await scene.room(ann, daemon)
    await ann.send(chat, "one")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: one")
    assert answer.content[OUTBOX_KEY]["by"] == daemon.user_id
    for n in range(6):
        mark = (
            answer.content[OUTBOX_KEY] if n < 4 else ["wm-out_1-0", {"by": daemon.user_id}][n - 4]
        )
        forwarded = {**answer.content, "body": f"forwarded {n}", OUTBOX_KEY: mark}
        await ann.send_event((chat, other)[n % 2], "m.room.message", forwarded)
    for n in range(6):
        await ann.wait_for((chat, other)[n % 2], lambda m, n=n: m.body == f"echo: forwarded {n}")  # type: ignore[misc]  # mypy sees no default
    assert not daemon.rows("SELECT 1 FROM inbox WHERE by_bot")


@pytest.mark.slow
async def test_what_we_say_names_in_clear_what_it_is_for_to_us_alone(scene: Scene) -> None:
    """F-006: an answer of several parts, and a reminder; the key outlives the device."""
    scene.model.keyed(planning(5))
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    for encrypted in (True, False):
        chat = await scene.room(ann, daemon, encrypted=encrypted)
        asked = await ann.send(chat, "\n\n".join("word " * 1500 for _ in range(2)))
        await ann.wait_for_count(chat, daemon.user_id, 2)
        await ann.send(chat, "plan tea")
        reminder = await ann.wait_for(chat, lambda m: m.body == f"{REMINDER}tea")
        marks, found = marks_of(daemon), {}
        for part in ann.messages(chat, daemon.user_id):
            event = await raw(ann, chat, part.event_id)
            assert event["type"] == ("m.room.encrypted" if encrypted else "m.room.message")
            found[part.event_id] = marks.read(chat, event)
        answer = marks.cause_hash(chat, "answer", asked)
        parts = [(mark.n, mark.of) for mark in found.values() if mark and mark.tag == answer]
        assert parts == [(0, 2), (1, 2)]
        [due] = daemon.rows(
            "SELECT task_id, due_at FROM occurrences JOIN outbox ON outbox.id = outbox_id"
            " WHERE room_id = ?",
            chat,
        )
        when = cause(due["task_id"], moment(due["due_at"]))
        said = found[reminder.event_id]
        assert said is not None
        assert said.tag == marks.cause_hash(chat, "occurrence", when)
        await ann.redact(chat, reminder.event_id)
        assert marks.read(chat, await raw(ann, chat, reminder.event_id)) is None
    assert await daemon.stop() == 0
    secret = marks_of(daemon).secret
    code, told = await daemon.command("matrix", "reset-crypto")
    assert code == 0, told
    assert marks_of(daemon).secret == secret
    assert secret not in "\n".join(daemon.log)
