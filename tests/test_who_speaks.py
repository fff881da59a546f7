"""Our own words are known by a mark that only we can make, and a person's are a person's (F-006)."""

from urllib.parse import quote

import pytest

from tests.world.bot import Bot
from tests.world.chats import planning
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.scene import Scene
from tests.world.user import CLIENT, Json
from wintermute.clock import moment
from wintermute.matrix.inbox import OUTBOX_KEY
from wintermute.matrix.message_tags import MessageTags, load_message_tags
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.occurrences import cause


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
async def test_what_we_say_names_in_clear_what_it_is_for_to_us_alone(
    scene: Scene, model: ModelServer
) -> None:
    """F-006: an answer of several parts, and a reminder; the key outlives the device."""
    model.keyed(planning(5))
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
