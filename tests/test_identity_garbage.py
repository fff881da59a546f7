"""Whatever a homeserver says of our own keys, we stay up, sign nothing else and replace nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.chats import echoed_each
from tests.world.identities import FIELDS, OUR_SEEDS, Json, answer_for, settling
from tests.world.keys import BOT, SESSION
from tests.world.malformed import WRONG, misshapen
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import Scene
from wintermute.matrix.cross_signing import UNUSABLE, own_keys
from wintermute.matrix.people import Device
from wintermute.matrix.signing import FILE, is_signed, keep_seeds

OTHER_DEVICE = Device(BOT, SESSION.device_id, "A" * 43, "B" * 43)
GARBAGE: tuple[object, ...] = (["x"], "x", 7, True, 1.5, [["x"]], *WRONG[2:])


def spoilt(answer: Json) -> Iterator[Json]:
    """Each field of it, at any depth, wrong."""
    for case in misshapen(answer):
        assert isinstance(case, dict)
        yield case
    for field in ("device_keys", *FIELDS):
        for garbage in GARBAGE:
            yield answer | {field: garbage}
            yield answer | {field: {BOT: garbage}}
    for garbage in GARBAGE:
        yield answer | {"device_keys": {BOT: dict.fromkeys(answer["device_keys"][BOT], garbage)}}
        yield answer | {"failures": garbage}


@pytest.mark.parametrize("value", [None, *GARBAGE], ids=lambda value: repr(value)[:20])
def test_what_is_no_object_is_signed_by_nobody(value: object) -> None:
    """X-022."""
    assert not is_signed(value, BOT, OUR_SEEDS.master.public)


@pytest.mark.parametrize("kept", [True, False], ids=["seeds", "no-seeds"])
async def test_nothing_that_is_served_of_us_stops_us(kept: bool, tmp_path: Path) -> None:
    """X-017, X-022: and what is there and cannot be read is not replaced."""
    if kept:
        keep_seeds(tmp_path, OUR_SEEDS)
    async with settling(tmp_path) as (identity, clock, proxy):
        device = identity.device()
        cases = list(spoilt(answer_for(device)))
        assert len(cases) > 400
        for case in cases:

            async def ask(served: Json = case) -> Json:
                return served

            clock.advance(7200)
            await identity.settle(case, ask)
            assert identity.state.text
            assert (tmp_path / FILE).exists() is kept, case
            devices = case.get("device_keys")
            if isinstance(devices, dict) and isinstance(devices.get(BOT), dict):
                identity.learn(devices[BOT])
            assert not identity.vouches_for(OTHER_DEVICE)
        assert bool(proxy.requests) is kept
        for request in proxy.requests:
            if "device_signing" in request.path:
                assert kept
                assert OUR_SEEDS.master.public in request.body.decode()
            else:
                signed = request.json[BOT][device["device_id"]]
                assert {name: signed[name] for name in device} == device


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("field", FIELDS)
async def test_garbage_in_the_place_of_a_key_is_no_key_and_not_nothing(
    field: str, garbage: object, tmp_path: Path
) -> None:
    """X-017: else an identity would be made over the one that is there."""
    async with settling(tmp_path) as (identity, _, _proxy):
        device = identity.device()
    usage = field.removesuffix("_keys")
    for part in (garbage, {BOT: garbage}):
        served = own_keys(answer_for(device) | {field: part}, BOT, device)
        assert served is not None
        if garbage not in ({}, []):
            assert getattr(served, usage) == UNUSABLE


async def test_a_homeserver_that_serves_garbage_of_us_does_not_stop_the_daemon(
    scene: Scene, proxy: Proxy
) -> None:
    """X-022: nor keep anybody from talking to it."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url, start=False)

    def after(request: Request, status: int, body: bytes) -> Action:
        if "keys/query" not in request.path:
            return None
        served = json.loads(body)
        return Answer(status, served | {"self_signing_keys": {daemon.user_id: ["x"]}})

    proxy.after = after
    await daemon.start()
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "hello")
    assert not proxy.seen("POST", "device_signing")
