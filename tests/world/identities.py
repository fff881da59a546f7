"""The identity of an account: seeds, a homeserver's answers about it, and people who see it change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.world.bot import Bot
from tests.world.clock import SYSTEM, WITHIN, FakeClock
from tests.world.current import CurrentClient
from tests.world.keys import BOT, machine
from tests.world.proxy import Answer, Proxy
from wintermute.matrix.cross_signing import CrossSigning
from wintermute.matrix.people import fingerprint
from wintermute.matrix.signing import USAGES, Seeds, new_seeds

Json = dict[str, Any]
APPROVAL_PAGE = "https://account.example.org/?action=org.matrix.cross_signing_reset"
BY_PASSWORD: Json = {"flows": [{"stages": ["m.login.password"]}], "params": {}, "session": "s1"}
OUR_SEEDS = new_seeds(BOT)
FIELDS = tuple(f"{usage}_keys" for usage in USAGES)


async def trust(daemon: Bot, user: str) -> None:
    """What somebody at the machine does, beside a daemon or without one."""
    code, said = await daemon.command("matrix", "trust", user)
    assert code == 0, said


async def identity_notice(person: CurrentClient, room: str) -> str:
    """The notice about their new identity."""
    key = await person.master_key(person.user_id)
    notice = await person.wait_for(room, lambda m: fingerprint(key or "") in m.body)
    return notice.event_id


async def identity_detail(daemon: Bot, state: str) -> str:
    """What `status` and `check` say of the identity, once it is in this state."""
    async with asyncio.timeout(WITHIN):
        while True:
            rows = daemon.rows(
                "SELECT detail FROM health WHERE part = 'identity' AND state = ?", state
            )
            if rows:
                return str(rows[0]["detail"])
            await SYSTEM.sleep(0.01)


def by_page(stage: str = "m.oauth", url: object = APPROVAL_PAGE, session: str = "s1") -> Json:
    """Make a refusal that asks for approval on a page."""
    return {
        "flows": [{"stages": [stage]}],
        "params": {stage: {"url": url}},
        "session": session,
    }


def identity_of(seeds: Seeds) -> Json:
    """What a homeserver serves of an identity."""
    bare = [
        {"user_id": BOT, "usage": [usage], "keys": {f"ed25519:{pair.public}": pair.public}}
        for usage, pair in zip(USAGES, seeds.pairs, strict=True)
    ]
    signed = (seeds.master.sign(key, BOT) for key in bare)
    return {field: {BOT: key} for field, key in zip(FIELDS, signed, strict=True)}


def answer_for(device: Json, seeds: Seeds = OUR_SEEDS) -> Json:
    """All of us in order."""
    devices = {device["device_id"]: seeds.self_signing.sign(device, BOT)}
    return {"device_keys": {BOT: devices}, **identity_of(seeds)}


@asynccontextmanager
async def settling(folder: Path) -> AsyncIterator[tuple[CrossSigning, FakeClock, Proxy]]:
    """Our identity beside a homeserver that takes everything."""
    async with Proxy("http://127.0.0.1:1") as proxy, machine(folder, proxy.url) as nio:
        proxy.before = lambda request: Answer(200)
        clock = FakeClock()
        yield CrossSigning(nio, folder, BOT, None, clock), clock, proxy
