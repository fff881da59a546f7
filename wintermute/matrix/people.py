"""Cross-signing identities of people, as they were first seen, and the devices that they signed.

A homeserver can replace or remove a person's keys. So the identity of an allowed person is stored
when it is first seen, and another one is trusted only after a command on this machine (X-035). A
homeserver also stores any upload as a device's keys, and nio expects valid ones: only valid keys
are passed on (X-022).

All is pure except for the store, and safe for any input.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal

from vodozemac import Curve25519PublicKey, Ed25519PublicKey, Ed25519Signature

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import columns, insert, reader
from wintermute.errors import WintermuteError
from wintermute.matrix.inbox import string
from wintermute.matrix.signing import ED25519, is_key, is_signed, unsigned
from wintermute.messages import Json, mapping
from wintermute.text import display_name

TrustLevel = Literal["good", "unsigned", "changed", "unseen", "foreign", "replayed"]
"""The trust level of an event.

good: from a verified device, as far as can be known; unsigned: from a device not signed by its
owner; changed or unseen: the sender's identity has changed or was never queried; foreign: not from
a device of the sender; replayed: seen before as another event.
"""
NOT_THEIRS: tuple[TrustLevel, ...] = ("foreign", "replayed")
"""Trust levels of events that stay locked."""
NOBODY = ""
PEOPLE = "SELECT user_id, master_key, changed_to, notified, verified FROM people"
SERVED = "coalesce(excluded.changed_to, excluded.master_key)"
SAME = f"master_key IN ('', {SERVED})"
"""SQL of an upsert: the served identity, and its comparison with the trusted one."""
MOST_DEVICES = 250  # of one person
MOST_SIGNATURES = 1000  # of one person's devices: looked at to see which of them to keep
MOST_CHARS = 10_000  # of one signed object; a usual one has 500
MOST_BRACKETS = 50  # which bounds its depth
MOST_ID_CHARS = 255


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its keys, in unpadded base64."""

    user_id: str
    device_id: str
    ed25519: str
    curve25519: str


@dataclass(frozen=True, slots=True)
class Identity:
    """A person's cross-signing keys as served by the homeserver; empty if there are none.

    `signing`: the self-signing key, if the master key signed it. `sound`: the keys fit together.
    """

    master: str
    signing: str
    sound: bool


@dataclass(frozen=True, slots=True)
class Person:
    """An allowed person whose keys were queried; the master key is empty without an identity.

    `changed_to`: the different identity that is served now, if any.
    """

    user_id: str
    master_key: str
    changed_to: str | None = None
    notified: str | None = None
    verified: str | None = None


@dataclass(frozen=True, slots=True)
class IdentityChanges:
    """The changes of a key query to store; empty if only unsigned devices changed."""

    people: tuple[Person, ...] = ()
    signed: tuple[tuple[Device, str], ...] = ()
    """Devices, each with the master key of the identity that signed it."""


def covered_users(answer: Json, users: Collection[str]) -> set[str]:
    """Return the users whom an answer to /keys/query covers: neither missing nor failed."""
    answered = mapping(answer.get("device_keys"))
    failed = mapping(answer.get("failures"))
    return {u for u in users if u in answered and u.partition(":")[2] not in failed}


def identities(answer: Json, users: Collection[str]) -> dict[str, Identity]:
    """Return the identity of each user in an answer to /keys/query."""
    return {user: _identity(answer, user) for user in covered_users(answer, users)}


def _identity(answer: Json, user: str) -> Identity:
    master = cross_signing_key(answer, user, "master")
    raw = mapping(mapping(answer.get("self_signing_keys")).get(user))
    signing = cross_signing_key(answer, user, "self_signing")
    signed = bool(master and signing) and is_signed(raw, user, master)
    return Identity(master, signing if signed else NOBODY, sound=signed or not raw)


def cross_signing_key(answer: Json, user: str, usage: str) -> str:
    """Return a user's valid public key for a usage, in unpadded base64; "" if there is none."""
    found = mapping(mapping(answer.get(f"{usage}_keys")).get(user))
    usages, keys = found.get("usage"), mapping(found.get("keys"))
    if found.get("user_id") != user or not isinstance(usages, list) or usage not in usages:
        return NOBODY
    (name, key), *more = [*keys.items()] or [(NOBODY, NOBODY)]
    if more or not isinstance(key, str) or name != ED25519 + key:
        return NOBODY
    return key if is_key(Ed25519PublicKey, key) else NOBODY


class People:
    """The known identities of everybody; those of allowed people also as first seen."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.allowed = frozenset(allowed)
        self._stored: dict[str, Person] = {}
        self._served: dict[str, Identity] = {}
        self._devices: dict[str, frozenset[Device]] = {}
        self._signed_now: dict[str, frozenset[Device]] = {}
        self._signed_once: set[tuple[Device, str]] = set()
        self._news: list[IdentityChanges] = []

    def restore(self, people: Iterable[Person], signed: Iterable[tuple[Device, str]]) -> bool:
        """Load the stored people and signatures; return True if a trusted identity has changed."""
        # People who are no longer allowed are skipped; their rows stay in case they return.
        before, self._stored = (
            self._stored,
            {p.user_id: p for p in people if p.user_id in self.allowed},
        )
        self._signed_once |= set(signed)
        keys = [{u: p.master_key for u, p in stored.items()} for stored in (before, self._stored)]
        return keys[0] != keys[1]

    def learn(self, answer: Json, devices: Mapping[str, Mapping[str, Json]]) -> None:
        """Process an answer to /keys/query; `devices` are the valid devices of each user in it."""
        people: list[Person] = []
        signed: set[tuple[Device, str]] = set()
        moved = False
        for user, identity in identities(answer, devices).items():
            self._served[user] = identity
            raw = mapping(mapping(answer.get("device_keys")).get(user))
            everything = {device_of(user, name, each): name for name, each in devices[user].items()}
            now = frozenset(
                device
                for device, name in everything.items()
                if identity.signing and is_signed(mapping(raw.get(name)), user, identity.signing)
            )
            self._signed_now[user] = now
            if user in self.allowed:
                moved |= self._devices.get(user) != everything.keys()
                self._devices[user] = frozenset(everything)
                people += self._update(user, identity)
                signed |= {(device, identity.master) for device in now} - self._signed_once
        self._signed_once |= signed
        if people or signed or moved:
            self._news.append(IdentityChanges(tuple(people), tuple(signed)))

    def _update(self, user: str, identity: Identity) -> list[Person]:
        before = self._stored.get(user)
        person = before if before and before.master_key else Person(user, identity.master)
        same = identity.sound and identity.master == person.master_key
        changed_to = None if same else (identity.master if identity.sound else NOBODY)
        notified = person.notified if changed_to is not None else None
        self._stored[user] = replace(person, changed_to=changed_to, notified=notified)
        return [self._stored[user]] if self._stored[user] != before else []

    def take_changes(self) -> list[IdentityChanges]:
        """Return the changes since the last call."""
        news, self._news = self._news, []
        return news

    @property
    def has_changes(self) -> bool:
        """True if there are changes since the last `take_changes`."""
        return bool(self._news)

    def person(self, user: str) -> Person | None:
        """Find an allowed person whose keys were queried."""
        return self._stored.get(user)

    def note_notified(self, person: Person) -> None:
        """Note that a person has got the notice about their new identity."""
        self._stored[person.user_id] = replace(person, notified=person.changed_to)

    def changed(self) -> list[Person]:
        """Return the people whose identity has changed."""
        return [person for person in self._stored.values() if person.changed_to is not None]

    def is_changed(self, user: str) -> bool:
        """Check if a user's identity has changed."""
        return self._stored.get(user) in self.changed()

    def cross_signs(self, user: str) -> bool:
        """Check if a user has, or had, a cross-signing identity."""
        person = self._stored.get(user)
        return bool((person and person.master_key) or self.master_key(user))

    def master_key(self, user: str) -> str:
        """Return the master key served for a user; "" if there is none."""
        return self._served[user].master if user in self._served else NOBODY

    def trust_level(self, device: Device) -> TrustLevel:
        """Return the trust level of a message from its sender's own device."""
        person = self._stored.get(device.user_id)
        if person is None:
            return "unseen" if device.user_id in self.allowed else "good"
        if person.changed_to is not None:
            return "changed"
        signed = not person.master_key or (device, person.master_key) in self._signed_once
        return "good" if signed else "unsigned"

    def vouches(self, answer: Json, device: Device) -> bool:
        """Check if a device in an answer to /keys/query is signed by its owner's known identity.

        For an allowed user that is the stored identity, for others the served one.
        """
        user = device.user_id
        identity = identities(answer, [user]).get(user)
        if identity is None or not identity.sound or not identity.signing:
            return False
        person = self._stored.get(user)
        known = person.master_key if person else NOBODY
        if user in self.allowed and known != identity.master:
            return False
        return is_signed(answer["device_keys"][user][device.device_id], user, identity.signing)

    def was_looked_for(self, user: str) -> bool:
        """Check if a homeserver has ever served a user's keys."""
        return user in self._stored or user in self._served

    def is_signed_now(self, device: Device) -> bool:
        """Check if a device is signed by its owner's identity now; if unknown, as it was last seen."""
        now = self._signed_now.get(device.user_id)
        if now is not None:
            return device in now
        person = self._stored.get(device.user_id)
        return person is not None and (device, person.master_key) in self._signed_once


def device_of(user: str, device_id: str, keys: Json) -> Device:
    """Return the device of an entry in an answer to /keys/query."""
    named = keys["keys"]
    curve25519, ed25519 = (named.get(f"{kind}:{device_id}") for kind in ("curve25519", "ed25519"))
    return Device(user, device_id, ed25519, curve25519)


_person = reader(Person)
_signed_device = reader(Device)


class PeopleStore:
    """The store of seen identities and signatures."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def people(self) -> list[Person]:
        """Return everybody whose identity was seen."""
        return [_person(row) for row in await self._database.rows(f"{PEOPLE} ORDER BY user_id")]

    async def signed(self) -> list[tuple[Device, str]]:
        """Return all signed devices, each with the master key of its identity."""
        rows = await self._database.rows(
            "SELECT user_id, device_id, ed25519, curve25519, master_key FROM signed_devices"
        )
        return [(_signed_device(row), row["master_key"]) for row in rows]

    async def keep(self, tx: Transaction, learned: IdentityChanges) -> None:
        """Store the changes of a query; an identity that was trusted meanwhile stays trusted."""
        now = stamp(self._clock.now())
        for person in learned.people:
            await tx.execute(
                "INSERT INTO people (user_id, master_key, changed_to, seen_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (user_id) DO UPDATE SET changed_at = ?, master_key ="
                " iif(master_key = '', excluded.master_key, master_key),"
                f" changed_to = iif({SAME}, NULL, {SERVED}), notified = iif({SAME}, NULL, notified)",
                (person.user_id, person.master_key, person.changed_to, now, now),
            )
        for device, master_key in learned.signed:
            values = columns(device) | {"master_key": master_key, "seen_at": now}
            await tx.execute(*insert("signed_devices", values, "ON CONFLICT DO NOTHING"))

    async def store_notified(self, tx: Transaction, person: Person) -> None:
        """Store that a person has got the notice about their new identity."""
        await tx.execute(
            "UPDATE people SET notified = ? WHERE user_id = ?", (person.changed_to, person.user_id)
        )

    async def store_verified(
        self, tx: Transaction, user_id: str, master_key: str, ours: str
    ) -> None:
        """Store that a person has verified us, with their identity and ours at that time."""
        await tx.execute(
            "UPDATE people SET verified = ?, ours = ? WHERE user_id = ?",
            (master_key, ours, user_id),
        )

    async def forget_other_verifications(self, tx: Transaction, master_key: str) -> None:
        """Delete verifications of an identity of ours other than this one."""
        await tx.execute(
            "UPDATE people SET verified = NULL, ours = NULL WHERE ours <> ?", (master_key,)
        )

    async def trust(self, tx: Transaction, user_id: str) -> Person:
        """Trust the new identity of a person who got the notice. Returns the person as before.

        Raises: WintermuteError, with a message for the user.
        """
        row = await tx.row(f"{PEOPLE} WHERE user_id = ?", (user_id,))
        if row is None or not row["master_key"]:
            raise WintermuteError(
                f"Wintermute saw no identity of {user_id}: write the whole Matrix id of an allowed "
                "person, such as @ann:example.org"
            )
        person = _person(row)
        if person.changed_to is None:
            raise WintermuteError(
                f"the identity of {user_id} has not changed as far as the bot has seen: nothing to "
                "trust (is the daemon running?)"
            )
        if person.notified != person.changed_to:
            raise WintermuteError(
                f"{user_id} has no notice about this identity yet, or it has changed again: wait"
                " for the notice, compare the fingerprint with them, and run this again"
            )
        await tx.execute(
            "UPDATE people SET master_key = changed_to, changed_to = NULL, notified = NULL,"
            " changed_at = ? WHERE user_id = ?",
            (stamp(self._clock.now()), user_id),
        )
        return person


def fingerprint(key: str) -> str:
    """Format a key in groups of four, for people to compare."""
    return " ".join(key[n : n + 4] for n in range(0, len(key), 4))


def is_token(value: object) -> bool:
    """Check if a user's or device's id is safe in nio's trust files, whose fields are split at blanks."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MOST_ID_CHARS
        and value.isprintable()
        and " " not in value
    )


def usable_devices(
    raw: Json, asked: Collection[str], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[dict[str, dict[str, Json]], int]:
    """Return the valid devices of each user in an answer to /keys/query, and the number of dropped ones.

    `before`: the known devices of a user, oldest first; if there are too many they are dropped
    last.
    """
    answered = mapping(raw.get("device_keys"))
    found: dict[str, dict[str, Json]] = {}
    dropped = 0
    for user in asked:
        devices = answered.get(user)
        if not isinstance(devices, dict):
            continue
        names = _by_priority(raw, user, devices, before.get(user, ()))
        checked = ((name, _device(devices[name], user, name)) for name in names)
        good = ((name, device) for name, device in checked if device is not None)
        found[user] = dict(islice(good, MOST_DEVICES))
        dropped += len(devices) - len(found[user])
    return found, dropped


def _by_priority(raw: Json, user: str, devices: Json, before: Sequence[str]) -> list[str]:
    """Sort device names: signed ones first, then those known for the longest time."""
    if len(devices) <= MOST_DEVICES:
        return sorted(devices)
    rank = {name: number for number, name in enumerate(before)}
    names = sorted(devices, key=lambda name: (rank.get(name, len(rank)), name))
    identity = identities(raw, [user]).get(user)
    key = identity.signing if identity else ""
    signed = {
        name for name in names[:MOST_SIGNATURES] if is_signed(mapping(devices[name]), user, key)
    }
    return sorted(names, key=lambda name: name not in signed)


def usable_one_time_keys(
    raw: Json, asked: Mapping[str, Collection[str]]
) -> tuple[list[tuple[str, str, Json]], int]:
    """Return user, device and key of each valid key in an answer to /keys/claim, and the dropped number."""
    answered = mapping(raw.get("one_time_keys"))
    given = [
        (user, device, _one_time_key(served[device], user, device))
        for user, devices in asked.items()
        for served in [mapping(answered.get(user))]
        for device in devices
        if device in served
    ]
    good = [(user, device, key) for user, device, key in given if key is not None]
    return good, len(given) - len(good)


def _device(raw: object, user: str, name: str) -> Json | None:
    signed = _signed(raw, user, name)
    if signed is None or not is_token(name):
        return None
    if (signed.get("user_id"), signed.get("device_id")) != (user, name):
        return None
    keys = mapping(signed.get("keys"))
    kinds = {"ed25519": Ed25519PublicKey, "curve25519": Curve25519PublicKey}
    usable = all(is_key(kinds[kind], keys.get(f"{kind}:{name}")) for kind in kinds)
    named = display_name(string(mapping(mapping(raw).get("unsigned")), "device_display_name"))
    extra: Json = {"unsigned": {"device_display_name": named}} if named else {}  # for notices alone
    return signed | extra if usable else None


def _one_time_key(raw: object, user: str, device: str) -> Json | None:
    for name, value in mapping(raw).items():
        signed = _signed(value, user, device)
        if signed is not None and name.startswith("signed_curve25519:"):
            return {name: signed} if is_key(Curve25519PublicKey, signed.get("key")) else None
    return None


def _signed(raw: object, user: str, device: str) -> Json | None:
    """Return an object with only the signature of this device; None if it cannot be checked."""
    found = mapping(raw)
    signature = mapping(mapping(found.get("signatures")).get(user)).get(f"ed25519:{device}")
    signed = unsigned(found)
    if not is_key(Ed25519Signature, signature) or not _is_plain(signed):
        return None
    return signed | {"signatures": {user: {f"ed25519:{device}": signature}}}


def _is_plain(value: Json) -> bool:
    """Check if an object can be encoded as it was signed, and is not too long or too deep."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return len(text) <= MOST_CHARS and text.count("[") + text.count("{") <= MOST_BRACKETS
