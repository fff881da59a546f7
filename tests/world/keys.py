"""Devices, room keys and a homeserver that is a table: what a test of keys begins with."""

import itertools
import json
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nio import AsyncClient, AsyncClientConfig
from nio.rooms import MatrixRoom
from vodozemac import Account as OlmAccount

from tests.world.clock import FakeClock
from tests.world.proxy import Action, Answer, Proxy, Request
from wintermute.matrix.cross_signing import CrossSigning
from wintermute.matrix.kept_login import Session
from wintermute.matrix.keys import Keys, store_before_upload
from wintermute.matrix.people import People
from wintermute.matrix.signing import ED25519, public_key, signature

Json = dict[str, Any]
BOT, ANN, EVE = "@bot:test", "@ann:test", "@eve:test"
ALGORITHM = "m.olm.v1.curve25519-aes-sha2"
NO_POINT = "A" * 43  # a curve key by its form, with which nothing can be agreed on
SESSION = Session(BOT, "BOTDEVICE", "token", "a pickle key")
OLD, NEW = b"o" * 32, b"n" * 32
SIGNING, OTHER = b"s" * 32, b"t" * 32


def numbered(prefix: str, numbers: Iterator[int] = itertools.count(1)) -> str:  # noqa: B008
    """Make an id that nothing had before."""
    return f"{prefix}_{next(numbers)}"


class Device:
    """A device of a person that signs whatever it is asked to."""

    def __init__(self, user: str, name: str) -> None:
        self.user, self.name = user, name
        self._account = OlmAccount()

    def signed(self, value: Json) -> Json:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        try:
            signature = self._account.sign(text.encode()).to_base64()
        except UnicodeEncodeError:
            signature = self._account.sign(b"something else").to_base64()
        return value | {"signatures": {self.user: {f"ed25519:{self.name}": signature}}}

    def plain(self) -> Json:
        keys = {
            f"ed25519:{self.name}": self._account.ed25519_key.to_base64(),
            f"curve25519:{self.name}": self._account.curve25519_key.to_base64(),
        }
        return {
            "algorithms": [ALGORITHM, "m.megolm.v1.aes-sha2"],
            "device_id": self.name,
            "user_id": self.user,
            "keys": keys,
        }

    def keys(self) -> Json:
        return self.signed(self.plain()) | {"unsigned": {"device_display_name": "phone"}}

    def one_time_key(self, key: object = None) -> Json:
        self._account.generate_one_time_keys(1)
        [(name, own)] = self._account.one_time_keys.items()
        self._account.mark_keys_as_published()
        return {f"signed_curve25519:{name}": self.signed({"key": key or own.to_base64()})}


class Wire:
    """Answers each request from a table, and remembers them."""

    def __init__(self, proxy: Proxy) -> None:
        self.answers: dict[str, Any] = {}
        self.members: dict[str, Collection[str]] = {}
        """Who is in which room, as /sync tells."""
        self._proxy = proxy
        proxy.before = self._answer

    def _answer(self, request: Request) -> Action:
        kind = "/".join(request.path.split("/")[4:6])
        answer = self.answers.get(kind, {})
        if callable(answer):
            answer = answer(request)
        return Answer(200, answer) if isinstance(answer, dict) else answer

    def seen(self, method: str, kind: str) -> list[Request]:
        return self._proxy.seen(method, kind)

    def bodies(self, kind: str) -> list[Json]:
        return [request.json for request in self.seen("POST", kind)]

    @property
    def url(self) -> str:
        return self._proxy.url


def enter(wire: Wire, nio: AsyncClient, room_id: str) -> None:
    """We are in an encrypted room, and know with whom."""
    nio.rooms[room_id] = MatrixRoom(room_id, BOT, encrypted=True)
    for user in wire.members[room_id]:
        nio.rooms[room_id].add_member(user, None, None)
    nio.olm.update_tracked_users(nio.rooms[room_id])


def accepted(request: Request) -> Json:
    """Answer an upload: all keys are taken."""
    return {"one_time_key_counts": {"signed_curve25519": len(request.json["one_time_keys"])}}


@asynccontextmanager
async def machine(folder: Path, url: str = "http://127.0.0.1:1") -> AsyncIterator[AsyncClient]:
    """Open a client with a key store in a folder."""
    config = AsyncClientConfig(pickle_key=SESSION.pickle_key, store_sync_tokens=False)
    nio = AsyncClient(url, BOT, SESSION.device_id, str(folder), config)
    nio.restore_login(BOT, SESSION.device_id, "token")
    try:
        yield nio
    finally:
        await nio.close()
        nio.store.database.close()


@asynccontextmanager
async def keys_of(folder: Path, wire: Wire, clock: FakeClock) -> AsyncIterator[tuple[Keys, Any]]:
    """Open the room keys of a client with a key store in a folder."""
    async with machine(folder, wire.url) as nio:
        store_before_upload(nio.olm)
        identity = CrossSigning(nio, folder, BOT, None, clock)
        yield Keys(nio, numbered, clock, People({ANN}), identity, refuse_unsigned=True), nio


def given_to(wire: Wire) -> dict[str, list[str]]:
    """Whose devices the newest room key went to."""
    shares = [request.json for request in wire.seen("PUT", "sendToDevice/m.room.encrypted")]
    return {user: [*devices] for user, devices in shares[-1]["messages"].items()}


def known_devices(nio: AsyncClient, user: str) -> list[str]:
    """List the devices of a user that the key store has."""
    return [device.id for device in nio.olm.device_store.active_user_devices(user)]


def key_of(user: str, usage: str, seed: bytes) -> Json:
    """Make a cross-signing key from a seed."""
    public = public_key(seed)
    return {"user_id": user, "usage": [usage], "keys": {ED25519 + public: public}}


def also_signed(value: Json, user: str, seed: bytes) -> Json:
    """Signed by one more key of a user."""
    signatures = dict(value.get("signatures", {}))
    by_user = {**signatures.get(user, {}), ED25519 + public_key(seed): signature(value, seed)}
    return value | {"signatures": signatures | {user: by_user}}


def with_identity(
    *phones: Device,
    signed: Collection[Device] = (),
    master: bytes = OLD,
    signing: bytes = SIGNING,
    user: str = ANN,
) -> Json:
    """What a homeserver answers of somebody with an identity."""
    devices = {
        phone.name: also_signed(phone.keys(), user, signing) if phone in signed else phone.keys()
        for phone in phones
    }
    own = also_signed(key_of(user, "self_signing", signing), user, master)
    return {
        "device_keys": {user: devices},
        "master_keys": {user: key_of(user, "master", master)},
        "self_signing_keys": {user: own},
    }


def without_identity(*phones: Device, user: str = ANN) -> Json:
    """What it answers of somebody without."""
    return {"device_keys": {user: {phone.name: phone.keys() for phone in phones}}}
