"""A room is upgraded: what lived in it lives in the room that follows, and nobody else takes it.

People upgrade rooms here as their clients do; only what a stranger or a broken client would write is
made by hand.
"""

import asyncio
import json

import pytest

from tests.world.chats import (
    FACT,
    LATER,
    REMEMBER,
    SECRET,
    acting,
    all_from,
    ask_bot,
    echoed_each,
    heard_from,
    hears,
    last_request,
    message_from,
    planning,
    say_to,
    scope_of,
    slip_in,
)
from tests.world.clock import until
from tests.world.model import Fail, ModelServer, Slow, Text
from tests.world.proxy import Answer, Held, Proxy, hand_over, pass_before, withhold
from tests.world.scene import NewBot, NewPerson, NewRoom, Scene
from tests.world.upgrades import ENCRYPTION, bury, follower, put_state, upgrade
from wintermute.conversation import replies
from wintermute.mailbox.rooms import Link, Move, compute_moves, pending_moves
from wintermute.matrix.membership import IN_CLEAR
from wintermute.schedule.firing import REMINDER
from wintermute.text import EMPTY_LISTS

WATER = f"{REMINDER}water"


async def test_what_a_group_knows_goes_on_in_the_room_that_follows(scene: Scene) -> None:
    """F-013, X-030: memories, tasks and the talk; the shell knows them by either room."""
    ann, ben, daemon = await scene.shared()
    club = await scene.room(ann, daemon, ben)
    scene.model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, club, daemon, "remember it")
    await ask_bot(ann, club, daemon, "/remind daily 09:00 tea")
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    assert FACT in await ask_bot(ben, new, daemon, "/memory")
    assert "tea" in await ask_bot(ann, new, daemon, "/tasks")
    await ask_bot(ann, new, daemon, "hello")
    assert (FACT in last_request(scene.model), "remember it" in last_request(scene.model)) == (
        True,
        True,
    )
    for name in (club, new):
        listed = await daemon.command("memory", "list", "--scope", f"room:{name}")
        tasks = await daemon.command("task", "list", "--scope", f"room:{name}")
        assert (FACT in listed[1], "tea" in tasks[1]) == (True, True)
    [scope] = {row["scope"] for row in daemon.rows("SELECT scope FROM facts")}
    assert scope == f"room:{club}"


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
async def test_what_a_group_was_promised_is_said_in_the_room_that_follows(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """F-013, X-030: once, and encrypted where it was; it is known after a restart, too."""
    ann, ben, daemon = await scene.shared()
    club = await scene.room(ann, daemon, ben, encrypted=encrypted)
    model.keyed(planning(5))
    await ask_bot(ann, club, daemon, "plan water")
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    assert (await message_from(ann, new, daemon, WATER)).encrypted == encrypted
    await daemon.restart()
    await ask_bot(ann, new, daemon, "hello")
    assert "plan water" in last_request(model)
    bodies = [*all_from(ann, club, daemon), *all_from(ann, new, daemon)]
    assert len([text for text in bodies if text.startswith(WATER)]) == 1


@pytest.mark.slow
async def test_memories_go_out_and_in_by_the_name_of_either_room(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-013, M-067, M-068: the name of a scope stays, whichever room it lives in."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, matrix={"allowed_users": [ben.user_id]})
    club = await room(ann, daemon, ben)
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    await ask_bot(ann, new, daemon, "/help")
    lines = [{"text": f"Rex is {n}", "scope": f"room:{room}"} for n, room in enumerate((club, new))]
    file = daemon.config.parent / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert (await daemon.command("memory", "import", str(file)))[0] == 0
    _, out = await daemon.command("memory", "export", "-", "--scope", f"room:{new}")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["text"], each["scope"]) for each in found] == [
        (f"Rex is {n}", f"room:{club}") for n in range(2)
    ]
    assert "Rex is 1" in await ask_bot(ann, new, daemon, "/memory")


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_direct_chat_that_was_upgraded_while_the_bot_was_off_goes_on(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """F-013: its reminder is said once, in the new room, and what was asked in the old one too."""
    ann, daemon, chat = await scene.direct(encrypted=encrypted)
    model.keyed(planning(LATER))
    await ann.send(chat, "plan water")
    await heard_from(ann, chat, daemon, "it gave: ")
    assert await daemon.stop() == 0
    daemon.pass_time(LATER)
    await ann.send(chat, "what did I ask for?")
    new = await upgrade(ann, chat, invite=[daemon.user_id])
    await daemon.start()
    await ann.wait_joined(new, daemon.user_id)
    await message_from(ann, new, daemon, WATER)
    await ask_bot(ann, new, daemon, "hello")
    assert "plan water" in last_request(model)
    bodies = [*all_from(ann, chat, daemon), *all_from(ann, new, daemon)]
    assert len([text for text in bodies if text.startswith(WATER)]) == 1
    assert [text for text in all_from(ann, new, daemon) if text.startswith(WATER)]
    assert len([text for text in bodies if text == "echo: what did I ask for?"]) == 1


@pytest.mark.slow
async def test_what_could_not_be_said_in_a_room_that_is_over_is_said_in_the_new_one_once(
    scene: Scene, model: ModelServer, proxy: Proxy
) -> None:
    """F-013, X-030, X-013: refused for good, under way, and said although nobody told us so."""
    ann, ben, release = await scene.person("ann"), await scene.person("ben"), asyncio.Event()
    daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [ben.user_id]})
    club = await scene.room(ann, daemon, ben)
    model.script(Text("in the old room"), Text("refused"), Slow(release, Text("under way")))
    proxy.after = lambda request, status, body: (
        Answer(500, {}) if request.method == "PUT" and "/send/" in request.path else None
    )
    await say_to(ann, club, daemon, "one")
    await ann.wait_for(club, lambda m: m.body == "in the old room")
    await daemon.kill()
    proxy.after = lambda request, status, body: None
    proxy.before = lambda request: (
        Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"})
        if request.method == "PUT" and "/send/" in request.path
        else None
    )
    await say_to(ann, club, daemon, "two")
    await say_to(ann, club, daemon, "three")
    await daemon.start()
    await model.request_arrived(3)
    await daemon.until(lambda: sum("send refused" in line for line in daemon.log) == 2)
    status = (await daemon.command("status", "--all"))[1]
    assert f"2 in {club}: " in status
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    proxy.before = pass_before
    await daemon.logged("room moved")
    release.set()
    await ann.wait_for(new, lambda m: m.body == "under way")
    await ann.wait_for(new, lambda m: m.body == "refused")
    await ask_bot(ann, new, daemon, "/help")
    bodies = [*all_from(ann, club, daemon), *all_from(ann, new, daemon)]
    answers = sorted(text for text in bodies if "- `/new`" not in text)
    assert answers == ["in the old room", "refused", "under way"]


@pytest.mark.slow
async def test_what_is_refused_while_the_room_moves_is_said_in_the_new_one(scene: Scene) -> None:
    """F-013: the word that nobody may write there comes after the move was made."""
    ann, ben, bell = await scene.person("ann"), await scene.person("ben"), asyncio.Event()
    daemon = await scene.bot(ann, via=scene.proxy.url, matrix={"allowed_users": [ben.user_id]})
    club = await scene.room(ann, daemon, ben)
    refused = Held(bell, Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"}))
    scene.proxy.before = lambda request: (
        refused if request.method == "PUT" and f"{club}/send/" in request.path else None
    )
    scene.model.script(Text("answer one"))
    await say_to(ann, club, daemon, "one")
    await until(lambda: bool(scene.proxy.seen("PUT", f"{club}/send/")))
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await daemon.logged("room moved")
    bell.set()
    await ann.wait_joined(new, daemon.user_id)
    await hears(ann, new, "answer one")
    assert "held:" not in (await daemon.command("status", "--all"))[1]


@pytest.mark.slow
async def test_what_waits_of_a_talk_that_gave_way_is_not_told_to_who_came_in(scene: Scene) -> None:
    """F-013, F-004: it was asked in the new room before its time, in a talk of its own."""
    ann, daemon, chat = await scene.direct()
    eve = await scene.person("eve")
    await ask_bot(ann, chat, daemon, "first")
    new = await follower(ann, chat, [daemon.user_id])
    await ann.wait_joined(new, daemon.user_id)
    scene.model.keyed(lambda seen: Fail(503))
    await ann.send(new, "is 4711 much?")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")))
    await bury(ann, chat, new)
    await daemon.logged("room moved")
    scene.model.keyed(lambda seen: Text(SECRET))
    asked_before = len(scene.model.requests)
    await slip_in(eve, ann, new)
    await until(lambda: scope_of(daemon, new) == f"room:{chat}")
    await daemon.restart()  # what waits is tried again at once
    await hears(ann, new, replies.JOINED)
    assert len(scene.model.requests) == asked_before


@pytest.mark.slow
async def test_nothing_of_an_encrypted_room_goes_on_in_clear(scene: Scene) -> None:
    """F-013: it is held, and told there and in the status, until that room is encrypted too."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    scene.model.keyed(planning(LATER))
    await ann.send(chat, "plan water")
    await heard_from(ann, chat, daemon, "it gave: ")
    new = await follower(ann, chat, [daemon.user_id])
    await bury(ann, chat, new)
    await ann.wait_joined(new, daemon.user_id)
    await ann.wait_for(new, lambda m: m.body == IN_CLEAR)
    daemon.pass_time(LATER)
    await daemon.logged("no room for what is due")
    assert (
        f"{new} follows the encrypted {chat} in clear"
        in (await daemon.command("status", "--all"))[1]
    )
    await daemon.restart()
    assert all_from(ann, new, daemon) == [IN_CLEAR]
    await put_state(ann, new, "m.room.encryption", ENCRYPTION)
    reminder = await message_from(ann, new, daemon, WATER)
    assert reminder.encrypted
    assert all_from(ann, new, daemon).count(IN_CLEAR) == 1
    assert not [text for text in all_from(ann, chat, daemon) if text.startswith(WATER)]


@pytest.mark.slow
async def test_a_room_that_only_claims_to_follow_another_gets_nothing_of_it(scene: Scene) -> None:
    """F-013, X-001: one side says so and the other does not; or a stranger is who asks us in."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    club = await scene.room(ann, daemon, eve)
    scene.model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, club, daemon, "remember it")
    claimed = await follower(eve, club, [daemon.user_id, ann.user_id])
    await ann.join(claimed)
    taken = await follower(ann, "!nowhere:example.org", [daemon.user_id, eve.user_id])
    await bury(ann, club, taken)
    await ann.wait_joined(taken, daemon.user_id)
    assert await ask_bot(ann, taken, daemon, "/memory") == EMPTY_LISTS["memories"]
    assert daemon.user_id not in ann.members(claimed)
    await bury(ann, club, claimed)
    await ask_bot(ann, taken, daemon, "/help")
    assert daemon.rows("SELECT room_id FROM conversations WHERE scope = ?", f"room:{club}") == [
        {"room_id": club}
    ]
    assert FACT in await ask_bot(ann, club, daemon, "/memory")


@pytest.mark.slow
async def test_a_direct_chat_that_gave_way_is_not_spoken_in_until_we_are_asked_into_the_next(
    scene: Scene, model: ModelServer
) -> None:
    """F-013, X-030: clients hide the old room; what is due waits, named in the status."""
    ann, daemon, chat = await scene.direct()
    model.keyed(planning(3))
    await ann.send(chat, "plan water")
    await heard_from(ann, chat, daemon, "it gave: ")
    new = await upgrade(ann, chat)
    await daemon.logged("no room for what is due")
    assert (
        f"{chat} was replaced by {new}, where I am not"
        in (await daemon.command("status", "--all"))[1]
    )
    await ann.invite(new, daemon.user_id)
    await message_from(ann, new, daemon, WATER)
    assert not [text for text in all_from(ann, chat, daemon) if text.startswith(WATER)]
    assert "gave way" not in (await daemon.command("status", "--all"))[1]


MOVED = ["executing", "UPDATE rooms SET moved_to"]
KILLS = (
    [MOVED],
    [MOVED, ["operation", "UPDATE conversations SET room_id"]],
    [MOVED, ["executing", "COMMIT"]],
    [MOVED, ["operation", "COMMIT"]],
)


@pytest.mark.slow
async def test_a_kill_around_the_move_loses_and_doubles_nothing(scene: Scene) -> None:
    """F-013, DESIGN 3: it dies before, in the middle, and right after the one transaction."""
    ann, daemon, chat = await scene.direct()
    await ask_bot(ann, chat, daemon, "first")
    await ask_bot(ann, chat, daemon, "/remind daily 09:00 tea")
    await daemon.stop()
    new = await upgrade(ann, chat, invite=[daemon.user_id])
    await daemon.start({"logger": "aiosqlite", "steps": [MOVED]}, ready=False)
    assert await daemon.ended() < 0
    await ann.wait_joined(new, daemon.user_id)
    for steps in KILLS:
        await daemon.start({"logger": "aiosqlite", "steps": steps}, ready=False)
        assert await daemon.ended() < 0
    await daemon.start()
    await echoed_each(ann, new, "second")
    assert "first" in last_request(scene.model)
    assert "tea" in await ask_bot(ann, new, daemon, "/tasks")
    assert daemon.rows("SELECT count(*) AS n FROM conversations WHERE room_id = ?", new) == [
        {"n": 1}
    ]


@pytest.mark.slow
async def test_what_was_said_in_the_new_room_before_its_time_is_not_lost(scene: Scene) -> None:
    """F-013: who made the room and the tombstone by hand spoke there in between."""
    ann, ben, daemon = await scene.shared()
    club = await scene.room(ann, daemon, ben)
    scene.model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, club, daemon, "in the old one")
    await ask_bot(ann, club, daemon, "/remind daily 09:00 tea")
    new = await follower(ann, club, [daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    await ask_bot(ann, new, daemon, "remember it")
    await ask_bot(ann, new, daemon, "/remind daily 10:00 biscuits")
    await bury(ann, club, new)
    await daemon.logged("room moved")
    assert FACT in await ask_bot(ann, new, daemon, "/memory")
    tasks = await ask_bot(ann, new, daemon, "/tasks")
    assert ("tea" in tasks, "biscuits" in tasks) == (True, True)
    await ask_bot(ann, new, daemon, "hello")
    assert (FACT in last_request(scene.model), "in the old one" in last_request(scene.model)) == (
        True,
        True,
    )
    assert {row["scope"] for row in daemon.rows("SELECT scope FROM tasks")} == {f"room:{club}"}


@pytest.mark.slow
async def test_a_tombstone_that_makes_no_sense_changes_nothing(scene: Scene) -> None:
    """F-013: of no text, of no room, one after the other; a circle; and a room without people."""
    ann, ben, daemon = await scene.shared()
    club = await scene.room(ann, daemon, ben)
    await ask_bot(ann, club, daemon, "first")
    other = await follower(ann, club, [daemon.user_id])
    await ann.wait_joined(other, daemon.user_id)
    for successor in (7, None, ["x"], "", "!nowhere", "x" * 300, "!a\nb"):
        await bury(ann, club, successor)
    await bury(ann, other, club)
    empty = await follower(ann, club, [daemon.user_id])
    await ann.wait_joined(empty, daemon.user_id)
    await ann.leave(empty)
    await bury(ann, club, empty)
    await ask_bot(ann, club, daemon, "/help")
    await bury(ann, club, "!nowhere")
    await ask_bot(ann, club, daemon, "second")
    assert "first" in last_request(scene.model)
    await daemon.restart()
    await ask_bot(ann, club, daemon, "third")
    assert "second" in last_request(scene.model)
    assert not [line for line in daemon.log if "room moved" in line or "Traceback" in line]


@pytest.mark.slow
async def test_what_could_not_be_decrypted_in_the_old_room_is_answered_in_the_new_one(
    scene: Scene, proxy: Proxy
) -> None:
    """F-013, X-021: its key comes after the move, and its sender has left the old room by then."""
    ann = await scene.person("ann", via=proxy.url)
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    withheld = withhold(proxy)
    await ann.send(chat, "sealed")
    proxy.before = pass_before
    new = await upgrade(ann, chat, invite=[daemon.user_id])
    await daemon.logged("room moved")
    await ann.leave(chat)
    await hand_over(ann, withheld)
    answer = await ann.wait_for(new, lambda m: m.body == "echo: sealed")
    assert answer.encrypted


@pytest.mark.slow
async def test_what_is_done_to_old_messages_in_the_old_room_still_counts(scene: Scene) -> None:
    """F-013, L-054, X-026: an edit is answered and a thumb kept; who still writes there is heard."""
    ann, daemon, chat = await scene.direct()
    asked_in_old = await ann.send(chat, "first")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: first")
    new = await upgrade(ann, chat, invite=[daemon.user_id])
    await daemon.logged("room moved")
    await ann.wait_joined(new, daemon.user_id)
    await ann.react(chat, answer.event_id, "\N{THUMBS UP SIGN}")
    await ann.edit(chat, asked_in_old, "second")
    await ann.wait_for(new, lambda m: m.body == "echo: second")
    await ann.send(chat, "from the old one")
    await ann.wait_for(new, lambda m: m.body == "echo: from the old one")
    assert daemon.rows("SELECT value FROM rewards") == [{"value": 1}]
    assert len(daemon.rows("SELECT id FROM conversations")) == 1
    assert all_from(ann, chat, daemon) == ["echo: first"]


A, B, C = "!a", "!b", "!c"


def link(room_id: str, successor: str = "", predecessor: str = "", **more: object) -> Link:
    known = {"encrypted": False, "joined": True, "moved_to": "", "scope": ""} | more
    return Link(
        room_id,
        bool(known["encrypted"]),
        bool(known["joined"]),
        successor,
        predecessor,
        str(known["moved_to"]),
        str(known["scope"]),
    )


@pytest.mark.parametrize(
    ("links", "moves"),
    [
        ([link(A, B), link(B, "", A)], [Move(A, B)]),
        ([link(A, B), link(B)], []),
        ([link(A), link(B, "", A)], []),
        ([link(A, B)], []),
        ([link(A, B), link(B, "", A, joined=False)], []),
        ([link(A, B, joined=False), link(B, "", A)], [Move(A, B)]),
        ([link(A, C), link(B, "", A), link(C, "", A)], [Move(A, C)]),
        ([link(A, B, moved_to=B), link(B, "", A, scope="room:!a")], []),
        ([link(A, C, moved_to=B), link(B, "", A), link(C, "", A)], []),
        ([link(C, "", B), link(B, C, A), link(A, B)], [Move(A, B), Move(B, C)]),
        ([link(A, B), link(B, C, A, moved_to=C), link(C, "", B)], [Move(A, C)]),
        ([link(A, B, B), link(B, A, A)], []),
        ([link(A, B, B, moved_to=B), link(B, A, A)], []),
        ([link(A, B, C), link(B, C, A), link(C, A, B)], []),
        ([link(A, A, A)], []),
    ],
    ids=[
        "both say so",
        "only the tombstone",
        "only the creation",
        "the next is unknown",
        "we are not there",
        "we left the old one",
        "the second tombstone counts",
        "it was done",
        "after the move it stays",
        "two upgrades while we were away",
        "the next has moved on itself",
        "a circle",
        "back again",
        "a circle of three",
        "itself",
    ],
)
def test_a_room_moves_when_both_rooms_say_so(links: list[Link], moves: list[Move]) -> None:
    """F-013: membership is checked in both directions; nothing ever goes round."""
    assert pending_moves(links) == moves


def test_a_scope_is_known_by_each_room_it_has_lived_in() -> None:
    """F-013: as it is called at the command line and in files that are read in."""
    moves = compute_moves(
        [
            link(A, B, moved_to=B),
            link(B, C, A, moved_to=C, scope="room:!a"),
            link(C, "", B, scope="room:!a"),
        ]
    )
    assert {moves.canonical_scope(f"room:{room}") for room in (A, B, C)} == {"room:!a"}
    assert [moves.current_room(room) for room in (A, B, C, "!d")] == [C, C, C, "!d"]
    assert [moves.canonical_scope(name) for name in ("room:!d", "person:@a:b", "global")] == [
        "room:!d",
        "person:@a:b",
        "global",
    ]


@pytest.mark.parametrize(
    ("links", "closed"),
    [
        ([link(A, B)], {A}),
        ([link(A, B), link(B, C, A)], {A, B}),
        ([link(A, B), link(B, A)], set()),
        ([link(A, A)], set()),
        ([link(A, B, moved_to=B), link(B, A, A)], {A}),
    ],
    ids=["named by its tombstone", "a chain", "a circle", "itself", "a circle after the move"],
)
def test_a_room_that_gave_way_is_over(links: list[Link], closed: set[str]) -> None:
    """F-013: nothing is begun there, even if we were not asked into the next one yet."""
    assert compute_moves(links).closed == closed


@pytest.mark.parametrize(("old", "new"), [(True, True), (True, False), (False, False)])
def test_a_room_in_clear_that_follows_an_encrypted_one_is_barred(old: bool, new: bool) -> None:
    """F-013: nothing of elsewhere is said there."""
    links = [link(A, B, encrypted=old), link(B, "", A, encrypted=new)]
    assert compute_moves(links).unencrypted == ({B} if (old, new) == (True, False) else set())
