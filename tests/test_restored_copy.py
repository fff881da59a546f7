"""An earlier copy of the data folder is put back: nothing is said or done twice, and all that is said can be read."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tests.world.bot import Bot, Json
from tests.world.copied import (
    RESTORED,
    copied,
    counted_messages,
    echoed,
    make_due,
    noticed,
    put_back,
    remind,
    talk,
)
from tests.world.delegating import behave, done, spawn
from tests.world.duties import Back, in_, promise, run
from tests.world.model import Hang, Seen, Step
from tests.world.proxy import Action, Answer, Request, pass_after, pass_before
from tests.world.scene import NewAnybody, Scene
from tests.world.upgrades import upgrade
from tests.world.user import Message
from wintermute.conversation import replies
from wintermute.mailbox.inbox import OpenRow
from wintermute.matrix.inbox import OUTBOX_KEY
from wintermute.matrix.message_tags import MessageTag, MessageTags
from wintermute.matrix.rollback import (
    PASSED,
    Tags,
    answered_rows,
    own_events,
    quoted,
    unfinished_drafts,
)
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.schedules import PlanRequest


@pytest.mark.slow
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_copy_that_is_put_back_is_noticed_and_nothing_is_said_twice(
    scene: Scene, anybody: NewAnybody
) -> None:
    """F-009: stopped, copied, lived on, put back, lived on, as in README, Backup."""
    ann = await anybody("ann")
    daemon = await scene.bot(ann)
    chat, silent = [await scene.room(ann, daemon, encrypted=True) for _ in range(2)]
    await talk(ann, silent, "nothing since")
    await talk(ann, chat, "before")
    await remind(ann, chat, "drink water")
    assert await daemon.stop() == 0
    make_due(daemon)
    copy = copied(daemon)

    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body.startswith("⏰ drink water"))
    await talk(ann, chat, "since")
    await talk(ann, chat, "and since")
    await remind(ann, chat, "call Ben")
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await ann.send(chat, "while it was off")

    await daemon.start()
    told = (await ann.wait_for(chat, lambda m: RESTORED in m.body)).body
    asked = [line.split(": ", 1)[1] for line in told.splitlines() if line.startswith("- ")]
    assert asked == ["since", "and since", "/remind 2031-01-01 10:00 call Ben"]
    await talk(ann, chat, "after")
    await daemon.restart()
    await talk(ann, chat, "the end")
    assert noticed(daemon) == 1
    assert not [m for m in ann.messages(silent) if RESTORED in m.body]

    said = await counted_messages(ann, chat, daemon)
    assert set(said.values()) == {1}, said
    assert [text[0] for text in said].count("⏰") == 1
    wanted = ["before", "since", "and since", "while it was off", "after", "the end"]
    assert list(filter(None, map(echoed, said))) == wanted


@pytest.mark.slow
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_everybody_can_read_the_bot_as_before_and_current_clients_can_be_read(
    scene: Scene,
) -> None:
    """F-009: a copy of a running daemon; two clients, a session made since, and one made after all.

    Current clients give their keys anew to a device that begins anew.
    """
    ann, ben = await scene.current("ann", strict=True), await scene.person("ben")
    daemon = await scene.bot(
        ann, matrix={"allowed_users": [ben.user_id], "mention_in_groups": False}
    )
    chat = await scene.room(ann, daemon, ben, encrypted=True, name="all of us")
    await talk(ann, chat, "before")
    await talk(ben, chat, "before as well")
    copy = copied(daemon)  # while it runs

    phone = await scene.current(ann)
    await phone.until_so(lambda: phone.knows(daemon.user_id, device_of(daemon)))
    for teller, text in ((phone, "on the road"), (ben, "at home"), (ann, "at work")):
        await talk(teller, chat, text)
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await daemon.start()
    for reader in (ann, phone, ben):
        await reader.wait_for(chat, lambda m: RESTORED in m.body)

    for teller, text in ((ann, "one"), (phone, "two")):
        await teller.send(chat, text)
        for reader in (ann, phone, ben):
            await reader.wait_for(chat, answers(text))
    tablet = await scene.current(ann)
    await tablet.until_so(lambda: tablet.knows(daemon.user_id, device_of(daemon)))
    await talk(tablet, chat, "from a new one")
    for reader in (ann, phone, ben):
        await reader.wait_for(chat, answers("from a new one"))
    assert not ann.doubted(daemon.user_id)
    assert set((await counted_messages(ann, chat, daemon)).values()) == {1}
    assert noticed(daemon) == 1
    # (The phone's coming made everybody begin a session, whose key only the lost run had.)
    [told] = [m.body for m in ann.messages(chat) if RESTORED in m.body]
    assert "2 messages" in told
    assert "2 messages of it cannot be decrypted" in (await daemon.command("status", "--all"))[1]


def answers(text: str) -> Callable[[Message], bool]:
    """Whether a message is the answer to a text."""
    return lambda message: echoed(message.body) == text


def device_of(daemon: Bot) -> str:
    """The device that a daemon is logged in with."""
    return str(json.loads((daemon.data / "matrix" / "session.json").read_text())["device_id"])


@pytest.mark.slow
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_device_whose_new_keys_are_refused_gives_way_to_another(scene: Scene) -> None:
    """F-009: of the same identity, with the room keys of the old one."""
    ann, daemon, chat = await scene.met(
        await scene.current("ann", strict=True), encrypted=True, via=scene.proxy.url
    )
    await talk(ann, chat, "before")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    await talk(ann, chat, "since")
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await ann.send(chat, "in the old session")

    scene.proxy.before = refuse_until_login
    await daemon.start(ready=False)
    await daemon.logged("device replaced")
    scene.proxy.before = pass_before
    await ann.wait_for(chat, lambda m: RESTORED in m.body)
    await ann.wait_for(chat, lambda m: echoed(m.body) == "in the old session")
    await talk(ann, chat, "after")
    assert not ann.doubted(daemon.user_id)
    assert set((await counted_messages(ann, chat, daemon)).values()) == {1}


def refuse_until_login(request: Request) -> Action:
    """A homeserver that has other keys under each name."""
    if request.path.endswith("/keys/upload"):
        return Answer(400, {"errcode": "M_UNKNOWN", "error": "One time key already exists"})
    return None


@dataclass
class Roof:
    """A sub-session that is at work until somebody lets it end."""

    ends: bool = False

    def __call__(self, asked: str, seen: Seen) -> Step | None:
        if "look around" in str(seen.messages):
            return done("nothing was to be seen")
        return done("the roof holds") if self.ends else Hang()


@pytest.mark.slow
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_results_of_sub_sessions_and_runs_are_told_once(scene: Scene) -> None:
    """F-009: at work when the copy was made, told since; in a room without encryption."""
    roof = Roof()
    behave(scene.model, (spawn("see to the roof"),), roof)
    ann, daemon, chat = await scene.direct()
    await ann.send(chat, "go")
    await ann.wait_for(chat, lambda m: "sub_" in m.body)
    assert await daemon.stop() == 0
    await promise(daemon, ann.user_id, chat, {"look": run(in_(3600), "look around")})
    make_due(daemon)
    copy = copied(daemon)

    roof.ends = True
    await daemon.start()
    await ann.wait_for(chat, lambda m: "the roof holds" in m.body)
    await ann.wait_for(chat, lambda m: "nothing was to be seen" in m.body)
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await daemon.start()
    await ann.wait_for(chat, lambda m: RESTORED in m.body)
    await talk(ann, chat, "after")
    await daemon.restart()
    await talk(ann, chat, "the end")

    said = await counted_messages(ann, chat, daemon)
    assert set(said.values()) == {1}, said
    assert sum("the roof holds" in text for text in said) == 1
    assert sum("nothing was to be seen" in text for text in said) == 1
    assert not daemon.rows("SELECT 1 FROM casts WHERE state = 'running'")
    assert not daemon.rows("SELECT 1 FROM occurrences WHERE state = 'claimed'")


@pytest.mark.slow
async def test_an_answer_that_waited_when_the_copy_was_made_is_not_sent_again(scene: Scene) -> None:
    """F-009: the homeserver forgets transaction ids after a day, so it is not asked."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=scene.proxy.url)
    await talk(ann, chat, "before")
    scene.proxy.before = refuse_messages
    await ann.send(chat, "hello")
    await daemon.logged("send delayed")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    scene.proxy.before = pass_before
    await daemon.start()
    await ann.wait_for(chat, lambda m: echoed(m.body) == "hello")
    await daemon.said_all()
    assert await daemon.stop() == 0

    put_back(daemon, copy)
    daemon.change("UPDATE outbox_parts SET attempts = 0, first_attempt_at = NULL")
    [waiting] = daemon.rows("SELECT txn_id FROM outbox_parts WHERE state = 'waiting'")
    scene.proxy.requests.clear()
    await daemon.start()
    await talk(ann, chat, "after")
    assert noticed(daemon) == 1
    assert not [r for r in scene.proxy.requests if waiting["txn_id"] in r.path]
    assert set((await counted_messages(ann, chat, daemon)).values()) == {1}


@pytest.mark.slow
async def test_a_series_whose_reminder_waited_when_the_copy_was_made_goes_on(scene: Scene) -> None:
    """F-009, F-016: what was said in the lost time is over here too, and the next comes."""
    ann, daemon, chat = await scene.direct(via=scene.proxy.url)
    await talk(ann, chat, "before")
    assert await daemon.stop() == 0
    daily = {"drink water": PlanRequest(schedule_type="daily", at="09:00")}
    await promise(daemon, ann.user_id, chat, daily, Back(timedelta(days=3)))
    make_due(daemon)
    scene.proxy.before = refuse_messages
    await daemon.start(ready=False)
    await daemon.logged("send delayed")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    scene.proxy.before = pass_before
    await daemon.start()
    await ann.wait_for(chat, lambda m: "drink water" in m.body)
    await daemon.said_all()
    assert await daemon.stop() == 0

    put_back(daemon, copy)
    await daemon.start()
    await talk(ann, chat, "after")
    assert not daemon.rows("SELECT 1 FROM occurrences WHERE state = 'claimed'")
    assert await daemon.stop() == 0
    make_due(daemon)
    await daemon.start()
    await ann.wait_for_count(chat, daemon.user_id, 5)  # two answers, two reminders, one notice
    said = await counted_messages(ann, chat, daemon)
    assert sum(n for text, n in said.items() if text.startswith(REMINDER)) == 2


@pytest.mark.slow
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_room_that_moved_is_told_once_of_the_lost_time(scene: Scene) -> None:
    """F-009, F-013: the notices of both rooms would be said in the new one; what is named is true."""
    ann, daemon, chat = await scene.direct()
    await talk(ann, chat, "before")
    new = await upgrade(ann, chat, invite=[daemon.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await talk(ann, new, "moved")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    scene.model.script(Hang())
    await ann.send(new, "endless")
    await scene.model.request_arrived(3)
    await ann.send(new, "/stop")
    await ann.wait_for(new, lambda m: m.body == replies.STOPPED)
    await talk(ann, new, "since")
    assert await daemon.stop() == 0
    put_back(daemon, copy)
    await daemon.start()
    await talk(ann, new, "after")
    await daemon.said_all()
    told = [m.body for each in (chat, new) for m in ann.messages(each) if RESTORED in m.body]
    assert len(told) == 1
    answered_part, passed_part = told[0].split(PASSED)
    assert ("since" in answered_part, "endless" in answered_part) == (True, False)
    assert ("since" in passed_part, "endless" in passed_part) == (False, True)


def refuse_messages(request: Request) -> Action:
    """A homeserver that has no time for messages."""
    return Answer(503) if request.method == "PUT" and "/send/" in request.path else None


@dataclass(frozen=True, slots=True)
class Strike:
    """Where to die when a copy is noticed: at statements, or around a request."""

    steps: tuple[tuple[str, str], ...] = ()
    logger: str = "aiosqlite"
    phase: str = ""
    part: str = ""


BEFORE, AFTER = "executing", "operation"
STRIKES = {
    "after-it-is-kept": Strike(((BEFORE, "INSERT INTO rollbacks"), (AFTER, "COMMIT"))),
    "after-the-new-value": Strike(phase="after", part="/account_data/"),
    "before-all-is-known": Strike(((BEFORE, "UPDATE rollbacks SET settled"),)),
    "after-all-is-known": Strike(((BEFORE, "UPDATE rollbacks SET settled"), (AFTER, "COMMIT"))),
    "while-keys-are-used-up": Strike(phase="after", part="/keys/claim"),
    "after-new-keys": Strike(phase="after", part="/keys/upload"),
}


@pytest.mark.slow
@pytest.mark.parametrize("strike", STRIKES.values(), ids=STRIKES)
@pytest.mark.breaks("restored copy", perhaps=True)
async def test_a_kill_while_a_copy_is_noticed_changes_nothing(scene: Scene, strike: Strike) -> None:
    """F-009: told once, answered once, and readable."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=scene.proxy.url)
    await talk(ann, chat, "before")
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    await talk(ann, chat, "since")
    assert await daemon.stop() == 0
    put_back(daemon, copy)

    def kill(seen: Request, *answer: object) -> Action:
        if strike.part and strike.part in seen.path and seen.method != "GET":
            scene.proxy.before, scene.proxy.after = pass_before, pass_after
            os.kill(daemon.pid, signal.SIGKILL)
        return None

    if strike.phase == "before":
        scene.proxy.before = kill
    else:
        scene.proxy.after = kill
    steps = [list(step) for step in strike.steps]
    trigger: Json | None = {"logger": strike.logger, "steps": steps} if steps else None
    await daemon.start(trigger, ready=False)
    assert await daemon.ended() == -signal.SIGKILL
    await daemon.start()
    await ann.wait_for(chat, lambda m: RESTORED in m.body)
    await talk(ann, chat, "after")
    said = await counted_messages(ann, chat, daemon)
    assert set(said.values()) == {1}, said
    assert list(filter(None, map(echoed, said))) == ["before", "since", "after"]
    assert noticed(daemon) == 1


US, CHAT, CONVERSATION = "@bot:test", "!chat", "conv_1"
MARKS = MessageTags(b"k" * 32, US)


def row(
    seq: int, event_id: str, kind: str = "message", conversation: str = CONVERSATION
) -> OpenRow:
    then = datetime(2026, 5, 4, tzinfo=UTC)
    return OpenRow(
        *(seq, event_id, conversation, CHAT, kind, "text", "Ann"),
        direct=True,
        is_locked=False,
        sent_at=then,
        edits=None,
    )


def theirs(event_id: str) -> Json:
    return {"type": "m.room.message", "sender": "@ann:test", "event_id": event_id, "content": {}}


def ours(event_id: str, answers: str, marks: MessageTags = MARKS, room_id: str = CHAT) -> Json:
    mark = MessageTag(f"wm-out_{event_id}-0", marks.cause_hash(room_id, "answer", answers), 0, 1)
    content = {OUTBOX_KEY: marks.make(room_id, mark)}
    return {"type": "m.room.encrypted", "sender": US, "event_id": event_id, "content": content}


def drafted(event_id: str, owner: str = "d", edits: str = "", *, final: bool = False) -> Json:
    """A draft of ours, by its mark, or an edit of it, or what that ends with."""
    txn_id = f"wm-out_{owner}-0" if final or not edits else f"wm-out_{owner}-e{event_id}"
    mark = MessageTag(txn_id, MARKS.cause_hash(CHAT, "other", owner), 0, 1, final)
    content: Json = {OUTBOX_KEY: MARKS.make(CHAT, mark)}
    content |= {"m.relates_to": {"rel_type": "m.replace", "event_id": edits}} if edits else {}
    return {"type": "m.room.message", "sender": US, "event_id": event_id, "content": content}


def gone(event_id: str, by: str = "@ann:test") -> Json:
    unsigned = {"redacted_because": {"type": "m.room.redaction", "sender": by}}
    bare = {"type": "m.room.encrypted", "sender": US, "event_id": event_id, "content": {}}
    return bare | {"unsigned": unsigned}


FORGED = ours("$r", "$1", MessageTags(b"f" * 32, US))
ELSEWHERE = ours("$r", "$1", room_id="!other")
CASES: dict[str, tuple[list[OpenRow], list[Json], list[str]]] = {
    "answered": ([row(1, "$1"), row(2, "$2")], [ours("$r", "$1")], ["$1"]),
    "given up before what was answered": (
        [row(1, "$1"), row(2, "$2"), row(3, "$3")],
        [ours("$r", "$2")],
        ["$1", "$2"],
    ),
    "a command keeps no order": (
        [row(1, "$1"), row(2, "$2", "command"), row(3, "$3", "command")],
        [ours("$r", "$3")],
        ["$3"],
    ),
    "nor does another conversation": (
        [row(1, "$1"), row(2, "$2", conversation="conv_2")],
        [ours("$r", "$2")],
        ["$2"],
    ),
    "taken back since": (
        [row(1, "$1"), row(2, "$2")],
        [theirs("$1"), gone("$r"), theirs("$2")],
        ["$1"],
    ),
    "taken back by ourselves (X-055)": (
        [row(1, "$1"), row(2, "$2")],
        [theirs("$1"), gone("$r", US), theirs("$2"), gone("$e", US)],
        [],
    ),
    "growing (X-055)": (
        [row(1, "$1")],
        [theirs("$1"), drafted("$d"), drafted("$e", edits="$d")],
        [],
    ),
    "forged": ([row(1, "$1")], [FORGED], []),
    "made for another room": ([row(1, "$1")], [ELSEWHERE], []),
    "garbage": ([row(1, "$1")], [FORGED | {"content": {OUTBOX_KEY: ["wm-1"]}}], []),
    "nothing said": ([row(1, "$1")], [theirs("$1")], []),
}


@pytest.mark.parametrize(("rows", "events", "expected"), CASES.values(), ids=CASES)
def test_what_was_answered_is_known_by_our_marks(
    rows: list[OpenRow], events: list[Json], expected: list[str]
) -> None:
    """F-009: also what was given up before it, and what we said and somebody has taken back."""
    said = own_events(MARKS, CHAT, events)
    tags = Tags(MARKS, {CHAT: {each.tag.tag for each in said if each.tag.final}})
    assert [each.event_id for each in answered_rows(rows, tags, {CHAT: events}, US)] == expected


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([drafted("$d"), drafted("$e", edits="$d")], ["$d"]),
        ([drafted("$d"), drafted("$e", edits="$d"), drafted("$f", "a", "$d", final=True)], []),
        ([ours("$a", "$1"), drafted("$e", "a", "$a")], ["$e"]),  # a former answer
        ([ours("$a", "$1"), drafted("$e", "a", "$a"), drafted("$f", "b", "$a", final=True)], []),
        ([drafted("$d"), drafted("$f", "a", "$d", final=True), drafted("$g", edits="$d")], ["$g"]),
        ([drafted("$d"), drafted("$c", "x"), drafted("$f", "a", "$c", final=True)], ["$d"]),
    ],
)
def test_what_grew_and_has_no_end_is_known_by_its_marks_and_relations(
    events: list[Json], left: list[str]
) -> None:
    """X-055: a relation is in clear. An edit by which something grows is no part of a message."""
    said = own_events(MARKS, CHAT, events)
    assert [each.event_id for each in unfinished_drafts(said)] == left
    assert [each.is_part for each in said] == ["-e$" not in each.tag.txn_id for each in said]


def test_what_is_named_is_short_and_formats_nothing() -> None:
    """F-009."""
    assert quoted("one\n# two *three*") == "one # two \\*three\\*"
    assert len(quoted("x" * 1000)) == 121
