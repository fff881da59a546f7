"""The daemon is killed at each step towards its identity: there is never a second one."""

import json
import os
import signal
from dataclasses import dataclass

import pytest

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.identities import identity_detail
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import NewBot, NewPerson
from wintermute.matrix.signing import FILE

PASSWORD = {"flows": [{"stages": ["m.login.password"]}], "session": "s1"}


@dataclass(frozen=True, slots=True)
class Strike:
    """Around the n-th request of a kind: before the homeserver sees it, or after it has answered.

    `asks`: it wants the password for the upload.
    """

    phase: str
    part: str
    number: int = 1
    asks: bool = False


STRIKES = {
    f"{phase} {name}".replace(" ", "-"): Strike(phase, part, number, asks)
    for phase in ("before", "after")
    for name, part, number, asks in (
        ("device keys", "keys/upload", 1, False),
        ("first look", "keys/query", 1, False),
        ("identity", "keys/device_signing", 1, False),
        ("second look", "keys/query", 2, False),
        ("signature", "keys/signatures", 1, False),
        ("last look", "keys/query", 3, False),
        ("question for the password", "keys/device_signing", 1, True),
        ("identity with password", "keys/device_signing", 2, True),
    )
}
QUICK = ("before-identity", "after-identity", "after-signature")


class Watch:
    """Kills the daemon at a strike, once, and sees that what is uploaded is on disk by then."""

    def __init__(self, daemon: Bot, proxy: Proxy, strike: Strike) -> None:
        self._daemon = daemon
        self._strike: Strike | None = strike
        self._asks = strike.asks
        self._seen = 0
        self.uploaded: set[str] = set()
        self.not_on_disk: list[str] = []
        proxy.before = self._before
        proxy.after = self._after

    def _before(self, request: Request) -> Action:
        if "keys/device_signing" in request.path:
            [key] = request.json["master_key"]["keys"].values()
            self.uploaded.add(key)
            file = self._daemon.data / "matrix" / FILE
            if not file.exists() or json.loads(file.read_text())["master"]["public"] != key:
                self.not_on_disk.append(key)
        if self._strike and self._strike.part in request.path:
            self._seen += 1
        self._kill("before", request)
        asked = self._asks and "device_signing" in request.path and "auth" not in request.json
        if asked:
            self._kill("after", request)
        return Answer(401, PASSWORD) if asked else None

    def _after(self, request: Request, status: int, body: bytes) -> Action:
        self._kill("after", request)
        return None

    def _kill(self, phase: str, request: Request) -> None:
        strike = self._strike
        if strike is None or strike.part not in request.path:
            return
        if (phase, self._seen) == (strike.phase, strike.number):
            self._strike = None
            os.kill(self._daemon.pid, signal.SIGKILL)


@pytest.mark.quick("after-identity")
@pytest.mark.parametrize("strike", tiered(STRIKES, QUICK))
async def test_a_kill_on_the_way_to_an_identity_never_makes_a_second_one(
    strike: Strike, person: NewPerson, bot: NewBot, proxy: Proxy
) -> None:
    """X-017, X-051: nor is one uploaded whose seeds could be lost."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url, start=False)
    watch = Watch(daemon, proxy, strike)
    await daemon.start(ready=False)
    assert await daemon.ended() == -signal.SIGKILL
    await daemon.start()
    await identity_detail(daemon, "ok")
    await daemon.restart()
    await identity_detail(daemon, "ok")
    kept = json.loads((daemon.data / "matrix" / FILE).read_text())
    assert watch.uploaded == {kept["master"]["public"]}
    assert not watch.not_on_disk
