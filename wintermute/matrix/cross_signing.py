"""Our cross-signing identity: created once, uploaded, and our device signed by it (X-017).

Each step is decided by the state of the homeserver, so after a kill it goes on at the right one:
our device's keys, the seeds on disk, their upload, the signature of the device. The state is read
again after each step, as a homeserver may accept an upload and not store it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nio import AsyncClient
from nio.crypto import OlmDevice

from wintermute.clock import Clock
from wintermute.config.schema import Secret
from wintermute.errors import (
    ApprovalNeeded,
    ConfigurationError,
    HomeserverUnavailable,
    SendRefused,
    StorageBlocked,
)
from wintermute.health.health import HealthState
from wintermute.matrix.http import call, path
from wintermute.matrix.people import (
    Device,
    People,
    cross_signing_key,
    device_of,
    fingerprint,
    identities,
)
from wintermute.matrix.sessions import known
from wintermute.matrix.signing import (
    ED25519,
    FILE,
    USAGES,
    Seeds,
    close_to_others,
    draw,
    is_signed,
    keep_seeds,
    load_seeds,
    new_seeds,
    next_seeds,
    replace_seeds,
    secret_seeds,
    unsigned,
    with_signature,
)
from wintermute.messages import Json, mapping

log = logging.getLogger(__name__)

AGAIN_SECONDS = 3600.0
"""Seconds until the next attempt after the homeserver has refused."""
APPROVAL_SECONDS = 60.0
"""Seconds between attempts while somebody may be approving it on a web page."""
MOST_STEPS = 3
UNUSABLE = "?"
"""Prefix of a key that is served but invalid: it is never replaced."""
UPLOAD = path("keys", "device_signing", "upload")

DeviceServed = Literal["ours", "missing", "other"]
IdentityStep = Literal["make", "upload", "sign", "wait", "foreign", "done"]
IdentityTrouble = Literal[
    "",
    "waits",
    "unavailable",
    "page",
    "password",
    "stages",
    "refused",
    "unusable",
    "foreign",
    "not kept",
]
NO_KEYS = "so nobody can send it the keys of their messages"
NOT_SERVED = {
    "missing": (
        f"the homeserver does not serve the keys of the bot's session, {NO_KEYS} -> Wintermute"
        " uploads them again at each start and every hour; if that does not help, ask the"
        " homeserver's admin"
    ),
    "other": (
        f"the homeserver has other keys under the name of the bot's session, {NO_KEYS} -> ask its "
        "admin; or run `wintermute matrix logout` and start again, for a new session"
    ),
}
WAITS = "waits until the homeserver serves the keys of this device unchanged"
UNAVAILABLE = (
    "the homeserver does not accept the bot's identity now: {} -> Wintermute tries again by"
    " itself; if that does not help, ask the homeserver's admin for a version with"
    " cross-signing"
)
REFUSED = "the homeserver refuses the bot's identity: {} -> ask its admin"
NOT_KEPT = (
    "the homeserver accepts our identity and does not keep it, so clients may warn about the"
    " bot's messages or hide them -> ask its admin"
)


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """Our own keys as served by the homeserver; "" if missing, UNUSABLE if invalid.

    `device`: our device with its signatures; None if it is not served as we know it.
    """

    master: str
    self_signing: str
    user_signing: str
    device: Json | None


@dataclass(frozen=True, slots=True)
class IdentityState:
    """The state of our identity, for `status` and `check`."""

    state: HealthState
    text: str
    signed: bool = False
    made: bool = False
    """True if this run created it: nobody can have verified it yet."""
    kind: IdentityTrouble = ""
    """The kind of problem, independent of the homeserver's wording."""


def own_keys(answer: Json, user_id: str, device: Json) -> OwnKeys | None:
    """Return our part of an answer to /keys/query; None if we are not in it."""
    mine = answer["device_keys"][user_id] if identities(answer, [user_id]) else None
    if not isinstance(mine, dict):
        return None
    served = mapping(mine.get(device["device_id"]))
    ours = unsigned(served) == unsigned(device)
    master, self_signing, user_signing = (served_key(answer, user_id, usage) for usage in USAGES)
    return OwnKeys(master, self_signing, user_signing, served if ours else None)


def served_device(answer: Json, user_id: str, device: Json) -> DeviceServed:
    """Compare our device's keys with those in an answer that names our account."""
    served = mapping(mapping(answer.get("device_keys")).get(user_id)).get(device["device_id"])
    if served is None:
        return "missing"
    return "ours" if mapping(served).get("keys") == device["keys"] else "other"


def served_key(answer: Json, user_id: str, usage: str) -> str:
    """Return our public key for a usage, in the form of `OwnKeys`."""
    everybody = answer.get(f"{usage}_keys")
    found = everybody.get(user_id) if isinstance(everybody, dict) else everybody
    if not found:
        return ""
    key = cross_signing_key(answer, user_id, usage)
    master = cross_signing_key(answer, user_id, "master")
    holds = usage == "master" or is_signed(found, user_id, master)
    return key if key and holds else UNUSABLE + key


def are_others(served: Sequence[str], seeds: Seeds | None) -> bool:
    """Check for keys that are not ours, in the order of USAGES; an unusable key may be ours."""
    master, *more = zip(served, [p.public for p in seeds.pairs] if seeds else [""] * 3, strict=True)
    if seeds is None or master[0] not in ("", master[1]):
        return any(served)
    return any(key.removeprefix(UNUSABLE) not in ("", own) for key, own in more)


def next_step(served: OwnKeys, seeds: Seeds | None) -> IdentityStep:
    """Decide the next step by the served keys and the seeds on disk."""
    if served.device is None:
        return "wait"  # our device's keys go first
    theirs = (served.master, served.self_signing, served.user_signing)
    if are_others(theirs, seeds):
        return "foreign"  # missing keys are uploaded again, other keys are not replaced (F-070)
    if seeds is None:
        return "make"
    if theirs != tuple(pair.public for pair in seeds.pairs):
        return "upload"
    vouched = is_signed(served.device, seeds.user_id, seeds.self_signing.public)
    return "done" if vouched else "sign"


class CrossSigning:
    """Creates and uploads our identity."""

    def __init__(
        self, nio: AsyncClient, folder: Path, user_id: str, password: Secret | None, clock: Clock
    ) -> None:
        self._nio = nio
        self._folder = folder
        self._user_id = user_id
        self._password = password
        self._clock = clock
        self._retry_at = self._wait = 0.0
        self._made = False
        self._session = ""
        self._drawn = draw()
        self._served: Json = {}
        self.seeds: Seeds | None = None
        self.state = IdentityState("warn", "not looked at yet")

    @property
    def master(self) -> str:
        """The public master key of our identity, if it is the served one; else ""."""
        return self.seeds.master.public if self.seeds and self.state.signed else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The seeds on disk, and those of an identity that this run may create."""
        return (*secret_seeds(self._folder), *self._drawn)

    @property
    def keeps_identity(self) -> bool:
        """True if our device is or will be signed by the identity of earlier runs."""
        if self._made or self.state.kind == "foreign":
            return False
        try:
            return load_seeds(self._folder, self._user_id) is not None
        except ConfigurationError:
            return False

    def learn(self, devices: Json) -> None:
        """Store the devices of our account, as served by the homeserver."""
        self._served = devices

    def vouches_for(self, device: Device) -> bool:
        """Check if our own key signed another device of our account."""
        served = mapping(self._served.get(device.device_id))
        keys = {"keys": mapping(served.get("keys"))}
        return device == device_of(self._user_id, device.device_id, keys) and self._has_signed(
            served
        )

    def _has_signed(self, served: object) -> bool:
        """Check if our own key signed a served device."""
        seeds = self.seeds
        return seeds is not None and is_signed(served, self._user_id, seeds.self_signing.public)

    def wants(self) -> bool:
        """Check if a failed step is to be tried again now."""
        return not self.state.signed and self._clock.monotonic() >= self._retry_at

    async def settle(self, answer: Json, ask: Callable[[], Awaitable[Json]]) -> None:
        """Bring the served keys into the intended state; `ask` queries them again.

        A failed step is tried again when `wants` says so, even if our keys change meanwhile: an
        upload is such a change.
        """
        if not self.state.signed and not self.wants():
            return
        try:
            await self._steps(answer, ask)
        except HomeserverUnavailable as error:
            self._wait = min(max(self._wait * 2, 1.0), AGAIN_SECONDS)
            seconds = max(self._wait, error.retry_after or 0.0)
            self._set_failed("unavailable", UNAVAILABLE.format(error), seconds)
        except ApprovalNeeded as error:
            reason = approval_text(error, has_password=self._password is not None)
            if error.page:
                self._set_failed("page", reason, APPROVAL_SECONDS)
            else:
                self._set_failed("password" if error.by_password else "stages", reason)
        except SendRefused as error:
            self._set_failed("refused", REFUSED.format(error))
        except (ConfigurationError, StorageBlocked, OSError) as error:
            self._set_failed("unusable", str(error))

    async def _steps(self, answer: Json, ask: Callable[[], Awaitable[Json]]) -> None:
        self.seeds = self._read_seeds(answer)
        last: IdentityStep | None = None
        for _ in range(MOST_STEPS):
            served = own_keys(answer, self._user_id, self.device())
            step = "wait" if served is None else next_step(served, self.seeds)
            if step in ("wait", "done", "foreign") or step == last:
                break
            last = "upload" if step == "make" else step
            await self._apply_step(step)
            answer = await ask()
        self._set_state(step)

    async def _apply_step(self, step: IdentityStep) -> None:
        if step == "make":
            keep_seeds(self._folder, new_seeds(self._user_id, self._drawn))
            self._made = True
            log.info("identity created")
        # Only seeds that are on disk are used.
        self.seeds = load_seeds(self._folder, self._user_id, proven=True)
        if self.seeds is not None and step == "sign":
            await self._sign(self.seeds, self.device())
        elif self.seeds is not None:
            await self.upload(self.seeds)

    def _read_seeds(self, answer: Json) -> Seeds | None:
        """Read our seeds; if a kill came just after the next identity was accepted, that one."""
        if close_to_others(self._folder):
            log.warning("identity file was readable by others; closed")
        next_identity = next_seeds(self._folder, self._user_id)
        served = cross_signing_key(answer, self._user_id, "master")
        if next_identity is not None and served == next_identity.master.public:
            replace_seeds(self._folder, self._clock)
        return load_seeds(self._folder, self._user_id)

    def _set_state(self, step: IdentityStep) -> None:
        if step == "done" and self.seeds is not None:
            self._session, self._wait = "", 0.0
            key = fingerprint(self.seeds.master.public)
            self.state = IdentityState("ok", f"this device is signed by {key}", True, self._made)
        elif step == "wait":
            self._set_failed("waits", WAITS, APPROVAL_SECONDS)
        elif step == "foreign":
            self._set_failed("foreign", foreign_text(self.seeds))
        else:
            self._set_failed("not kept", NOT_KEPT)

    def _set_failed(self, kind: IdentityTrouble, why: str, seconds: float = AGAIN_SECONDS) -> None:
        if self.state.text != why:
            log.warning("identity problem reason=%s", why)
        passes = kind in ("waits", "unavailable")
        self.state = IdentityState("warn" if passes else "fail", why, kind=kind)
        self._retry_at = self._clock.monotonic() + seconds

    def device(self) -> Json:
        """Return the public keys of our device, without signatures."""
        keys = self._nio.olm.account.identity_keys
        name = self._nio.device_id
        return {
            "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
            "device_id": name,
            "user_id": self._user_id,
            "keys": {f"{kind}:{name}": keys[kind] for kind in ("curve25519", "ed25519")},
        }

    async def upload(self, seeds: Seeds) -> None:
        """Upload an identity, with the password if the homeserver asks for it (X-051).

        Raises: ApprovalNeeded if a person has to act.
        """
        body = self._upload_body(seeds)
        try:
            await self._offer(body)
        except ApprovalNeeded as error:
            self._session = error.session
            if self._password is None or not error.by_password:
                raise
            auth = {
                "type": "m.login.password",
                "identifier": {"type": "m.id.user", "user": self._user_id},
                "password": self._password.reveal(),
                "session": error.session,
            }
            await call(self._nio, "POST", UPLOAD, {**body, "auth": auth})
        log.info("identity uploaded")

    async def _offer(self, body: Json) -> None:
        """Upload with the approved session; without it once that is refused."""
        if self._session:
            try:
                await call(self._nio, "POST", UPLOAD, {**body, "auth": {"session": self._session}})
            except ApprovalNeeded:
                raise
            except SendRefused as error:
                log.info("authentication session refused reason=%s", error)
                self._session = ""
            else:
                return
        await call(self._nio, "POST", UPLOAD, body)

    def _upload_body(self, seeds: Seeds) -> Json:
        """Return the body of the upload: the device signs the master key, which signs the others."""
        bare = {
            usage: {
                "user_id": self._user_id,
                "usage": [usage],
                "keys": {f"{ED25519}{pair.public}": pair.public},
            }
            for usage, pair in zip(USAGES, seeds.pairs, strict=True)
        }
        by_device = {f"{ED25519}{self._nio.device_id}": self._nio.olm.sign_json(bare["master"])}
        return {
            "master_key": with_signature(bare["master"], self._user_id, by_device),
            "self_signing_key": seeds.master.sign(bare["self_signing"], self._user_id),
            "user_signing_key": seeds.master.sign(bare["user_signing"], self._user_id),
        }

    async def sign_all_devices(self) -> None:
        """Sign every device of the account, on a person's request; whoever has the password may own one."""
        for name, served in self._served.items():
            usable = mapping(served).get("device_id") == name
            if usable and self.seeds and not self._has_signed(served):
                await self._sign(self.seeds, unsigned(served))

    async def _sign(self, seeds: Seeds, device: Json) -> None:
        signed = seeds.self_signing.sign(device, self._user_id)
        body = {self._user_id: {device["device_id"]: signed}}
        answer = await call(self._nio, "POST", path("keys", "signatures", "upload"), body)
        failures: Any = answer.get("failures")
        if failures:  # although the status is 200
            problem = f"the signature of our device: {str(failures)[:300]}"
            raise SendRefused(problem, "SIGNATURE_REFUSED")
        log.info("device signed")


def foreign_text(seeds: Seeds | None) -> str:
    """Return what to do about an identity that is not ours."""
    another = "another identity for this account than the one here"
    unknown = "an identity for this account whose seeds are not here"
    return (
        f"the homeserver has {another if seeds else unknown}, so clients may warn about the"
        f" bot's messages or hide them -> restore {FILE} from a backup; or "
        "run `wintermute matrix reset-crypto --identity`, and let everybody verify the bot again"
    )


def approval_text(error: ApprovalNeeded, *, has_password: bool) -> str:
    """Return what a person has to do so that the homeserver accepts our identity (X-051)."""
    begin = "the homeserver wants more than our login before it takes the bot's identity"
    if error.page:
        return f"{begin} -> open {error.page} as the bot, approve, and wait a minute"
    if error.by_password and not has_password:
        return f"{begin} -> write matrix.password in place of matrix.access_token and start again"
    if error.by_password:
        return f"{begin} and refuses matrix.password -> correct it and start again"
    stages = " or ".join("+".join(flow) for flow in error.flows) or "nothing that we know"
    return f"{begin}: {stages[:200]} -> log in as the bot with a client that can do that"


class ReplacedDevices:
    """A filter for devices that have new keys: they pass if their owner's identity signed them.

    Messages encrypted by the old keys stay readable. Nothing is encrypted for the old keys any
    more: a device that serves other keys has lost them.
    """

    def __init__(self, nio: AsyncClient, people: People, identity: CrossSigning) -> None:
        self._nio = nio
        self._people = people
        self._identity = identity
        self._set_failed: dict[tuple[str, str], Device] = {}
        self._news: list[Device] = []

    @property
    def trouble(self) -> str:
        """The number of refused devices of allowed users, as text for the status; "" for none."""
        count = sum(user in self._people.allowed for user, _ in self._set_failed)
        return f"sessions with other keys than before, refused: {count}" if count else ""

    @property
    def users(self) -> frozenset[str]:
        """The users with refused devices."""
        return frozenset(user for user, _ in self._set_failed)

    def refused_of(self, user: str) -> list[Device]:
        """Return the refused devices of a user."""
        return [device for (owner, _), device in self._set_failed.items() if owner == user]

    def take_refused(self) -> list[Device]:
        """Return the devices that were refused since the last call."""
        news, self._news = self._news, []
        return news

    def without_refused(
        self, answer: Json, user: str, devices: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Return a user's devices in an answer to /keys/query without those to refuse, ready for nio.

        nio never accepts another key for a known id, so an accepted device's old entry is deleted.
        """
        store: dict[str, OlmDevice] = self._nio.olm.device_store[user]
        before = {
            key: self._set_failed.pop(key) for key in list(self._set_failed) if key[0] == user
        }
        good: dict[str, Json] = {}
        for name, served in devices.items():
            device, old = device_of(user, name, served), store.get(name)
            if old is None or known(old) == device:
                good[name] = served
            elif self._is_vouched_for(answer, device):
                good[name] = served
                del store[name]
            else:
                self._set_failed[user, name] = device
                self._news += [device] if before.get((user, name)) != device else []
        return good

    def _is_vouched_for(self, answer: Json, device: Device) -> bool:
        if device.user_id == self._nio.user_id:
            return self._identity.vouches_for(device)
        return self._people.vouches(answer, device)
