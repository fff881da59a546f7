"""A homeserver forgets our place in its stream: all is heard anew, and nothing happens twice (F-058)."""

import json
from collections.abc import Collection
from typing import Any
from urllib.parse import quote

import pytest

from tests.world.bot import said
from tests.world.chats import echoed_each, inbox_states
from tests.world.clock import until
from tests.world.forger import timelines
from tests.world.homeserver import Homeserver
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import NewCurrent, Scene
from tests.world.user import CLIENT, MatrixUser
from wintermute.matrix.inbox import since_known

Json = dict[str, Any]
BAD_TOKEN = Answer(400, {"errcode": "M_UNKNOWN", "error": "Invalid stream token"})
NO_PAGE = Answer(404, b"<html>not found")


def refuse(proxy: Proxy, answer: Answer) -> list[str]:
    """All places of before are unknown; the list fills with those that are asked for."""
    asked: list[str] = []

    def before(request: Request) -> Action:
        if not request.path.endswith("/sync"):
            return None
        asked.append(request.query.get("since", ""))
        return None if "" in asked else answer

    proxy.before = before
    return asked


def cut_short(
    proxy: Proxy, homeserver: Homeserver, ann: MatrixUser, rooms: Collection[str]
) -> None:
    """Leave one event of each room in a sync without a token; the bot has to ask for the others."""

    def after(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/sync") or "since" in request.query or status != 200:
            return None
        answer = json.loads(body)
        for room, events in timelines(request, answer):
            if room in rooms:
                path = f"{CLIENT}/rooms/{quote(room)}/messages?dir=b&limit=1"
                page = homeserver.request("GET", path, token=ann.login.access_token)
                told = answer["rooms"]["join"][room]
                told["state"]["events"] += [each for each in events[:-1] if "state_key" in each]
                events[:] = events[-1:]
                assert page["chunk"][0]["event_id"] == events[0]["event_id"]
                told["timeline"] |= {"limited": True, "prev_batch": page["end"]}
        return Answer(status, answer)

    proxy.after = after


@pytest.mark.parametrize(
    ("known", "left"),
    [({"b"}, "cd"), ({"a", "c"}, "d"), ({"d"}, ""), ({"x"}, "abcd"), ((), "abcd")],
)
def test_what_is_behind_the_newest_that_was_seen_is_new(known: Collection[str], left: str) -> None:
    """F-058."""
    assert since_known([{"event_id": each} for each in "abcd"], known) == [
        {"event_id": each} for each in left
    ]


@pytest.mark.slow
async def test_a_refused_place_in_the_stream_costs_and_repeats_nothing(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """F-058: at a start; what was missed is fetched, and who sent us away is known."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    sealed, plain = await scene.room(ann, daemon, encrypted=True), await scene.room(ann, daemon)
    other = await ann.create_room([daemon.user_id], preset="private_chat")
    await ann.wait_joined(other, daemon.user_id)
    await echoed_each(ann, sealed, "one")
    await echoed_each(ann, plain, "eins")
    await ann.send(plain, "here", msgtype="m.location", geo_uri="geo:1,1")
    await ann.wait_for_count(plain, daemon.user_id, 2)
    assert await daemon.stop() == 0
    daemon.change("DELETE FROM notices")  # an hour later it would be told again
    for text in ("two", "three"):
        await ann.send(sealed, text)
        await ann.send(plain, text)
    await ann.kick(other, daemon.user_id)
    cut_short(proxy, homeserver, ann, (sealed, plain))
    asked = refuse(proxy, BAD_TOKEN)
    await daemon.start()
    await echoed_each(ann, sealed, "four")
    assert [bool(since) for since in asked[:4]] == [True, True, False, True]
    assert daemon.rows("SELECT state FROM rooms WHERE room_id = ?", other) == [{"state": "left"}]

    echoes = [f"echo: {text}" for text in ("two", "three", "four")]
    assert await said(ann, sealed, daemon.user_id) == ["echo: one", *echoes]
    first, notice, *rest = await said(ann, plain, daemon.user_id)
    assert [first, *rest] == ["echo: eins", "echo: two", "echo: three"], notice


@pytest.mark.slow
async def test_who_changed_identity_while_nobody_listened_is_not_believed(
    scene: Scene, current: NewCurrent, proxy: Proxy
) -> None:
    """F-058, X-035: at work; a fresh answer tells of no change, so everybody is asked for first."""
    ann = await current("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    proxy.before = lambda r: Answer(502) if r.path.endswith("/sync") else None
    await daemon.until(
        lambda: bool(
            daemon.rows("SELECT 1 FROM health WHERE part = 'homeserver' AND state = 'fail'")
        )
    )
    await ann.make_identity(anew=True)
    await ann.send(chat, "two")
    before = len(proxy.seen("POST", "keys/query"))
    asked = refuse(proxy, NO_PAGE)
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    await ann.wait_for(chat, lambda m: "new cryptographic identity" in m.body)
    assert not daemon.rows("SELECT 1 FROM casts WHERE intent LIKE '%two%'")
    assert asked.count("") == 1
    asked_for = [each.json["device_keys"] for each in proxy.seen("POST", "keys/query")[before:]]
    assert any(ann.user_id in each for each in asked_for)
