"""Whatever shape it has that says who can read: the daemon goes on, and what is unclear is not private."""

import json
from pathlib import Path

import pytest

from tests.world.chats import ask_bot, last_request, scope_of
from tests.world.clock import HeldClock, until
from tests.world.desk import ANN, BOT, EVE, POLICY, at_desk
from tests.world.malformed import JOIN, WRONG, Always, member, state_event
from tests.world.model import ModelServer
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.reading import Json
from tests.world.scene import Scene
from wintermute.matrix.inbox import Account, is_direct

MANY = 10_000
WITHIN = 10.0


def rule(content: object, **more: object) -> Json:
    return state_event("m.room.join_rules", "", content, **more)


def history(content: object, **more: object) -> Json:
    return state_event("m.room.history_visibility", "", content, **more)


def without(given: Json, field: str) -> Json:
    return {key: value for key, value in given.items() if key != field}


HEAD = ("sender", "event_id", "origin_server_ts")
ODD = [value for value in WRONG[1:] if not isinstance(value, dict)]
"""All that is wrong, but a missing field and an object."""
OPENING = [
    *(member(EVE, {"membership": odd}) for odd in ODD),
    *(member(EVE, odd) for odd in [{}, *ODD]),
    *(member(odd) for odd in [*ODD, {}, "eve", ""]),
    *(without(member(EVE), field) for field in HEAD),
    *(member(EVE, **{field: odd}) for field in HEAD for odd in ODD),
    *(rule(odd) for odd in [*ODD, *({"join_rule": odd} for odd in ODD)]),
    *(history(odd) for odd in [*ODD, *({"history_visibility": odd} for odd in ODD)]),
    *(without(rule({"join_rule": "public"}), field) for field in HEAD),
    *(without(history({"history_visibility": "world_readable"}), field) for field in HEAD),
    rule({"join_rule": "public"}, sender=7),
]
"""After each of these somebody unknown may be able to read."""
HARMLESS = [
    without(member(EVE), "state_key"),
    member(EVE, {"membership": "knock"}),
    member(EVE, {"membership": "leave"}),
    member(EVE, {"membership": "ban"}),
    rule({}),
    rule({"join_rule": "knock", "allow": ODD}),
    state_event("m.room.join_rules", "other", {"join_rule": "public"}),
    without(rule({"join_rule": "public"}), "state_key"),
    history({}),
    state_event("org.example.member", EVE, JOIN),
]
"""After these only Ann can."""


def answer_with(rooms: dict[str, Json], place: str) -> Json:
    """A first sync with a chat of Ann for each of these events, in the state or the timeline."""
    users = [member(ANN), member(BOT)]
    joined = {}
    for room_id, odd in rooms.items():
        state = [*users, odd] if place == "state" else users
        timeline = [odd] if place == "timeline" else []
        joined[room_id] = {"state": {"events": state}, "timeline": {"events": timeline}}
    return {"next_batch": "s1", "rooms": {"join": joined}}


async def test_what_is_unclear_is_not_private(tmp_path: Path, proxy: Proxy) -> None:
    """F-003, X-022: memberships and rules with fields that are missing or of another kind."""
    account = Account(BOT, "BOTDEVICE", "")
    for n, place in enumerate(("state", "timeline")):
        folder = tmp_path / place
        folder.mkdir()
        rooms = {f"!{number}:{place}": odd for number, odd in enumerate([*OPENING, *HARMLESS])}
        async with at_desk(folder, proxy, HeldClock()) as desk:
            answer = Answer(200, json.dumps(answer_with(rooms, place)).encode())
            proxy.before = Always(answer).before
            batch = await desk.client.sync(None, full_state=True, wait_s=0)
            assert len(batch.joined) == len(rooms), n
            private = {r for r in rooms if is_direct(desk.client.room(r), account, POLICY)}
            wrong = private ^ set(list(rooms)[len(OPENING) :])
            assert not wrong, {room_id: str(rooms[room_id])[:300] for room_id in wrong}


class Crowd:
    """Lets ten thousand people join a room in the next answer to /sync."""

    def __init__(self) -> None:
        self.room = ""

    def after(self, request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/sync") or status != 200 or not self.room:
            return None
        answer = json.loads(body)
        rooms = answer.setdefault("rooms", {}).setdefault("join", {})
        events = rooms.setdefault(self.room, {}).setdefault("timeline", {}).setdefault("events", [])
        events += [member(f"@n{n}:test", JOIN | {"displayname": f"N {n}"}) for n in range(MANY)]
        self.room = ""
        return Answer(200, answer)


@pytest.mark.slow
async def test_ten_thousand_who_join_at_once_hold_up_nobody(
    scene: Scene, model: ModelServer, proxy: Proxy
) -> None:
    """F-001, F-002: the room is theirs at once, and others are answered as before."""
    ann, crowd = await scene.person("ann"), Crowd()
    daemon = await scene.bot(ann, via=proxy.url)
    chat, other = await scene.room(ann, daemon), await scene.room(ann, daemon)
    await ask_bot(ann, chat, daemon, "my cat is Rex")
    proxy.after = crowd.after
    crowd.room = chat
    await ask_bot(ann, other, daemon, "still there?")
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    await ask_bot(ann, chat, daemon, "who am I?")
    assert "Rex" not in last_request(model)
